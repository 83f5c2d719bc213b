/* What the consuming thread and the main thread share: the wish to stop, and how the consumer is. Any thread. */
#ifndef OUTBOXD_DUTY_H
#define OUTBOXD_DUTY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

struct duty {
    int stop_fd; /* readable for ever once a stop was asked for */
    _Atomic bool stopping;
    _Atomic int64_t busy_until; /* clock_ms: until when the present step may take */
    _Atomic int partitions;
    pthread_mutex_t lock;
    char trouble[600]; /* why nothing is consumed; "": it is */
};

enum result duty_init(struct duty *duty, struct error *err) CHECK_RESULT;
void duty_done(struct duty *duty);

void duty_stop(struct duty *duty);
static inline bool duty_stopping(struct duty *duty)
{
    return atomic_load(&duty->stopping);
}

void duty_beat(struct duty *duty, int64_t step_ms); /* alive; the next step takes at most step_ms */
bool duty_alive(struct duty *duty);                 /* for the watchdog */

void duty_trouble(struct duty *duty, const char *trouble); /* NULL: none */
bool duty_ready(struct duty *duty, char *ret, size_t size);

#endif
