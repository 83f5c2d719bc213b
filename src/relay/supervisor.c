#include "supervisor.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backoff.h"
#include "clock.h"
#include "crew.h"
#include "janitor.h"
#include "log.h"
#include "metrics.h"
#include "pg.h"
#include "publisher.h"
#include "relay.h"
#include "schema.h"
#include "sdnotify.h"
#include "stop.h"

#define TICK_MS 1000

struct thread {
    pthread_t id;
    struct crew *crew;
    int worker; /* -1: the janitor */
    struct metrics *metrics;
};

static void *thread_main(void *arg)
{
    struct thread *thread = arg;
    char name[24] = "janitor"; /* what top -H shows */
    if (thread->worker >= 0)
        snprintf(name, sizeof name, "worker %d", thread->worker);
    pthread_setname_np(pthread_self(), name);
    if (thread->worker < 0)
        janitor_run(thread->crew, thread->metrics);
    else
        relay_run(thread->crew, thread->worker, thread->metrics);
    return NULL;
}

/* --- at the start --- */

/* One look at the schema. RETRY: PostgreSQL is not there yet. */
static enum result inspect(const struct config *config, int signal_fd, struct error *err)
{
    const struct pg_options options = {
        .url = config->database_url, .schema = config->schema, .connect_timeout_ms = 10000, .stop_fd = signal_fd};
    struct pg *pg = NULL;
    struct schema_state state;
    enum result result = pg_open(&options, &pg, err);
    if (result == RETRY && pg_login_refused(err))
        return FATAL;
    if (result == OK)
        result = schema_check(pg, config->on_sent == ON_SENT_DELETE, &state, err);
    if (result == OK) {
        log_info("PostgreSQL %d.%d, schema %s at version %d%s", pg_server_version(pg) / 10000,
                 pg_server_version(pg) % 10000, config->schema, state.version,
                 pg_pooled(pg) ? "; behind a PgBouncer in transaction mode: no prepared statements, no LISTEN" : "");
        if (config->notify && pg_pooled(pg))
            log_warning(
                "OUTBOX_NOTIFY=on has no effect behind a PgBouncer in transaction mode: LISTEN does not pass it");
        else if (config->notify != state.notify)
            log_warning("OUTBOX_NOTIFY is %s, but the trigger in the database is %s: run `outboxd migrate up`",
                        config->notify ? "on" : "off", state.notify ? "on" : "off");
    }
    pg_close(pg);
    return result;
}

/* A sidecar starts in any order: wait for PostgreSQL. RETRY: a signal came first. */
static enum result await_schema(struct crew *crew, int signal_fd, struct error *err)
{
    struct backoff backoff = {.base_ms = 200, .cap_ms = 5000};
    for (;;) {
        for (int i = 0; i < crew->n; i++)
            crew_beat(crew, i, 60000); /* they have not begun: nobody hangs */
        enum result result = inspect(crew->config, signal_fd, err);
        if (result != RETRY)
            return result;
        if (stop_nap(signal_fd, 0))
            return RETRY;
        log_warning("waiting for PostgreSQL: %s", err->message);
        sdnotify("STATUS=waiting for PostgreSQL: %s", err->message);
        for (int i = 0; i < crew->n; i++)
            crew_trouble(crew, i, err->message);
        if (stop_nap(signal_fd, backoff_next(&backoff)))
            return RETRY;
    }
}

static enum result check_kafka_settings(const struct config *config, struct error *err)
{
    struct publisher *publisher = NULL;
    enum result result = publisher_new(config, metrics_new(), &publisher, err);
    publisher_free(publisher);
    const struct publisher_trap *trap;
    for (size_t i = 0; result == OK && (trap = publisher_trap(config, i)) != NULL; i++)
        log_warning("%s; %s", trap->seen, trap->remedy);
    return result;
}

/* --- threads --- */

static enum result start(struct crew *crew, struct thread *threads, int *ret_started, struct error *err)
{
    for (int i = 0; i <= crew->n; i++) {
        threads[i] = (struct thread){.crew = crew, .worker = i < crew->n ? i : -1, .metrics = metrics_new()};
        int failure = pthread_create(&threads[i].id, NULL, thread_main, &threads[i]);
        if (failure != 0)
            return error_fatal(err, "cannot start a thread: %s", strerror(failure));
        *ret_started = i + 1;
    }
    return OK;
}

/* What systemd wants to hear; the watchdog only while every worker moves. */
static void tell_systemd(struct crew *crew)
{
    char reason[600];
    bool ready = crew_ready(crew, reason, sizeof reason);
    sdnotify("%sSTATUS=%s%s; %.0f sent, %.0f pending, %.0f dead", crew_alive(crew) ? "WATCHDOG=1\n" : "",
             ready ? "relaying" : "not delivering: ", reason, metrics_sum(M_EVENTS_SENT), metrics_sum(M_PENDING),
             metrics_sum(M_DEAD));
}

static enum ended supervise(struct crew *crew, int signal_fd, struct error *err)
{
    static struct thread threads[CREW_MAX + 1]; /* as long as the crew */
    int started = 0;
    enum result result = start(crew, threads, &started, err);
    if (result == OK) {
        int64_t watchdog_ms = sdnotify_watchdog_ms();
        log_info("relaying with %d workers", crew->n);
        sdnotify("READY=1");
        do {
            tell_systemd(crew);
            log_flush_old_repeats();
        } while (!stop_nap(signal_fd, watchdog_ms > 0 && watchdog_ms / 3 < TICK_MS ? watchdog_ms / 3 : TICK_MS));
        stop_take(signal_fd);
    }
    crew_stop(crew);
    sdnotify("STOPPING=1\nSTATUS=stopping: waiting for batches in flight");
    int64_t deadline = clock_ms() + crew->config->shutdown_timeout;
    for (int i = 0; i < started; i++)
        if (!stop_join(signal_fd, threads[i].id, deadline, "sent"))
            return ENDED_ABANDONED;
    return result == OK ? ENDED_STOPPED : ENDED_REFUSED;
}

static enum ended check_and_supervise(struct crew *crew, int signal_fd, struct error *err)
{
    switch (await_schema(crew, signal_fd, err)) {
    case OK:
        return supervise(crew, signal_fd, err);
    case RETRY:
        stop_take(signal_fd);
        return ENDED_STOPPED;
    default:
        return ENDED_REFUSED;
    }
}

enum ended supervisor_run(const struct config *config, const struct supervisor_hooks *hooks, struct error *err)
{
    static struct crew crew; /* abandoned threads go on using it */
    enum ended outcome = ENDED_REFUSED;
    int signal_fd = stop_open();
    if (signal_fd < 0) {
        error_fatal(err, "cannot take signals: %s", strerror(errno));
        return ENDED_REFUSED;
    }
    enum result result = check_kafka_settings(config, err);
    if (result == OK)
        result = crew_init(&crew, config, err);
    if (result == OK) {
        result = hooks->open(hooks->arg, &crew, err);
        if (result == OK) {
            outcome = check_and_supervise(&crew, signal_fd, err);
            if (outcome != ENDED_ABANDONED)
                hooks->close(hooks->arg);
        }
        if (outcome != ENDED_ABANDONED)
            crew_done(&crew);
    }
    close(signal_fd);
    return outcome;
}
