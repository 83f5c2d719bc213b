#include "sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claim.h"
#include "predicates.h"

/* clang-format off */

static const struct statement lock_lane = {
    "lock_lane",
    "SELECT FROM @.outbox_lanes WHERE lane = $1::smallint AND ($2::boolean OR swept_at < now() - interval '55 s') "
    "FOR UPDATE"};
static const struct statement swept = {
    "swept", "UPDATE @.outbox_lanes SET swept_at = clock_timestamp() WHERE lane = $1::smallint"};

/* Topics with held rows in this lane, parked ones left out: one step a topic. */
#define HELD_TOPIC(after) \
    "(SELECT topic FROM @.outbox_events e WHERE e.lane = $1::smallint" after " AND " HELD " ORDER BY topic LIMIT 1)"
static const struct statement held_topics = {"held_topics",
    "WITH RECURSIVE step AS ("
    "  " HELD_TOPIC("")
    "  UNION ALL SELECT " HELD_TOPIC(" AND e.topic > step.topic") " FROM step WHERE topic IS NOT NULL) "
    "SELECT topic FROM step WHERE topic IS NOT NULL"
    "  AND NOT EXISTS (SELECT FROM @.outbox_parked_topics p WHERE p.topic = step.topic)"};

/* Nothing that row s of the stream (lane $1, `topic`, s.key) would have to wait for. */
#define BEFORE(condition)             SOME_ROW("e.lane = $1::smallint AND " condition " AND " KEY " = s.key AND e.seq < s.seq")
#define NO_PLAIN_BEFORE(topic, kind)  "NOT " BEFORE("e.topic = " topic " AND " kind)
#define NO_ROUTED_BEFORE(topic)       "NOT " BEFORE(ROUTED " AND " ROUTED_TO(topic))
#define NO_DEAD_BEFORE(topic, blocks) "NOT (" blocks "::boolean AND " BEFORE(DEAD " AND " ROUTED_TO(topic)) ")"

/* The streams of topic $2, a thousand at a time from key $3 on ($4: that key included); they share a batch ($6). */
#define NEXT_STREAM(after)                                                                                     \
    "SELECT " KEY " AS key, seq FROM @.outbox_events e WHERE e.lane = $1::smallint AND e.topic = $2 AND " HELD \
    " AND " KEY after " ORDER BY " KEY ", seq LIMIT 1"
static const struct statement sweep_topic = {"sweep_topic",
    "WITH RECURSIVE step AS ("
    "  (SELECT 1 AS n, x.* FROM (" NEXT_STREAM(" >= $3 AND ($4::boolean OR " KEY " <> $3)") ") x)"
    "  UNION ALL"
    "  SELECT step.n + 1, x.* FROM step CROSS JOIN LATERAL (" NEXT_STREAM(" > step.key") ") x WHERE step.n < 1000), "
    "free AS ("
    "  SELECT key, before, greatest($6::bigint / count(*) OVER (), 1) AS share"
    "  FROM (SELECT *, " IN_THE_WAY("$1::smallint", "$2", "true", "$5") " AS before FROM step k) s WHERE seq < before), "
    "released AS ("
    "  UPDATE @.outbox_events SET retry_after = NULL WHERE status = 2 AND retry_after = 'infinity' AND ctid = ANY (ARRAY("
    "    SELECT h.ctid FROM free CROSS JOIN LATERAL ("
    "      SELECT ctid FROM @.outbox_events e WHERE e.lane = $1::smallint AND e.topic = $2 AND " KEY " = free.key"
    "        AND " HELD " AND e.seq < free.before ORDER BY seq LIMIT free.share FOR UPDATE SKIP LOCKED) h)) RETURNING 1) "
    "SELECT (SELECT key FROM step WHERE n = 1000), (SELECT count(*) FROM released)"};

/* Held rows with a list of topics, a thousand at a time behind key $3 and seq $4: those that wait for nothing. A row that somebody
 * else has locked stays. */
static const struct statement sweep_routed = {"sweep_routed",
    "WITH page AS MATERIALIZED ("
    "  SELECT ctid, seq, " KEY " AS key, topic, routing_key FROM @.outbox_events e WHERE e.lane = $1::smallint AND " ROUTED_HELD
    "    AND (" KEY ", seq) > ($3, $4::bigint) ORDER BY " KEY ", seq LIMIT 1000), "
    "released AS ("
    "  UPDATE @.outbox_events SET retry_after = NULL WHERE status = 2 AND retry_after = 'infinity' AND ctid = ANY (ARRAY("
    "    SELECT ctid FROM @.outbox_events WHERE status = 2 AND ctid = ANY (ARRAY("
    "      SELECT s.ctid FROM page s WHERE NOT EXISTS ("
    "        SELECT FROM unnest(@.outbox_topics(s.topic, s.routing_key)) t"
    "        WHERE EXISTS (SELECT FROM @.outbox_parked_topics p WHERE p.topic = t)"
    "          OR NOT (" NO_PLAIN_BEFORE("t", HEAD) " AND " NO_PLAIN_BEFORE("t", HELD)
    "                  AND " NO_ROUTED_BEFORE("t") " AND " NO_DEAD_BEFORE("t", "$2") ")))) FOR UPDATE SKIP LOCKED)) RETURNING 1) "
    "SELECT last.key, last.seq, (SELECT count(*) FROM released) FROM (SELECT) one"
    "  LEFT JOIN (SELECT key, seq FROM page ORDER BY key, seq LIMIT 1 OFFSET 999) last ON true"};

/* clang-format on */

/* One statement in a transaction of its own that holds the lane: others get their turn in between. OK without rows: the lane was
 * swept a moment ago ($always: never mind), or it is busy; its turn comes again. */
static enum result in_lane(struct pg *pg, const char *lane, bool always, const struct statement *statement, int n,
                           const char *const *values, struct rows **ret, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *locked = NULL, *rows = NULL;
    enum result result = pg_script(
        pg,
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '30s'; SET LOCAL lock_timeout = '5s'; "
        "SET LOCAL idle_in_transaction_session_timeout = '10s'; SET LOCAL enable_seqscan = off; "
        "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off",
        10000, err);
    if (result == OK)
        result =
            pg_query(pg, &lock_lane, 2, (const char *[]){lane, always ? "t" : "f"}, ANSWER_TIMEOUT_MS, &locked, err);
    if (result == OK ? rows_n(locked) == 0 : strcmp(err->sqlstate, "55P03") == 0)
        return pg_script(pg, "ROLLBACK", 10000, err);
    if (result == OK)
        result = pg_query(pg, statement, n, values, ANSWER_TIMEOUT_MS, &rows, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", ANSWER_TIMEOUT_MS, err);
    if (result == OK)
        *ret = TAKE(rows);
    return result;
}

static enum result sweep_streams(struct pg *pg, const char *lane, const char *topic, const char *blocks,
                                 const char *limit, bool *busy, int *ret_released, struct error *err)
{
    _cleanup_(str_free) char *key = str_dup("");
    for (bool first = true, more = true; more; first = false) {
        _cleanup_(rows_cleanup) struct rows *rows = NULL;
        const char *values[] = {lane, topic, key, first ? "t" : "f", blocks, limit};
        enum result result = in_lane(pg, lane, true, &sweep_topic, 6, values, &rows, err);
        *busy = rows == NULL;
        if (result != OK || *busy)
            return result;
        *ret_released += (int)rows_int(rows, 0, 1);
        more = !rows_null(rows, 0, 0);
        str_free(&key);
        key = str_dup(rows_text(rows, 0, 0));
    }
    return OK;
}

static enum result sweep_lists(struct pg *pg, const char *lane, const char *blocks, bool *busy, int *ret_released,
                               struct error *err)
{
    _cleanup_(str_free) char *key = str_dup(""), *seq = str_dup("0");
    for (bool more = true; more;) {
        _cleanup_(rows_cleanup) struct rows *rows = NULL;
        enum result result =
            in_lane(pg, lane, true, &sweep_routed, 4, (const char *[]){lane, blocks, key, seq}, &rows, err);
        *busy = rows == NULL;
        if (result != OK || *busy)
            return result;
        *ret_released += (int)rows_int(rows, 0, 2);
        more = !rows_null(rows, 0, 0);
        str_free(&key);
        str_free(&seq);
        key = str_dup(rows_text(rows, 0, 0));
        seq = str_dup(rows_text(rows, 0, 1));
    }
    return OK;
}

enum result sweep_lane(struct pg *pg, int lane_number, const struct sweep_options *options, int *ret_released,
                       struct error *err)
{
    char lane[12], limit[16];
    snprintf(lane, sizeof lane, "%d", lane_number);
    snprintf(limit, sizeof limit, "%d", options->batch_size);
    const char *blocks = options->dead_blocks ? "t" : "f", *const ours[] = {lane};
    _cleanup_(rows_cleanup) struct rows *topics = NULL, *done = NULL;
    *ret_released = 0;
    enum result result = in_lane(pg, lane, options->at_start, &held_topics, 1, ours, &topics, err);
    bool busy = topics == NULL;
    for (int i = 0; result == OK && !busy && i < rows_n(topics); i++)
        result = sweep_streams(pg, lane, rows_text(topics, i, 0), blocks, limit, &busy, ret_released, err);
    if (result == OK && !busy)
        result = sweep_lists(pg, lane, blocks, &busy, ret_released, err);
    if (result == OK && !busy)
        result = in_lane(pg, lane, true, &swept, 1, ours, &done, err);
    return result;
}
