/* Monotonic time in the daemon. Wall clock time that decides anything is PostgreSQL's, never ours. */
#ifndef OUTBOXD_CLOCK_H
#define OUTBOXD_CLOCK_H

#include <stdint.h>

#define MS_FOREVER INT64_MAX

int64_t clock_us(void);      /* monotonic microseconds */
int64_t clock_ms(void);      /* monotonic milliseconds */
int64_t clock_wall_ms(void); /* Unix time: for ULIDs and log lines only */

/* Milliseconds from now until `deadline` (of clock_ms), 0 when it has passed, at most INT_MAX: fit for poll(2). */
int clock_left_ms(int64_t deadline);

#endif
