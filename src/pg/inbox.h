/* The SQL of `outboxd consume`: marks in processed_events, calls of the handler, dead events, in one transaction a batch.
 *
 * A transaction goes begin -> (all | one...) -> finish. All marks of a batch come first and sorted: two consumers that have the
 * same ids in different orders would else wait for each other for ever. After a failure of begin, all or finish the
 * caller calls inbox_rollback, or closes the connection when the error has no SQLSTATE. */
#ifndef OUTBOXD_INBOX_SQL_H
#define OUTBOXD_INBOX_SQL_H

#include "config.h"
#include "pg.h"

#define INBOX_ID_MAX 300                                          /* bytes of an event id */
#define INBOX_STUB   "; its payload and headers cannot be kept: " /* in the error of what is buried without them */

struct inbox {
    struct pg *pg;
    const char *group;
    char retention[32], timeout[32], idle_timeout[32]; /* as PostgreSQL reads them */
    int timeout_ms;                                    /* of one statement */
    char *handler;                                     /* quoted, with its schema */
    struct statement all, one;                         /* with the handler's name in them */
    void (*idle)(void *arg);                           /* called every second while the server works */
    void *arg;
};

/* For the start: is the schema ours, may the user do a consumer's work, and is the handler one? FATAL with the remedy. */
enum result inbox_check(struct pg *pg, const struct config *config, struct error *err) CHECK_RESULT;

/* Finds the handler and makes the statements. The inbox borrows pg and config. FATAL: see inbox_check. */
enum result inbox_init(struct inbox *inbox, struct pg *pg, const struct config *config, struct error *err) CHECK_RESULT;
void inbox_done(struct inbox *inbox); /* the zeroed struct is good, too; before pg_close */

/* BEGIN, and the marks of `ids` (a text array, sorted). *ret: one column, the ids seen for the first time, unordered. */
enum result inbox_begin(struct inbox *inbox, const char *ids, struct rows **ret, struct error *err) CHECK_RESULT;

struct inbox_calls { /* text arrays of the same length */
    const char *ids, *topics, *keys, *payloads, *headers;
};
/* The handler for each element in order, in one statement. */
enum result inbox_all(struct inbox *inbox, const struct inbox_calls *calls, struct error *err) CHECK_RESULT;

struct inbox_call {
    const char *id, *topic, *key, *payload, *headers; /* key, payload: NULL for SQL NULL */
};
/* The handler once, behind a savepoint. REJECT: it raised, and its work is undone;
 * inbox_blame says whose fault it looks like. */
enum result inbox_one(struct inbox *inbox, const struct inbox_call *call, struct error *err) CHECK_RESULT;

/* Puts the event into inbox_dead; what PostgreSQL cannot hold of it is left out, and the error says so. */
enum result inbox_bury(struct inbox *inbox, const struct inbox_call *call, int partition, int64_t offset,
                       const char *error, unsigned attempts, struct error *err) CHECK_RESULT;

/* Takes the marks of `unmark` (a text array, NULL: none) back, and COMMIT, durable even where synchronous_commit is off. */
enum result inbox_finish(struct inbox *inbox, const char *unmark, struct error *err) CHECK_RESULT;
enum result inbox_rollback(struct inbox *inbox, struct error *err) CHECK_RESULT;

enum inbox_blame {
    BLAME_EVENT,  /* the handler, with this event */
    BLAME_NOBODY, /* a deadlock or a serialization failure: try the batch again */
    BLAME_WORLD,  /* the server or the connection: wait, and try again */
};
enum inbox_blame inbox_blame(const struct error *err);

/* What the handler said, for people: the server's text, cut to what is kept, and its SQLSTATE. Owned by the caller. */
char *inbox_tell(const struct error *err);

/* After `failure` of a call: is the handler no longer there, or no longer ours to call? Then every event would fail; *ret says
 * what is missing, without a SQLSTATE. */
bool inbox_handler_is_gone(struct inbox *inbox, const struct config *config, const struct error *failure,
                           struct error *ret);

#endif
