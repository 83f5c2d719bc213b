#include "backoff.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

/* A small generator a thread: jitter needs to differ between daemons, not to be secret. */
static uint64_t jitter_random(void)
{
    static _Thread_local uint64_t state;

    if (state == 0 && getrandom(&state, sizeof(state), GRND_NONBLOCK) != (ssize_t)sizeof(state)) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = (uint64_t)now.tv_nsec ^ (uint64_t)(uintptr_t)&state;
    }
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t backoff_delay(int64_t base_ms, int64_t cap_ms, unsigned tries)
{
    int64_t delay = base_ms;

    for (unsigned i = 0; i < tries && delay < cap_ms; i++)
        delay = delay > cap_ms / 2 ? cap_ms : delay * 2;
    if (delay > cap_ms)
        delay = cap_ms;
    if (delay <= 1)
        return delay < 0 ? 0 : delay;
    int64_t half = delay / 2;
    return delay - (int64_t)(jitter_random() % (uint64_t)(half + 1));
}

int64_t backoff_next(struct backoff *backoff)
{
    return backoff_delay(backoff->base_ms, backoff->cap_ms, backoff->tries++);
}

void backoff_reset(struct backoff *backoff)
{
    backoff->tries = 0;
}
