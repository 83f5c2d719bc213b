#include "janitor.h"

#include <poll.h>

#include "backoff.h"
#include "claim.h"
#include "clock.h"
#include "figures.h"
#include "log.h"
#include "parking.h"
#include "pg.h"
#include "purge.h"
#include "sweep.h"

#define ROUND_MS      1000
#define SWEEP_MS      60000
#define FIGURES_MS    3000
#define FIGURES_BOUND 100000 /* events that a look counts at most */
#define FIGURES_SHARE 20     /* of the janitor's time that the looks may take: 1/20 */

struct janitor {
    struct crew *crew;
    const struct config *config;
    struct metrics *metrics;
    struct pg *pg;
    bool swept_once;
    int next_lane; /* of the sweep */
    int64_t next_sweep;
    int64_t next_figures;
    int64_t next_chores; /* between the batches of a purge */
    int64_t next_purge;
    struct purge purge;
    int64_t purged[PURGE_TABLES]; /* counted */
    struct error err;             /* of a chore between the batches of a purge */
};

static void nap(struct janitor *janitor, int64_t ms)
{
    struct pollfd stop = {janitor->crew->stop_fd, POLLIN, 0};
    (void)poll(&stop, 1, (int)ms);
}

/* The gauges, so that a scrape costs no query. A look that takes long, for example over many dead index entries, is taken less
 * often; so is one that fails, for the other chores wait for it. */
static enum result count(struct janitor *janitor, struct error *err)
{
    if (clock_ms() < janitor->next_figures)
        return OK;
    struct figures figures;
    int64_t start = clock_ms();
    enum result result = figures_read(janitor->pg, FIGURES_BOUND, &figures, err);
    int64_t pause = (clock_ms() - start) * FIGURES_SHARE;
    janitor->next_figures = clock_ms() + (pause > FIGURES_MS ? pause : FIGURES_MS);
    if (result != OK)
        return result;

    size_t parked = 0;
    for (size_t i = 0; i < figures.n_parked; i++)
        parked += str_eq(figures.parked[i].state, "parked");
    metrics_set(janitor->metrics, M_PENDING, (double)figures.pending);
    metrics_set(janitor->metrics, M_PENDING_CAPPED, figures.capped);
    metrics_set(janitor->metrics, M_OLDEST_PENDING, figures.oldest_pending_s);
    metrics_set(janitor->metrics, M_FAILED, (double)figures.failed);
    metrics_set(janitor->metrics, M_HELD, (double)figures.held);
    metrics_set(janitor->metrics, M_DEAD, (double)figures.dead);
    metrics_set(janitor->metrics, M_PARKED_TOPICS, (double)parked);
    struct strbuf json = {0};
    figures_json(&figures, &json);
    crew_post(janitor->crew, json.data);
    figures_done(&figures);
    return OK;
}

/* Whether anything is parked is a look without locks; only then is there something to tidy. */
static enum result tidy(struct janitor *janitor, struct error *err)
{
    static const struct statement any = {"any_parked", "SELECT EXISTS (SELECT FROM @.outbox_parked_topics)"};
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = pg_query(janitor->pg, &any, 0, NULL, ANSWER_TIMEOUT_MS, &rows, err);
    if (result != OK || !rows_true(rows, 0, 0))
        return result;
    _cleanup_(rows_cleanup) struct rows *gone = NULL;
    result = parking_tidy(janitor->pg, janitor->config->ordering == ORDER_KEY,
                          janitor->config->on_dead == ON_DEAD_BLOCK, &gone, err);
    for (int i = 0; result == OK && i < rows_n(gone); i++)
        log_topic(LOG_LEVEL_INFO, rows_text(gone, i, 0), "no longer parked: nothing waits for it");
    return result;
}

static enum result sweep(struct janitor *janitor, struct error *err)
{
    const struct sweep_options options = {
        .dead_blocks = janitor->config->ordering == ORDER_KEY && janitor->config->on_dead == ON_DEAD_BLOCK,
        .batch_size = (int)janitor->config->batch_size,
        .at_start = !janitor->swept_once,
    };
    for (int n = 0; n < LANES && !crew_stopping(janitor->crew); n++) {
        int released = 0, lane = janitor->next_lane;
        janitor->next_lane = (lane + 1) % LANES;  /* one that fails is not in the way of the others */
        enum result result = count(janitor, err); /* a sweep may wait for its lanes, some seconds each */
        if (result == OK)
            result = tidy(janitor, err);
        if (result == OK)
            result = sweep_lane(janitor->pg, lane, &options, &released, err);
        if (result != OK)
            return result;
        if (released > 0)
            log_info("released %d held events of lane %d: what they waited for is gone", released, lane);
    }
    janitor->swept_once = true;
    return OK;
}

/* What cannot wait for the end of a purge, which may take many minutes. */
static enum result chores(struct janitor *janitor, struct error *err)
{
    enum result result = count(janitor, err);
    if (result == OK)
        result = tidy(janitor, err);
    if (result != OK || clock_ms() < janitor->next_sweep)
        return result;
    result = sweep(janitor, err);
    if (result == OK)
        janitor->next_sweep = clock_ms() + SWEEP_MS;
    return result;
}

/* Between the batches of a purge: the other chores, and a pause as long as the batch was, so that the purge never takes more than
 * half of one connection. */
static bool between_batches(void *arg)
{
    struct janitor *janitor = arg;
    static const enum metric metrics[PURGE_TABLES] = {
        [PURGE_EVENTS] = M_PURGED_OUTBOX, [PURGE_PROCESSED] = M_PURGED_INBOX};
    for (int i = 0; i < PURGE_TABLES; i++) {
        metrics_add(janitor->metrics, metrics[i], (uint64_t)(janitor->purge.purged[i] - janitor->purged[i]));
        janitor->purged[i] = janitor->purge.purged[i];
    }
    nap(janitor, janitor->purge.last_ms);
    if (crew_stopping(janitor->crew))
        return false;
    if (clock_ms() < janitor->next_chores)
        return true;
    janitor->next_chores = clock_ms() + ROUND_MS;
    return chores(janitor, &janitor->err) == OK;
}

static enum result purge(struct janitor *janitor, struct error *err)
{
    int64_t before = janitor->purge.purged[PURGE_EVENTS] + janitor->purge.purged[PURGE_PROCESSED];
    error_clear(&janitor->err);
    enum result result = purge_round(janitor->pg, &janitor->purge, false, between_batches, janitor, err);
    if (result == OK && janitor->err.message[0] != '\0')
        result = error_retry(err, "%s", janitor->err.message);
    int64_t rows = janitor->purge.purged[PURGE_EVENTS] + janitor->purge.purged[PURGE_PROCESSED] - before;
    if (rows > 0)
        log_debug("purged %lld rows; the longest batch so far took %d ms", (long long)rows,
                  (int)janitor->purge.longest_ms);
    return result;
}

static enum result round_of(struct janitor *janitor, struct error *err)
{
    enum result result = OK;
    if (janitor->pg == NULL) {
        const struct pg_options options = {.url = janitor->config->database_url,
                                           .schema = janitor->config->schema,
                                           .connect_timeout_ms = 10000,
                                           .session = "SET statement_timeout = '30s'",
                                           .stop_fd = janitor->crew->stop_fd};
        result = pg_open(&options, &janitor->pg, err);
    }
    /* First, so that chores that fail again and again do not keep it from its turn. */
    if (result == OK && clock_ms() >= janitor->next_purge) {
        result = purge(janitor, err);
        janitor->next_purge = clock_ms() + janitor->config->purge_interval;
    }
    return result == OK ? chores(janitor, err) : result;
}

void janitor_run(struct crew *crew, struct metrics *metrics)
{
    struct janitor janitor = {.crew = crew, .config = crew->config, .metrics = metrics};
    purge_init(&janitor.purge, crew->config);
    janitor.next_purge = clock_ms() + crew->config->purge_interval;
    struct backoff backoff = {.base_ms = 1000, .cap_ms = 10000};
    while (!crew_stopping(crew)) {
        struct error err = {0};
        if (round_of(&janitor, &err) == OK) {
            backoff_reset(&backoff);
            nap(&janitor, ROUND_MS);
            continue;
        }
        if (!crew_stopping(crew))
            log_warning("housekeeping: %s", err.message);
        pg_close(TAKE(janitor.pg)); /* an open transaction ends with it */
        nap(&janitor, backoff_next(&backoff));
    }
    pg_close(janitor.pg);
}
