/* What a consumer has in hand: messages that Kafka gave out and that are not all settled.
 *
 * Three orders are kept here. By partition: the offset that may be committed is that of the first message that is not
 * settled. By stream (topic and key): behind a message that failed, the later ones of its stream wait in their order, and when it
 * is over they take turns with everything else. And the ready queue: what never waited, oldest first. Messages without a key
 * wait for nobody and nobody waits for them.
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
    struct arrival *head;         /* the one that failed; NULL: it is over, and the others may go on */
    struct arrival *first, *last; /* those behind it that are not in the batch */
    size_t members;               /* all of them; without one the stream goes */
    int64_t due;                  /* clock_ms: when the head is tried again */
};

enum outcome {
    OUTCOME_NONE,
    OUTCOME_HANDLED,
    OUTCOME_DUPLICATE,
    OUTCOME_DEAD,
    OUTCOME_FAILED,  /* an attempt more; tried again after a pause */
    OUTCOME_UNLUCKY, /* the same, but perhaps by no fault of its own: no attempt */
    OUTCOME_ASIDE,   /* the connection ended with it: no attempt, and alone after a pause */
    OUTCOME_ALONE,   /* it may be the others of the batch: tried again without them, no attempt */
    OUTCOME_HELD,    /* behind one that failed in the same batch */
    OUTCOMES,
};
static inline bool outcome_is_final(enum outcome outcome)
{
    return outcome >= OUTCOME_HANDLED && outcome <= OUTCOME_DEAD;
}
static inline bool outcome_is_failure(enum outcome outcome)
{
    return outcome >= OUTCOME_FAILED && outcome <= OUTCOME_ALONE;
}

struct arrival {
    struct letter letter;
    struct partition *partition;
    char *id;
    struct arrival *next_offset, *next_ready, *next_follower;
    struct stream *stream; /* as head or follower; NULL: in none */
    size_t bytes;
    unsigned attempts; /* failed ones */
    unsigned unlucky;  /* failures that did not count as one */
    bool alone;        /* as a head: its next try is a batch of its own */
    bool doomed;       /* given up with `error`: only its burial is outstanding */
    bool settled;
    bool in_batch;
    bool dropped; /* its partition went while it was in the batch */

    /* Of the batch that is being worked on. */
    size_t place; /* in the batch */
    enum outcome outcome;
    bool first_time;
    char *error; /* of a failure and of DEAD */
};

struct hand {
    struct partition *partitions;
    struct arrival *ready_first, *ready_last;
    size_t ready, ready_bytes;
    struct stream *streams, *last_stream; /* in the order in which they take their turns */
    struct stream **buckets;
    size_t n_streams;
    size_t waiting, waiting_bytes; /* heads and followers */
    size_t settled;                /* behind one of their partition that is not */
    bool turn;                     /* of those that wait */
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

/* The next batch, at most `max` messages and `max_bytes` bytes (one always fits): what waits and may go on has half of it when
 * there is enough else, the rest is what is ready, in order; who finds its stream blocked goes behind it instead. A head that is
 * to be tried alone is a batch of its own, every other time. Returns the number of messages. */
size_t hand_take(struct hand *hand, struct arrival **batch, size_t max, size_t max_bytes, int64_t now);
int64_t hand_next_due(const struct hand *hand); /* of the heads that are not in the batch; MS_FOREVER: none */

/* The end of a batch: applies the outcomes (NONE and HELD go back to where they came from, in order) and frees what is
 * over. `due(arg, arrival)` says when a failed one is tried again. */
void hand_settle(struct hand *hand, struct arrival **batch, size_t n, int64_t (*due)(void *arg, const struct arrival *),
                 void *arg);

/* Undoes the outcomes: the batch will be worked on once more. Returns how many are left, without those that were dropped. */
size_t hand_again(struct arrival **batch, size_t n);

#endif
