/* What a consumer has in hand: messages that Kafka gave out and that are not all settled.
 *
 * Three orders are kept here. By partition: the offset that may be committed is that of the first message that is not
 * settled. By stream (topic and key): behind a message that failed, the later ones of its stream wait in their order. And the
 * ready queue: what may be worked on, oldest first. Messages without a key wait for nobody and nobody waits for them.
 * No librdkafka, no libpq: consume.c connects it to both. One thread. */
#ifndef OUTBOXD_HAND_H
#define OUTBOXD_HAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "consumer.h"

struct arrival;

struct partition {
    struct partition *next;
    char *topic;
    int number;
    bool assigned, paused;
    struct arrival *first, *last; /* not all settled, by offset */
    size_t held;                  /* messages from first to last */
    size_t waiting;               /* of them in streams */
    int64_t next_offset;          /* behind the last one that came; -1: none came */
    int64_t position;             /* what may be committed; -1: nothing yet */
    int64_t committed;            /* what was */
};

struct stream {
    struct stream *next, *previous, *in_bucket;
    char *topic;
    struct slice key; /* owned; data NULL: a single message without a key */
    uint64_t hash;
    struct arrival *head, *first, *last; /* the one that failed; those behind it */
    int64_t due;                         /* clock_ms: when the head is tried again */
    bool trying;                         /* the head is in the batch */
};

enum outcome {
    OUTCOME_NONE,
    OUTCOME_HANDLED,
    OUTCOME_DUPLICATE,
    OUTCOME_FAILED, /* tried again after a pause */
    OUTCOME_DEAD,
    OUTCOME_HELD, /* behind one that failed in the same batch */
};

struct arrival {
    struct letter letter;
    struct partition *partition;
    char *id;
    struct arrival *next_offset, *next_ready, *next_follower;
    struct stream *stream; /* as head or follower; NULL: in none */
    size_t bytes;
    unsigned attempts; /* failed ones */
    bool settled;
    bool in_batch;
    bool dropped; /* its partition went while it was in the batch */

    /* Of the batch that is being worked on. */
    size_t place; /* in the batch */
    enum outcome outcome;
    bool first_time;
    char *error; /* of FAILED and DEAD */
};

struct hand {
    struct partition *partitions;
    struct arrival *ready_first, *ready_last;
    size_t ready, ready_bytes;
    struct stream *streams;
    struct stream **buckets;
    size_t waiting, waiting_bytes; /* heads and followers */
};

void hand_init(struct hand *hand);
void hand_done(struct hand *hand);

struct partition *hand_partition(struct hand *hand, const char *topic, int number); /* made when new */
void hand_assign(struct hand *hand, struct partition *partition);
/* Everything of the partition is dropped; whoever gets it next starts at its committed offset. */
void hand_revoke(struct hand *hand, struct partition *partition);

/* Takes a letter over, to the end of the ready queue. A letter that comes again (librdkafka went back) takes the place of what
 * was in hand from its offset on. false: of a partition that is not ours; the letter was released. */
bool hand_admit(struct hand *hand, struct letter *letter, char *id);

/* The batch: heads that are due, then what is ready, in order; who finds its stream blocked goes behind it instead. Adds to
 * `batch` until it has `max` messages or `max_bytes` bytes (one always fits) and returns the new count. */
size_t hand_take(struct hand *hand, struct arrival **batch, size_t max, size_t max_bytes, int64_t now);
int64_t hand_next_due(const struct hand *hand); /* of the heads that are not in the batch; MS_FOREVER: none */

/* The stream that an arrival would have to wait in, NULL: it is not blocked. */
struct stream *hand_blocked(const struct hand *hand, const struct arrival *arrival);

/* The end of a batch: applies the outcomes (NONE goes back to the front of the ready queue, in order) and frees what is
 * over. `due(arg, arrival)` says when a failed one is tried again. */
void hand_settle(struct hand *hand, struct arrival **batch, size_t n, int64_t (*due)(void *arg, const struct arrival *),
                 void *arg);

/* Undoes the outcomes: the batch will be worked on once more. Returns how many are left, without those that were dropped. */
size_t hand_again(struct hand *hand, struct arrival **batch, size_t n);

#endif
