/* mark: what became of the events of a batch goes into their rows, in the transaction that holds their lanes. */
#ifndef OUTBOXD_MARK_H
#define OUTBOXD_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "batch.h"
#include "claim.h"
#include "pg.h"

struct mark_options {
    bool delete_sent;
    bool dead_blocks;
    int64_t retry_base_ms, retry_max_ms;
};

struct marks { /* what was queued and so must be answered; after mark_read: what is now in the database */
    size_t sent, failed, dead, held;
    int answers;
    int sent_at; /* which answer is that of the SENT rows; -1: none */
    int64_t oldest_ms;
};

/* Queues the UPDATEs and COMMIT. Nothing is written for LEFT events. The batch is not needed afterwards. */
enum result mark_queue(struct pg *pg, const struct claim *claim, const struct batch *batch,
                       const struct mark_options *options, struct marks *ret, struct error *err) CHECK_RESULT;

/* Reads their answers, COMMIT's included; not the end of the pipeline. */
enum result mark_read(struct pg *pg, const struct marks *marks, struct error *err) CHECK_RESULT;

/* The release of followers, for others who take the head of a stream away: lanes, topics and keys of the streams as arrays,
 * then how many rows of a stream at most. */
extern const struct statement mark_release;

#endif
