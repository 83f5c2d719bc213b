/* What stands in the way in a troubled lane: parked topics, and streams with an unfinished row outside the batch. Also where
 * held rows come back from: probes of parked topics, and the queues of draining ones. */
#ifndef OUTBOXD_OBSTACLES_H
#define OUTBOXD_OBSTACLES_H

#include "claim.h"

/* Adds the rows that stand before taken ones in their lanes and that another session holds: of each stream the first. */
enum result obstacles_skipped(struct pg *pg, const struct claim *claim, struct batch *batch,
                              struct error *err) CHECK_RESULT;

/* Adds due probes and rows of draining topics to the batch; gives VERDICT_HELD to events that must wait. */
enum result obstacles_find(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err) CHECK_RESULT;
void obstacles_clear(struct claim *claim);

/* A row into the batch; one that is larger than any message comes without its bytes and is DEAD. Returns what it takes. */
int64_t obstacles_add(const struct claim *claim, struct batch *batch, const struct rows *rows, int row);

#endif
