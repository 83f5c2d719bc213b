#include "mark.h"

#include <stdio.h>

#include "backoff.h"
#include "predicates.h"
#include "seam.h"

#define PROBE_BASE_MS 500
#define PROBE_CAP_MS  5000

/* By ctid, for we hold the row and it cannot move, and within the range of their seqs, so that a mistake about that marks
 * nothing. Not by each seq: an array that is a parameter is searched from its begin for every row. */
#define WHERE_SENT "WHERE ctid = ANY ($1::tid[]) AND seq BETWEEN $2::bigint AND $3::bigint AND " READY_OR_HELD
static const struct statement sent = {
    "sent",
    "UPDATE @.outbox_events SET status = 1, published_at = clock_timestamp(), retry_after = NULL, last_error = NULL " WHERE_SENT};
static const struct statement deleted = {"deleted", "DELETE FROM @.outbox_events " WHERE_SENT};

/* delay: milliseconds, or -1 for a held row. A row that is held for a parked topic ($7) is held only while that topic is. */
static const struct statement others = {
    "others",
    "UPDATE @.outbox_events e SET status = v.status, retry_count = v.retry_count, last_error = v.error, "
    "retry_after = CASE WHEN v.status = 9 THEN clock_timestamp() WHEN v.delay < 0 THEN 'infinity' "
    "    ELSE clock_timestamp() + v.delay * interval '1 ms' END "
    "FROM unnest($1::tid[], $2::bigint[], $3::smallint[], $4::smallint[], $5::bigint[], $6::text[], $7::text[]) "
    "    v(tid, seq, status, retry_count, delay, error, parked) "
    "WHERE e.ctid = v.tid AND e.seq = v.seq AND e.status IN (0, 2) AND (v.parked IS NULL "
    "    OR EXISTS (SELECT FROM @.outbox_parked_topics p WHERE p.topic = v.parked))"};

/* Parks topics; one that drained goes back. In the order of their names, so that two workers do not lock crosswise. */
static const struct statement park = {
    "park",
    "INSERT INTO @.outbox_parked_topics AS p (topic, reason, probe_after, probe_seq, probe_lane) "
    "SELECT topic, reason, clock_timestamp() + delay * interval '1 ms', seq, lane "
    "FROM (SELECT DISTINCT ON (topic) * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::smallint[]) "
    "      v(topic, reason, delay, seq, lane) ORDER BY topic, seq) v ORDER BY topic "
    "ON CONFLICT (topic) DO UPDATE SET state = 'parked', reason = excluded.reason, probe_after = excluded.probe_after, "
    "    probe_seq = excluded.probe_seq, probe_lane = excluded.probe_lane WHERE p.state = 'draining'"};

/* Whoever takes a topic out of the table locks its row first and then looks for held rows again: with this lock here, either
 * it sees ours, or we see that the topic is gone. */
static const struct statement keep_parked = {
    "keep_parked", "SELECT FROM @.outbox_parked_topics WHERE topic = ANY ($1::text[]) ORDER BY topic FOR KEY SHARE"};

/* What the probes found out, in the order of names, too. delay < 0: the topic takes records again; seq 0: there was no row to try
 * it with. */
static const struct statement probed = {
    "probed", "UPDATE @.outbox_parked_topics p SET state = CASE WHEN v.delay < 0 THEN 'draining' ELSE 'parked' END, "
              "probes = probes + 1, reason = coalesce(v.reason, p.reason), "
              "probe_seq = coalesce(nullif(v.seq, 0), p.probe_seq), "
              "probe_after = clock_timestamp() + greatest(v.delay, 0) * interval '1 ms' "
              "FROM (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) "
              "      v(topic, delay, seq, reason) ORDER BY topic) v "
              "WHERE p.topic = v.topic AND p.state = 'parked'"};

/* The streams whose head went: their next held rows become ready, a batch ($4) of all together and at least one of each. In the
 * order of their seqs, plain ones and those with a list together, and none behind a row that stays: one that came to the claim too
 * early would be held again, and nobody would be left to release it. Nothing while some earlier released row of the stream is on
 * its way, for the last of these releases the next; nor for a parked topic, nor one that drains, unless lists stand among its rows:
 * the others are taken straight from the queue. What is not to be released is not locked either: that would be a write a row.
 * Only a hint: the claim tests. */
/* clang-format off */
const struct statement mark_release = {"release",
    "UPDATE @.outbox_events SET retry_after = NULL WHERE status = 2 AND retry_after = 'infinity' AND ctid = ANY (ARRAY("
    "  SELECT h.ctid FROM"
    "    (SELECT *, greatest($4::bigint / count(*) OVER (), 1) AS share"
    "     FROM (SELECT DISTINCT lane, topic, key FROM unnest($1::smallint[], $2::text[], $3::text[]) u(lane, topic, key)) k"
    "     WHERE NOT EXISTS (SELECT FROM @.outbox_parked_topics p WHERE p.topic = k.topic AND (p.state = 'parked'"
    "       OR " FIRST_OF_KEY("k.lane", ROUTED " AND " ROUTED_TO("k.topic")) " IS NULL))) k"
    "    CROSS JOIN LATERAL (SELECT coalesce(" FIRST_OF_KEY("k.lane", "e.topic = k.topic AND " HEAD) ", " NO_SEQ ") AS head) x"
    "    CROSS JOIN LATERAL ("
    "      SELECT ctid, seq, bool_or(stays) OVER (ORDER BY seq) AS stays FROM ("
    "        SELECT * FROM (SELECT ctid, seq, false AS stays FROM @.outbox_events e WHERE e.lane = k.lane AND e.topic = k.topic"
    "          AND " KEY " = k.key AND " HELD " AND e.seq < x.head ORDER BY seq LIMIT k.share FOR UPDATE SKIP LOCKED) plain"
    "        UNION ALL"
    "        SELECT ctid, seq, EXISTS (SELECT FROM @.outbox_parked_topics p WHERE p.state = 'parked' AND p.topic = ANY (topics))"
    "        FROM (SELECT ctid, seq, @.outbox_topics(topic, routing_key) AS topics FROM @.outbox_events e WHERE e.lane = k.lane"
    "          AND " KEY " = k.key AND " ROUTED_HELD " AND e.seq < x.head AND " ROUTED_TO("k.topic")
    "          ORDER BY seq LIMIT k.share FOR UPDATE SKIP LOCKED) listed) r ORDER BY seq LIMIT k.share) h "
    "WHERE NOT h.stays))"};
/* clang-format on */

static const struct statement commit = {"commit", "COMMIT"};

/* --- arrays of the parameters --- */

struct columns {
    struct strbuf c[7];
    size_t n;
};

static void columns_begin(struct columns *columns)
{
    for (size_t i = 0; i < ARRAY_LEN(columns->c); i++)
        pg_array_begin(&columns->c[i]);
}

/* more: parameters behind the arrays, NULL at their end; NULL: none. */
static enum result columns_queue(struct columns *columns, struct pg *pg, const struct statement *statement,
                                 int n_arrays, const char *const *more, struct marks *marks, struct error *err)
{
    if (columns->n == 0)
        return OK;
    const char *values[ARRAY_LEN(columns->c) + 2];
    int n = 0;
    while (n < n_arrays) {
        pg_array_end(&columns->c[n]);
        values[n] = columns->c[n].data;
        n++;
    }
    for (; more != NULL && *more != NULL; more++)
        values[n++] = *more;
    marks->answers++;
    return pg_queue(pg, statement, n, values, false, err);
}

static void columns_done(struct columns *columns)
{
    for (size_t i = 0; i < ARRAY_LEN(columns->c); i++)
        strbuf_done(&columns->c[i]);
}

struct work {
    struct strbuf sent; /* ctids */
    struct columns others, park, keep, probed, release;
    int64_t first_sent, last_sent; /* seqs */
    const char *kept;              /* the topic that went into `keep` last */
};

static void add_other(struct columns *columns, const struct event *event, enum event_status status, int retry_count,
                      int64_t delay, const char *parked)
{
    pg_array_tid(&columns->c[0], event->block, event->offset);
    pg_array_int(&columns->c[1], event->seq);
    pg_array_int(&columns->c[2], status);
    pg_array_int(&columns->c[3], retry_count < INT16_MAX ? retry_count : INT16_MAX);
    pg_array_int(&columns->c[4], delay);
    pg_array_text(&columns->c[5], event->reason);
    pg_array_text(&columns->c[6], parked);
    columns->n++;
}

static void add_park(struct columns *columns, const struct event *event)
{
    pg_array_text(&columns->c[0], event->blame);
    pg_array_text(&columns->c[1], event->reason);
    pg_array_int(&columns->c[2], backoff_delay(PROBE_BASE_MS, PROBE_CAP_MS, 0));
    pg_array_int(&columns->c[3], event->seq);
    pg_array_int(&columns->c[4], event->lane);
    columns->n++;
}

static void add_sent(struct work *work, const struct event *event)
{
    pg_tids_add(&work->sent, event->block, event->offset);
    if (event->seq < work->first_sent)
        work->first_sent = event->seq;
    if (event->seq > work->last_sent)
        work->last_sent = event->seq;
}

static void add_keep(struct work *work, const char *topic)
{
    if (work->kept != NULL && str_eq(work->kept, topic))
        return;
    work->kept = topic;
    pg_array_text(&work->keep.c[0], topic);
    work->keep.n++;
}

static void add_probed_row(struct columns *columns, const char *topic, int64_t delay, int64_t seq, const char *reason)
{
    pg_array_text(&columns->c[0], topic);
    pg_array_int(&columns->c[1], delay);
    pg_array_int(&columns->c[2], seq);
    pg_array_text(&columns->c[3], reason);
    columns->n++;
}

static int64_t next_probe_ms(const struct parked_topic *parked)
{
    return backoff_delay(PROBE_BASE_MS, PROBE_CAP_MS, (unsigned)parked->probes + 1);
}

/* A probe that was acknowledged, or refused for its own sake, shows that the topic takes records. One that failed for another
 * of its topics shows nothing: let the rows that are this topic's alone try; if it is away, they park it again. */
static void add_probed(struct columns *columns, const struct claim *claim, const struct event *event)
{
    for (size_t t = 0; t < event->route.n; t++) {
        const char *topic = route_topic(&event->route, t);
        const struct parked_topic *parked = claim_parked(claim, topic);
        if (parked == NULL || parked->draining)
            continue;
        bool still = event->verdict == VERDICT_HELD || (event->verdict == VERDICT_PARK && str_eq(event->blame, topic));
        add_probed_row(columns, topic, still ? next_probe_ms(parked) : -1, event->seq,
                       still && event->verdict == VERDICT_PARK ? event->reason : NULL);
    }
}

/* Topics that were due and had no row to be tried with: each look would find them due again. */
static void add_probes_without_row(struct columns *columns, const struct claim *claim)
{
    for (size_t i = 0; i < claim->n_parked; i++)
        if (claim->parked[i].idle_probe)
            add_probed_row(columns, claim->parked[i].topic, next_probe_ms(&claim->parked[i]), 0, NULL);
}

/* A topic that drains stays where it is until the release has looked, or the release sees that it is gone: keep_parked. */
static void add_release(struct work *work, const struct claim *claim, const struct event *event)
{
    struct columns *columns = &work->release;
    for (size_t t = 0; t < event->route.n; t++) {
        const char *topic = route_topic(&event->route, t);
        if (!claim_stuck(claim, event->lane, topic))
            continue;
        if (claim_parked(claim, topic) != NULL)
            add_keep(work, topic);
        pg_array_int(&columns->c[0], event->lane);
        pg_array_text(&columns->c[1], topic);
        pg_array_text(&columns->c[2], event->key.data);
        columns->n++;
    }
}

/* One event into the statements that its verdict asks for. */
static void sort_out(struct work *work, const struct claim *claim, const struct event *event,
                     const struct mark_options *options, struct marks *marks)
{
    bool was_held = event->drained || event->probe;
    if (event->probe && event->verdict != VERDICT_LEFT)
        add_probed(&work->probed, claim, event);
    switch (event->verdict) {
    case VERDICT_SENT:
        add_sent(work, event);
        marks->sent++;
        add_release(work, claim, event);
        break;
    case VERDICT_REFUSED:
    case VERDICT_DEAD:
        if (event_dies(event)) {
            add_other(&work->others, event, EVENT_DEAD, event->retry_count + (event->verdict == VERDICT_REFUSED), 0,
                      NULL);
            marks->dead++;
            if (!options->dead_blocks)
                add_release(work, claim, event);
        } else {
            int64_t delay = backoff_delay(options->retry_base_ms, options->retry_max_ms, (unsigned)event->retry_count);
            add_other(&work->others, event, EVENT_FAILED, event->retry_count + 1, delay, NULL);
            marks->failed++;
        }
        break;
    case VERDICT_PARK:
        if (!event->probe)
            add_park(&work->park, event);
        __attribute__((fallthrough));
    case VERDICT_HELD:
        if (was_held)
            break; /* it is held already: a waiting row is written once */
        if (event->blame != NULL)
            add_keep(work, event->blame);
        add_other(&work->others, event, EVENT_FAILED, event->retry_count, -1, event->blame);
        marks->held++;
        break;
    case VERDICT_NONE:
    case VERDICT_LEFT:
        break;
    }
}

enum result mark_queue(struct pg *pg, const struct claim *claim, const struct batch *batch,
                       const struct mark_options *options, struct marks *ret, struct error *err)
{
    struct work work = {.first_sent = INT64_MAX, .last_sent = INT64_MIN};
    struct columns *all[] = {&work.others, &work.park, &work.keep, &work.probed, &work.release};
    *ret = (struct marks){.sent_at = -1};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        columns_begin(all[i]);
    pg_tids_begin(&work.sent, batch->n);
    for (size_t i = 0; i < batch->n; i++)
        if (batch->events[i].taken)
            sort_out(&work, claim, &batch->events[i], options, ret);
    add_probes_without_row(&work.probed, claim);

    char limit[16], first[24], last[24];
    snprintf(limit, sizeof limit, "%d", claim->batch_size);
    snprintf(first, sizeof first, "%lld", (long long)work.first_sent);
    snprintf(last, sizeof last, "%lld", (long long)work.last_sent);
    const char *const range[] = {first, last}, *const at_most[] = {limit, NULL};
    enum result result = columns_queue(&work.park, pg, &park, 5, NULL, ret, err);
    if (result == OK)
        result = columns_queue(&work.keep, pg, &keep_parked, 1, NULL, ret, err);
    if (result == OK)
        result = columns_queue(&work.others, pg, &others, 7, NULL, ret, err);
    if (result == OK && ret->sent > 0) {
        ret->sent_at = ret->answers++;
        pg_tids_end(&work.sent);
        result = pg_queue_tids(pg, options->delete_sent ? &deleted : &sent, &work.sent, 2, range, err);
    }
    if (result == OK)
        result = columns_queue(&work.probed, pg, &probed, 4, NULL, ret, err);
    if (result == OK)
        result = columns_queue(&work.release, pg, &mark_release, 3, at_most, ret, err);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        columns_done(all[i]);
    strbuf_done(&work.sent);

    /* Only a test wants the marks sent before COMMIT is. */
    if (result == OK && ret->sent_at >= 0 && seam_armed("marked")) {
        for (result = pg_sync(pg, ANSWER_TIMEOUT_MS, err); result == OK && ret->answers > 0; ret->answers--)
            result = pg_next(pg, NULL, err);
        if (result == OK)
            result = pg_end(pg, err);
        ret->sent_at = -1;
        seam("marked");
    }
    if (result == OK)
        result = pg_queue(pg, &commit, 0, NULL, false, err);
    ret->answers++;
    return result;
}

enum result mark_read(struct pg *pg, const struct marks *marks, struct error *err)
{
    for (int i = 0; i < marks->answers; i++) {
        _cleanup_(rows_cleanup) struct rows *rows = NULL;
        enum result result = pg_next(pg, &rows, err);
        if (result != OK)
            return result;
        if (i == marks->sent_at && rows_affected(rows) != (int)marks->sent)
            return error_retry(err, "marked %d rows as sent, but %zu were acknowledged", rows_affected(rows),
                               marks->sent);
    }
    return OK;
}
