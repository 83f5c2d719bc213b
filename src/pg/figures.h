/* The state of the outbox in a few numbers, for gauges, `status` and /status: read-only looks over the partial indexes that
 * stop at a bound, so that they stay cheap however long the backlog is. */
#ifndef OUTBOXD_FIGURES_H
#define OUTBOXD_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "pg.h"

struct parked_figure {
    char *topic, *reason, *state;
    char *since; /* RFC 3339, UTC */
    int64_t held;
};

struct figures {
    int64_t pending; /* neither SENT nor DEAD */
    int64_t failed;  /* refused, waiting for the next try */
    int64_t held, dead;
    bool capped; /* some number stopped at the bound: there are more */
    double oldest_pending_s;
    struct parked_figure *parked;
    size_t n_parked;
    int64_t inserted, updated, deleted; /* rows so far, as the server's statistics have it: for rates */
};

struct topic_figure {
    char *topic;
    int64_t pending, failed, held, dead;
    double oldest_s;
};

struct error_figure { /* events of one topic that were refused for the same reason, the latest first */
    char *topic, *reason;
    int64_t events;
    bool dead;
};

struct details {
    struct topic_figure *topics; /* the longest queue first */
    size_t n_topics;
    struct error_figure *errors;
    size_t n_errors;
    int64_t seen; /* rows that the topics' figures are made of */
};

/* Counts at most `bound` of each kind. */
enum result figures_read(struct pg *pg, int64_t bound, struct figures *ret, struct error *err) CHECK_RESULT;
void figures_done(struct figures *figures);

/* The members of the JSON object, without its braces. */
void figures_json(const struct figures *figures, struct strbuf *out);

/* What a person wants to see beside it; looks at `bound` rows of each kind. */
enum result details_read(struct pg *pg, int64_t bound, struct details *ret, struct error *err) CHECK_RESULT;
void details_done(struct details *details);

#endif
