/* The way of an event, top to bottom.
 *
 * The promise: a row is marked only after the broker acknowledged it; everything else may be sent again.
 *
 *   connect -> wait -> claim -> publish -> settle -> mark -> claim | wait
 *
 * A transaction is open from claim to mark; it holds the lanes, and nobody else sends or writes events of a lane that we
 * hold. When the connection is lost, the lanes are: nothing of that batch is marked, and whoever gets the lanes next sends
 * it again from the first unfinished row of each stream on. Each step is a function that returns the next one; `pause`
 * stands between a failure and the next try. */
#include "relay.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "backoff.h"
#include "batch.h"
#include "claim.h"
#include "clock.h"
#include "log.h"
#include "mark.h"
#include "parse.h"
#include "pg.h"
#include "publisher.h"
#include "seam.h"

#define CONNECT_TIMEOUT_MS 10000
#define PING_TIMEOUT_MS    2000
#define FIRST_LOOK_MS      2    /* after a batch; doubles up to OUTBOX_POLL_INTERVAL while nothing comes */
#define TAKE_OVER_MS       200  /* the worker that looked has been busy this long: another looks */
#define PROBE_REST_MS      1000 /* the lane of a due probe was another worker's: that one sees to it */
#define BREAKER_BASE_MS    200
#define BREAKER_CAP_MS     5000 /* a pause costs nothing, and recovery must not wait for minutes */
#define BURY_TIMEOUT_MS    5000

/* A batch has one deadline, OUTBOX_DELIVERY_TIMEOUT after its claim. What follows it must be over before PostgreSQL ends the
 * transaction for being idle, 10 s after the deadline: settle's end, copies for the dead topic, and 2 s to spare. */
#define LAST_BURIAL_MS (PUBLISHER_GIVE_UP_MS + 1000)
#define AFTERWARDS_MS  (LAST_BURIAL_MS + PUBLISHER_BURY_MS)
_Static_assert(AFTERWARDS_MS <= 8000, "a batch ends before its transaction");

struct relay {
    struct crew *crew;
    const struct config *config;
    struct metrics *metrics;
    int worker;

    struct pg *pg;               /* NULL: not connected */
    struct publisher *publisher; /* NULL: not built */
    struct claim claim;
    struct batch batch;
    int64_t deadline;   /* of the batch, clock_ms */
    struct marks marks; /* queued in the pipeline, their answers not read yet */
    bool marks_queued;
    int64_t marks_at; /* clock_us when they were queued */
    bool more;        /* the last claim left something behind */
    int64_t probing;  /* clock_ms when the claim that tries parked topics began; 0: this batch tries none */
    bool woken;       /* another worker found more than it can take */
    bool pg_out;      /* the connection was lost, or did not come about */
    bool kafka_out;   /* the breaker is open for Kafka: ask before the next claim */
    int64_t look_ms;
    int64_t no_probe_before; /* clock_ms */
    struct backoff breaker;
    struct error err; /* why we pause */
};

struct step {
    struct step (*run)(struct relay *relay); /* NULL: the end */
};

static struct step connect_step(struct relay *relay);
static struct step wait_step(struct relay *relay);
static struct step claim_step(struct relay *relay);
static struct step publish_step(struct relay *relay);
static struct step settle_step(struct relay *relay);
static struct step mark_step(struct relay *relay);
static struct step pause_step(struct relay *relay);

#define NEXT(function) ((struct step){function})
#define END            ((struct step){NULL})

/* --- connect --- */

/* Partial indexes and LIMIT are what the statements are written for; a plan made while the table was empty must not stay. The
 * time-out is for the look: a claim sets its own. A worker that does not look is idle for as long as nothing happens. */
static const char session[] = "SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; "
                              "SET jit = off; SET statement_timeout = '30s'; SET idle_session_timeout = 0";

static struct step connect_step(struct relay *relay)
{
    struct crew *crew = relay->crew;
    if (crew_stopping(crew))
        return END;
    crew_beat(crew, relay->worker, CONNECT_TIMEOUT_MS);
    if (relay->publisher == NULL && publisher_new(relay->config, relay->metrics, &relay->publisher, &relay->err) != OK)
        return NEXT(pause_step);
    const struct pg_options options = {
        .url = relay->config->database_url,
        .schema = relay->config->schema,
        .connect_timeout_ms = CONNECT_TIMEOUT_MS,
        .stop_fd = crew->stop_fd,
        .session = session,
        .listen = relay->config->notify,
    };
    if (pg_open(&options, &relay->pg, &relay->err) != OK) {
        relay->pg_out = true;
        return NEXT(pause_step);
    }
    log_debug("connected to PostgreSQL %d", pg_server_version(relay->pg));
    if (relay->pg_out)
        log_info("PostgreSQL is back");
    relay->pg_out = false;
    return NEXT(relay->kafka_out ? pause_step : claim_step);
}

/* The connection is of no more use: what it held locked is free again, and nothing of the batch may be marked. */
static struct step disconnect(struct relay *relay)
{
    pg_close(TAKE(relay->pg));
    relay->pg_out = true;
    crew_lanes(relay->crew, relay->worker, 0);
    batch_clear(&relay->batch);
    relay->marks_queued = false;
    relay->claim.due = NO_PROBE;
    return NEXT(pause_step);
}

/* --- wait --- */

/* Sleeps until something stirs: work, a stop, the database, Kafka, or the time. false: the connection is gone. */
static bool doze(struct relay *relay, int64_t ms)
{
    struct pollfd fds[] = {
        {relay->crew->stop_fd, POLLIN, 0},
        {relay->crew->members[relay->worker].wake_fd, POLLIN, 0},
        {relay->pg ? pg_socket(relay->pg) : -1, POLLIN, 0},
        {relay->publisher ? publisher_fd(relay->publisher) : -1, POLLIN, 0},
    };
    if (poll(fds, ARRAY_LEN(fds), (int)ms) <= 0)
        return true;
    if (fds[1].revents) {
        crew_hear(relay->crew, relay->worker);
        relay->woken = true;
    }
    if (fds[3].revents)
        publisher_poll(relay->publisher);
    return !fds[2].revents || !pg_gone(relay->pg);
}

static bool may_probe(const struct relay *relay)
{
    return relay->claim.due != NO_PROBE && clock_ms() >= relay->no_probe_before;
}

/* One worker of the daemon looks, without locks; the others sleep until it finds more than one batch. */
static struct step look(struct relay *relay)
{
    int ready = 0;
    bool other = false;
    int enough = (int)relay->config->batch_size + 1;
    if (claim_look(relay->pg, &relay->claim, enough, &ready, &other, &relay->err) != OK)
        return disconnect(relay);
    if (ready == 0 && !other && !may_probe(relay))
        return END;
    if (ready == enough)
        crew_wake_others(relay->crew, relay->worker);
    relay->claim.promote |= other;
    relay->more = ready == enough;
    return NEXT(claim_step);
}

/* The next look: twice as long from now as the last, unless a notification came. */
static void slow_down(struct relay *relay)
{
    int64_t slowest = relay->config->poll_interval;
    relay->look_ms = pg_notified(relay->pg) ? 0 : relay->look_ms * 2 < slowest ? relay->look_ms * 2 : slowest;
    if (relay->look_ms < FIRST_LOOK_MS)
        relay->look_ms = FIRST_LOOK_MS;
}

static struct step watch_for_work(struct relay *relay)
{
    struct crew *crew = relay->crew;
    while (!crew_stopping(crew)) {
        crew_beat(crew, relay->worker, ANSWER_TIMEOUT_MS);
        const char *away = publisher_away(relay->publisher);
        if (away != NULL) {
            error_retry(&relay->err, "Kafka is away: %s", away);
            relay->kafka_out = true;
            return NEXT(pause_step);
        }
        bool looker = crew_take_look(crew, relay->worker, TAKE_OVER_MS);
        if (!doze(relay, looker ? relay->look_ms : TAKE_OVER_MS)) {
            error_retry(&relay->err, "PostgreSQL ended the connection");
            return disconnect(relay);
        }
        if (!looker && !relay->woken)
            continue;
        relay->woken = false;
        slow_down(relay);
        struct step next = look(relay);
        if (next.run != NULL)
            return next;
    }
    return END;
}

static struct step wait_step(struct relay *relay)
{
    struct step next = watch_for_work(relay);
    crew_drop_look(relay->crew, relay->worker);
    return next;
}

/* --- claim --- */

static bool progress(const struct marks *marks)
{
    return marks->sent + marks->failed + marks->dead + marks->held > 0;
}

static void count_marks(struct relay *relay)
{
    metrics_add(relay->metrics, M_EVENTS_SENT, relay->marks.sent);
    metrics_add(relay->metrics, M_EVENTS_FAILED, relay->marks.failed);
    metrics_add(relay->metrics, M_EVENTS_DEAD, relay->marks.dead);
    if (relay->marks.answers > 1) /* not only COMMIT: there was a batch */
        metrics_observe(relay->metrics, M_BATCH_MARK, (double)(clock_us() - relay->marks_at) / 1e6);
    relay->marks_queued = false;
    /* Not before: what cannot be marked would be sent again and again without a pause. */
    if (progress(&relay->marks))
        backoff_reset(&relay->breaker);
    seam("committed");
}

/* While there is more than one batch, leave the other workers their share of the lanes. */
static int share_of_lanes(const struct relay *relay)
{
    return relay->more ? (LANES + relay->crew->n - 1) / relay->crew->n : LANES;
}

/* The marks of the batch before, its COMMIT, BEGIN, lanes and rows: one round trip. */
static struct step claim_step(struct relay *relay)
{
    int64_t start = clock_us();
    bool probing = may_probe(relay);
    crew_beat(relay->crew, relay->worker, 2 * ANSWER_TIMEOUT_MS);
    batch_clear(&relay->batch);
    relay->claim.probe = probing ? relay->claim.due : NO_PROBE;
    enum result result = claim_queue(relay->pg, &relay->claim, share_of_lanes(relay), &relay->err);
    if (result == OK)
        result = pg_sync(relay->pg, ANSWER_TIMEOUT_MS, &relay->err);
    if (result == OK && relay->marks_queued) {
        result = mark_read(relay->pg, &relay->marks, &relay->err);
        if (result == OK)
            count_marks(relay);
    }
    if (result == OK)
        result = claim_read(relay->pg, &relay->claim, &relay->batch, &relay->err);
    if (result != OK)
        return disconnect(relay);

    relay->probing = probing && relay->batch.lanes != 0 ? start / 1000 : 0;
    if (probing && relay->batch.lanes == 0)
        relay->no_probe_before = clock_ms() + PROBE_REST_MS;
    relay->more = relay->batch.full;
    crew_lanes(relay->crew, relay->worker, __builtin_popcount(relay->batch.lanes));
    crew_trouble(relay->crew, relay->worker, NULL);
    if (relay->batch.n == 0)
        return NEXT(mark_step);
    metrics_observe(relay->metrics, M_BATCH_CLAIM, (double)(clock_us() - start) / 1e6);
    metrics_observe(relay->metrics, M_BATCH_EVENTS, (double)relay->batch.n);
    return NEXT(publish_step);
}

/* --- publish, settle --- */

/* While the connection is there, the lanes are ours. */
static struct publisher_watch watch_lanes(const struct relay *relay)
{
    return (struct publisher_watch){pg_socket(relay->pg), pg_gone, relay->pg};
}

static struct step lose_lanes(struct relay *relay)
{
    error_retry(&relay->err, "PostgreSQL ended the connection");
    return disconnect(relay);
}

static struct step publish_step(struct relay *relay)
{
    const struct publisher_watch watch = watch_lanes(relay);
    relay->deadline = clock_ms() + relay->config->delivery_timeout;
    crew_beat(relay->crew, relay->worker, relay->config->delivery_timeout + AFTERWARDS_MS);
    if (!publisher_send(relay->publisher, &relay->batch, relay->deadline, &watch))
        return lose_lanes(relay);
    seam("handed-over");
    return NEXT(settle_step);
}

/* While Kafka is away no copy can be sent: they die another time. */
static void spare_dying(struct batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        struct event *event = &batch->events[i];
        if (!event_dies(event))
            continue;
        event->verdict = VERDICT_LEFT;
        str_free(&event->reason);
    }
}

static void bury(struct relay *relay)
{
    size_t n = 0;
    struct event **dead = mem_alloc(relay->batch.n * sizeof *dead);
    for (size_t i = 0; i < relay->batch.n; i++)
        if (event_dies(&relay->batch.events[i]))
            dead[n++] = &relay->batch.events[i];
    if (n > 0) {
        int64_t deadline = clock_ms() + BURY_TIMEOUT_MS, last = relay->deadline + LAST_BURIAL_MS;
        size_t lost = publisher_bury(relay->publisher, dead, n, deadline < last ? deadline : last);
        metrics_add(relay->metrics, M_DEAD_COPIES_LOST, lost);
        if (lost > 0)
            log_topic(LOG_LEVEL_WARNING, relay->config->dead_topic, "could not send %zu of %zu copies of dead events",
                      lost, n);
    }
    free(dead);
}

/* A probe may find nothing new for days. */
static bool is_known(const struct relay *relay, const struct event *event)
{
    const struct parked_topic *parked = claim_parked(&relay->claim, event->blame);
    return parked != NULL && !parked->draining && str_eq(parked->reason, event->reason);
}

static void observe(struct relay *relay, int64_t start)
{
    int64_t took = clock_ms() - start;
    for (size_t i = 0; i < relay->batch.n; i++) {
        const struct event *event = &relay->batch.events[i];
        if (event->verdict == VERDICT_SENT)
            metrics_observe(relay->metrics, M_DELIVERY, (double)(event->created_ms + took) / 1e3);
        else if (event->verdict == VERDICT_PARK)
            log_topic(is_known(relay, event) ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING, event->blame, "parked: %s",
                      event->reason);
        else if (event_dies(event))
            log_topic(LOG_LEVEL_WARNING, event->topic.data, "event %s is dead: %s", event->id.data, event->reason);
    }
}

static struct step settle_step(struct relay *relay)
{
    int64_t start = relay->deadline - relay->config->delivery_timeout;
    const struct publisher_watch watch = watch_lanes(relay);
    switch (publisher_settle(relay->publisher, &relay->batch, relay->deadline, &watch, &relay->err)) {
    case SETTLED_GONE:
        return lose_lanes(relay);
    case SETTLED_WORLD:
        relay->kafka_out = true;
        if (relay->config->dead_topic != NULL)
            spare_dying(&relay->batch);
        break;
    case SETTLED:
        break;
    }
    batch_hold_followers(&relay->batch, relay->claim.ordered, relay->claim.dead_blocks);
    observe(relay, start);
    if (relay->config->dead_topic != NULL && !relay->kafka_out)
        bury(relay);
    metrics_observe(relay->metrics, M_BATCH_PUBLISH, (double)(clock_ms() - start) / 1e3);
    seam("acknowledged");
    return NEXT(mark_step);
}

/* --- mark --- */

/* Sends the marks alone: there is no next claim to send them with. */
static struct step finish_marks(struct relay *relay)
{
    enum result result = pg_sync(relay->pg, ANSWER_TIMEOUT_MS, &relay->err);
    if (result == OK)
        result = mark_read(relay->pg, &relay->marks, &relay->err);
    if (result == OK)
        result = pg_end(relay->pg, &relay->err);
    if (result != OK)
        return disconnect(relay);
    count_marks(relay);
    batch_clear(&relay->batch);
    crew_lanes(relay->crew, relay->worker, 0);
    return NEXT(relay->kafka_out ? pause_step : wait_step);
}

static struct step mark_step(struct relay *relay)
{
    const struct mark_options options = {
        .delete_sent = relay->config->on_sent == ON_SENT_DELETE,
        .dead_blocks = relay->claim.dead_blocks,
        .retry_base_ms = relay->config->retry_base,
        .retry_max_ms = relay->config->retry_max,
    };
    crew_beat(relay->crew, relay->worker, 2 * ANSWER_TIMEOUT_MS);
    relay->marks_at = clock_us();
    if (relay->probing != 0) /* a topic may let its probe wait: its neighbours get at least as much of our time */
        relay->no_probe_before = 2 * clock_ms() - relay->probing;
    if (mark_queue(relay->pg, &relay->claim, &relay->batch, &options, &relay->marks, &relay->err) != OK)
        return disconnect(relay);
    relay->marks_queued = true;

    bool moving = progress(&relay->marks);
    if (moving)
        relay->look_ms = FIRST_LOOK_MS;
    if (relay->more && moving && !relay->kafka_out && !crew_stopping(relay->crew))
        return NEXT(claim_step);
    return finish_marks(relay);
}

/* --- pause --- */

/* The breaker: PostgreSQL or Kafka is away. Nothing is written, nothing is counted; wait with jitter and ask again. */
static struct step pause_step(struct relay *relay)
{
    struct crew *crew = relay->crew;
    crew_trouble(crew, relay->worker, relay->err.message);
    if (!crew_stopping(crew))
        log_warning("%s%s%s", relay->err.message, relay->err.hint[0] ? "; " : "", relay->err.hint);
    int64_t until = clock_ms() + backoff_next(&relay->breaker);
    while (!crew_stopping(crew) && clock_ms() < until) {
        crew_beat(crew, relay->worker, BREAKER_CAP_MS);
        if (!doze(relay, clock_left_ms(until)))
            pg_close(TAKE(relay->pg)); /* idle and cut: connect anew below */
    }
    if (crew_stopping(crew))
        return END;
    if (relay->kafka_out) {
        crew_beat(crew, relay->worker, PING_TIMEOUT_MS);
        if (publisher_ping(relay->publisher, PING_TIMEOUT_MS, &relay->err) != OK)
            return NEXT(pause_step);
        relay->kafka_out = false;
        log_info("Kafka is back");
    }
    return NEXT(relay->pg != NULL ? claim_step : connect_step);
}

/* JSON as text takes down to an eighth of what it takes as jsonb: what is larger than that cannot be a message. */
static int64_t largest_row(const struct config *config)
{
    const char *text = config_kafka(config, "message.max.bytes");
    int64_t largest = 1000000;
    if (text != NULL && !parse_int(text, &largest))
        largest = INT32_MAX; /* librdkafka will say what is wrong with it */
    return largest < INT32_MAX / 16 ? 8 * largest + 1048576 : INT32_MAX;
}

void relay_run(struct crew *crew, int worker, struct metrics *metrics)
{
    const struct config *config = crew->config;
    struct relay relay = {
        .crew = crew,
        .config = config,
        .metrics = metrics,
        .worker = worker,
        .look_ms = FIRST_LOOK_MS,
        .breaker = {.base_ms = BREAKER_BASE_MS, .cap_ms = BREAKER_CAP_MS},
        .claim =
            {
                .batch_size = (int)config->batch_size,
                .batch_bytes = config->batch_bytes,
                .largest_row = largest_row(config),
                .max_retries = (int)config->max_retries,
                .ordered = config->ordering == ORDER_KEY,
                .dead_blocks = config->on_dead == ON_DEAD_BLOCK,
                .delivery_timeout_ms = (int)config->delivery_timeout,
                .first = worker * LANES / crew->n,
                .promote = true,
                .probe = NO_PROBE,
                .due = NO_PROBE,
            },
    };
    log_worker(worker);
    batch_init(&relay.batch);
    for (struct step step = NEXT(connect_step); step.run != NULL;)
        step = step.run(&relay);
    publisher_free(relay.publisher); /* before the batch: Kafka borrows its bytes */
    batch_done(&relay.batch);
    claim_done(&relay.claim);
    pg_close(relay.pg);
    crew_lanes(crew, worker, 0);
}
