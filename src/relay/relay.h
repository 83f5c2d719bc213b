/* The way of an event: connect, wait, claim, publish, settle, mark. One thread, one relay. */
#ifndef OUTBOXD_RELAY_H
#define OUTBOXD_RELAY_H

#include "crew.h"
#include "metrics.h"

/* Goes its way until the crew stops; never gives up. */
void relay_run(struct crew *crew, int worker, struct metrics *metrics);

#endif
