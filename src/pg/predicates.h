/* The predicates of the partial indexes in sql/001_outbox.up.sql. A statement that is to use such an index must repeat
 * its predicate word for word; here each is written once. */
#ifndef OUTBOXD_PREDICATES_H
#define OUTBOXD_PREDICATES_H

#define KEY     "coalesce(partition_key, aggregate_id)"
#define READY   "(status = 0 OR (status = 2 AND retry_after IS NULL))"
#define WAITING "status = 2 AND retry_after < 'infinity'"
#define HEAD    "routing_key IS NULL AND status = 2 AND retry_after IS DISTINCT FROM 'infinity'"
#define HELD    "routing_key IS NULL AND status = 2 AND retry_after = 'infinity'"
#define QUEUED \
    HELD " AND seq > 0" /* the same rows, by topic and seq: the index of who asks for the oldest, and of nobody else */
#define ROUTED "routing_key IS NOT NULL AND status = 2"
#define DEAD   "status = 9"

/* What a batch may hold locked. */
#define READY_OR_HELD "status IN (0, 2)"

/* A routed row is held; `topic` (an expression) is one of the topics of the row e. Taking a list apart costs more than reading its
 * row, and a key may have very many that go elsewhere: most are passed by a look at the text. */
#define ROUTED_HELD    ROUTED " AND retry_after = 'infinity'"
#define TOPICS_OF(row) "@.outbox_topics(" row ".topic, " row ".routing_key)"
#define GOES_TO(row, topic) \
    "strpos(coalesce(" row ".routing_key, " row ".topic), " topic ") > 0 AND " topic " = ANY (" TOPICS_OF(row) ")"
#define ROUTED_TO(topic) GOES_TO("e", topic)

/* The lanes that this transaction holds, as the statement that locked them left them. */
#define OUR_LANES                                            \
    "lane AS MATERIALIZED (SELECT l::smallint AS lane FROM " \
    "unnest(string_to_array(nullif(current_setting('outboxd.lanes', true), ''), ',')) l)"

/* Is there such a row? One probe of an index: with a plain EXISTS the planner may read the whole index into a hash table, as
 * it does when it planned while the index was empty, and a million held rows are read at every claim. */
#define SOME_ROW(condition)  "coalesce((SELECT true FROM @.outbox_events e WHERE " condition " LIMIT 1), false)"
#define SOME_LANE(condition) "EXISTS (SELECT FROM lane WHERE " SOME_ROW("e.lane = lane.lane AND " condition) ")"

/* Is there a row of e's key before it? */
#define EARLIER(condition)                                                        \
    "coalesce((SELECT true FROM @.outbox_events h WHERE h.lane = e.lane AND " KEY \
    " = coalesce(e.partition_key, e.aggregate_id) AND h.seq < e.seq AND " condition " LIMIT 1), false)"

/* clang-format off */

/* Held rows that wait for their topic alone, stream by stream, so that a million which wait for something else, too, are passed
 * in one step. The walk over the keys is lazy: a LIMIT outside ends it. `most`: of so many keys. */
#define NEXT_KEY(lane, after, kind) \
    "(SELECT " KEY " FROM @.outbox_events e WHERE e.lane = " lane after " AND " kind " ORDER BY " KEY " LIMIT 1)"
#define KEYS(lane, kind, most) \
    "(WITH RECURSIVE k AS (SELECT 1 AS n, " NEXT_KEY(lane, "", kind) " AS key UNION ALL" \
    " SELECT n + 1, " NEXT_KEY(lane, " AND " KEY " > k.key", kind) " FROM k WHERE key IS NOT NULL AND n < " most ")" \
    " SELECT key FROM k WHERE key IS NOT NULL) k"
#define ALL_KEYS "2147483647"

/* What a claim passes of a lane and topic, or it would not end while very many streams wait for something else. What stands behind
 * so many comes when the topic's row is gone, by the sweep: so who removes it must look no further. */
#define SOME_KEYS "1000"
#define FIRST_OF_KEY(lane, condition) \
    "(SELECT seq FROM @.outbox_events e WHERE e.lane = " lane " AND " KEY " = k.key AND " condition " ORDER BY seq LIMIT 1)"
#define NO_SEQ "9223372036854775807"

/* What plain rows of stream k must not pass: a refused or released one, one with a list of topics, or (dead, a parameter) a
 * DEAD one that blocks. */
#define IN_THE_WAY(lane, topic, ordered, dead) \
    "CASE WHEN " ordered "::boolean THEN least(" NO_SEQ ", " FIRST_OF_KEY(lane, "e.topic = " topic " AND " HEAD) ", " \
    FIRST_OF_KEY(lane, ROUTED " AND " ROUTED_TO(topic)) ", " \
    "CASE WHEN " dead "::boolean THEN " FIRST_OF_KEY(lane, DEAD " AND " ROUTED_TO(topic)) " END) ELSE " NO_SEQ " END"

/* The first `n` plain rows of each stream, and none from `before` on. */
#define FREE_ROWS(columns, lane, topic, ordered, dead, before, most, n) \
    "SELECT f.* FROM " KEYS(lane, "e.topic = " topic " AND " HELD, most) " CROSS JOIN LATERAL (" \
    "  SELECT " columns " FROM @.outbox_events e WHERE e.lane = " lane " AND e.topic = " topic " AND " KEY " = k.key AND " HELD \
    "    AND e.seq < least(" before ", " IN_THE_WAY(lane, topic, ordered, dead) ") ORDER BY seq LIMIT " n

/* Of the rows with a list the first one of each key that goes to the topic: the others stand behind it. `also`, another condition,
 * must be met before the row is locked: what is locked and then left out would be nobody's obstacle (NOT_OURS). */
#define FREE_LISTS(columns, lane, topic, ordered, dead, before, most, also) \
    "SELECT f.* FROM " KEYS(lane, ROUTED_HELD, most) " CROSS JOIN LATERAL (" \
    "  SELECT " columns " FROM @.outbox_events e WHERE e.lane = " lane " AND " KEY " = k.key AND " ROUTED_HELD \
    "    AND " ROUTED_TO(topic) " AND e.seq < " before \
    "    AND e.seq <= CASE WHEN " ordered "::boolean THEN " FIRST_OF_KEY(lane, ROUTED_HELD " AND " ROUTED_TO(topic)) \
    "      ELSE " NO_SEQ " END" \
    "    AND " ROUTED_FREE(ordered, dead) also " ORDER BY seq"
#define NOT_PARKED_ELSEWHERE \
    " AND NOT EXISTS (SELECT FROM @.outbox_parked_topics o WHERE o.state = 'parked' AND " ROUTED_TO("o.topic") ")"
/* Both end open: FOR UPDATE may follow. */
#define END_FREE ") f"

/* Does the row e with a list wait for nothing in the streams of all its topics? Plain rows count that only wait for their
 * topic, too: the queue of one topic does not tell when those of the others go. */
#define ROUTED_FREE(ordered, dead) \
    "NOT (" ordered "::boolean AND EXISTS (SELECT FROM unnest(@.outbox_topics(e.topic, e.routing_key)) t WHERE " \
    EARLIER("h.topic = t AND " HELD) " OR " EARLIER("h.topic = t AND " HEAD) \
    " OR " EARLIER(ROUTED " AND " GOES_TO("h", "t")) \
    " OR " dead "::boolean AND " EARLIER(DEAD " AND " GOES_TO("h", "t")) "))"
/* clang-format on */

/* Rows that this transaction did not lock itself. */
#define NOT_OURS "xmax <> (SELECT pg_current_xact_id()::xid)"

#endif
