/* The way of a message into the database, top to bottom.
 *
 * The promise: an offset is committed only when the effects of everything before it are. A message that comes again finds its
 * mark in processed_events, which was committed together with its effect, and has none a second time.
 *
 *   connect -> gather -> work (marks, handler, COMMIT) -> settle -> gather
 *
 * Nobody else's progress depends on us: when we die, the transaction does, and whoever gets the partitions starts at the
 * committed offsets. When a partition is taken away in the middle of a batch, the batch goes on: the next owner's marks wait
 * for our transaction, so it neither repeats nor overtakes us. Each step is a function that returns the next one. */
#include "consume.h"

#include <poll.h>
#include <stdlib.h>

#include "backoff.h"
#include "clock.h"
#include "hand.h"
#include "intake.h"
#include "log.h"
#include "pg.h"
#include "seam.h"
#include "work.h"

#define CONNECT_TIMEOUT_MS 10000
#define STEP_MS            30000 /* between two signs of life; who waits for PostgreSQL gives one every second */
#define HUSH_AFTER_MS      3000  /* a batch that takes longer serves the consumer while it waits */
#define IDLE_MS            500
#define PING_INTERVAL_MS   2000 /* while nothing is heard */
#define PING_TIMEOUT_MS    2000
#define BREAKER_BASE_MS    200
#define BREAKER_CAP_MS     5000
#define AGAIN_BASE_MS      10
#define AGAIN_CAP_MS       1000
#define AGAIN_TOLD         3  /* tries of a batch in a row until the world hears that it does not work */
#define AGAIN_MAX          10 /* then the events are worked on one by one: one of them may be to blame */
#define LOST_MAX           3  /* the same for connections that end with the handler: each may cost a server its life */
#define TARGET_US          1000000 /* of handlers in one transaction: batches shrink when the handler is slow */
#define SQLSTATE_TIMEOUT   "57014"
#define BYTES_MAX          (128 << 20) /* a statement has at most 1 GB, and a control character takes seven bytes */

struct consume {
    const struct config *config;
    struct duty *duty;
    struct metrics *metrics;
    struct intake intake;
    struct work work;
    struct pg *pg; /* NULL: not connected */
    bool joined;
    bool refused; /* Kafka gives us no partitions, and has said why */
    bool stuck;   /* the last batch did not get through, for the world's trouble */

    struct arrival **batch;
    size_t n;
    size_t limit; /* messages that a batch takes now */
    enum work_mode mode;
    int64_t started_us; /* the batch */
    int64_t pinged_at;
    struct backoff breaker, again;
    unsigned failures; /* of PostgreSQL in a row, while it was there */
    unsigned lost;     /* connections in a row, while the handler worked */
    struct error err;  /* why we pause */

    uint64_t handled, duplicates; /* since the start, for the last line */
    int64_t handler_us, outside_us;
};

struct step {
    struct step (*run)(struct consume *consume); /* NULL: the end */
};

static struct step connect_step(struct consume *consume);
static struct step gather_step(struct consume *consume);
static struct step work_step(struct consume *consume);
static struct step settle_step(struct consume *consume);
static struct step pause_step(struct consume *consume);

#define NEXT(function) ((struct step){function})
#define END            ((struct step){NULL})

/* --- connect --- */

/* Called every second while PostgreSQL works: a slow handler must not cost us our place in the group. */
static void while_waiting(void *arg)
{
    struct consume *consume = arg;
    duty_beat(consume->duty, STEP_MS);
    if (clock_us() - consume->started_us > HUSH_AFTER_MS * 1000)
        intake_hush(&consume->intake, consume->limit);
}

static bool is_stopping(void *arg)
{
    struct consume *consume = arg;
    return duty_stopping(consume->duty);
}

static struct step connect_step(struct consume *consume)
{
    const struct config *config = consume->config;
    if (duty_stopping(consume->duty))
        return END;
    duty_beat(consume->duty, 2 * CONNECT_TIMEOUT_MS);
    const struct pg_options options = {.url = config->database_url,
                                       .schema = config->schema,
                                       .connect_timeout_ms = CONNECT_TIMEOUT_MS,
                                       .stop_fd = consume->duty->stop_fd};
    if (consume->pg == NULL) {
        if (pg_open(&options, &consume->pg, &consume->err) != OK)
            return NEXT(pause_step);
        if (inbox_init(&consume->work.inbox, consume->pg, config, &consume->err) != OK) {
            pg_close(TAKE(consume->pg));
            return NEXT(pause_step);
        }
        consume->work.inbox.idle = while_waiting;
        consume->work.inbox.arg = consume;
    }
    if (!consume->joined && intake_open(&consume->intake, &consume->err) != OK)
        return NEXT(pause_step);
    consume->joined = true;
    backoff_reset(&consume->breaker);
    if (!consume->stuck)
        duty_trouble(consume->duty, NULL);
    return NEXT(gather_step);
}

static void disconnect(struct consume *consume)
{
    inbox_done(&consume->work.inbox);
    pg_close(TAKE(consume->pg));
}

/* --- gather --- */

/* Sleeps until something stirs. false: the connection to PostgreSQL is gone. */
static bool doze(struct consume *consume, int64_t ms)
{
    struct pollfd fds[] = {
        {consume->duty->stop_fd, POLLIN, 0},
        {consume->intake.consumer ? consumer_fd(consume->intake.consumer) : -1, POLLIN, 0},
        {consume->pg ? pg_socket(consume->pg) : -1, POLLIN, 0},
    };
    if (poll(fds, ARRAY_LEN(fds), (int)ms) <= 0)
        return true;
    return !fds[2].revents || !pg_gone(consume->pg);
}

/* Not ready: also a member that waits for a topic or for permission delivers nothing. Kafka said so once, and will not again. */
static void tell_refusal(struct consume *consume, const char *refusal)
{
    if (refusal != NULL)
        duty_trouble(consume->duty, refusal);
    else if (consume->refused && consumer_away(consume->intake.consumer) == NULL)
        duty_trouble(consume->duty, NULL);
    consume->refused = refusal != NULL;
}

/* false: the consumer had to be given up. */
static bool look_after_kafka(struct consume *consume)
{
    struct consumer *consumer = consume->intake.consumer;
    if (consumer_is_dead(consumer, &consume->err)) {
        intake_close(&consume->intake);
        consume->joined = false;
        return false;
    }
    bool was_away = consumer_away(consumer) != NULL;
    if (consumer_is_quiet(consumer) && clock_ms() - consume->pinged_at >= PING_INTERVAL_MS) {
        duty_beat(consume->duty, PING_TIMEOUT_MS);
        if (consumer_ping(consumer, PING_TIMEOUT_MS, &consume->err) == OK && was_away) {
            duty_trouble(consume->duty, NULL);
            log_info("Kafka is back");
        }
        consume->pinged_at = clock_ms();
    }
    const char *away = consumer_away(consumer);
    if (away != NULL) {
        char reason[600];
        snprintf(reason, sizeof reason, "Kafka is away: %s", away);
        duty_trouble(consume->duty, reason);
        log_warning("%s", reason);
    }
    tell_refusal(consume, away == NULL && consume->intake.assigned == 0 ? consumer_refusal(consumer) : NULL);
    return true;
}

static int64_t nap_ms(const struct consume *consume)
{
    int64_t due = hand_next_due(&consume->intake.hand);
    int64_t left = due == MS_FOREVER ? IDLE_MS : clock_left_ms(due);
    return left < IDLE_MS ? left : IDLE_MS;
}

static struct step gather_step(struct consume *consume)
{
    struct intake *intake = &consume->intake;
    size_t bytes = consume->config->batch_bytes < BYTES_MAX ? (size_t)consume->config->batch_bytes : BYTES_MAX;
    while (!duty_stopping(consume->duty)) {
        duty_beat(consume->duty, STEP_MS);
        bool more = intake_poll(intake, consume->limit);
        consume->started_us = clock_us();
        consume->n = hand_take(&intake->hand, consume->batch, consume->limit, bytes, clock_ms());
        if (consume->n > 0) {
            consume->mode = consume->failures < AGAIN_MAX && consume->lost < LOST_MAX ? WORK_TOGETHER : WORK_EACH;
            return NEXT(work_step);
        }
        intake_tend(intake);
        if (more)
            continue; /* what was ready went behind others of its streams */

        if (consume->stuck) { /* what it stuck in is gone, or waits */
            consume->stuck = false;
            duty_trouble(consume->duty, NULL);
        }
        if (!look_after_kafka(consume))
            return NEXT(pause_step);
        if (!doze(consume, nap_ms(consume))) {
            error_retry(&consume->err, "PostgreSQL ended the connection");
            disconnect(consume);
            return NEXT(pause_step);
        }
    }
    return END;
}

/* --- work --- */

static int64_t next_try(void *arg, const struct arrival *arrival)
{
    const struct config *config = arg;
    unsigned tries = arrival->attempts + arrival->unlucky;
    if (arrival->outcome != OUTCOME_FAILED && arrival->outcome != OUTCOME_ASIDE && arrival->alone)
        return clock_ms() + backoff_delay(AGAIN_BASE_MS, AGAIN_CAP_MS, tries);
    return clock_ms() + backoff_delay(config->retry_base, config->retry_max, tries);
}

/* Back to where it came from: it is gathered again when the world is well. Who stepped aside (NULL: nobody) has a pause. */
static void put_back(struct consume *consume, const struct arrival *aside)
{
    for (size_t i = 0; i < consume->n; i++)
        if (consume->batch[i] != aside)
            consume->batch[i]->outcome = OUTCOME_NONE;
    hand_settle(&consume->intake.hand, consume->batch, consume->n, next_try, (void *)(uintptr_t)consume->config);
    consume->n = 0;
}

/* true: there is something left of the batch to be worked on in this mode. */
static bool take_again(struct consume *consume, enum work_mode mode)
{
    consume->mode = mode;
    consume->n = hand_again(consume->batch, consume->n);
    return consume->n > 0;
}

/* Deadlocks: who waits a random while first lets the other pass. */
static struct step work_again(struct consume *consume)
{
    log_info("the batch is worked on again: %s (SQLSTATE %s)", consume->err.message, consume->err.sqlstate);
    if (consume->again.tries >= AGAIN_TOLD)
        duty_trouble(consume->duty, consume->err.message);
    if (consume->again.tries >= AGAIN_MAX && consume->mode == WORK_EACH) {
        put_back(consume, NULL);
        return NEXT(pause_step);
    }
    if (consume->again.tries >= AGAIN_MAX) {
        backoff_reset(&consume->again);
        consume->mode = WORK_EACH;
    }
    struct pollfd stop = {consume->duty->stop_fd, POLLIN, 0};
    while_waiting(consume);
    poll(&stop, 1, (int)backoff_next(&consume->again));
    if (duty_stopping(consume->duty)) {
        put_back(consume, NULL);
        return END;
    }
    return NEXT(take_again(consume, consume->mode) ? work_step : gather_step);
}

/* One event failed all of them: which? When it was the time that ran out, the batch is too large for it. */
static struct step work_apart(struct consume *consume)
{
    log_debug("the batch is worked on one by one: %s", consume->err.message);
    if (str_eq(consume->err.sqlstate, SQLSTATE_TIMEOUT))
        consume->limit = consume->n / 8 + 1;
    return NEXT(take_again(consume, WORK_EACH) ? work_step : gather_step);
}

static struct step work_step(struct consume *consume)
{
    duty_beat(consume->duty, STEP_MS);
    switch (work_on(&consume->work, consume->batch, consume->n, consume->mode, &consume->err)) {
    case WORKED:
        break;
    case WORKED_APART:
        return work_apart(consume);
    case WORKED_AGAIN:
        return work_again(consume);
    case WORKED_WORLD:
        /* A session that has failed may be the reason itself: a handler left a role or a setting behind. */
        put_back(consume, consume->work.aside);
        disconnect(consume);
        consume->failures += consume->err.sqlstate[0] != '\0';
        consume->lost += consume->work.lost;
        consume->stuck = true;
        return NEXT(pause_step);
    }
    seam("taken");
    backoff_reset(&consume->breaker);
    backoff_reset(&consume->again);
    consume->failures = consume->lost = 0;
    consume->stuck = false;
    return NEXT(settle_step);
}

/* --- settle --- */

/* A slow handler gets smaller batches: they are what an event waits for, and what is lost when one fails. One slow event
 * says nothing about the others. */
static void adapt(struct consume *consume)
{
    const struct work *work = &consume->work;
    size_t most = (size_t)consume->config->batch_size, fits = most, calls = work->together;
    int64_t us = work->together_us;
    if (consume->mode == WORK_EACH && work->each > 0) {
        calls = work->each - 1;
        us = work->handler_us - work->slowest_us;
    }
    if (calls == 0)
        return;
    if (us > (int64_t)calls)
        fits = (size_t)(TARGET_US / (us / (int64_t)calls));
    if (fits > 2 * consume->limit)
        fits = 2 * consume->limit;
    consume->limit = fits < 1 ? 1 : fits > most ? most : fits;
}

static void count(struct consume *consume)
{
    uint64_t counts[OUTCOMES] = {0};
    for (size_t i = 0; i < consume->n; i++) {
        const struct arrival *arrival = consume->batch[i];
        counts[arrival->outcome]++;
        if (arrival->outcome == OUTCOME_DEAD)
            log_topic(LOG_LEVEL_WARNING, arrival->partition->topic, "event %s is dead after %u attempts: %s",
                      arrival->id, arrival->attempts + 1, arrival->error);
    }
    metrics_add(consume->metrics, M_CONSUMED_HANDLED, counts[OUTCOME_HANDLED]);
    metrics_add(consume->metrics, M_CONSUMED_DUPLICATE, counts[OUTCOME_DUPLICATE]);
    metrics_add(consume->metrics, M_CONSUMED_FAILED, counts[OUTCOME_FAILED]);
    metrics_add(consume->metrics, M_CONSUMED_DEAD, counts[OUTCOME_DEAD]);
    consume->handled += counts[OUTCOME_HANDLED];
    consume->duplicates += counts[OUTCOME_DUPLICATE];
}

static struct step settle_step(struct consume *consume)
{
    count(consume);
    adapt(consume);
    hand_settle(&consume->intake.hand, consume->batch, consume->n, next_try, (void *)(uintptr_t)consume->config);
    consume->n = 0;
    intake_tend(&consume->intake);
    int64_t took = clock_us() - consume->started_us, inside = consume->work.handler_us;
    consume->handler_us += inside;
    consume->outside_us += took - inside;
    metrics_observe(consume->metrics, M_CONSUME_HANDLER, (double)inside / 1e6);
    metrics_observe(consume->metrics, M_CONSUME_OUTSIDE, (double)(took - inside) / 1e6);
    duty_trouble(consume->duty, NULL);
    return NEXT(gather_step);
}

/* --- pause --- */

/* PostgreSQL, the handler or Kafka is away. No attempt is counted; the place in the group is kept. */
static struct step pause_step(struct consume *consume)
{
    if (duty_stopping(consume->duty))
        return END;
    duty_trouble(consume->duty, consume->err.message);
    log_warning("%s%s%s", consume->err.message, consume->err.hint[0] ? "; " : "", consume->err.hint);
    int64_t until = clock_ms() + backoff_next(&consume->breaker);
    while (!duty_stopping(consume->duty) && clock_ms() < until) {
        duty_beat(consume->duty, BREAKER_CAP_MS);
        if (consume->joined) {
            intake_hush(&consume->intake, consume->limit);
            intake_tend(&consume->intake);
        }
        if (!doze(consume, clock_left_ms(until)))
            disconnect(consume);
    }
    return NEXT(connect_step);
}

void consume_run(const struct config *config, struct duty *duty, struct metrics *metrics)
{
    struct consume consume = {
        .config = config,
        .duty = duty,
        .metrics = metrics,
        .limit = (size_t)config->batch_size,
        .breaker = {.base_ms = BREAKER_BASE_MS, .cap_ms = BREAKER_CAP_MS},
        .again = {.base_ms = AGAIN_BASE_MS, .cap_ms = AGAIN_CAP_MS},
        .batch = mem_alloc((size_t)config->batch_size * sizeof(struct arrival *)),
    };
    intake_init(&consume.intake, config, duty, metrics);
    work_init(&consume.work, config, metrics);
    consume.work.stopping = is_stopping;
    consume.work.arg = &consume;
    for (struct step step = NEXT(connect_step); step.run != NULL;)
        step = step.run(&consume);
    duty_beat(duty, config->shutdown_timeout);
    intake_done(&consume.intake);
    work_done(&consume.work);
    pg_close(consume.pg);
    free(consume.batch);
    double inside = (double)consume.handler_us / 1e6, outside = (double)consume.outside_us / 1e6;
    log_info("handled %llu events and %llu duplicates; %.1f s in the handler, %.1f s outside it (%.0f %%)",
             (unsigned long long)consume.handled, (unsigned long long)consume.duplicates, inside, outside,
             inside + outside > 0 ? 100 * outside / (inside + outside) : 0.0);
}
