#include "graveyard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inbox.h"

#define ASK_TIMEOUT_MS 60000

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

enum { COL_GROUP, COL_ID, COL_TOPIC, COL_KEY, COL_PAYLOAD, COL_HEADERS, N_COLS };

static enum result keep_one(struct pg *pg, const char *const *who, const struct error *why, struct error *err)
{
    static const struct statement keep = {"graveyard_keep",
                                          "UPDATE @.inbox_dead SET error = $3, attempts = attempts + 1 "
                                          "WHERE consumer_group = $1 AND event_id = $2"};
    _cleanup_(str_free) char *text = inbox_tell(why);
    return pg_query(pg, &keep, 3, (const char *[]){who[0], who[1], text}, ASK_TIMEOUT_MS, NULL, err);
}

/* In one transaction: takes the row, calls the handler; then the row goes, or keeps the new error. REJECT: the handler raised.
 * OK with *ret_handled false: somebody else took the row meanwhile. */
static enum result try_one(struct pg *pg, struct inbox *inbox, const struct rows *list, int i, bool *ret_handled,
                           struct error *err)
{
    static const struct statement lock = {"graveyard_lock", "SELECT 1 FROM @.inbox_dead WHERE consumer_group = $1 AND "
                                                            "event_id = $2 FOR UPDATE"};
    static const struct statement gone = {"graveyard_gone",
                                          "DELETE FROM @.inbox_dead WHERE consumer_group = $1 AND event_id = $2"};
    const char *const who[] = {rows_text(list, i, COL_GROUP), rows_text(list, i, COL_ID)};
    const struct inbox_call call = {
        who[1], rows_text(list, i, COL_TOPIC), rows_null(list, i, COL_KEY) ? NULL : rows_text(list, i, COL_KEY),
        rows_null(list, i, COL_PAYLOAD) ? NULL : rows_text(list, i, COL_PAYLOAD), rows_text(list, i, COL_HEADERS)};
    _cleanup_(rows_cleanup) struct rows *locked = NULL;
    struct error why = {0};
    *ret_handled = false;
    _cleanup_(str_free) char *begin =
        str_format("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = %d", inbox->timeout_ms);
    enum result result = pg_script(pg, begin, ASK_TIMEOUT_MS, err);
    if (result == OK)
        result = pg_query(pg, &lock, 2, who, ASK_TIMEOUT_MS, &locked, err);
    if (result == OK && rows_n(locked) == 1) {
        enum result outcome = inbox_one(inbox, &call, &why);
        if (outcome == OK)
            result = pg_query(pg, &gone, 2, who, ASK_TIMEOUT_MS, NULL, err);
        else if (outcome == REJECT)
            result = keep_one(pg, who, &why, err);
        else {
            *err = why;
            return outcome;
        }
        *ret_handled = outcome == OK;
        if (result == OK)
            result = pg_script(pg, "COMMIT", ASK_TIMEOUT_MS, err);
        if (result == OK && outcome == REJECT) {
            *err = why;
            return REJECT;
        }
        return result;
    }
    return result == OK ? pg_script(pg, "ROLLBACK", ASK_TIMEOUT_MS, err) : result;
}

static bool same_stream(const struct rows *list, int a, int b)
{
    return !rows_null(list, a, COL_KEY) && !rows_null(list, b, COL_KEY) &&
           str_eq(rows_text(list, a, COL_GROUP), rows_text(list, b, COL_GROUP)) &&
           str_eq(rows_text(list, a, COL_TOPIC), rows_text(list, b, COL_TOPIC)) &&
           str_eq(rows_text(list, a, COL_KEY), rows_text(list, b, COL_KEY));
}

enum result graveyard_retry(struct pg *pg, struct dead_retry *retry, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *list = NULL;
    struct inbox inbox = {0};
    enum result result =
        ask(pg,
            "SELECT consumer_group, event_id, topic, key, payload, headers FROM @.inbox_dead WHERE " MATCHES
            " ORDER BY topic, partition, \"offset\", consumer_group, event_id LIMIT $7::bigint",
            retry->filter, &list, err);
    if (result == OK)
        result = inbox_init(&inbox, pg, retry->config, err);
    retry->matched = result == OK ? rows_n(list) : 0;
    _cleanup_(str_free) char *stuck = mem_alloc((size_t)retry->matched + 1);
    for (int i = 0; i < retry->matched && result == OK; i++) {
        bool handled = false, behind = false;
        for (int j = 0; j < i && !behind; j++)
            behind = stuck[j] && same_stream(list, i, j);
        if (behind)
            continue;
        result = try_one(pg, &inbox, list, i, &handled, err);
        retry->handled += handled && result == OK;
        if (result != REJECT)
            continue;
        stuck[i] = 1;
        retry->failures++;
        _cleanup_(str_free) char *why = inbox_tell(err);
        retry->failed(retry->arg, rows_text(list, i, COL_ID), why);
        result = OK;
    }
    inbox_done(&inbox);
    return result;
}
