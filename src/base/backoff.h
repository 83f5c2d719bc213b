/* Exponential backoff with jitter: base * 2^n up to cap, then a random share between half and all of it, so that
 * a hundred sidecars do not come back in step. */
#ifndef OUTBOXD_BACKOFF_H
#define OUTBOXD_BACKOFF_H

#include <stdint.h>

struct backoff {
    int64_t base_ms, cap_ms;
    unsigned tries;
};

int64_t backoff_delay(int64_t base_ms, int64_t cap_ms, unsigned tries); /* jittered; tries = 0 for the first */
int64_t backoff_next(struct backoff *backoff);                          /* delay, and count this try */
void backoff_reset(struct backoff *backoff);

#endif
