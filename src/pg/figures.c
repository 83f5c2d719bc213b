#include "figures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claim.h"
#include "predicates.h"

#define HEADS_BOUND "10000" /* rows of which the heap is read, too */

/* The planner must not take a plan that reads the whole table because the statistics are old. */
static const char begin[] = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL statement_timeout = '30s'; "
                            "SET LOCAL idle_in_transaction_session_timeout = '10s'; SET LOCAL enable_seqscan = off; "
                            "SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off";

#define LANE "lane AS MATERIALIZED (SELECT l::smallint AS lane FROM generate_series(0, 15) l)"
#define LOOK(what) \
    "lane CROSS JOIN LATERAL (SELECT FROM @.outbox_events e WHERE e.lane = lane.lane AND " what " LIMIT $1) e LIMIT $1"
#define COUNT(what) "(SELECT count(*) FROM (SELECT FROM " LOOK(what) ") x)"
#define LOOSE(after)                                                                       \
    "SELECT topic, created_at FROM @.outbox_events e WHERE e.lane = " after " AND " QUEUED \
    " ORDER BY topic, seq LIMIT 1"

/* clang-format off */

/* The oldest row: the first of each lane's ready index, the first held row of each topic, and what was refused. */
static const struct statement numbers = {"figures",
    "WITH RECURSIVE " LANE ", "
    "heads AS MATERIALIZED (SELECT e.* FROM lane CROSS JOIN LATERAL (SELECT created_at, retry_after, retry_count "
    "    FROM @.outbox_events e WHERE e.lane = lane.lane AND " HEAD " LIMIT " HEADS_BOUND ") e LIMIT " HEADS_BOUND "), "
    "routed AS MATERIALIZED (SELECT e.* FROM lane CROSS JOIN LATERAL (SELECT created_at, retry_after, retry_count "
    "    FROM @.outbox_events e WHERE e.lane = lane.lane AND " ROUTED " LIMIT " HEADS_BOUND ") e LIMIT " HEADS_BOUND "), "
    "queue AS (SELECT 1 AS n, lane.lane, x.* FROM lane CROSS JOIN LATERAL (" LOOSE("lane.lane") ") x UNION ALL "
    "    SELECT queue.n + 1, queue.lane, x.* FROM queue CROSS JOIN LATERAL (" LOOSE("queue.lane AND e.topic > queue.topic")
    "    ) x WHERE queue.n < 200) "
    "SELECT " COUNT(READY) ", " COUNT(WAITING) ", " COUNT(HELD) ", " COUNT(ROUTED_HELD) ", " COUNT(DEAD) ", "
    "(SELECT count(*) FROM (TABLE heads UNION ALL TABLE routed) h WHERE retry_after IS NULL AND retry_count > 0), "
    "extract(epoch FROM clock_timestamp() - least("
    "(SELECT min(created_at) FROM heads), (SELECT min(created_at) FROM routed), "
    "    (SELECT min(created_at) FROM queue), "
    "    (SELECT min(e.created_at) FROM lane CROSS JOIN LATERAL (SELECT created_at FROM @.outbox_events e "
    "        WHERE e.lane = lane.lane AND " READY " ORDER BY seq LIMIT 1) e))), "
    "s.n_tup_ins, s.n_tup_upd, s.n_tup_del "
    "FROM (SELECT tableoid FROM @.outbox_lanes LIMIT 1) l JOIN pg_class n ON n.oid = l.tableoid "
    "JOIN pg_class c ON c.relname = 'outbox_events' AND c.relnamespace = n.relnamespace "
    "LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid"};

static const struct statement parked = {"figures_parked",
    "WITH " LANE
    " SELECT p.topic, p.reason, p.state, to_char(p.since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), "
    "(SELECT count(*) FROM (SELECT FROM lane CROSS JOIN LATERAL (SELECT FROM @.outbox_events e "
    "    WHERE e.lane = lane.lane AND e.topic = p.topic AND " HELD " LIMIT $1) e LIMIT $1) x) "
    "+ (SELECT count(*) FROM (SELECT FROM lane CROSS JOIN LATERAL (SELECT FROM @.outbox_events e "
    "    WHERE e.lane = lane.lane AND " ROUTED_HELD " AND " ROUTED_TO("p.topic")
    " LIMIT " HEADS_BOUND ") e LIMIT " HEADS_BOUND ") x) "
    "FROM @.outbox_parked_topics p ORDER BY p.since, p.topic"};

/* clang-format on */

static int64_t count(const struct rows *rows, int column, int64_t bound, bool *capped)
{
    int64_t n = rows_int(rows, 0, column);
    *capped |= n >= bound;
    return n;
}

static void take_numbers(const struct rows *rows, int64_t bound, struct figures *ret)
{
    int64_t ready = count(rows, 0, bound, &ret->capped), waiting = count(rows, 1, bound, &ret->capped);
    ret->held = count(rows, 2, bound, &ret->capped) + count(rows, 3, bound, &ret->capped);
    ret->dead = count(rows, 4, bound, &ret->capped);
    ret->pending = ready + waiting + ret->held;
    ret->failed = waiting + rows_int(rows, 0, 5);
    double age = strtod(rows_text(rows, 0, 6), NULL);
    ret->oldest_pending_s = age > 0 ? age : 0;
    ret->inserted = rows_int(rows, 0, 7);
    ret->updated = rows_int(rows, 0, 8);
    ret->deleted = rows_int(rows, 0, 9);
}

/* It is that of an event, and names the topic: here the name stands beside it. */
static const char *bare_reason(const char *topic, const char *reason)
{
    _cleanup_(str_free) char *prefix = str_format("topic %s: ", topic);
    return str_has_prefix(reason, prefix) ? reason + strlen(prefix) : reason;
}

static void take_parked(const struct rows *rows, struct figures *ret)
{
    ret->n_parked = (size_t)rows_n(rows);
    ret->parked = mem_alloc((ret->n_parked + 1) * sizeof *ret->parked);
    for (int i = 0; i < rows_n(rows); i++)
        ret->parked[i] =
            (struct parked_figure){.topic = str_dup(rows_text(rows, i, 0)),
                                   .reason = str_dup(bare_reason(rows_text(rows, i, 0), rows_text(rows, i, 1))),
                                   .state = str_dup(rows_text(rows, i, 2)),
                                   .since = str_dup(rows_text(rows, i, 3)),
                                   .held = rows_int(rows, i, 4)};
}

enum result figures_read(struct pg *pg, int64_t bound, struct figures *ret, struct error *err)
{
    char limit[24];
    snprintf(limit, sizeof limit, "%" PRId64, bound);
    const char *values[] = {limit};
    _cleanup_(rows_cleanup) struct rows *main_rows = NULL, *parked_rows = NULL;
    *ret = (struct figures){0};
    enum result result = pg_script(pg, begin, 10000, err);
    if (result == OK)
        result = pg_query(pg, &numbers, 1, values, ANSWER_TIMEOUT_MS, &main_rows, err);
    if (result == OK)
        result = pg_query(pg, &parked, 1, values, ANSWER_TIMEOUT_MS, &parked_rows, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", 10000, err);
    if (result != OK)
        return result;
    take_numbers(main_rows, bound, ret);
    take_parked(parked_rows, ret);
    return OK;
}

void figures_done(struct figures *figures)
{
    for (size_t i = 0; i < figures->n_parked; i++) {
        free(figures->parked[i].topic);
        free(figures->parked[i].reason);
        free(figures->parked[i].state);
        free(figures->parked[i].since);
    }
    free(figures->parked);
    *figures = (struct figures){0};
}

void figures_json(const struct figures *figures, struct strbuf *out)
{
    strbuf_addf(out,
                "\"pending\":%" PRId64 ",\"pending_capped\":%s,\"oldest_pending_seconds\":%.3f,\"failed\":%" PRId64
                ",\"held\":%" PRId64 ",\"dead\":%" PRId64 ",\"parked\":[",
                figures->pending, figures->capped ? "true" : "false", figures->oldest_pending_s, figures->failed,
                figures->held, figures->dead);
    for (size_t i = 0; i < figures->n_parked; i++) {
        const struct parked_figure *topic = &figures->parked[i];
        strbuf_add(out, i > 0 ? ",{\"topic\":" : "{\"topic\":");
        strbuf_add_json(out, topic->topic);
        strbuf_add(out, ",\"state\":");
        strbuf_add_json(out, topic->state);
        strbuf_add(out, ",\"reason\":");
        strbuf_add_json(out, topic->reason);
        strbuf_add(out, ",\"since\":");
        strbuf_add_json(out, topic->since);
        strbuf_addf(out, ",\"held\":%" PRId64 "}", topic->held);
    }
    strbuf_add(out, "]");
}

/* --- details --- */

/* clang-format off */

#define SAMPLE(what) \
    "SELECT e.* FROM lane CROSS JOIN LATERAL (SELECT topic, status, retry_after, created_at FROM @.outbox_events e " \
    "WHERE e.lane = lane.lane AND " what " LIMIT $1 / 16 + 1) e"
static const struct statement topics = {"details_topics",
    "WITH " LANE ", row AS (" SAMPLE(READY) " UNION ALL " SAMPLE(WAITING) " UNION ALL " SAMPLE(HELD)
    " UNION ALL " SAMPLE(ROUTED_HELD) " UNION ALL " SAMPLE(DEAD) ") "
    "SELECT topic, count(*) FILTER (WHERE status <> 9), "
    "count(*) FILTER (WHERE status = 2 AND retry_after < 'infinity'), "
    "count(*) FILTER (WHERE status = 2 AND retry_after = 'infinity'), count(*) FILTER (WHERE status = 9), "
    "extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE status <> 9)), sum(count(*)) OVER () "
    "FROM row GROUP BY topic ORDER BY 2 DESC, 5 DESC, 1 LIMIT 100"};

#define REFUSED(what) \
    "SELECT e.* FROM lane CROSS JOIN LATERAL (SELECT topic, status, last_error, seq FROM @.outbox_events e " \
    "WHERE e.lane = lane.lane AND " what " LIMIT 1000) e"
static const struct statement errors = {"details_errors",
    "WITH " LANE " SELECT topic, coalesce(last_error, ''), count(*), bool_or(status = 9) "
    "FROM (" REFUSED(WAITING) " UNION ALL " REFUSED(DEAD) ") e "
    "GROUP BY topic, last_error ORDER BY max(seq) DESC LIMIT 20"};

/* clang-format on */

enum result details_read(struct pg *pg, int64_t bound, struct details *ret, struct error *err)
{
    char limit[24];
    snprintf(limit, sizeof limit, "%" PRId64, bound);
    _cleanup_(rows_cleanup) struct rows *topic_rows = NULL, *error_rows = NULL;
    *ret = (struct details){0};
    enum result result = pg_script(pg, begin, 10000, err);
    if (result == OK)
        result = pg_query(pg, &topics, 1, (const char *[]){limit}, ANSWER_TIMEOUT_MS, &topic_rows, err);
    if (result == OK)
        result = pg_query(pg, &errors, 0, NULL, ANSWER_TIMEOUT_MS, &error_rows, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", 10000, err);
    if (result != OK)
        return result;
    ret->n_topics = (size_t)rows_n(topic_rows);
    ret->topics = mem_alloc((ret->n_topics + 1) * sizeof *ret->topics);
    for (int i = 0; i < rows_n(topic_rows); i++) {
        double age = strtod(rows_text(topic_rows, i, 5), NULL);
        ret->topics[i] = (struct topic_figure){.topic = str_dup(rows_text(topic_rows, i, 0)),
                                               .pending = rows_int(topic_rows, i, 1),
                                               .failed = rows_int(topic_rows, i, 2),
                                               .held = rows_int(topic_rows, i, 3),
                                               .dead = rows_int(topic_rows, i, 4),
                                               .oldest_s = age > 0 ? age : 0};
        ret->seen = rows_int(topic_rows, i, 6);
    }
    ret->n_errors = (size_t)rows_n(error_rows);
    ret->errors = mem_alloc((ret->n_errors + 1) * sizeof *ret->errors);
    for (int i = 0; i < rows_n(error_rows); i++)
        ret->errors[i] = (struct error_figure){.topic = str_dup(rows_text(error_rows, i, 0)),
                                               .reason = str_dup(rows_text(error_rows, i, 1)),
                                               .events = rows_int(error_rows, i, 2),
                                               .dead = rows_true(error_rows, i, 3)};
    return OK;
}

void details_done(struct details *details)
{
    for (size_t i = 0; i < details->n_topics; i++)
        free(details->topics[i].topic);
    for (size_t i = 0; i < details->n_errors; i++) {
        free(details->errors[i].topic);
        free(details->errors[i].reason);
    }
    free(details->topics);
    free(details->errors);
    *details = (struct details){0};
}
