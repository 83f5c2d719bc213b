/* The daemon's housekeeping, on a thread and a connection of its own: sweeps, parked topics, purges, figures. */
#ifndef OUTBOXD_JANITOR_H
#define OUTBOXD_JANITOR_H

#include "crew.h"
#include "metrics.h"

void janitor_run(struct crew *crew, struct metrics *metrics);

#endif
