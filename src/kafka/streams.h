/* A set of streams (topic and key), kept as 64-bit hashes: two that collide only make an event wait for its next turn.
 * Empty it costs nothing; the bytes are not kept. */
#ifndef OUTBOXD_STREAMS_H
#define OUTBOXD_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event.h"

struct streams {
    uint64_t *slots; /* 0: free */
    size_t n, cap;   /* cap: a power of two, or 0 */
};

void streams_add(struct streams *streams, const char *topic, struct slice key);
bool streams_has(const struct streams *streams, const char *topic, struct slice key);

/* An event belongs to the streams of all its topics. */
void streams_add_event(struct streams *streams, const struct event *event);
bool streams_touch_event(const struct streams *streams, const struct event *event);

void streams_clear(struct streams *streams); /* keeps the memory */
void streams_done(struct streams *streams);

#endif
