/* events: an operator looks at events, retries and discards them. */
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "app.h"
#include "errand.h"
#include "events.h"
#include "events_show.h"
#include "log.h"
#include "stop.h"
#include "str.h"
#include "table.h"

#define CHANGE_BATCH 1000 /* a lane is held for some ten milliseconds */

static const struct table_column columns[] = {
    {"ID", 26, 0, false}, {"STATUS", 6, 0, false}, {"AGE", 4, 0, true},    {"TOPIC", 8, 2, false},
    {"KEY", 6, 2, false}, {"TRIES", 5, 0, true},   {"ERROR", 8, 4, false},
};

/* --- the filter --- */

static unsigned read_kinds(const char *list)
{
    static const struct {
        const char *name;
        unsigned kind;
    } names[] = {
        {"new", EVENTS_NEW},   {"sent", EVENTS_SENT}, {"failed", EVENTS_FAILED},
        {"held", EVENTS_HELD}, {"dead", EVENTS_DEAD},
    };
    unsigned kinds = 0;
    for (; list != NULL && *list; list += strcspn(list, ","), list += *list == ',')
        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            if (strcspn(list, ",") == strlen(names[i].name) &&
                strncasecmp(list, names[i].name, strlen(names[i].name)) == 0)
                kinds |= names[i].kind;
    return kinds;
}

static struct events_filter make_filter(const struct errand *errand)
{
    const struct arguments *arguments = &errand->arguments;
    return (struct events_filter){
        .kinds = read_kinds(option_value(arguments, "--status")),
        .topic = option_value(arguments, "--topic"),
        .key = option_value(arguments, "--key"),
        .tenant = option_value(arguments, "--tenant"),
        .id = errand->id,
        .since = errand->since,
        .since_ms = errand->since_ms,
        .limit = errand->limit,
    };
}

/* --- list --- */

static enum result list(struct pg *pg, const struct events_filter *filter, bool json, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    bool full = false, bounded = false;
    enum result result = events_list(pg, filter, json, &rows, err);
    if (result == OK) {
        full = filter->limit > 0 && rows_n(rows) == filter->limit;
        result = full ? OK : events_sent_bounded(pg, filter, &bounded, err);
    }
    if (result != OK)
        return result;
    if (json) {
        table_json(rows);
        putchar('\n');
    } else if (rows_n(rows) == 0) {
        puts("no events");
    } else {
        table_rows(columns, ARRAY_LEN(columns), rows, EVENTS_COL_AGE);
        if (full)
            fprintf(stderr, "the first %lld; --limit N or --all shows more\n", (long long)filter->limit);
    }
    if (bounded)
        fprintf(stderr, "SENT events were looked for among the latest %d events only; --id finds older ones\n",
                EVENTS_SENT_MAX);
    return OK;
}

/* --- retry, discard --- */

static void show_progress(const struct events_change *change, int waiting_for)
{
    fprintf(stderr, "\r\033[K%lld", (long long)change->changed);
    if (!change->capped)
        fprintf(stderr, " of %lld", (long long)change->matched);
    if (waiting_for >= 0)
        fprintf(stderr, ", waiting for lane %d", waiting_for);
}

static void print_outcome(const struct events_change *change, const struct errand *errand, bool dry)
{
    if (errand->json) {
        printf("{\"action\":\"%s\",\"dry_run\":%s,\"matched\":%lld,\"changed\":%lld,\"freed\":%lld,\"probes\":%lld",
               errand->action, dry ? "true" : "false", (long long)change->matched, (long long)change->changed,
               (long long)change->freed, (long long)change->probes);
        return;
    }
    long long n = dry ? change->matched : change->changed;
    const char *done = change->discard ? "discarded" : "retried";
    printf("%s%s %lld event%s", dry ? "would " : "", dry ? errand->action : done, n, n == 1 ? "" : "s");
    if (change->freed > 0)
        printf(", freed %lld behind them", (long long)change->freed);
    if (change->probes > 0)
        printf("%s %lld parked topic%s", dry ? " and probe" : "; due for a probe now:", (long long)change->probes,
               change->probes == 1 ? "" : "s");
    putchar('\n');
}

/* Somebody named an event, and it was left alone: why? */
static enum result tell_untouched(struct pg *pg, const char *id, struct error *err)
{
    static const struct {
        const char *status, *why;
    } reasons[] = {
        {"NEW", "it goes by itself, and is never touched"},
        {"SENT", "it is never touched"},
        {"held", "it waits for another event or for its topic, and is touched only with --status held"},
    };
    const struct events_filter filter = {.id = id};
    const char *status = NULL, *why = "the filter names something else, too";
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = events_list(pg, &filter, false, &rows, err);
    if (result != OK)
        return result;
    if (rows_n(rows) == 0) {
        fprintf(stderr, "there is no event %s\n", id);
        return OK;
    }
    status = rows_text(rows, 0, EVENTS_COL_STATUS);
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
        if (str_eq(reasons[i].status, status))
            why = reasons[i].why;
    fprintf(stderr, "event %s is %s: %s\n", id, status, why);
    return OK;
}

static enum result preview(struct pg *pg, struct events_change *change, const struct errand *errand, struct error *err)
{
    struct events_filter filter = *change->filter;
    if (filter.limit == 0)
        filter.limit = LIST_LIMIT;
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = events_count(pg, change, err);
    if (result == OK && change->matched > 0)
        result = events_list(pg, &filter, errand->json, &rows, err);
    if (result != OK)
        return result;
    print_outcome(change, errand, true);
    if (errand->json) {
        fputs(",\"events\":", stdout);
        if (rows != NULL)
            table_json(rows);
        else
            fputs("[]", stdout);
        puts("}");
    } else if (rows != NULL) {
        table_rows(columns, ARRAY_LEN(columns), rows, EVENTS_COL_AGE);
        if (change->matched > rows_n(rows))
            printf("and %lld more\n", (long long)(change->matched - rows_n(rows)));
    }
    return OK;
}

static enum result apply(struct pg *pg, struct events_change *change, const struct errand *errand, struct error *err)
{
    _cleanup_(str_free) char *words = errand_words(errand);
    bool terminal = isatty(STDERR_FILENO);
    if (terminal)
        change->progress = show_progress;
    change->stop_fd = stop_open(); /* Ctrl-C: what was done until then is logged, too */
    enum result result = events_apply(pg, change, err);
    close(change->stop_fd);
    if (terminal)
        fputs("\r\033[K", stderr);
    /* What was done is logged also when the rest could not be. */
    if (result == OK || change->changed > 0)
        log_warning("events %s by %s: %s: %lld changed, %lld freed, %lld parked topics to be probed", errand->action,
                    change->user, words, (long long)change->changed, (long long)change->freed,
                    (long long)change->probes);
    if (result != OK)
        return result;
    print_outcome(change, errand, false);
    if (errand->json)
        puts("}");
    return OK;
}

/* --- the command --- */

static enum result act(struct pg *pg, const struct config *config, const struct errand *errand,
                       const struct events_filter *filter, struct error *err)
{
    if (errand->list)
        return list(pg, filter, errand->json, err);
    if (errand->show)
        return events_show_one(pg, errand->id, config->on_dead == ON_DEAD_BLOCK, errand->json, err);
    const struct events_filter to_change = events_to_change(filter);
    struct events_change change = {
        .discard = errand->discard, .batch_size = CHANGE_BATCH, .filter = &to_change, .stop_fd = -1};
    enum result result = errand->dry_run ? preview(pg, &change, errand, err) : apply(pg, &change, errand, err);
    if (result == OK && filter->id != NULL && change.matched == 0)
        result = tell_untouched(pg, filter->id, err);
    return result;
}

int cmd_events(int argc, char **argv)
{
    struct errand errand;
    int code = errand_parse("events", argc, argv, &errand);
    if (code != EXIT_OK)
        return code;
    const struct events_filter filter = make_filter(&errand);
    if ((errand.retry || errand.discard) && filter.kinds &&
        !(filter.kinds & (EVENTS_FAILED | EVENTS_HELD | EVENTS_DEAD)))
        return app_usage("events", "%s never touches NEW or SENT events", errand.action);

    struct config config;
    if ((code = app_load_config(&config)) != EXIT_OK)
        return code;
    struct error err = {0};
    struct pg *pg = NULL;
    enum result result = errand_open(&config, 1, "outbox", &pg, &err);
    if (result == OK)
        result = act(pg, &config, &errand, &filter, &err);
    pg_close(pg);
    config_done(&config);
    return result == OK ? EXIT_OK : app_fail(result, &err);
}
