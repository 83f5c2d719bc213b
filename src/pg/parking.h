/* Housekeeping of outbox_parked_topics, in small transactions of its own that hold no lane. */
#ifndef OUTBOXD_PARKING_H
#define OUTBOXD_PARKING_H

#include <stdbool.h>

#include "pg.h"

/* Topics for which nothing is held any more leave the table, and draining ones also when all that is left waits behind another
 * row of its stream (where order counts; with `dead_blocks` also a DEAD one): release and sweep look after those. A parked
 * topic whose probe's lane has no row left that could be tried gets another. Skips topics that somebody else has locked.
 * *ret_gone: the topics that left, a row each; NULL without OK. */
enum result parking_tidy(struct pg *pg, bool ordered, bool dead_blocks, struct rows **ret_gone,
                         struct error *err) CHECK_RESULT;

#endif
