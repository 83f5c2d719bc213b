#include "graveyard.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "inbox.h"

#define ASK_TIMEOUT_MS 60000
#define AGAIN_BASE_MS  10
#define AGAIN_CAP_MS   1000
#define AGAIN_MAX      8

/* $1 to $7, in the order of bind(). */
#define MATCHES                                                                                                          \
    "($1::text IS NULL OR consumer_group = $1) AND ($2::text IS NULL OR topic = $2) AND ($3::text IS NULL OR key = $3) " \
    "AND ($4::text IS NULL OR event_id = $4) AND ($5::timestamptz IS NULL OR died_at >= $5) "                            \
    "AND ($6::text IS NULL OR died_at >= clock_timestamp() - $6::interval)"
#define OLDEST_FIRST "ORDER BY died_at, topic, partition, \"offset\", consumer_group, event_id LIMIT $7::bigint"
#define PARAMETERS   7

struct bound {
    char since_ms[32], limit[24];
    const char *values[PARAMETERS + 2];
};

static void bind(struct bound *bound, const struct dead_filter *filter)
{
    snprintf(bound->since_ms, sizeof bound->since_ms, "%" PRId64 " ms", filter->since_ms);
    snprintf(bound->limit, sizeof bound->limit, "%" PRId64, filter->limit);
    const char *const values[PARAMETERS] = {filter->group,
                                            filter->topic,
                                            filter->key,
                                            filter->id,
                                            filter->since,
                                            filter->since_ms > 0 ? bound->since_ms : NULL,
                                            filter->limit > 0 ? bound->limit : NULL};
    memcpy(bound->values, values, sizeof values);
}

static enum result ask(struct pg *pg, const char *sql, const struct dead_filter *filter, struct rows **ret,
                       struct error *err)
{
    struct bound bound;
    bind(&bound, filter);
    return pg_ask(pg, sql, PARAMETERS, bound.values, ASK_TIMEOUT_MS, ret, err);
}

enum result graveyard_list(struct pg *pg, const struct dead_filter *filter, bool json, struct rows **ret,
                           struct error *err)
{
    return ask(pg,
               json
                   ? "SELECT row_to_json(d) FROM (SELECT * FROM @.inbox_dead WHERE " MATCHES " " OLDEST_FIRST ") d"
                   : "SELECT event_id, consumer_group, floor(extract(epoch FROM clock_timestamp() - died_at))::bigint, "
                     "topic, key, attempts, error FROM @.inbox_dead WHERE " MATCHES " " OLDEST_FIRST,
               filter, ret, err);
}

enum result graveyard_count(struct pg *pg, const struct dead_filter *filter, int64_t *ret, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = ask(pg, "SELECT count(*) FROM (SELECT FROM @.inbox_dead WHERE " MATCHES " LIMIT $7::bigint) d",
                             filter, &rows, err);
    if (result == OK)
        *ret = rows_int(rows, 0, 0);
    return result;
}

enum result graveyard_show(struct pg *pg, const struct dead_filter *filter, struct rows **ret, struct error *err)
{
    return ask(
        pg,
        "SELECT f.name, f.text FROM (SELECT * FROM @.inbox_dead WHERE " MATCHES " " OLDEST_FIRST ") d, "
        "LATERAL (VALUES (1, 'event_id', d.event_id), (2, 'consumer_group', d.consumer_group), (3, 'topic', d.topic), "
        "(4, 'partition', d.partition::text), (5, 'offset', d.\"offset\"::text), (6, 'key', d.key), "
        "(7, 'attempts', d.attempts::text), (8, 'died_at', d.died_at::text), (9, 'error', d.error), "
        "(10, 'headers', jsonb_pretty(d.headers)), (11, 'payload', jsonb_pretty(d.payload))) f(n, name, text) "
        "ORDER BY d.died_at, d.consumer_group, d.event_id, f.n",
        filter, ret, err);
}

enum result graveyard_discard(struct pg *pg, const struct dead_filter *filter, int64_t *ret_n, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result =
        ask(pg,
            "WITH gone AS (DELETE FROM @.inbox_dead WHERE ctid = ANY (ARRAY(SELECT ctid FROM @.inbox_dead "
            "WHERE " MATCHES " " OLDEST_FIRST " FOR UPDATE)) RETURNING 1) SELECT count(*) FROM gone",
            filter, &rows, err);
    if (result == OK)
        *ret_n = rows_int(rows, 0, 0);
    return result;
}

/* --- retry --- */

static enum result keep_error(struct pg *pg, const char *const who[2], const char *text, struct error *err)
{
    static const struct statement keep = {"graveyard_keep",
                                          "UPDATE @.inbox_dead SET error = $3, attempts = attempts + 1 "
                                          "WHERE consumer_group = $1 AND event_id = $2"};
    return pg_query(pg, &keep, 3, (const char *[]){who[0], who[1], text}, ASK_TIMEOUT_MS, NULL, err);
}

/* The row goes together with the effect of the handler. */
static enum result handle_locked(struct pg *pg, struct inbox *inbox, const char *const who[2], const struct rows *row,
                                 struct error *err)
{
    enum { TOPIC, KEY, PAYLOAD, HEADERS };
    static const struct statement gone = {"graveyard_gone",
                                          "DELETE FROM @.inbox_dead WHERE consumer_group = $1 AND event_id = $2"};
    const struct inbox_call call = {
        who[1], rows_text(row, 0, TOPIC), rows_null(row, 0, KEY) ? NULL : rows_text(row, 0, KEY),
        rows_null(row, 0, PAYLOAD) ? NULL : rows_text(row, 0, PAYLOAD), rows_text(row, 0, HEADERS)};
    enum result result = inbox_one(inbox, &call, err);
    if (result == OK)
        result = pg_query(pg, &gone, 2, who, ASK_TIMEOUT_MS, NULL, err);
    return result == OK ? pg_script(pg, "COMMIT", ASK_TIMEOUT_MS, err) : result;
}

/* One transaction. REJECT: it failed and is undone. OK with *ret_handled false: somebody else took the row meanwhile. */
static enum result try_one(struct pg *pg, struct inbox *inbox, const char *const who[2], bool *ret_handled,
                           struct error *err)
{
    static const struct statement lock = {"graveyard_lock", "SELECT topic, key, payload, headers FROM @.inbox_dead "
                                                            "WHERE consumer_group = $1 AND event_id = $2 FOR UPDATE"};
    _cleanup_(rows_cleanup) struct rows *row = NULL;
    struct error failure = {0};
    _cleanup_(str_free) char *begin =
        str_format("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = %d", inbox->timeout_ms);
    error_clear(err);
    enum result result = pg_script(pg, begin, ASK_TIMEOUT_MS, err);
    if (result == OK)
        result = pg_query(pg, &lock, 2, who, ASK_TIMEOUT_MS, &row, err);
    if (result == OK && rows_n(row) == 1) {
        result = handle_locked(pg, inbox, who, row, err);
        *ret_handled = result == OK;
        if (result == OK)
            return OK;
    }
    if (result != OK && err->sqlstate[0] == '\0')
        return RETRY; /* the connection is gone */
    if (pg_script(pg, "ROLLBACK", ASK_TIMEOUT_MS, &failure) != OK) {
        *err = failure;
        return RETRY;
    }
    return result == OK ? OK : REJECT;
}

/* A deadlock or a serialization failure is tried again some times. */
static enum result try_some(struct pg *pg, struct inbox *inbox, const char *const who[2], bool *ret_handled,
                            struct error *err)
{
    struct backoff again = {.base_ms = AGAIN_BASE_MS, .cap_ms = AGAIN_CAP_MS};
    enum result result;
    while ((result = try_one(pg, inbox, who, ret_handled, err)) == REJECT && inbox_blame(err) == BLAME_NOBODY &&
           again.tries < AGAIN_MAX)
        poll(NULL, 0, (int)backoff_next(&again));
    return result;
}

enum result graveyard_retry(struct pg *pg, struct dead_retry *retry, struct error *err)
{
    enum { GROUP, ID, STREAM, STUB };
    _cleanup_(rows_cleanup) struct rows *list = NULL;
    struct inbox inbox = {0};
    enum result result =
        ask(pg,
            "SELECT consumer_group, event_id, "
            "CASE WHEN key IS NULL THEN 0 ELSE dense_rank() OVER (ORDER BY consumer_group, topic, key) END, "
            "headers = '{}' AND strpos(error, '" INBOX_STUB "') > 0 "
            "FROM (SELECT * FROM @.inbox_dead WHERE " MATCHES
            " ORDER BY topic, partition, \"offset\", consumer_group, event_id LIMIT $7::bigint) d "
            "ORDER BY topic, partition, \"offset\", consumer_group, event_id",
            retry->filter, &list, err);
    if (result == OK)
        result = inbox_init(&inbox, pg, retry->config, err);
    retry->matched = result == OK ? rows_n(list) : 0;
    _cleanup_(str_free) char *stuck = mem_alloc((size_t)retry->matched + 1); /* by number of the stream; 0: none */
    for (int i = 0; i < retry->matched && result == OK; i++) {
        const char *const who[2] = {rows_text(list, i, GROUP), rows_text(list, i, ID)};
        int64_t stream = rows_int(list, i, STREAM);
        bool handled = false;
        if (stream > 0 && stuck[stream])
            continue;
        if (rows_true(list, i, STUB)) {
            stuck[stream] = 1;
            retry->failures++;
            retry->failed(retry->arg, who[1], "its payload is not here, but in Kafka");
            continue;
        }
        result = try_some(pg, &inbox, who, &handled, err);
        retry->handled += handled;
        if (result != REJECT)
            continue;
        stuck[stream] = 1;
        retry->failures++;
        _cleanup_(str_free) char *why = inbox_tell(err);
        result = keep_error(pg, who, why, err);
        retry->failed(retry->arg, who[1], why);
    }
    inbox_done(&inbox);
    return result;
}
