/* The rows that a worker holds locked, in the order in which they may be sent.
 *
 * Sorted by (lane, seq). The batch owns what the slices of its events point into; Kafka only borrows the bytes, so a
 * batch may go only when no report is out (or the handle that borrowed is destroyed). */
#ifndef OUTBOXD_BATCH_H
#define OUTBOXD_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event.h"

struct batch {
    struct event *events;
    size_t n, cap;
    uint32_t lanes;      /* bit set of the lanes that we hold */
    bool waiting;        /* some FAILED or DEAD row stands in one of our lanes: followers may exist */
    bool full;           /* there was more to take */
    struct batch_owned { /* what the slices point into */
        void *memory;
        void (*free)(void *);
    } owned[4]; /* the claim reads at most this many results */
    size_t n_owned;
};

void batch_init(struct batch *batch);
struct event *batch_add(struct batch *batch); /* zeroed; pointers to earlier events go stale */
void batch_sort(struct batch *batch);         /* by (lane, seq) */
void batch_own(struct batch *batch, void *memory, void (*free)(void *)); /* NULL memory: nothing */
void batch_clear(struct batch *batch);                                   /* ready for the next claim; keeps the array */
void batch_done(struct batch *batch);

/* Called before publishing and again after settle. Walks the batch in order: an event that is left, held, parked or
 * refused (or, before publishing, one that was not taken or must wait) blocks the later events of every stream it belongs
 * to, and those block theirs. A blocked event that is not SENT gets VERDICT_HELD, with why_wait and reason, when something
 * that blocks it is written down (held, parked, refused, dying with `dead_blocks`), VERDICT_LEFT when that is only left.
 * A row that was not taken becomes LEFT and blocks as if it were held (what
 * stands behind it must leave the claim's way), one that must wait HELD. An event that dies (event_dies) blocks only with
 * `dead_blocks`. With nothing to block it only looks at each verdict.
 * `ordered` false (OUTBOX_ORDERING=none): only rows that were not taken become LEFT. */
void batch_hold_followers(struct batch *batch, bool ordered, bool dead_blocks);

#endif
