/* The thread of `outboxd consume`. */
#ifndef OUTBOXD_CONSUME_H
#define OUTBOXD_CONSUME_H

#include "config.h"
#include "duty.h"
#include "metrics.h"

/* Consumes until duty_stop, then finishes the batch and leaves the group. */
void consume_run(const struct config *config, struct duty *duty, struct metrics *metrics);

#endif
