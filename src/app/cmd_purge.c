#include <string.h>
#include <unistd.h>

#include "app.h"
#include "clock.h"
#include "log.h"
#include "options.h"
#include "pg.h"
#include "purge.h"
#include "schema.h"
#include "show.h"

#define CONNECT_TIMEOUT_MS 15000
#define PROGRESS_MS        200

struct purging {
    struct purge purge;
    int signal_fd; /* readable: stop */
    bool terminal; /* progress goes to stderr */
    int64_t next_progress;
};

static void progress(struct purging *purging)
{
    if (!purging->terminal || clock_ms() < purging->next_progress)
        return;
    purging->next_progress = clock_ms() + PROGRESS_MS;
    int64_t pages = 0, walked = 0;
    for (int i = 0; i < PURGE_TABLES; i++) {
        pages += purging->purge.walks[i].pages;
        walked += purging->purge.walks[i].walked;
    }
    char rows[32];
    show_count(purging->purge.purged[PURGE_EVENTS] + purging->purge.purged[PURGE_PROCESSED], rows);
    fprintf(stderr, "\r%3d %%, %s rows purged", (int)(pages > 0 ? 100 * walked / pages : 100), rows);
}

static bool go_on(void *arg)
{
    struct purging *purging = arg;
    progress(purging);
    return !stop_nap(purging->signal_fd, 0);
}

static void report(struct purging *purging)
{
    char events[32], processed[32];
    show_count(purging->purge.purged[PURGE_EVENTS], events);
    show_count(purging->purge.purged[PURGE_PROCESSED], processed);
    if (purging->terminal)
        fputs("\r\033[K", stderr);
    printf("purged %s rows of outbox_events and %s of processed_events; the longest batch took %d ms\n", events,
           processed, (int)purging->purge.longest_ms);
    fflush(stdout);
}

/* Rounds until a signal comes, or one. */
static int purge_on(struct purging *purging, const struct config *config, bool once)
{
    struct error err = {0};
    struct pg *pg = NULL;
    struct schema_state state;
    bool been_there = false; /* a password that was right may be right again */
    const struct pg_options options = {.url = config->database_url,
                                       .schema = config->schema,
                                       .connect_timeout_ms = CONNECT_TIMEOUT_MS,
                                       .stop_fd = purging->signal_fd};
    enum result result;
    do {
        int64_t before = purging->purge.purged[PURGE_EVENTS] + purging->purge.purged[PURGE_PROCESSED];
        result = pg != NULL ? OK : pg_open(&options, &pg, &err);
        been_there |= result == OK;
        if (result == OK)
            result = schema_current(pg, &state, &err); /* it may be migrated at any time */
        if (result == OK)
            result = purge_round(pg, &purging->purge, once, go_on, purging, &err);
        if (result == OK &&
            (once || purging->purge.purged[PURGE_EVENTS] + purging->purge.purged[PURGE_PROCESSED] > before))
            report(purging);
        if (result == RETRY && !once && !pg_error_is_permanent(&err) && (been_there || !pg_login_refused(&err))) {
            log_warning("waiting for PostgreSQL: %s", err.message);
            pg_close(TAKE(pg));
            result = OK;
        }
        log_flush_old_repeats();
    } while (result == OK && !once && !stop_nap(purging->signal_fd, config->purge_interval));
    pg_close(pg);
    if (result == OK || stop_nap(purging->signal_fd, 0))
        return EXIT_OK;
    return app_fail(result, &err);
}

int cmd_purge(int argc, char **argv)
{
    struct arguments arguments;
    int code = options_parse("purge", 0, argc, argv, &arguments);
    if (code != EXIT_OK)
        return code;
    bool once = option_given(&arguments, "--once");
    if (!once)
        app_is_daemon();
    struct config config;
    code = app_load_config(&config);
    if (code != EXIT_OK)
        return code;
    struct purging purging = {.signal_fd = stop_open(), .terminal = isatty(STDERR_FILENO) && isatty(STDOUT_FILENO)};
    purge_init(&purging.purge, &config);
    code = purge_on(&purging, &config, once);
    close(purging.signal_fd);
    config_done(&config);
    return code;
}
