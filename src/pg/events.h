/* Events for an operator: look at them, and change those that failed.
 *
 * A change keeps the rule that everybody keeps who touches an unfinished or DEAD row: it holds the row of the event's lane
 * first. It waits for one lane at a time, changes a batch, commits, and goes on behind the last row it changed, so that an
 * event that fails again meanwhile is not changed twice. With a limit it first picks the oldest events of all lanes, as
 * events_list shows them, and changes these. NEW and SENT rows are never touched, and no row returns to
 * status 0. The claim stays the only gate: a row that was retried too early is held again. */
#ifndef OUTBOXD_EVENTS_H
#define OUTBOXD_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "pg.h"

enum events_kind { /* bits */
                   EVENTS_NEW = 1,
                   EVENTS_SENT = 2,
                   EVENTS_FAILED = 4, /* to look at: FAILED and not held; to change: refused */
                   EVENTS_HELD = 8,
                   EVENTS_DEAD = 16,
                   EVENTS_ANY = 31,
};

struct events_filter {
    unsigned kinds;    /* of enum events_kind; 0: what the action means by default */
    const char *topic; /* also events that are routed to it */
    const char *key, *tenant, *id;
    const char *since; /* RFC 3339; NULL: none */
    int64_t since_ms;  /* or so long ago; 0: none */
    int64_t limit;     /* at most so many events, the oldest; 0: no limit */
    bool to_change;    /* what a change would touch: FAILED means refused */
};

/* The columns of events_list without `json`. */
enum {
    EVENTS_COL_ID,
    EVENTS_COL_STATUS,
    EVENTS_COL_AGE,
    EVENTS_COL_TOPIC,
    EVENTS_COL_KEY,
    EVENTS_COL_TRIES,
    EVENTS_COL_ERROR
};

/* What is unfinished or DEAD first, by seq; then SENT, the latest first. SENT rows are looked for among the
 * EVENTS_SENT_MAX greatest ids only, unless `id` names one. With `json` a row is one text: an object with the column names. */
#define EVENTS_SENT_MAX 100000
enum result events_list(struct pg *pg, const struct events_filter *filter, bool json, struct rows **ret,
                        struct error *err) CHECK_RESULT;

/* Are there events behind that bound which the filter may want? */
enum result events_sent_bounded(struct pg *pg, const struct events_filter *filter, bool *ret,
                                struct error *err) CHECK_RESULT;

/* The ids and lanes (0, 1) of the same events, in the same order. */
enum result events_pick(struct pg *pg, const struct events_filter *filter, struct rows **ret,
                        struct error *err) CHECK_RESULT;

/* One event and what it waits for: names and texts of its columns (0, 1), `json` as above. No row: there is no such event. */
struct events_view {
    struct rows *fields; /* name, text; a line each */
    struct rows *json;   /* one text */
    struct rows *ahead;  /* id, seq, status, topic, due, error of the earlier event of its stream that it waits for */
    struct rows *parked; /* topic, state, reason, since, next probe: those of its topics that are parked */
    bool held, ready;
};
enum result events_show(struct pg *pg, const char *id, bool dead_blocks, struct events_view *ret,
                        struct error *err) CHECK_RESULT;
void events_view_done(struct events_view *view);

struct events_change {
    bool discard; /* else retry */
    int batch_size;
    const struct events_filter *filter; /* of events_to_change */
    /* Called now and then; waiting_for: the lane that somebody else holds, -1: none. May be NULL. */
    void (*progress)(const struct events_change *change, int waiting_for);
    void *arg;
    int stop_fd; /* readable: end after the batch in hand; -1: none */

    /* Results. */
    int64_t matched; /* when it began */
    bool capped;     /* there were more than were counted then */
    int64_t changed;
    int64_t freed;  /* followers that became ready */
    int64_t probes; /* parked topics whose probe is due now */
    char user[64];  /* who did it, in PostgreSQL's eyes */
};

/* What a change with this filter touches, as a filter to look at. */
struct events_filter events_to_change(const struct events_filter *filter);

/* Counts only: `matched` and `probes`. */
enum result events_count(struct pg *pg, struct events_change *change, struct error *err) CHECK_RESULT;
enum result events_apply(struct pg *pg, struct events_change *change, struct error *err) CHECK_RESULT;

#endif
