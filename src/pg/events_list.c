/* Looking at events: cheap at any size of the table, because every part is read through its partial index. */
#include <inttypes.h>
#include <stdio.h>

#include "claim.h"
#include "events_filter.h"
#include "predicates.h"

/* Every column, in the table's order; status as text. */
#define JSON_COLUMNS                                                                                                    \
    "seq, id, topic, event_type, schema_version, aggregate_type, aggregate_id, tenant_id, routing_key, partition_key, " \
    "payload, payload_bytes, headers, metadata, @.outbox_status_name(status) AS status, retry_count, max_retries, "     \
    "retry_after, last_error, occurred_at, created_at, published_at, expires_at, lane"

/* As a table shows them: EVENTS_COL_… */
#define TABLE_COLUMNS                                                                                           \
    "id, CASE WHEN status = 2 AND retry_after = 'infinity' THEN 'held' ELSE @.outbox_status_name(status) END, " \
    "extract(epoch FROM now() - created_at)::bigint, coalesce(routing_key, topic), " KEY ", retry_count, last_error"

#define BY_SEQ " AND seq > 0 ORDER BY seq" /* what is true of all rows lets held ones come by the index of QUEUED */

/* How many rows a part contributes at most. */
static void add_limit(struct question *question, const struct events_filter *filter)
{
    if (filter->limit > 0)
        strbuf_addf(&question->sql, " LIMIT %" PRId64, filter->limit);
}

/* Held rows may be a million, in no index by seq alone: one ordered scan a topic and lane, topics found by steps. */
static void add_held_part(struct question *question, const struct events_part *part, const struct events_filter *filter)
{
    question_add(question,
                 "(WITH RECURSIVE step AS (SELECT l.lane, (SELECT e.topic FROM @.outbox_events e WHERE e.lane = l.lane "
                 "AND " HELD " ORDER BY topic LIMIT 1) AS topic FROM ");
    filter_lanes(question, filter);
    question_add(question,
                 " UNION ALL SELECT step.lane, (SELECT e.topic FROM @.outbox_events e WHERE e.lane = step.lane AND "
                 "e.topic > step.topic AND " HELD " ORDER BY topic LIMIT 1) FROM step WHERE step.topic IS NOT NULL) "
                 "SELECT e.* FROM step l CROSS JOIN LATERAL (SELECT e.* FROM @.outbox_events e WHERE e.lane = l.lane "
                 "AND e.topic = l.topic AND ");
    filter_part(question, part, filter);
    question_add(question, BY_SEQ);
    add_limit(question, filter);
    question_add(question, ") e WHERE l.topic IS NOT NULL)");
}

static void add_part(struct question *question, const struct events_part *part, const struct events_filter *filter)
{
    question_add(question, "(SELECT e.* FROM ");
    filter_lanes(question, filter);
    question_add(question, " CROSS JOIN LATERAL (SELECT e.* FROM @.outbox_events e WHERE e.lane = l.lane AND ");
    filter_part(question, part, filter);
    question_add(question, BY_SEQ);
    add_limit(question, filter);
    question_add(question, ") e)");
}

/* SENT rows are in no partial index: they are looked for among the latest ids, which are by time of creation. */
static void add_sent_part(struct question *question, const struct events_filter *filter)
{
    strbuf_addf(&question->sql,
                "(SELECT e.* FROM (SELECT * FROM @.outbox_events ORDER BY id DESC LIMIT %d) e WHERE e.status = 1",
                EVENTS_SENT_MAX);
    filter_conditions(question, filter, true);
    add_limit(question, filter);
    question_add(question, ")");
}

/* One row by its primary key, if it is of a kind that was asked for. */
static void add_by_id(struct question *question, const struct events_filter *filter, unsigned kinds)
{
    question_add(question, "(SELECT e.* FROM @.outbox_events e WHERE CASE e.status WHEN 0 THEN ");
    strbuf_addf(&question->sql,
                "%s WHEN 1 THEN %s WHEN 9 THEN %s ELSE CASE WHEN e.retry_after = 'infinity' THEN %s ELSE %s END END",
                kinds & EVENTS_NEW ? "true" : "false", kinds & EVENTS_SENT ? "true" : "false",
                kinds & EVENTS_DEAD ? "true" : "false", kinds & EVENTS_HELD ? "true" : "false",
                kinds & EVENTS_FAILED ? "true" : "false");
    filter_conditions(question, filter, true);
    question_add(question, ")");
}

static void add_parts(struct question *question, const struct events_filter *filter, unsigned kinds)
{
    const char *glue = "";
    if (filter->id != NULL) {
        add_by_id(question, filter, kinds);
        return;
    }
    for (size_t i = 0; i < n_events_parts; i++) {
        const struct events_part *part = &events_parts[i];
        if (!(kinds & part->kind))
            continue;
        question_add(question, glue);
        if (part->kind == EVENTS_HELD && !part->lists && filter->topic == NULL)
            add_held_part(question, part, filter);
        else
            add_part(question, part, filter);
        glue = " UNION ALL ";
    }
    if (kinds & EVENTS_SENT) {
        question_add(question, glue);
        add_sent_part(question, filter);
    }
}

static enum result list(struct pg *pg, const struct events_filter *filter, const char *columns, const char *end,
                        struct rows **ret, struct error *err)
{
    struct question question = {0};
    unsigned kinds = filter->kinds ? filter->kinds : EVENTS_ANY;
    question_add(&question, columns);
    question_add(&question, " FROM (");
    add_parts(&question, filter, kinds);
    question_add(&question, ") e ORDER BY status = 1, CASE WHEN status = 1 THEN -seq ELSE seq END");
    add_limit(&question, filter);
    question_add(&question, end);
    /* A plan made while the table was empty or never analysed must not read ten million rows. */
    enum result result =
        pg_script(pg,
                  "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '30s'; "
                  "SET LOCAL enable_seqscan = off; SET LOCAL jit = off",
                  10000, err);
    if (result == OK)
        result = question_ask(&question, pg, ret, err);
    question_done(&question);
    if (result == OK)
        result = pg_script(pg, "COMMIT", 10000, err);
    return result;
}

enum result events_list(struct pg *pg, const struct events_filter *filter, bool json, struct rows **ret,
                        struct error *err)
{
    return json ? list(pg, filter, "SELECT row_to_json(j) FROM (SELECT " JSON_COLUMNS, ") j", ret, err)
                : list(pg, filter, "SELECT " TABLE_COLUMNS, "", ret, err);
}

enum result events_sent_bounded(struct pg *pg, const struct events_filter *filter, bool *ret, struct error *err)
{
    struct question question = {0};
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    *ret = false;
    if (filter->id != NULL || !(filter->kinds == 0 || filter->kinds & EVENTS_SENT))
        return OK;
    strbuf_addf(&question.sql,
                "SELECT FROM (SELECT created_at FROM @.outbox_events ORDER BY id DESC OFFSET %d LIMIT 1) e WHERE true",
                EVENTS_SENT_MAX);
    filter_since(&question, filter);
    enum result result = question_ask(&question, pg, &rows, err);
    question_done(&question);
    *ret = result == OK && rows_n(rows) > 0;
    return result;
}

enum result events_pick(struct pg *pg, const struct events_filter *filter, struct rows **ret, struct error *err)
{
    return list(pg, filter, "SELECT id, lane", "", ret, err);
}

/* --- one event --- */

static const struct statement one_json = {
    "one_json", "SELECT row_to_json(j), e.status, e.retry_after = 'infinity' FROM (SELECT " JSON_COLUMNS
                " FROM @.outbox_events WHERE id = $1) j, (SELECT * FROM @.outbox_events WHERE id = $1) e"};

/* name, text: for people, nested values indented. */
static const struct statement one_fields = {
    "one_fields",
    "SELECT f.key, CASE WHEN f.key IN ('payload', 'headers', 'metadata') THEN jsonb_pretty(f.value::jsonb) "
    "ELSE f.value #>> '{}' END FROM (SELECT " JSON_COLUMNS " FROM @.outbox_events WHERE id = $1) j, "
    "json_each(row_to_json(j)) f"};

static const struct statement its_parked = {
    "its_parked", "SELECT p.topic, p.state, p.reason, to_json(p.since) #>> '{}', to_json(p.probe_after) #>> '{}' "
                  "FROM @.outbox_events e JOIN @.outbox_parked_topics p ON " ROUTED_TO(
                      "p.topic") " WHERE e.id = $1 ORDER BY p.topic"};

/* clang-format off */

/* The first unfinished event before it in one of its streams, or a DEAD one that blocks ($2). A part of the table each. */
#define AHEAD(predicate, plain) \
    "SELECT * FROM (SELECT e.* FROM @.outbox_events e WHERE e.lane = o.lane AND " KEY " = o.key AND e.seq < o.seq" \
    " AND " predicate " AND " plain " ORDER BY e.seq LIMIT 1) x"
static const struct statement its_ahead = {"its_ahead",
    "SELECT a.id, a.seq, CASE WHEN a.status = 2 AND a.retry_after = 'infinity' THEN 'held'"
    " ELSE @.outbox_status_name(a.status) END, "
    "a.topic, CASE WHEN a.retry_after < 'infinity' THEN to_json(a.retry_after) #>> '{}' END, a.last_error "
    "FROM (SELECT lane, seq, status, " KEY " AS key, @.outbox_topics(topic, routing_key) AS topics"
    " FROM @.outbox_events WHERE id = $1) o "
    "CROSS JOIN LATERAL unnest(o.topics) t CROSS JOIN LATERAL ("
    AHEAD(HEAD, "e.topic = t") " UNION ALL " AHEAD(HELD, "e.topic = t") " UNION ALL "
    AHEAD(ROUTED, ROUTED_TO("t")) " UNION ALL " AHEAD(READY, ROUTED_TO("t")) " UNION ALL "
    AHEAD(DEAD " AND $2::boolean", ROUTED_TO("t"))
    ") a WHERE o.status IN (0, 2) ORDER BY a.seq LIMIT 1"};

/* clang-format on */

enum result events_show(struct pg *pg, const char *id, bool dead_blocks, struct events_view *ret, struct error *err)
{
    const char *const values[] = {id, dead_blocks ? "t" : "f"};
    *ret = (struct events_view){0};
    enum result result = pg_query(pg, &one_json, 1, values, ANSWER_TIMEOUT_MS, &ret->json, err);
    if (result == OK)
        result = pg_query(pg, &one_fields, 1, values, ANSWER_TIMEOUT_MS, &ret->fields, err);
    if (result == OK)
        result = pg_query(pg, &its_parked, 1, values, ANSWER_TIMEOUT_MS, &ret->parked, err);
    if (result == OK)
        result = pg_query(pg, &its_ahead, 2, values, ANSWER_TIMEOUT_MS, &ret->ahead, err);
    if (result == OK && rows_n(ret->json) > 0) {
        int status = (int)rows_int(ret->json, 0, 1);
        ret->held = status == 2 && rows_true(ret->json, 0, 2);
        ret->ready = status == 0 || (status == 2 && rows_null(ret->json, 0, 2));
    }
    return result;
}

void events_view_done(struct events_view *view)
{
    rows_free(view->fields);
    rows_free(view->json);
    rows_free(view->ahead);
    rows_free(view->parked);
}
