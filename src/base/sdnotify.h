/* Tells systemd how we are (sd_notify(3)): a datagram to $NOTIFY_SOCKET. Without one nothing happens. */
#ifndef OUTBOXD_SDNOTIFY_H
#define OUTBOXD_SDNOTIFY_H

#include <stdint.h>

void sdnotify(const char *format, ...) __attribute__((format(printf, 1, 2))); /* "READY=1\nSTATUS=relaying" */

/* How often systemd waits for WATCHDOG=1, in ms; 0: it does not. */
int64_t sdnotify_watchdog_ms(void);

#endif
