/* The sweep: held rows whose reason has gone become ready, so that nothing waits for ever because somebody deleted a head by
 * hand or changed OUTBOX_ON_DEAD. Each lane once a minute, whichever daemon comes first; one lane at a time. */
#ifndef OUTBOXD_SWEEP_H
#define OUTBOXD_SWEEP_H

#include <stdbool.h>

#include "pg.h"

struct sweep_options {
    bool dead_blocks;
    int batch_size;
    bool at_start; /* do not ask when the lane was swept last */
};

/* A batch at a time, each in a transaction of its own. Waits for the lane some seconds; one that stays busy is left for the next
 * sweep. ret_released counts rows. */
enum result sweep_lane(struct pg *pg, int lane, const struct sweep_options *options, int *ret_released,
                       struct error *err) CHECK_RESULT;

#endif
