#include "obstacles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "predicates.h"

/* clang-format off */

/* $1: our lanes, $2: the last row taken of each. */
static const struct statement bystanders = {"bystanders",
    "SELECT min(seq), lane, topic, routing_key, partition_key, aggregate_id FROM ("
    "  SELECT e.* FROM unnest($1::smallint[], $2::bigint[]) l(lane, taken) CROSS JOIN LATERAL ("
    "    SELECT " DECODE_BYSTANDER " FROM @.outbox_events e"
    "    WHERE e.lane = l.lane AND e.seq < l.taken AND " READY " AND " NOT_OURS ") e) e "
    "GROUP BY 2, 3, 4, 5, 6"};

static const struct statement parked_topics = {"parked_topics",
    "SELECT topic, state = 'draining', reason, probe_after <= now(), probes, probe_lane FROM @.outbox_parked_topics"
    " ORDER BY probe_after"};

/* The topics of FAILED rows that are not ready, per lane: a loose scan that takes one step a topic, however many rows. A
 * row with a list of topics names none: "" stands for any. */
#define FIRST_TOPIC(lane, after, kind) \
    "(SELECT e.topic FROM @.outbox_events e WHERE e.lane = " lane after " AND " kind " ORDER BY topic LIMIT 1)"
#define NEXT_TOPIC(lane, after) \
    "(SELECT min(topic) FROM (" FIRST_TOPIC(lane, after, HELD) " UNION ALL " FIRST_TOPIC(lane, after, HEAD) ") n)"
static const struct statement stuck_topics = {"stuck_topics",
    "WITH RECURSIVE " OUR_LANES ", step AS ("
    "  SELECT lane, " NEXT_TOPIC("lane.lane", "") " AS topic FROM lane"
    "  UNION ALL"
    "  SELECT lane, " NEXT_TOPIC("step.lane", " AND e.topic > step.topic") " FROM step WHERE topic IS NOT NULL) "
    "SELECT lane, topic FROM step WHERE topic IS NOT NULL "
    "UNION ALL "
    "SELECT lane, '' FROM lane WHERE " SOME_ROW("e.lane = lane.lane AND " ROUTED)
    "  OR $1::boolean AND " SOME_ROW("e.lane = lane.lane AND " DEAD)};

/* A row e that comes back from the queue of lane l must not pass a ready one of its key that we did not take: another
 * session holds that one, or the batch was full before it. So we look at the first of these in each lane, and what stands
 * behind the last that we looked at does not come back yet. */
#define OUR_ROWS(ordered) \
    "(SELECT u.lane, r.seqs, r.keys, r.horizon FROM unnest($1::smallint[], $2::bigint[]) u(lane, taken) CROSS JOIN LATERAL (" \
    "   SELECT array_agg(seq) AS seqs, array_agg(key) AS keys," \
    "     CASE WHEN count(*) = 64 THEN max(seq) + 1 ELSE " NO_SEQ " END AS horizon" \
    "   FROM (SELECT seq, " KEY " AS key FROM @.outbox_events e WHERE " ordered "::boolean AND e.lane = u.lane" \
    "         AND e.seq > u.taken AND " READY " ORDER BY seq LIMIT 64) e) r) l"
#define BEFORE_READY \
    "least(l.horizon, (SELECT min(r.seq) FROM unnest(l.seqs, l.keys) r(seq, key) WHERE r.key = k.key))"
#define COLUMNS "ctid, " DECODE_SIZE " AS size, " DECODE_RAW
#define LOCKED  " FOR UPDATE SKIP LOCKED" END_FREE

/* A held row of a parked topic in its probe's lane that waits for nothing else, when its time has come.
 * $1, $2: our lanes and the last row taken of each; $3: order counts; $4: a DEAD row blocks. */
static const struct statement probes = {"probes",
    "SELECT " DECODE_COLUMNS_IF("size <= $5::int") " FROM ("
    "  SELECT e.* FROM @.outbox_parked_topics p JOIN " OUR_ROWS("$3") " ON l.lane = p.probe_lane CROSS JOIN LATERAL ("
    "    SELECT * FROM (" FREE_ROWS(COLUMNS, "p.probe_lane", "p.topic", "$3", "$4", BEFORE_READY, ALL_KEYS, "1") LOCKED " LIMIT 1) plain"
    "    UNION ALL"
    "    SELECT * FROM (" FREE_LISTS(COLUMNS, "p.probe_lane", "p.topic", "$3", "$4", BEFORE_READY, ALL_KEYS, "") LOCKED " LIMIT 1) listed"
    "    LIMIT 1) e"
    "  WHERE p.state = 'parked' AND p.probe_after <= now()) e"};

/* The queue of a draining topic, lane by lane; a row with a list waits for all its topics. $1, $2 as above, $3: rows, $4: bytes,
 * $5: order counts, $6: a DEAD row blocks. Rows beyond the bytes come without them. */
static const struct statement drained = {"drained",
    "SELECT " DECODE_COLUMNS_IF("before < $4::bigint AND size <= $7::int") ", before < $4::bigint FROM ("
    "  SELECT e.*, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM ("
    "    SELECT e.* FROM " OUR_ROWS("$5")
    "      CROSS JOIN (SELECT topic FROM @.outbox_parked_topics WHERE state = 'draining') p"
    "      CROSS JOIN LATERAL ("
    "        SELECT * FROM (" FREE_ROWS(COLUMNS, "l.lane", "p.topic", "$5", "$6", BEFORE_READY, SOME_KEYS, "$3") LOCKED ") plain"
    "        UNION ALL"
    "        SELECT * FROM (" FREE_LISTS(COLUMNS, "l.lane", "p.topic", "$5", "$6", BEFORE_READY, SOME_KEYS, NOT_PARKED_ELSEWHERE)
    "          LIMIT $3" LOCKED ") listed) e"
    "    LIMIT $3) e) e"};

/* For each stream asked about: its first row that is unfinished, not ready and not in this batch; then a line for every
 * question whose stream has one. */
#define FIRST_SEQ(condition) "(SELECT seq FROM @.outbox_events e WHERE e.lane = s.lane AND " condition " ORDER BY seq LIMIT 1)"
static const struct statement blocking = {"blocking",
    "SELECT unnest(ns), seq FROM ("
    "  SELECT ns, least("
    "    " FIRST_SEQ("e.topic = s.topic AND " KEY " = s.key AND " HELD " AND " NOT_OURS) ","
    "    " FIRST_SEQ("e.topic = s.topic AND " KEY " = s.key AND " HEAD " AND retry_after IS NOT NULL") ","
    "    " FIRST_SEQ(KEY " = s.key AND " ROUTED " AND retry_after IS NOT NULL AND " ROUTED_TO("s.topic") " AND " NOT_OURS) ","
    "    " FIRST_SEQ("$4::boolean AND " KEY " = s.key AND " DEAD " AND " ROUTED_TO("s.topic")) ") AS seq"
    "  FROM (SELECT lane, topic, key, array_agg(n) AS ns"
    "        FROM unnest($1::smallint[], $2::text[], $3::text[]) WITH ORDINALITY q(lane, topic, key, n)"
    "        GROUP BY lane, topic, key) s) b "
    "WHERE seq IS NOT NULL"};

/* clang-format on */

void obstacles_clear(struct claim *claim)
{
    for (size_t i = 0; i < claim->n_parked; i++) {
        free(claim->parked[i].topic);
        free(claim->parked[i].reason);
    }
    for (size_t i = 0; i < claim->n_stuck; i++)
        free(claim->stuck[i].topic);
    free(TAKE(claim->parked));
    free(TAKE(claim->stuck));
    claim->n_parked = claim->n_stuck = 0;
}

const struct parked_topic *claim_parked(const struct claim *claim, const char *topic)
{
    for (size_t i = 0; i < claim->n_parked; i++)
        if (str_eq(claim->parked[i].topic, topic))
            return &claim->parked[i];
    return NULL;
}

bool claim_stuck(const struct claim *claim, int lane, const char *topic)
{
    for (size_t i = 0; i < claim->n_stuck; i++)
        if (claim->stuck[i].lane == lane && (claim->stuck[i].topic[0] == '\0' || str_eq(claim->stuck[i].topic, topic)))
            return true;
    return false;
}

static void read_parked(struct claim *claim, const struct rows *rows)
{
    claim->n_parked = (size_t)rows_n(rows);
    claim->parked = mem_alloc((claim->n_parked + 1) * sizeof *claim->parked);
    for (int i = 0; i < rows_n(rows); i++) {
        claim->parked[i] = (struct parked_topic){
            .topic = str_dup(rows_text(rows, i, 0)),
            .draining = rows_true(rows, i, 1),
            .reason = str_dup(rows_text(rows, i, 2)),
            .probe_due = rows_true(rows, i, 3),
            .probes = (int)rows_int(rows, i, 4),
            .probe_lane = (int)rows_int(rows, i, 5),
        };
        const struct parked_topic *parked = &claim->parked[i];
        claim->draining |= parked->draining;
        if (claim->due == NO_PROBE && !parked->draining && parked->probe_due && parked->probe_lane != claim->probe)
            claim->due = parked->probe_lane; /* the one that has waited longest */
    }
}

static void read_stuck(struct claim *claim, const struct rows *rows)
{
    claim->n_stuck = (size_t)rows_n(rows);
    claim->stuck = mem_alloc((claim->n_stuck + 1) * sizeof *claim->stuck);
    for (int i = 0; i < rows_n(rows); i++)
        claim->stuck[i] = (struct stuck_stream_topic){(int)rows_int(rows, i, 0), str_dup(rows_text(rows, i, 1))};
}

/* --- rows that come back --- */

/* Our lanes, the first one rotating as in the claim, and the last row taken of each. */
static void describe_taken(const struct claim *claim, const struct batch *batch, struct strbuf *lanes,
                           struct strbuf *taken)
{
    int64_t last[LANES] = {0};
    for (size_t i = 0; i < batch->n; i++) {
        const struct event *event = &batch->events[i];
        if (event->taken && !event->probe && event->seq > last[event->lane])
            last[event->lane] = event->seq;
    }
    pg_array_begin(lanes);
    pg_array_begin(taken);
    for (int i = 0; i < LANES; i++) {
        int lane = (claim->first + i) % LANES;
        if (!(batch->lanes >> lane & 1))
            continue;
        pg_array_int(lanes, lane);
        pg_array_int(taken, last[lane]);
    }
    pg_array_end(lanes);
    pg_array_end(taken);
}

enum result obstacles_skipped(struct pg *pg, const struct claim *claim, struct batch *batch, struct error *err)
{
    struct strbuf lanes = {0}, taken = {0};
    describe_taken(claim, batch, &lanes, &taken);
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = pg_round_trip(pg, &bystanders, 2, (const char *[]){lanes.data, taken.data}, true, &rows, err);
    strbuf_done(&lanes);
    strbuf_done(&taken);
    if (result != OK)
        return result;
    decode_bystanders(batch, rows);
    batch_own(batch, TAKE(rows), rows_free);
    return OK;
}

int64_t obstacles_add(const struct claim *claim, struct batch *batch, const struct rows *rows, int row)
{
    struct event *event = batch_add(batch);
    int64_t size = decode_event(event, rows, row, claim->max_retries, claim->now_us);
    if (size <= claim->largest_row)
        return size;
    event_judge(event, VERDICT_DEAD, "%lld bytes: larger than a message may be (OUTBOX_KAFKA_MESSAGE_MAX_BYTES)",
                (long long)size);
    return 0;
}

/* A row with several topics may come back by more than one of them. */
static bool is_twin(const struct batch *batch, const struct event *event)
{
    for (const struct event *other = batch->events; event->routing_key.data != NULL && other < event; other++)
        if (other->seq == event->seq)
            return true;
    return false;
}

static void add_returning(struct claim *claim, struct batch *batch, struct rows **rows, bool probe)
{
    for (int i = 0, n = rows_n(*rows); i < n; i++) {
        obstacles_add(claim, batch, *rows, i);
        struct event *event = &batch->events[batch->n - 1];
        event->probe = probe;
        event->drained = !probe;
        if (!probe &&
            !rows_true(*rows, i, DECODE_N_COLUMNS)) { /* locked, but not fetched: what follows it waits with it */
            event_judge(event, VERDICT_LEFT, NULL);
            batch->full = true;
        }
        if (is_twin(batch, event))
            event_done(&batch->events[--batch->n]);
    }
    batch_own(batch, TAKE(*rows), rows_free);
}

static bool is_tried(const struct batch *batch, const char *topic)
{
    for (size_t i = 0; i < batch->n; i++)
        for (size_t t = 0; batch->events[i].probe && t < batch->events[i].route.n; t++)
            if (str_eq(route_topic(&batch->events[i].route, t), topic))
                return true;
    return false;
}

static void note_idle_probes(struct claim *claim, const struct batch *batch)
{
    for (size_t i = 0; i < claim->n_parked; i++) {
        struct parked_topic *parked = &claim->parked[i];
        parked->idle_probe = !parked->draining && parked->probe_due && parked->probe_lane == claim->probe &&
                             (batch->lanes >> claim->probe & 1) && !is_tried(batch, parked->topic);
    }
}

static enum result ask_topics(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *parked = NULL, *stuck = NULL, *probe = NULL;
    struct strbuf lanes = {0}, taken = {0};
    char largest[24];
    bool probing = claim->probe != NO_PROBE;
    describe_taken(claim, batch, &lanes, &taken);
    const char *values[] = {lanes.data, taken.data, claim->ordered ? "t" : "f", claim->dead_blocks ? "t" : "f",
                            largest};
    snprintf(largest, sizeof largest, "%lld", (long long)claim->largest_row);
    enum result result = pg_queue(pg, &parked_topics, 0, NULL, false, err);
    if (result == OK)
        result = pg_queue(pg, &stuck_topics, 1, (const char *[]){claim->dead_blocks ? "t" : "f"}, false, err);
    if (result == OK && probing)
        result = pg_queue(pg, &probes, 5, values, true, err);
    strbuf_done(&lanes);
    strbuf_done(&taken);
    if (result == OK)
        result = pg_sync(pg, ANSWER_TIMEOUT_MS, err);
    if (result == OK)
        result = pg_next(pg, &parked, err);
    if (result == OK)
        result = pg_next(pg, &stuck, err);
    if (result == OK && probing)
        result = pg_next(pg, &probe, err);
    if (result == OK)
        result = pg_end(pg, err);
    if (result != OK)
        return result;
    read_parked(claim, parked);
    read_stuck(claim, stuck);
    if (probing) {
        add_returning(claim, batch, &probe, true);
        note_idle_probes(claim, batch);
    }
    return OK;
}

static enum result drain(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err)
{
    struct strbuf lanes = {0}, taken = {0};
    char limit[16], bytes[24], largest[24];
    describe_taken(claim, batch, &lanes, &taken);
    int room = claim_rows(claim) - (int)batch->n;
    snprintf(limit, sizeof limit, "%d", room > 1 ? room : 1);
    snprintf(bytes, sizeof bytes, "%lld", (long long)claim->batch_bytes);
    snprintf(largest, sizeof largest, "%lld", (long long)claim->largest_row);

    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    const char *values[] = {
        lanes.data, taken.data, limit, bytes, claim->ordered ? "t" : "f", claim->dead_blocks ? "t" : "f", largest};
    enum result result = pg_round_trip(pg, &drained, 7, values, true, &rows, err);
    strbuf_done(&lanes);
    strbuf_done(&taken);
    if (result != OK)
        return result;
    batch->full |= rows_n(rows) >= room;
    add_returning(claim, batch, &rows, false);
    return OK;
}

/* --- streams that must wait --- */

/* Asks about every stream of the batch that might be blocked; an event behind a blocking row must wait. */
static enum result ask_streams(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err)
{
    struct strbuf lanes = {0}, topics = {0}, keys = {0};
    size_t *asked_for = NULL; /* question -> event */
    size_t n = 0, cap = 0;
    pg_array_begin(&lanes);
    pg_array_begin(&topics);
    pg_array_begin(&keys);
    for (size_t i = 0; i < batch->n; i++) {
        const struct event *event = &batch->events[i];
        for (size_t t = 0; event->taken && t < event->route.n; t++) {
            if (!claim_stuck(claim, event->lane, route_topic(&event->route, t)))
                continue;
            pg_array_int(&lanes, event->lane);
            pg_array_text(&topics, route_topic(&event->route, t));
            pg_array_text(&keys, event->key.data);
            if (n == cap) {
                cap = cap ? cap * 2 : 64;
                asked_for = mem_grow(asked_for, cap, sizeof *asked_for);
            }
            asked_for[n++] = i;
        }
    }
    pg_array_end(&lanes);
    pg_array_end(&topics);
    pg_array_end(&keys);

    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = OK;
    if (n > 0) {
        const char *values[] = {lanes.data, topics.data, keys.data, claim->dead_blocks ? "t" : "f"};
        result = pg_round_trip(pg, &blocking, 4, values, false, &rows, err);
        for (int i = 0; result == OK && i < rows_n(rows); i++) {
            struct event *event = &batch->events[asked_for[rows_int(rows, i, 0) - 1]];
            event->must_wait |= rows_int(rows, i, 1) < event->seq;
        }
    }
    strbuf_done(&lanes);
    strbuf_done(&topics);
    strbuf_done(&keys);
    free(asked_for);
    return result;
}

/* A row for a parked topic waits with it, unless it is the one that is to find out. */
static void hold_parked(const struct claim *claim, struct batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        struct event *event = &batch->events[i];
        for (size_t t = 0; event->taken && !event->probe && t < event->route.n; t++) {
            const struct parked_topic *parked = claim_parked(claim, route_topic(&event->route, t));
            if (parked == NULL || parked->draining)
                continue;
            event_judge(event, VERDICT_HELD, "parked: %s", parked->reason);
            event->blame = route_topic(&event->route, t);
        }
    }
}

enum result obstacles_find(struct pg *pg, struct claim *claim, struct batch *batch, struct error *err)
{
    enum result result = ask_topics(pg, claim, batch, err);
    if (result == OK && claim->draining)
        result = drain(pg, claim, batch, err);
    if (result != OK)
        return result;
    hold_parked(claim, batch);
    return claim->ordered && claim->n_stuck > 0 ? ask_streams(pg, claim, batch, err) : OK;
}
