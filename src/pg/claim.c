#include "claim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "obstacles.h"
#include "predicates.h"
#include "seam.h"

/* --- what both begin with --- */

/* clang-format off */

static const struct statement begin = {"begin", "BEGIN ISOLATION LEVEL READ COMMITTED"};

/* The time-outs end with the transaction. A host that vanished must not keep its lanes for hours. Behind a pooler the
 * session's planner settings cannot be relied on either. */
#define GUARDS \
    "SELECT set_config('idle_in_transaction_session_timeout', $1, true), set_config('statement_timeout', $2, true)"
static const struct statement guards = {"guards", GUARDS};
static const struct statement guards_pooled = {"guards_pooled",
    GUARDS ", set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),"
    "  set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)"};

/* clang-format on */

static enum result queue_begin(struct pg *pg, int idle_ms, struct error *err)
{
    char idle[16], timeout[16];
    snprintf(idle, sizeof idle, "%d", idle_ms);
    snprintf(timeout, sizeof timeout, "%d", STATEMENT_TIMEOUT_MS);
    enum result result = pg_queue(pg, &begin, 0, NULL, false, err);
    if (result == OK)
        result = pg_queue(pg, pg_pooled(pg) ? &guards_pooled : &guards, 2, (const char *[]){idle, timeout}, false, err);
    return result;
}

static enum result read_begin(struct pg *pg, struct error *err)
{
    enum result result = pg_next(pg, NULL, err);
    return result == OK ? pg_next(pg, NULL, err) : result;
}

/* --- look --- */

/* clang-format off */
static const struct statement look = {"look",
    "WITH lane AS (SELECT l::smallint AS lane FROM generate_series(0, 15) l) "
    "SELECT (SELECT count(*) FROM ("
    "          SELECT FROM lane CROSS JOIN LATERAL ("
    "            SELECT FROM @.outbox_events e WHERE e.lane = lane.lane AND " READY " LIMIT $1) e LIMIT $1) x), "
    "  EXISTS (SELECT FROM @.outbox_parked_topics WHERE state = 'draining') OR " SOME_LANE(WAITING " AND retry_after <= now()") ","
    "  (SELECT probe_lane FROM @.outbox_parked_topics WHERE state = 'parked' AND probe_after <= now() ORDER BY probe_after LIMIT 1)"};
static const struct statement look_done = {"look_done", "COMMIT"};
/* clang-format on */

/* In a transaction only behind a pooler, for the settings: by old statistics a plan may read the whole table. */
enum result claim_look(struct pg *pg, struct claim *claim, int enough, int *ret_ready, bool *ret_other,
                       struct error *err)
{
    char limit[16];
    snprintf(limit, sizeof limit, "%d", enough);
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    bool pooled = pg_pooled(pg);
    enum result result = pooled ? queue_begin(pg, ANSWER_TIMEOUT_MS, err) : OK;
    if (result == OK)
        result = pg_queue(pg, &look, 1, (const char *[]){limit}, false, err);
    if (result == OK && pooled)
        result = pg_queue(pg, &look_done, 0, NULL, false, err);
    if (result == OK)
        result = pg_sync(pg, ANSWER_TIMEOUT_MS, err);
    if (result == OK && pooled)
        result = read_begin(pg, err);
    if (result == OK)
        result = pg_next(pg, &rows, err);
    if (result == OK)
        result = pg_end(pg, err);
    if (result != OK)
        return result;
    *ret_ready = (int)rows_int(rows, 0, 0);
    *ret_other = rows_true(rows, 0, 1);
    claim->due = rows_null(rows, 0, 2) ? NO_PROBE : (int)rows_int(rows, 0, 2);
    return OK;
}

/* --- claim --- */

/* clang-format off */

static const struct statement wary = {"wary", "SELECT set_config('outboxd.wary', 'on', true)"};

/* Two statements, lanes and rows: the snapshot that reads the rows must be younger than the lane locks. $3: the first lane or
 * none, for a probe. */
static const struct statement lanes = {"lanes",
    "SELECT set_config('outboxd.lanes',"
    "         coalesce(string_agg(l.lane::text, ',' ORDER BY (l.lane + 16 - $1::int) % 16), ''), true), now() "
    "FROM (SELECT lane FROM @.outbox_lanes WHERE (NOT $3::boolean OR lane = $1::int)"
    "      ORDER BY (lane + 16 - $1::int) % 16 LIMIT $2"
    "      FOR UPDATE SKIP LOCKED) l"};

/* Rows whose backoff has ended become ready (retry_after NULL = now), so that one ordered index serves the claim. */
static const struct statement promote = {"promote",
    "WITH " OUR_LANES
    " UPDATE @.outbox_events SET retry_after = NULL WHERE " WAITING " AND ctid = ANY (ARRAY("
    "  SELECT e.ctid FROM lane CROSS JOIN LATERAL ("
    "    SELECT ctid FROM @.outbox_events e WHERE e.lane = lane.lane AND " WAITING " AND retry_after <= now()"
    "    ORDER BY retry_after LIMIT $1 FOR UPDATE SKIP LOCKED) e LIMIT $1))"};

/* Rows beyond the bytes ($2) stay locked until the end of the transaction, but are not fetched. Nor are the bytes of a row
 * that is larger than any message ($3): it must not stop its lane. */
static const struct statement take = {"take",
    "WITH " OUR_LANES
    " SELECT " DECODE_COLUMNS_IF("size <= $3::int") " FROM ("
    "  SELECT e.*, sum(least(size, $3::int)) OVER (ROWS UNBOUNDED PRECEDING) - least(size, $3::int) AS before FROM ("
    "    SELECT e.* FROM lane CROSS JOIN LATERAL ("
    "      SELECT ctid, " DECODE_SIZE " AS size, " DECODE_RAW " FROM @.outbox_events e"
    "      WHERE e.lane = lane.lane AND " READY " ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED) e LIMIT $1) e) e "
    "WHERE before < $2::bigint"};

/* Was anything among those rows not ours to take: held by another session, or committed a moment later? Then
 * obstacles_skipped asks what. With nothing skipped the rows taken are the first of each lane, and these are the same. */
static const struct statement skipped = {"skipped",
    "WITH " OUR_LANES
    " SELECT EXISTS ("
    "  SELECT FROM (SELECT e.xmax FROM lane CROSS JOIN LATERAL ("
    "    SELECT xmax FROM @.outbox_events e WHERE e.lane = lane.lane AND " READY " ORDER BY seq LIMIT $1) e LIMIT $1) e"
    "  WHERE " NOT_OURS ")"};

/* Is there anything that a stream might wait for? With no FAILED row in our lanes this is all that it costs. */
static const struct statement troubles = {"troubles",
    "WITH " OUR_LANES
    " SELECT " SOME_LANE(HELD) " OR " SOME_LANE(HEAD) " OR " SOME_LANE(ROUTED) " OR $1::boolean AND " SOME_LANE(DEAD) ","
    "  EXISTS (SELECT FROM @.outbox_parked_topics), " SOME_LANE(WAITING " AND retry_after <= now()")};

/* clang-format on */

/* Together they take what stood in front of the row that could not be handed out, in a batch of the usual size. */
#define WARY_CLAIMS 128
#define WARY_ROWS   16

int claim_rows(const struct claim *claim)
{
    return claim->wary > 0 && claim->batch_size > WARY_ROWS ? WARY_ROWS : claim->batch_size;
}

/* While a topic drains, half the batch is its. */
static int ready_limit(const struct claim *claim)
{
    int limit = claim_rows(claim);
    return claim->draining && limit > 1 ? limit / 2 : limit;
}

enum result claim_queue(struct pg *pg, struct claim *claim, int n_lanes, struct error *err)
{
    char first[16], n[16], limit[16], bytes[24], largest[24];
    bool probing = claim->probe != NO_PROBE;
    snprintf(first, sizeof first, "%d", probing ? claim->probe : claim->first);
    snprintf(n, sizeof n, "%d", n_lanes);
    snprintf(limit, sizeof limit, "%d", ready_limit(claim));
    snprintf(bytes, sizeof bytes, "%lld", (long long)claim->batch_bytes);
    snprintf(largest, sizeof largest, "%lld", (long long)claim->largest_row);
    claim->first = (claim->first + 1) % LANES;

    enum result result = queue_begin(pg, claim->delivery_timeout_ms + 10000, err);
    if (result == OK && claim->wary > 0)
        result = pg_queue(pg, &wary, 0, NULL, false, err);
    if (result == OK)
        result = pg_queue(pg, &lanes, 3, (const char *[]){first, n, probing ? "t" : "f"}, true, err);
    if (result == OK && claim->promote)
        result = pg_queue(pg, &promote, 1, (const char *[]){limit}, false, err);
    if (result == OK)
        result = pg_queue(pg, &take, 3, (const char *[]){limit, bytes, largest}, true, err);
    if (result == OK && claim->ordered)
        result = pg_queue(pg, &skipped, 1, (const char *[]){limit}, false, err);
    if (result == OK)
        result = pg_queue(pg, &troubles, 1, (const char *[]){claim->dead_blocks ? "t" : "f"}, false, err);
    return result;
}

static uint32_t lane_bits(const char *list)
{
    uint32_t bits = 0;
    while (*list) {
        bits |= 1u << strtoul(list, (char **)&list, 10);
        list += *list == ',';
    }
    return bits;
}

static enum result read_claim(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *held = NULL, *taken = NULL, *gaps = NULL, *trouble = NULL;
    enum result result = read_begin(pg, err);
    if (result == OK && claim->wary > 0)
        result = pg_next(pg, NULL, err);
    if (result == OK)
        result = pg_next(pg, &held, err);
    if (result == OK && claim->promote)
        result = pg_next(pg, NULL, err);
    if (result == OK)
        result = pg_next(pg, &taken, err);
    if (result == OK && claim->ordered)
        result = pg_next(pg, &gaps, err);
    if (result == OK)
        result = pg_next(pg, &trouble, err);
    if (result == OK)
        result = pg_end(pg, err);
    if (result != OK)
        return result;

    batch->lanes = lane_bits(rows_text(held, 0, 0));
    claim->now_us = rows_binary_int(held, 0, 1);
    int64_t bytes = 0;
    for (int i = 0, n = rows_n(taken); i < n; i++)
        bytes += obstacles_add(claim, batch, taken, i);
    batch->full = rows_n(taken) >= ready_limit(claim) || bytes >= claim->batch_bytes;
    batch_own(batch, TAKE(taken), rows_free);
    if (claim->ordered && rows_true(gaps, 0, 0))
        result = obstacles_skipped(pg, claim, batch, err);

    claim->troubled = rows_true(trouble, 0, 0) || rows_true(trouble, 0, 1);
    claim->promote = rows_true(trouble, 0, 2);
    batch->waiting = rows_true(trouble, 0, 0);
    claim->draining = false;
    claim->due = NO_PROBE;
    obstacles_clear(claim);
    if (result == OK && claim->troubled && batch->lanes != 0)
        result = obstacles_find(pg, claim, batch, err);
    claim->probe = NO_PROBE;
    batch_sort(batch);
    for (size_t i = 0; i < batch->n; i++) /* only now do the events stay where they are */
        batch->events[i].occurred_at.data = batch->events[i].occurred_text;
    batch_hold_followers(batch, claim->ordered, claim->dead_blocks);
    seam("claimed");
    return result;
}

enum result claim_read(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err)
{
    enum result result = read_claim(pg, claim, batch, err);
    if (claim->wary > 0 && (result != OK || batch->n > 0))
        claim->wary--;                                    /* also when it failed: measuring may take too long */
    if (result != OK && str_eq(err->sqlstate, "54000")) { /* program_limit_exceeded: a text of more than 1 GB */
        claim->wary = WARY_CLAIMS;
        error_retry(err, "an event is longer than PostgreSQL can hand out (%s): looking for it", err->message);
    }
    return result;
}

void claim_done(struct claim *claim)
{
    obstacles_clear(claim);
}
