#include "batch.h"

#include <stdlib.h>
#include <string.h>

#include "str.h"

#define WAITS_BEHIND "waits behind an earlier event of its stream"

void batch_init(struct batch *batch)
{
    *batch = (struct batch){0};
}

struct event *batch_add(struct batch *batch)
{
    if (batch->n == batch->cap) {
        batch->cap = batch->cap ? batch->cap * 2 : 256;
        batch->events = mem_grow(batch->events, batch->cap, sizeof(*batch->events));
    }
    struct event *event = &batch->events[batch->n++];
    memset(event, 0, sizeof(*event));
    return event;
}

static int compare_events(const void *va, const void *vb)
{
    const struct event *a = va, *b = vb;

    if (a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}

void batch_sort(struct batch *batch)
{
    size_t i = 1;

    /* The claim mostly delivers them in order; an event is large, so look before moving. */
    while (i < batch->n && compare_events(&batch->events[i - 1], &batch->events[i]) <= 0)
        i++;
    if (i < batch->n)
        qsort(batch->events, batch->n, sizeof(*batch->events), compare_events);
}

void batch_own(struct batch *batch, void *memory, void (*free_memory)(void *))
{
    if (!memory)
        return;
    if (batch->n_owned == ARRAY_LEN(batch->owned))
        abort(); /* a claim that reads more than it says */
    batch->owned[batch->n_owned++] = (struct batch_owned){memory, free_memory};
}

void batch_clear(struct batch *batch)
{
    for (size_t i = 0; i < batch->n; i++)
        event_done(&batch->events[i]);
    for (size_t i = 0; i < batch->n_owned; i++)
        batch->owned[i].free(batch->owned[i].memory);
    *batch = (struct batch){.events = batch->events, .cap = batch->cap};
}

void batch_done(struct batch *batch)
{
    batch_clear(batch);
    free(batch->events);
    *batch = (struct batch){0};
}

/* The blocked streams: a hash set of (topic, key) with open addressing, made when the first one is blocked. */

struct stream {
    const char *topic; /* NULL: free */
    struct slice key;
    uint64_t hash;
    enum verdict effect; /* on followers: VERDICT_HELD or VERDICT_LEFT */
};

struct stream_set {
    struct stream *slots;
    size_t n, cap; /* cap: a power of two, or 0 */
};

static uint64_t hash_bytes(uint64_t hash, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)data[i]) * 0x100000001b3u;
    return hash;
}

static struct stream *find_stream(const struct stream_set *set, const char *topic, struct slice key, uint64_t hash)
{
    for (size_t i = (size_t)hash;; i++) {
        struct stream *slot = &set->slots[i & (set->cap - 1)];
        if (!slot->topic)
            return slot;
        if (slot->hash == hash && slot->key.len == key.len &&
            (key.len == 0 || memcmp(slot->key.data, key.data, key.len) == 0) && str_eq(slot->topic, topic))
            return slot;
    }
}

static uint64_t hash_stream(const char *topic, struct slice key)
{
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, key.data, key.len);
    hash = hash_bytes(hash * 31, topic, strlen(topic));
    return hash ^ (hash >> 32);
}

static void grow_set(struct stream_set *set)
{
    struct stream_set bigger = {.n = set->n, .cap = set->cap ? set->cap * 2 : 64};

    bigger.slots = mem_alloc(bigger.cap * sizeof(*bigger.slots));
    for (size_t i = 0; i < set->cap; i++)
        if (set->slots[i].topic)
            *find_stream(&bigger, set->slots[i].topic, set->slots[i].key, set->slots[i].hash) = set->slots[i];
    free(set->slots);
    *set = bigger;
}

static void block_streams(struct stream_set *set, const struct event *event, enum verdict effect)
{
    for (size_t i = 0; i < event->route.n; i++) {
        if (set->n * 2 >= set->cap)
            grow_set(set);
        const char *topic = route_topic(&event->route, i);
        uint64_t hash = hash_stream(topic, event->key);
        struct stream *stream = find_stream(set, topic, event->key, hash);
        if (!stream->topic) {
            *stream = (struct stream){.topic = topic, .key = event->key, .hash = hash};
            set->n++;
        }
        if (effect > stream->effect)
            stream->effect = effect;
    }
}

/* The strongest effect that the blocked streams have on this event; VERDICT_NONE: it is free. */
static enum verdict effect_on(const struct stream_set *set, const struct event *event)
{
    enum verdict effect = VERDICT_NONE;

    for (size_t i = 0; set->n && i < event->route.n; i++) {
        const char *topic = route_topic(&event->route, i);
        struct stream *stream = find_stream(set, topic, event->key, hash_stream(topic, event->key));
        if (stream->topic && stream->effect > effect)
            effect = stream->effect;
    }
    return effect;
}

/* How the event, with the verdict it has, affects those behind it. */
static enum verdict effect_of(const struct event *event, bool dead_blocks)
{
    switch (event->verdict) {
    case VERDICT_NONE:
    case VERDICT_SENT:
        return VERDICT_NONE;
    case VERDICT_LEFT:
        return event->taken ? VERDICT_LEFT : VERDICT_HELD;
    case VERDICT_HELD:
    case VERDICT_PARK:
        return VERDICT_HELD;
    case VERDICT_REFUSED:
    case VERDICT_DEAD:
        return event_dies(event) && !dead_blocks ? VERDICT_NONE : VERDICT_HELD;
    }
    return VERDICT_LEFT;
}

static void set_waiting(struct event *event, enum verdict verdict)
{
    if (verdict == event->verdict)
        return;
    str_free(&event->reason);
    event->blame = NULL;
    event->verdict = verdict;
    if (verdict == VERDICT_HELD) {
        if (!event->why_wait)
            event->why_wait = WAITS_BEHIND;
        event->reason = str_dup(event->why_wait);
    }
}

/* A row that we do not hold cannot be written; what the claim found waiting is written down as that. */
static void judge_claim(struct event *event, bool ordered)
{
    if (event->verdict == VERDICT_SENT)
        return;
    if (!event->taken)
        set_waiting(event, VERDICT_LEFT);
    else if (ordered && event->must_wait)
        set_waiting(event, VERDICT_HELD);
}

void batch_hold_followers(struct batch *batch, bool ordered, bool dead_blocks)
{
    struct stream_set blocked = {0};

    for (size_t i = 0; i < batch->n; i++) {
        struct event *event = &batch->events[i];
        judge_claim(event, ordered);
        if (!ordered)
            continue;
        if (blocked.n && event->verdict != VERDICT_SENT && event->taken) {
            enum verdict effect = effect_on(&blocked, event);
            if (effect != VERDICT_NONE && event->verdict != VERDICT_HELD)
                set_waiting(event, effect);
        }
        enum verdict effect = effect_of(event, dead_blocks);
        if (effect != VERDICT_NONE)
            block_streams(&blocked, event, effect);
    }
    free(blocked.slots);
}
