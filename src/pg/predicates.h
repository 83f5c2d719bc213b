/* The predicates of the partial indexes in sql/001_outbox.up.sql. A statement that is to use such an index must repeat
 * its predicate word for word; here each is written once. */
#ifndef OUTBOXD_PREDICATES_H
#define OUTBOXD_PREDICATES_H

#define KEY     "coalesce(partition_key, aggregate_id)"
#define READY   "(status = 0 OR (status = 2 AND retry_after IS NULL))"
#define WAITING "status = 2 AND retry_after < 'infinity'"
#define HEAD    "routing_key IS NULL AND status = 2 AND retry_after IS DISTINCT FROM 'infinity'"
#define HELD    "routing_key IS NULL AND status = 2 AND retry_after = 'infinity'"
#define ROUTED  "routing_key IS NOT NULL AND status = 2"
#define DEAD    "status = 9"

/* What a batch may hold locked. */
#define READY_OR_HELD "status IN (0, 2)"

/* A routed row is held; `topic` (an expression) is one of the topics of the row e. */
#define ROUTED_HELD      ROUTED " AND retry_after = 'infinity'"
#define ROUTED_TO(topic) topic " = ANY (@.outbox_topics(e.topic, e.routing_key))"

/* The lanes that this transaction holds, as the statement that locked them left them. */
#define OUR_LANES                                            \
    "lane AS MATERIALIZED (SELECT l::smallint AS lane FROM " \
    "unnest(string_to_array(nullif(current_setting('outboxd.lanes', true), ''), ',')) l)"

/* Is there such a row? One probe of an index: with a plain EXISTS the planner may read the whole index into a hash table, as
 * it does when it planned while the index was empty, and a million held rows are read at every claim. */
#define SOME_ROW(condition)  "coalesce((SELECT true FROM @.outbox_events e WHERE " condition " LIMIT 1), false)"
#define SOME_LANE(condition) "EXISTS (SELECT FROM lane WHERE " SOME_ROW("e.lane = lane.lane AND " condition) ")"

/* Does the plain row e stand behind a row of its stream that must go first: a refused or released one, one with a list of
 * topics, or (dead, a parameter) a DEAD one that blocks? Then it waits for that row and not for its topic. */
#define EARLIER(condition)                                                        \
    "coalesce((SELECT true FROM @.outbox_events h WHERE h.lane = e.lane AND " KEY \
    " = coalesce(e.partition_key, e.aggregate_id) AND h.seq < e.seq AND " condition " LIMIT 1), false)"
#define E_TOPIC_OF_H "e.topic = ANY (@.outbox_topics(h.topic, h.routing_key))"
/* clang-format off */
#define FREE(ordered, dead) \
    "NOT (" ordered "::boolean AND (" EARLIER("h.topic = e.topic AND " HEAD) \
    " OR " EARLIER(ROUTED " AND " E_TOPIC_OF_H) \
    " OR " dead "::boolean AND " EARLIER(DEAD " AND " E_TOPIC_OF_H) "))"

/* The same of the routed row e, in the streams of all its topics. Plain rows count that only wait for their topic, too: the
 * queue of one topic does not tell when those of the others go. */
#define T_TOPIC_OF_H "t = ANY (@.outbox_topics(h.topic, h.routing_key))"
#define ROUTED_FREE(ordered, dead) \
    "NOT (" ordered "::boolean AND EXISTS (SELECT FROM unnest(@.outbox_topics(e.topic, e.routing_key)) t WHERE " \
    EARLIER("h.topic = t AND " HELD) " OR " EARLIER("h.topic = t AND " HEAD) \
    " OR " EARLIER(ROUTED " AND " T_TOPIC_OF_H) \
    " OR " dead "::boolean AND " EARLIER(DEAD " AND " T_TOPIC_OF_H) "))"
/* clang-format on */

/* Rows that this transaction did not lock itself. */
#define NOT_OURS "xmax <> (SELECT pg_current_xact_id()::xid)"

#endif
