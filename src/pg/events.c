#include "events.h"

#include <stdio.h>
#include <string.h>

#include "claim.h"
#include "events_filter.h"
#include "mark.h"
#include "predicates.h"
#include "route.h"
#include "stop.h"

#define LOCK_SLICE_MS "2000" /* then say so, and wait again */
#define LOCK_TRIES    60

struct events_filter events_to_change(const struct events_filter *filter)
{
    struct events_filter ret = *filter;
    ret.kinds =
        filter->kinds ? filter->kinds & (EVENTS_FAILED | EVENTS_HELD | EVENTS_DEAD) : EVENTS_FAILED | EVENTS_DEAD;
    ret.to_change = true;
    return ret;
}

/* --- how many, and where --- */

#define COUNT_BOUND 10000 /* rows of a lane and part that are counted before a change, for its progress */

static enum result count_part(struct pg *pg, const struct events_part *part, const struct events_change *change,
                              int64_t bound, int64_t ret_lanes[LANES], bool *ret_capped, struct error *err)
{
    struct question question = {0};
    question_add(&question, "SELECT l.lane, n FROM ");
    filter_lanes(&question, change->filter);
    question_add(&question, " CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT FROM @.outbox_events e "
                            "WHERE e.lane = l.lane AND ");
    filter_part(&question, part, change->filter);
    question_add(&question, " LIMIT ");
    question_int(&question, bound, "bigint");
    question_add(&question, ") x) c WHERE n > 0");
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = question_ask(&question, pg, &rows, err);
    question_done(&question);
    for (int i = 0; result == OK && i < rows_n(rows); i++) {
        ret_lanes[rows_int(rows, i, 0)] += rows_int(rows, i, 1);
        *ret_capped |= rows_int(rows, i, 1) == bound;
    }
    return result;
}

static enum result count_lanes(struct pg *pg, struct events_change *change, int64_t bound, int64_t ret_lanes[LANES],
                               struct error *err)
{
    enum result result = OK;
    for (size_t i = 0; result == OK && i < n_events_parts; i++)
        if (change->filter->kinds & events_parts[i].kind)
            result = count_part(pg, &events_parts[i], change, bound, ret_lanes, &change->capped, err);
    for (int lane = 0; lane < LANES; lane++)
        change->matched += ret_lanes[lane];
    return result;
}

/* --- probes --- */

/* One of the events that wait for the parked topic p is what the filter names. */
static void add_waiting(struct question *question, const struct events_filter *filter)
{
    struct events_filter rest = *filter;
    rest.topic = NULL;
    static const struct {
        const char *condition;
        bool lists;
    } parts[] = {{"e.topic = p.topic AND " HELD, false}, {ROUTED_HELD " AND " ROUTED_TO("p.topic"), true}};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        question_add(question, i == 0 ? " AND (EXISTS (SELECT FROM " : " OR EXISTS (SELECT FROM ");
        filter_lanes(question, &rest);
        question_add(question, " JOIN @.outbox_events e ON e.lane = l.lane AND ");
        question_add(question, parts[i].condition);
        filter_conditions(question, &rest, parts[i].lists);
        question_add(question, ")");
    }
    question_add(question, ")");
}

/* The parked topics that the filter concerns: the topic it names, those for which what it names waits, or all. In the order of
 * their names, as the workers lock them, and beside who only keeps them parked. */
static enum result probe(struct pg *pg, const struct events_change *change, bool only_count, int64_t *ret_n,
                         struct error *err)
{
    const struct events_filter *filter = change->filter;
    struct question question = {0};
    question_add(&question, only_count
                                ? "SELECT count(*) FROM @.outbox_parked_topics p WHERE p.state = 'parked'"
                                : "WITH due AS (UPDATE @.outbox_parked_topics SET probe_after = clock_timestamp() "
                                  "WHERE state = 'parked' AND topic = ANY (ARRAY(SELECT topic FROM "
                                  "@.outbox_parked_topics p WHERE p.state = 'parked'");
    if (filter->topic != NULL) {
        question_add(&question, " AND p.topic = ");
        question_value(&question, filter->topic, "text");
    }
    if (filter->id || filter->key || filter->tenant || filter->since || filter->since_ms)
        add_waiting(&question, filter);
    if (!only_count)
        question_add(&question, " ORDER BY topic FOR NO KEY UPDATE)) RETURNING 1) SELECT count(*) FROM due");
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = question_ask(&question, pg, &rows, err);
    question_done(&question);
    *ret_n = result == OK ? rows_int(rows, 0, 0) : 0;
    return result;
}

/* --- a batch of one lane --- */

/* Where the last batch ended, in the order of the part's index. */
struct place {
    bool set;
    char *topic, *key;
    int64_t seq;
};

/* What a batch may change: the next rows of a part, or events that were picked before. */
struct portion {
    int lane;
    const struct events_part *part; /* NULL: by ids */
    struct place place;
    const char *ids; /* an array */
};

static void place_clear(struct place *place)
{
    str_free(&place->topic);
    str_free(&place->key);
    place->set = false;
}

static void add_place(struct question *question, const struct portion *portion)
{
    const struct place *place = &portion->place;
    if (!place->set)
        return;
    question_add(question, portion->part->topic_first ? " AND (topic, " KEY ", seq) > (" : " AND (" KEY ", seq) > (");
    if (portion->part->topic_first) {
        question_value(question, place->topic, "text");
        question_add(question, ", ");
    }
    question_value(question, place->key, "text");
    question_add(question, ", ");
    question_int(question, place->seq, "bigint");
    question_add(question, ")");
}

static void add_next(struct question *question, const struct events_change *change, const struct portion *portion)
{
    filter_part(question, portion->part, change->filter);
    add_place(question, portion);
    question_add(question, " ORDER BY ");
    question_add(question, portion->part->order);
    question_add(question, " LIMIT ");
    question_int(question, change->batch_size, "bigint");
}

/* A row may have changed since it was picked: it must still be of a kind to be changed. */
static void add_kinds(struct question *question, const struct events_filter *filter)
{
    const char *glue = "(";
    for (size_t i = 0; i < n_events_parts; i++) {
        if (!(filter->kinds & events_parts[i].kind))
            continue;
        question_add(question, glue);
        question_add(question, events_parts[i].predicate);
        if (filter_wants_refused(&events_parts[i], filter))
            question_add(question, REFUSED);
        glue = " OR ";
    }
    question_add(question, ")");
}

static void add_picked(struct question *question, const struct events_change *change, const struct portion *portion)
{
    question_add(question, "e.id = ANY (");
    question_value(question, portion->ids, "text[]");
    question_add(question, ") AND ");
    add_kinds(question, change->filter);
}

/* Changes the rows that its own SELECT locked, and repeats their condition. ret: the rows, of a part in the order of
 * its index. */
static enum result change_rows(struct pg *pg, const struct events_change *change, const struct portion *portion,
                               struct rows **ret, struct error *err)
{
    struct question question = {0};
    question_add(&question, "WITH picked AS MATERIALIZED (SELECT ctid, topic, routing_key, " KEY " AS key, seq "
                            "FROM @.outbox_events e WHERE e.lane = ");
    question_int(&question, portion->lane, "smallint");
    question_add(&question, " AND ");
    (portion->part ? add_next : add_picked)(&question, change, portion);
    question_add(&question, " FOR UPDATE SKIP LOCKED), changed AS (");
    question_add(&question, change->discard
                                ? "DELETE FROM @.outbox_events WHERE "
                                : "UPDATE @.outbox_events SET status = 2, retry_after = NULL, retry_count = 0 WHERE ");
    add_kinds(&question, change->filter);
    question_add(&question,
                 " AND ctid = ANY (ARRAY(SELECT ctid FROM picked))) SELECT topic, routing_key, key, seq FROM picked");
    enum result result = question_ask(&question, pg, ret, err);
    question_done(&question);
    return result;
}

/* The streams whose rows went: the relay's own release. */
static enum result release(struct pg *pg, const struct events_change *change, int lane, const struct rows *gone,
                           int64_t *ret_freed, struct error *err)
{
    struct strbuf lanes = {0}, topics = {0}, keys = {0};
    pg_array_begin(&lanes);
    pg_array_begin(&topics);
    pg_array_begin(&keys);
    for (int i = 0; i < rows_n(gone); i++) {
        struct route route;
        route_init(&route, rows_text(gone, i, 0), rows_null(gone, i, 1) ? NULL : rows_text(gone, i, 1));
        for (size_t t = 0; t < route.n; t++) {
            pg_array_int(&lanes, lane);
            pg_array_text(&topics, route_topic(&route, t));
            pg_array_text(&keys, rows_text(gone, i, 2));
        }
        route_done(&route);
    }
    pg_array_end(&lanes);
    pg_array_end(&topics);
    pg_array_end(&keys);
    char limit[16];
    snprintf(limit, sizeof limit, "%d", change->batch_size);
    _cleanup_(rows_cleanup) struct rows *freed = NULL;
    enum result result = pg_query(pg, &mark_release, 4, (const char *[]){lanes.data, topics.data, keys.data, limit},
                                  ANSWER_TIMEOUT_MS, &freed, err);
    if (result == OK)
        *ret_freed += rows_affected(freed);
    strbuf_done(&lanes);
    strbuf_done(&topics);
    strbuf_done(&keys);
    return result;
}

static void report(const struct events_change *change, int waiting_for)
{
    if (change->progress != NULL)
        change->progress(change, waiting_for);
}

/* Between batches only: the count of what was changed is then exact. */
static enum result check_stop(const struct events_change *change, struct error *err)
{
    if (!stop_nap(change->stop_fd, 0))
        return OK;
    error_retry(err, "interrupted");
    error_hint(err, "what was changed stays changed: run the command again for the rest");
    return RETRY;
}

/* BEGIN, and the lane is ours; waits for it. */
static enum result take_lane(struct pg *pg, const struct events_change *change, int lane, struct error *err)
{
    char number[8];
    snprintf(number, sizeof number, "%d", lane);
    for (int tries = 0;; tries++) {
        enum result result =
            pg_script(pg,
                      "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '30s'; "
                      "SET LOCAL idle_in_transaction_session_timeout = '10s'; "
                      "SET LOCAL lock_timeout = " LOCK_SLICE_MS "; SET LOCAL enable_seqscan = off; "
                      "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off",
                      10000, err);
        if (result == OK)
            result = pg_ask(pg, "SELECT FROM @.outbox_lanes WHERE lane = $1::smallint FOR UPDATE", 1,
                            (const char *[]){number}, ANSWER_TIMEOUT_MS, NULL, err);
        if (result == OK || strcmp(err->sqlstate, "55P03") != 0)
            return result;
        if (tries == LOCK_TRIES) {
            error_retry(err, "lane %d was held by another session for two minutes", lane);
            error_hint(
                err,
                "its pid: SELECT pid, state, query FROM pg_stat_activity WHERE wait_event_type = 'Lock' OR state LIKE 'idle in%%'; "
                "what was changed stays changed: run the command again for the rest");
            return RETRY;
        }
        struct error ignored;
        if (pg_script(pg, "ROLLBACK", 10000, &ignored) != OK)
            return result;
        report(change, lane);
        if (check_stop(change, err) != OK)
            return RETRY;
    }
}

static enum result change_batch(struct pg *pg, struct events_change *change, struct portion *portion, bool *ret_more,
                                struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    int64_t freed = 0;
    enum result result = take_lane(pg, change, portion->lane, err);
    if (result == OK) /* a statement of its own: its snapshot is younger than the lock */
        result = change_rows(pg, change, portion, &rows, err);
    int n = result == OK ? rows_n(rows) : 0;
    if (result == OK && n > 0 && change->discard)
        result = release(pg, change, portion->lane, rows, &freed, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", ANSWER_TIMEOUT_MS, err);
    if (result != OK)
        return result;
    change->changed += n;
    change->freed += freed;
    *ret_more = n == change->batch_size;
    if (n > 0) {
        place_clear(&portion->place);
        portion->place = (struct place){true, str_dup(rows_text(rows, n - 1, 0)), str_dup(rows_text(rows, n - 1, 2)),
                                        rows_int(rows, n - 1, 3)};
    }
    report(change, -1);
    return check_stop(change, err);
}

/* All that the filter wants, part by part. */
static enum result change_lane(struct pg *pg, struct events_change *change, int lane, struct error *err)
{
    enum result result = OK;
    for (size_t i = 0; result == OK && i < n_events_parts; i++) {
        struct portion portion = {.lane = lane, .part = &events_parts[i]};
        bool more = change->filter->kinds & portion.part->kind;
        while (result == OK && more)
            result = change_batch(pg, change, &portion, &more, err);
        place_clear(&portion.place);
    }
    return result;
}

/* --- with a limit --- */

/* The ids of the lane from row *at on, one batch at most; *at moves behind them. None: data is NULL. */
static struct strbuf take_ids(const struct rows *picked, int lane, int most, int *at)
{
    struct strbuf ids = {0};
    for (; *at < rows_n(picked) && most > 0; (*at)++) {
        if (rows_int(picked, *at, 1) != lane)
            continue;
        if (ids.data == NULL)
            pg_array_begin(&ids);
        pg_array_text(&ids, rows_text(picked, *at, 0));
        most--;
    }
    if (ids.data != NULL)
        pg_array_end(&ids);
    return ids;
}

static enum result change_picked(struct pg *pg, struct events_change *change, const struct rows *picked, int lane,
                                 struct error *err)
{
    enum result result = OK;
    for (int at = 0; result == OK && at < rows_n(picked);) {
        struct strbuf ids = take_ids(picked, lane, change->batch_size, &at);
        struct portion portion = {.lane = lane, .ids = ids.data};
        bool ignored;
        if (ids.data != NULL)
            result = change_batch(pg, change, &portion, &ignored, err);
        place_clear(&portion.place);
        strbuf_done(&ids);
    }
    return result;
}

/* --- the whole --- */

static enum result who(struct pg *pg, struct events_change *change, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = pg_ask(pg, "SELECT current_user", 0, NULL, 10000, &rows, err);
    if (result == OK)
        snprintf(change->user, sizeof change->user, "%s", rows_text(rows, 0, 0));
    return result;
}

/* How many there are, and in which lanes; with a limit, which ones. */
static enum result survey(struct pg *pg, struct events_change *change, int64_t bound, int64_t lanes[LANES],
                          struct rows **ret_picked, struct error *err)
{
    enum result result = who(pg, change, err);
    if (result == OK && change->filter->limit > 0) {
        result = events_pick(pg, change->filter, ret_picked, err);
        if (result == OK)
            change->matched = rows_n(*ret_picked);
        return result;
    }
    if (result == OK)
        result = pg_script(pg,
                           "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '30s'; "
                           "SET LOCAL enable_seqscan = off; SET LOCAL jit = off",
                           10000, err);
    if (result == OK)
        result = count_lanes(pg, change, bound, lanes, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", 10000, err);
    return result;
}

enum result events_count(struct pg *pg, struct events_change *change, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *picked = NULL;
    int64_t lanes[LANES] = {0};
    enum result result = survey(pg, change, INT64_MAX, lanes, &picked, err);
    if (result == OK && !change->discard)
        result = probe(pg, change, true, &change->probes, err);
    return result;
}

enum result events_apply(struct pg *pg, struct events_change *change, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *picked = NULL;
    int64_t lanes[LANES] = {0};
    pg_stop_on(pg, change->stop_fd);
    enum result result = survey(pg, change, COUNT_BOUND, lanes, &picked, err);
    pg_stop_on(pg, -1);
    for (int lane = 0; result == OK && lane < LANES; lane++) {
        if (picked != NULL)
            result = change_picked(pg, change, picked, lane, err);
        else if (lanes[lane] > 0)
            result = change_lane(pg, change, lane, err);
    }
    if (change->changed > change->matched)
        change->matched = change->changed;
    if (result == OK && !change->discard)
        result = probe(pg, change, false, &change->probes, err);
    return result;
}
