/* The end of a program that runs until it is told: SIGTERM and SIGINT come out of a descriptor, which every wait of the main
 * thread can watch. A second signal, or the end of OUTBOX_SHUTDOWN_TIMEOUT, ends the wait for its threads. */
#ifndef OUTBOXD_STOP_H
#define OUTBOXD_STOP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum ended {
    ENDED_STOPPED,   /* what was in flight is finished */
    ENDED_ABANDONED, /* stopped, but threads still run: leave without cleaning up. Nothing is lost by it. */
    ENDED_REFUSED,   /* configuration or schema: the caller has the error */
};

/* On the main thread, before any other exists: both are blocked in all that come. -1: no descriptor, errno says why. */
int stop_open(void);

bool stop_nap(int fd, int64_t ms); /* true: a signal is there */
void stop_take(int fd);            /* tells the log which one it was; the next is a second one */

/* Waits for a thread until `deadline` (clock_ms). false, after telling the log why: time is up, or a second signal came.
 * again: what happens to what was in flight at the next start, "sent" or "consumed". */
bool stop_join(int fd, pthread_t thread, int64_t deadline, const char *again);

#endif
