/* The database side of a consumer: one batch in one transaction. */
#ifndef OUTBOXD_WORK_H
#define OUTBOXD_WORK_H

#include "burial.h"
#include "config.h"
#include "hand.h"
#include "inbox.h"
#include "metrics.h"
#include "render.h"

enum work_mode {
    WORK_TOGETHER, /* one statement for all events that were never tried */
    WORK_EACH,     /* one by one, each behind a savepoint: when the batch failed as a whole */
};

struct work {
    const struct config *config;
    struct metrics *metrics;
    struct inbox inbox;
    struct burial *burial; /* NULL: not made */
    int64_t rest_until;    /* clock_ms: the dead topic is left alone */
    bool (*stopping)(void *arg);
    void *arg;
    struct rendering rendering;
    struct strbuf ids, topics, keys, payloads, headers, unmark;
    struct arrival **sorted;
    size_t n_sorted, cap;

    /* Of the present batch. */
    int64_t handler_us;              /* together_us, and what the calls one by one took */
    int64_t together_us, slowest_us; /* the statement for all; the slowest call of the others */
    size_t together, each;           /* calls of these */
    struct error suspicion;          /* what one event met and the world may be to blame for; no SQLSTATE: nothing */
    bool lost;                       /* the connection, while the handler worked */
    struct arrival *aside;           /* on this event alone: it may have ended its server process. NULL: none */
};

void work_init(struct work *work, const struct config *config, struct metrics *metrics);
void work_done(struct work *work);

enum worked {
    WORKED,       /* committed: the arrivals have their outcomes; NONE: not tried, there was no time */
    WORKED_APART, /* an event failed the whole batch: work on it again, with WORK_EACH */
    WORKED_AGAIN, /* nobody's fault: work on it again in the same way */
    WORKED_WORLD, /* PostgreSQL is in trouble; the connection is of no more use */
};
/* Nothing of the batch is in the database unless it says WORKED. With WORKED_WORLD the arrival `aside` has its outcome, too. */
enum worked work_on(struct work *work, struct arrival **batch, size_t n, enum work_mode mode,
                    struct error *err) CHECK_RESULT;

#endif
