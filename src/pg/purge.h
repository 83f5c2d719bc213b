/* The purge: rows that are finished and past their time leave the tables, in batches so small that nobody notices.
 *
 * SENT rows and processed_events are found by a walk over the table's pages that remembers where it was: an index that finds them
 * would be paid at every mark, and a BRIN index forgets where old rows were as soon as their space is used again
 * (docs/ARCHITECTURE.md). A round goes on while it finds something and gives up for now after a bounded number of pages without,
 * so that a table with nothing to purge is read through about ten times in a retention, not at every round. */
#ifndef OUTBOXD_PURGE_H
#define OUTBOXD_PURGE_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "pg.h"

enum purge_table { PURGE_EVENTS, PURGE_PROCESSED, PURGE_TABLES };

struct purge_walk {
    int64_t block, offset; /* the last row seen */
    int64_t pages, walked; /* of this round */
};

struct purge {
    const struct config *config;
    struct purge_walk walks[PURGE_TABLES];
    int64_t purged[PURGE_TABLES];    /* rows, since purge_init */
    int64_t chunk_pages, batch_rows; /* adapted so that a batch holds its locks for some 30 ms */
    int64_t last_ms, longest_ms;
};

void purge_init(struct purge *purge, const struct config *config);

/* One round over both tables, and over DEAD rows when OUTBOX_DEAD_RETENTION is set; `whole`: every page, without
 * giving up. `go_on` is called between batches, outside of any transaction; false ends the round. Rows that somebody
 * has locked are left for the next round, and so is a lane that cannot be had soon. */
enum result purge_round(struct pg *pg, struct purge *purge, bool whole, bool (*go_on)(void *arg), void *arg,
                        struct error *err) CHECK_RESULT;

#endif
