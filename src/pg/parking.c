#include "parking.h"

#include <string.h>

#include "claim.h"
#include "predicates.h"

static const struct statement lock_topics = {
    "lock_topics", "SELECT topic FROM @.outbox_parked_topics ORDER BY topic FOR UPDATE SKIP LOCKED"};

/* Statements of their own: their snapshot is younger than the lock, so they see what was held under keep_parked. */
#define LANE_SERIES "(SELECT l::smallint AS lane FROM generate_series(0, 15) l) l"
/* clang-format off */
#define SOME_FREE(lane, topic, most, lists) \
    "(EXISTS (" FREE_ROWS("e.seq", lane, topic, "$2", "$3", NO_SEQ, most, "1") END_FREE ")" \
    " OR EXISTS (" FREE_LISTS("e.seq", lane, topic, "$2", "$3", NO_SEQ, most, lists) END_FREE "))"
#define HAS_HELD(lane, topic) \
    "(" SOME_ROW("e.lane = " lane " AND e.topic = " topic " AND " HELD) \
    " OR " SOME_ROW("e.lane = " lane " AND " ROUTED_HELD " AND " ROUTED_TO(topic)) ")"
static const struct statement unpark = {"unpark",
    "DELETE FROM @.outbox_parked_topics p WHERE topic = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM " LANE_SERIES
    "  WHERE CASE p.state WHEN 'parked' THEN " HAS_HELD("l.lane", "p.topic")
    "    ELSE " SOME_FREE("l.lane", "p.topic", SOME_KEYS, NOT_PARKED_ELSEWHERE) " END) RETURNING topic"};
static const struct statement elect = {"elect",
    "UPDATE @.outbox_parked_topics p SET probe_lane = h.lane, probe_seq = h.seq "
    "FROM @.outbox_parked_topics t CROSS JOIN LATERAL ("
    "  SELECT l.lane, h.seq FROM " LANE_SERIES " CROSS JOIN LATERAL ("
    "    " FREE_ROWS("e.seq", "l.lane", "t.topic", "$2", "$3", NO_SEQ, ALL_KEYS, "1") END_FREE
    "    UNION ALL"
    "    " FREE_LISTS("e.seq", "l.lane", "t.topic", "$2", "$3", NO_SEQ, ALL_KEYS, "") END_FREE ") h LIMIT 1) h "
    "WHERE t.topic = p.topic AND p.topic = ANY ($1::text[]) AND p.state = 'parked'"
    "  AND NOT " SOME_FREE("p.probe_lane", "p.topic", ALL_KEYS, "")};
/* clang-format on */

enum result parking_tidy(struct pg *pg, bool ordered, bool dead_blocks, struct rows **ret_gone, struct error *err)
{
    struct strbuf topics = {0};
    _cleanup_(rows_cleanup) struct rows *locked = NULL, *gone = NULL;
    *ret_gone = NULL;
    enum result result = pg_script(
        pg,
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '30s'; SET LOCAL enable_seqscan = off; "
        "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off",
        10000, err);
    if (result == OK)
        result = pg_query(pg, &lock_topics, 0, NULL, ANSWER_TIMEOUT_MS, &locked, err);
    pg_array_begin(&topics);
    for (int i = 0; result == OK && i < rows_n(locked); i++)
        pg_array_text(&topics, rows_text(locked, i, 0));
    pg_array_end(&topics);
    const char *values[] = {topics.data, ordered ? "t" : "f", dead_blocks ? "t" : "f"};
    if (result == OK)
        result = pg_query(pg, &unpark, 3, values, ANSWER_TIMEOUT_MS, &gone, err);
    if (result == OK)
        result = pg_query(pg, &elect, 3, values, ANSWER_TIMEOUT_MS, NULL, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", ANSWER_TIMEOUT_MS, err);
    if (result == OK)
        *ret_gone = TAKE(gone);
    strbuf_done(&topics);
    return result;
}
