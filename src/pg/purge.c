#include "purge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claim.h"
#include "clock.h"
#include "predicates.h"

#define FAST_MS    15 /* a batch under this may grow */
#define SLOW_MS    40 /* one above it was too large */
#define PAGES_MAX  512
#define ROWS_MIN   20
#define ROWS_MAX   10000
#define DEAD_BATCH "500"

#define FRUITLESS_PAGES 4096 /* a round may read so many pages in vain */
#define WALKS           10   /* of a whole table in one retention, at least */

static const char begin[] = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '30s'; "
                            "SET LOCAL lock_timeout = '1s'; SET LOCAL idle_in_transaction_session_timeout = '10s'; "
                            "SET LOCAL enable_seqscan = off; SET LOCAL jit = off";

/* The condition stands twice: on the rows that are looked for, and again on the row that is deleted. */
#define WALK_SQL(table, expired)                                                                     \
    "WITH gone AS (DELETE FROM " table " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " table            \
    "    WHERE ctid > $1::tid AND ctid < $2::tid AND " expired " LIMIT $3 FOR UPDATE SKIP LOCKED)) " \
    "AND " expired " RETURNING ctid) SELECT count(*), max(ctid) FROM gone"
#define SENT_EXPIRED \
    "status = 1 AND coalesce(expires_at, coalesce(published_at, created_at) + $4::bigint * interval '1 ms') <= now()"

/* By name in the schema of outbox_lanes, which has rows always: a name inside a text would need another way of quoting. */
#define PAGES_SQL(table)                                                                                               \
    "SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint FROM pg_class c WHERE c.relname = '" table \
    "' AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = (SELECT tableoid FROM @.outbox_lanes LIMIT 1))"

static const struct walk_sql {
    struct statement pages, walk;
    int params;
} walk_sql[PURGE_TABLES] = {
    [PURGE_EVENTS] = {{"purge_events_pages", PAGES_SQL("outbox_events")},
                      {"purge_events", WALK_SQL("@.outbox_events", SENT_EXPIRED)},
                      4},
    [PURGE_PROCESSED] = {{"purge_processed_pages", PAGES_SQL("processed_events")},
                         {"purge_processed", WALK_SQL("@.processed_events", "expires_at <= now()")},
                         3},
};

/* clang-format off */

/* A DEAD row's retry_after is when it died. With OUTBOX_ON_DEAD=block ($2) one that holds followers is an operator's to
 * decide. */
#define DEAD_KEY    "coalesce(d.partition_key, d.aggregate_id)"
#define DEAD_TOPICS "@.outbox_topics(d.topic, d.routing_key)"
#define FOLLOWER(which) \
    "EXISTS (SELECT FROM @.outbox_events e WHERE e.lane = d.lane AND " KEY " = " DEAD_KEY " AND e.seq > d.seq AND " which ")"
#define DEAD_EXPIRED \
    "d.lane = $1::smallint AND d.status = 9 " \
    "AND coalesce(d.retry_after, d.created_at) + $3::bigint * interval '1 ms' <= now() AND NOT ($2::boolean AND (" \
    FOLLOWER("e.topic = ANY (" DEAD_TOPICS ") AND " HELD) " OR " \
    FOLLOWER("e.topic = ANY (" DEAD_TOPICS ") AND " HEAD) " OR " \
    FOLLOWER("@.outbox_topics(e.topic, e.routing_key) && " DEAD_TOPICS " AND " ROUTED) "))"

/* clang-format on */

static const struct statement any_dead = {"purge_any_dead",
                                          "SELECT EXISTS (SELECT FROM @.outbox_events d WHERE " DEAD_EXPIRED ")"};
static const struct statement lock_lane = {"purge_lane",
                                           "SELECT FROM @.outbox_lanes WHERE lane = $1::smallint FOR UPDATE"};
static const struct statement dead = {"purge_dead",
                                      "DELETE FROM @.outbox_events d WHERE " DEAD_EXPIRED " AND ctid = ANY (ARRAY("
                                      "SELECT ctid FROM @.outbox_events d WHERE " DEAD_EXPIRED " LIMIT " DEAD_BATCH
                                      " FOR UPDATE SKIP LOCKED))"};

void purge_init(struct purge *purge, const struct config *config)
{
    *purge = (struct purge){.config = config, .chunk_pages = 16, .batch_rows = 200};
}

/* --- the walk --- */

static enum result measure(struct pg *pg, struct purge_walk *walk, const struct walk_sql *sql, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = pg_query(pg, &sql->pages, 0, NULL, ANSWER_TIMEOUT_MS, &rows, err);
    if (result != OK)
        return result;
    walk->pages = rows_n(rows) > 0 ? rows_int(rows, 0, 0) : 0;
    walk->walked = 0;
    if (walk->block >= walk->pages)
        walk->block = walk->offset = 0;
    return OK;
}

static void adapt(struct purge *purge, int64_t ms, bool full)
{
    purge->last_ms = ms;
    if (ms > purge->longest_ms)
        purge->longest_ms = ms;
    if (ms > SLOW_MS) {
        purge->batch_rows = purge->batch_rows / 2 < ROWS_MIN ? ROWS_MIN : purge->batch_rows / 2;
        purge->chunk_pages = purge->chunk_pages / 2 < 1 ? 1 : purge->chunk_pages / 2;
    } else if (ms < FAST_MS) {
        if (full)
            purge->batch_rows = purge->batch_rows * 2 > ROWS_MAX ? ROWS_MAX : purge->batch_rows * 2;
        purge->chunk_pages = purge->chunk_pages * 2 > PAGES_MAX ? PAGES_MAX : purge->chunk_pages * 2;
    }
}

/* Deletes what has expired on the next pages, or the first batch of it, and moves on. */
static enum result walk_on(struct pg *pg, struct purge *purge, enum purge_table table, int64_t *ret_rows,
                           struct error *err)
{
    struct purge_walk *walk = &purge->walks[table];
    int64_t end = walk->block + purge->chunk_pages < walk->pages ? walk->block + purge->chunk_pages : walk->pages;
    char from[48], to[48], limit[24], retention[24];
    snprintf(from, sizeof from, "(%" PRId64 ",%" PRId64 ")", walk->block, walk->offset);
    snprintf(to, sizeof to, "(%" PRId64 ",0)", end);
    snprintf(limit, sizeof limit, "%" PRId64, purge->batch_rows);
    snprintf(retention, sizeof retention, "%" PRId64, purge->config->retention);
    const char *values[] = {from, to, limit, retention};

    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    int64_t start = clock_ms();
    enum result result = pg_script(pg, begin, 10000, err);
    if (result == OK)
        result = pg_query(pg, &walk_sql[table].walk, walk_sql[table].params, values, ANSWER_TIMEOUT_MS, &rows, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", ANSWER_TIMEOUT_MS, err);
    if (result != OK)
        return result;
    *ret_rows = rows_int(rows, 0, 0);
    purge->purged[table] += *ret_rows;
    bool full = *ret_rows >= purge->batch_rows;
    int64_t was = walk->block;
    adapt(purge, clock_ms() - start, full);
    if (!full) {
        walk->block = end;
        walk->offset = 0;
    } else { /* "(block,offset)": there may be more on these pages */
        char *at;
        walk->block = strtoll(rows_text(rows, 0, 1) + 1, &at, 10);
        walk->offset = *at == ',' ? strtoll(at + 1, NULL, 10) : 0;
    }
    walk->walked += walk->block - was;
    return OK;
}

static int64_t patience(const struct purge *purge, enum purge_table table)
{
    const struct config *config = purge->config;
    int64_t retention = table == PURGE_EVENTS ? config->retention : config->inbox_retention;
    int64_t rounds = retention / WALKS / config->purge_interval;
    int64_t share = rounds > 0 ? purge->walks[table].pages / rounds : purge->walks[table].pages;
    return share > FRUITLESS_PAGES ? share : FRUITLESS_PAGES;
}

static enum result walk_table(struct pg *pg, struct purge *purge, enum purge_table table, bool whole,
                              bool (*go_on)(void *arg), void *arg, bool *ret_stopped, struct error *err)
{
    struct purge_walk *walk = &purge->walks[table];
    enum result result = measure(pg, walk, &walk_sql[table], err);
    int64_t fruitless = 0;
    while (result == OK && walk->walked < walk->pages && (whole || fruitless < patience(purge, table))) {
        int64_t rows = 0, before = walk->walked;
        result = walk_on(pg, purge, table, &rows, err);
        fruitless = rows > 0 ? 0 : fruitless + walk->walked - before;
        if (walk->block >= walk->pages)
            walk->block = walk->offset = 0;
        if (result == OK && !go_on(arg)) {
            *ret_stopped = true;
            break;
        }
    }
    return result;
}

/* --- DEAD rows --- */

/* One batch of a lane. Asks without locks first: mostly there is nothing. */
static enum result bury_lane(struct pg *pg, struct purge *purge, int lane_number, int *ret_rows, struct error *err)
{
    char lane[12], retention[24];
    snprintf(lane, sizeof lane, "%d", lane_number);
    snprintf(retention, sizeof retention, "%" PRId64, purge->config->dead_retention);
    const char *values[] = {lane, purge->config->on_dead == ON_DEAD_BLOCK ? "t" : "f", retention};
    _cleanup_(rows_cleanup) struct rows *any = NULL, *gone = NULL;
    *ret_rows = 0;
    enum result result = pg_query(pg, &any_dead, 3, values, ANSWER_TIMEOUT_MS, &any, err);
    if (result != OK || !rows_true(any, 0, 0))
        return result;
    result = pg_script(pg, begin, 10000, err);
    if (result == OK)
        result = pg_query(pg, &lock_lane, 1, values, ANSWER_TIMEOUT_MS, NULL, err);
    if (result == RETRY && strcmp(err->sqlstate, "55P03") == 0)
        return pg_script(pg, "ROLLBACK", 10000, err); /* a batch is in flight there: next time */
    int64_t start = clock_ms();
    if (result == OK)
        result = pg_query(pg, &dead, 3, values, ANSWER_TIMEOUT_MS, &gone, err);
    if (result == OK)
        result = pg_script(pg, "COMMIT", ANSWER_TIMEOUT_MS, err);
    if (result != OK)
        return result;
    purge->last_ms = clock_ms() - start;
    if (purge->last_ms > purge->longest_ms)
        purge->longest_ms = purge->last_ms;
    *ret_rows = rows_affected(gone);
    purge->purged[PURGE_EVENTS] += *ret_rows;
    return OK;
}

enum result purge_round(struct pg *pg, struct purge *purge, bool whole, bool (*go_on)(void *arg), void *arg,
                        struct error *err)
{
    bool stopped = false;
    for (int table = 0; table < PURGE_TABLES && !stopped; table++) {
        enum result result = walk_table(pg, purge, (enum purge_table)table, whole, go_on, arg, &stopped, err);
        if (result != OK)
            return result;
    }
    for (int lane = 0; purge->config->dead_retention > 0 && lane < 16 && !stopped;) {
        int rows;
        enum result result = bury_lane(pg, purge, lane, &rows, err);
        if (result != OK)
            return result;
        lane += rows == 0;
        stopped = rows > 0 && !go_on(arg);
    }
    return OK;
}
