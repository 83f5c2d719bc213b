/* inbox_dead for an operator: look at events whose handler failed for good, run it again, or discard them. */
#ifndef OUTBOXD_GRAVEYARD_H
#define OUTBOXD_GRAVEYARD_H

#include "config.h"
#include "pg.h"

struct dead_filter { /* NULL: any */
    const char *group, *topic, *key, *id;
    const char *since; /* RFC 3339 */
    int64_t since_ms;  /* or so long ago; 0: none */
    int64_t limit;     /* 0: none */
};

/* The columns of graveyard_list without `json`. */
enum { DEAD_COL_ID, DEAD_COL_GROUP, DEAD_COL_AGE, DEAD_COL_TOPIC, DEAD_COL_KEY, DEAD_COL_TRIES, DEAD_COL_ERROR };

/* Oldest first. With `json` a row is one text: an object with the column names. */
enum result graveyard_list(struct pg *pg, const struct dead_filter *filter, bool json, struct rows **ret,
                           struct error *err) CHECK_RESULT;
enum result graveyard_count(struct pg *pg, const struct dead_filter *filter, int64_t *ret,
                            struct error *err) CHECK_RESULT;

/* Name and text of each column of the events that match, a line each. */
enum result graveyard_show(struct pg *pg, const struct dead_filter *filter, struct rows **ret,
                           struct error *err) CHECK_RESULT;

/* Deletes them; their marks stay, so a later delivery has no effect. */
enum result graveyard_discard(struct pg *pg, const struct dead_filter *filter, int64_t *ret_n,
                              struct error *err) CHECK_RESULT;

struct dead_retry {
    const struct config *config;
    const struct dead_filter *filter;
    void (*failed)(void *arg, const char *id, const char *why);
    void *arg;
    int64_t matched, handled, failures; /* results */
};

/* Runs the handler again, in the order of the offsets, a transaction an event: the row goes together with the effect,
 * or stays with the new error and one attempt more. Deadlocks are tried again for some seconds. After a failure the
 * later events of its topic and key are left alone. What was buried without its payload fails without a call. */
enum result graveyard_retry(struct pg *pg, struct dead_retry *retry, struct error *err) CHECK_RESULT;

#endif
