/* claim: lock lanes, take rows, and find out which of them must wait.
 *
 * The promise that everything else rests on: when a batch is read, every event of it either has no earlier unfinished
 * event in any of its streams outside the batch, or is marked VERDICT_HELD. Whoever changes an unfinished row holds its
 * lane, so this stays true until COMMIT. docs/ARCHITECTURE.md, "The claim", has the argument. */
#ifndef OUTBOXD_CLAIM_H
#define OUTBOXD_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "batch.h"
#include "pg.h"

struct parked_topic {
    char *topic, *reason;
    bool draining;
    bool probe_due, idle_probe; /* idle: it was due, and there was no row to try it with */
    int probes, probe_lane;
};

struct stuck_stream_topic { /* some FAILED row of this topic is not ready in this lane */
    int lane;
    char *topic;
};

#define NO_PROBE (-1) /* instead of a lane */

struct claim {
    /* Settings. */
    int batch_size;
    int64_t batch_bytes;
    int64_t largest_row; /* no message can be made of a larger one, however its JSON is written */
    int max_retries;
    bool ordered, dead_blocks;
    int delivery_timeout_ms; /* the transaction may stay idle this long and 10 s more */

    /* Carried from claim to claim. */
    int first;     /* the lane to begin with: rotates */
    bool promote;  /* a backoff has ended: make such rows ready */
    bool draining; /* a topic drains: leave half the batch to it */
    int probe;     /* the lane that the next claim takes alone, to try the parked topics that are due there */
    int wary; /* so many claims more take few rows and measure the digits of their JSON: there is a row that PostgreSQL
                    * could not hand out */

    /* Of the last look or claim. */
    int due;       /* a lane that asks for a probe */
    bool troubled; /* FAILED rows in our lanes, or parked topics anywhere */
    struct parked_topic *parked;
    size_t n_parked;
    struct stuck_stream_topic *stuck;
    size_t n_stuck;
    int64_t now_us; /* PostgreSQL's now(), in microseconds since 2000 */
};

/* Is there work? Read-only, no locks, no xid. ret_ready: rows ready, counted up to `enough`; ret_other: a backoff ended or a
 * topic drains; claim->due: a probe is due. */
enum result claim_look(struct pg *pg, struct claim *claim, int enough, int *ret_ready, bool *ret_other,
                       struct error *err) CHECK_RESULT;

/* Queues BEGIN to the reading of rows; goes into the pipeline behind the marks of the batch before. Takes at most `lanes`, and
 * only claim->probe when that is one: a topic may let its probe wait, and the other lanes must not wait with it. */
enum result claim_queue(struct pg *pg, struct claim *claim, int lanes, struct error *err) CHECK_RESULT;

/* Reads the answers of claim_queue (after pg_sync and whatever was queued before it) and ends the pipeline. In a troubled
 * lane it asks further. Then the batch is sorted, and every event that must not be sent has its verdict. */
enum result claim_read(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err) CHECK_RESULT;

int claim_rows(const struct claim *claim); /* that the next claim may take */
const struct parked_topic *claim_parked(const struct claim *claim, const char *topic);
bool claim_stuck(const struct claim *claim, int lane, const char *topic);
void claim_done(struct claim *claim);

#endif
