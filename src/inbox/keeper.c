#include "keeper.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "backoff.h"
#include "burial.h"
#include "clock.h"
#include "consume.h"
#include "consumer.h"
#include "inbox.h"
#include "log.h"
#include "metrics.h"
#include "pg.h"
#include "sdnotify.h"
#include "stop.h"

#define CONNECT_TIMEOUT_MS 10000
#define TICK_MS            1000

struct keeper {
    const struct config *config;
    struct duty duty;
    int signal_fd;
    pthread_t thread;
    struct metrics *metrics; /* the consuming thread's */
};

static void *thread_main(void *arg)
{
    struct keeper *keeper = arg;
    consume_run(keeper->config, &keeper->duty, keeper->metrics);
    return NULL;
}

/* --- at the start --- */

static enum result check_settings(const struct config *config, struct error *err)
{
    const struct {
        const char *name, *value, *remedy;
    } needed[] = {
        {"OUTBOX_CONSUMER_GROUP", config->consumer_group, "a name of this service, the same in all its processes"},
        {"OUTBOX_CONSUMER_TOPICS", config->consumer_topics, "topics with commas between them"},
        {"OUTBOX_CONSUMER_HANDLER", config->consumer_handler,
         "a function(event_id text, topic text, key text, payload jsonb, headers jsonb)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
        if (needed[i].value != NULL)
            continue;
        error_fatal(err, "`outboxd consume` needs %s", needed[i].name);
        error_hint(err, "set it to %s", needed[i].remedy);
        return FATAL;
    }
    return OK;
}

static void ignore_assigned(void *arg, const char *topic, int partition)
{
    (void)arg, (void)topic, (void)partition;
}

static void ignore_revoked(void *arg, const char *topic, int partition, bool lost)
{
    (void)arg, (void)topic, (void)partition, (void)lost;
}

/* librdkafka's opinion of the settings, without joining the group. */
static enum result check_kafka_settings(const struct config *config, struct error *err)
{
    const struct consumer_events none = {NULL, ignore_assigned, ignore_revoked};
    struct consumer *consumer = NULL;
    struct burial *burial = NULL;
    enum result result = consumer_new(config, &none, &consumer, err);
    if (result == OK && config->consumer_dead_topic != NULL)
        result = burial_new(config, &burial, err);
    burial_free(burial);
    consumer_free(consumer);
    return result;
}

/* One look at the schema and the handler. RETRY: PostgreSQL is not there yet. */
static enum result inspect(struct keeper *keeper, struct error *err)
{
    const struct config *config = keeper->config;
    const struct pg_options options = {.url = config->database_url,
                                       .schema = config->schema,
                                       .connect_timeout_ms = CONNECT_TIMEOUT_MS,
                                       .stop_fd = keeper->signal_fd};
    struct pg *pg = NULL;
    enum result result = pg_open(&options, &pg, err);
    if (result == RETRY && pg_login_refused(err))
        return FATAL;
    if (result == OK)
        result = inbox_check(pg, config, err);
    if (result == OK)
        log_info("PostgreSQL %d.%d, schema %s; topics %s, group %s, handler %s%s", pg_server_version(pg) / 10000,
                 pg_server_version(pg) % 10000, config->schema, config->consumer_topics, config->consumer_group,
                 config->consumer_handler, pg_pooled(pg) ? "; behind a PgBouncer in transaction mode" : "");
    pg_close(pg);
    return result;
}

/* A sidecar starts in any order: wait for PostgreSQL. RETRY: a signal came first. */
static enum result await_database(struct keeper *keeper, struct error *err)
{
    struct backoff backoff = {.base_ms = 200, .cap_ms = 5000};
    for (;;) {
        enum result result = inspect(keeper, err);
        if (result != RETRY)
            return result;
        if (stop_nap(keeper->signal_fd, 0))
            return RETRY;
        duty_trouble(&keeper->duty, err->message);
        log_warning("waiting for PostgreSQL: %s", err->message);
        sdnotify("STATUS=waiting for PostgreSQL: %s", err->message);
        duty_beat(&keeper->duty, backoff.cap_ms + CONNECT_TIMEOUT_MS);
        if (stop_nap(keeper->signal_fd, backoff_next(&backoff)))
            return RETRY;
    }
}

/* --- the thread --- */

/* What systemd wants to hear; the watchdog only while the consumer moves. */
static void tell_systemd(struct keeper *keeper)
{
    char trouble[600];
    bool ready = duty_ready(&keeper->duty, trouble, sizeof trouble);
    sdnotify("%sSTATUS=%s%s; %d partitions, %.0f handled, %.0f dead", duty_alive(&keeper->duty) ? "WATCHDOG=1\n" : "",
             ready ? "consuming" : "not consuming: ", trouble, atomic_load(&keeper->duty.partitions),
             metrics_sum(M_CONSUMED_HANDLED), metrics_sum(M_CONSUMED_DEAD));
}

static enum ended keep(struct keeper *keeper, struct error *err)
{
    int64_t watchdog_ms = sdnotify_watchdog_ms();
    keeper->metrics = metrics_new();
    int failure = pthread_create(&keeper->thread, NULL, thread_main, keeper);
    if (failure != 0) {
        error_fatal(err, "cannot start a thread: %s", strerror(failure));
        return ENDED_REFUSED;
    }
    log_info("consuming");
    sdnotify("READY=1");
    do {
        tell_systemd(keeper);
        log_flush_old_repeats();
    } while (!stop_nap(keeper->signal_fd, watchdog_ms > 0 && watchdog_ms / 3 < TICK_MS ? watchdog_ms / 3 : TICK_MS));
    stop_take(keeper->signal_fd);
    duty_stop(&keeper->duty);
    sdnotify("STOPPING=1\nSTATUS=stopping: waiting for the batch in flight");
    int64_t deadline = clock_ms() + keeper->config->shutdown_timeout;
    return stop_join(keeper->signal_fd, keeper->thread, deadline, "consumed") ? ENDED_STOPPED : ENDED_ABANDONED;
}

static enum ended check_and_keep(struct keeper *keeper, struct error *err)
{
    switch (await_database(keeper, err)) {
    case OK:
        return keep(keeper, err);
    case RETRY:
        stop_take(keeper->signal_fd);
        return ENDED_STOPPED;
    default:
        return ENDED_REFUSED;
    }
}

enum ended keeper_run(const struct config *config, const struct keeper_hooks *hooks, struct error *err)
{
    static struct keeper keeper; /* an abandoned thread goes on using it */
    enum ended outcome = ENDED_REFUSED;
    keeper = (struct keeper){.config = config, .signal_fd = stop_open()};
    if (keeper.signal_fd < 0) {
        error_fatal(err, "cannot take signals: %s", strerror(errno));
        return ENDED_REFUSED;
    }
    enum result result = check_settings(config, err);
    if (result == OK)
        result = check_kafka_settings(config, err);
    if (result == OK)
        result = duty_init(&keeper.duty, err);
    if (result == OK) {
        result = hooks->open(hooks->arg, &keeper.duty, err);
        if (result == OK) {
            outcome = check_and_keep(&keeper, err);
            if (outcome != ENDED_ABANDONED)
                hooks->close(hooks->arg);
        }
        if (outcome != ENDED_ABANDONED)
            duty_done(&keeper.duty);
    }
    if (outcome != ENDED_ABANDONED)
        close(keeper.signal_fd);
    return outcome;
}
