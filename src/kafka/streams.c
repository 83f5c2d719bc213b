#include "streams.h"

#include <stdlib.h>
#include <string.h>

#include "str.h"

static uint64_t hash_bytes(uint64_t hash, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)data[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t hash_stream(const char *topic, struct slice key)
{
    /* The terminator of the topic keeps ("ab", "c") and ("a", "bc") apart. */
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, topic, strlen(topic) + 1);

    hash = hash_bytes(hash, key.data, key.len);
    hash ^= hash >> 29;
    return hash ? hash : 1;
}

static uint64_t *find_slot(const struct streams *streams, uint64_t hash)
{
    size_t i = (size_t)hash & (streams->cap - 1);

    while (streams->slots[i] && streams->slots[i] != hash)
        i = (i + 1) & (streams->cap - 1);
    return &streams->slots[i];
}

static void grow(struct streams *streams)
{
    struct streams bigger = {.n = streams->n, .cap = streams->cap ? streams->cap * 2 : 64};

    bigger.slots = mem_alloc(bigger.cap * sizeof(*bigger.slots));
    for (size_t i = 0; i < streams->cap; i++)
        if (streams->slots[i])
            *find_slot(&bigger, streams->slots[i]) = streams->slots[i];
    free(streams->slots);
    *streams = bigger;
}

void streams_add(struct streams *streams, const char *topic, struct slice key)
{
    if (streams->n * 2 >= streams->cap)
        grow(streams);
    uint64_t hash = hash_stream(topic, key);
    uint64_t *slot = find_slot(streams, hash);
    streams->n += *slot == 0;
    *slot = hash;
}

bool streams_has(const struct streams *streams, const char *topic, struct slice key)
{
    return streams->n && *find_slot(streams, hash_stream(topic, key));
}

void streams_add_event(struct streams *streams, const struct event *event)
{
    for (size_t i = 0; i < event->route.n; i++)
        streams_add(streams, route_topic(&event->route, i), event->key);
}

bool streams_touch_event(const struct streams *streams, const struct event *event)
{
    for (size_t i = 0; streams->n && i < event->route.n; i++)
        if (streams_has(streams, route_topic(&event->route, i), event->key))
            return true;
    return false;
}

void streams_clear(struct streams *streams)
{
    if (streams->n)
        memset(streams->slots, 0, streams->cap * sizeof(*streams->slots));
    streams->n = 0;
}

void streams_done(struct streams *streams)
{
    free(streams->slots);
    *streams = (struct streams){0};
}
