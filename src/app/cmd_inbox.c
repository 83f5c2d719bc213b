/* inbox: an operator looks at events that a consumer gave up, has their handler called again, or discards them. */
#include <string.h>

#include "app.h"
#include "errand.h"
#include "graveyard.h"
#include "log.h"
#include "str.h"
#include "table.h"

static const struct table_column columns[] = {
    {"ID", 26, 0, false}, {"GROUP", 6, 1, false}, {"AGE", 4, 0, true},    {"TOPIC", 8, 2, false},
    {"KEY", 6, 1, false}, {"TRIES", 5, 0, true},  {"ERROR", 8, 4, false},
};

/* --- list, show --- */

static enum result list(struct pg *pg, const struct dead_filter *filter, bool json, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = graveyard_list(pg, filter, json, &rows, err);
    if (result != OK)
        return result;
    if (json) {
        table_json(rows);
        putchar('\n');
    } else if (rows_n(rows) == 0) {
        puts("no dead events");
    } else {
        table_rows(columns, ARRAY_LEN(columns), rows, DEAD_COL_AGE);
        if (filter->limit > 0 && rows_n(rows) == filter->limit)
            fprintf(stderr, "the first %lld; --limit N or --all shows more\n", (long long)filter->limit);
    }
    return OK;
}

/* Texts in the row are the writer's: no terminal is to obey them, but payloads keep their lines. */
static void print_field(const char *name, const char *text)
{
    printf("%-15s%s", name, strchr(text, '\n') ? "\n" : " ");
    for (bool first = true; *text || first; first = false) {
        size_t len = strcspn(text, "\n");
        _cleanup_(str_free) char *line = str_dupn(text, len);
        if (!first || text[len] == '\n')
            fputs("  ", stdout);
        table_text(line, stdout);
        putchar('\n');
        text += len + (text[len] == '\n');
    }
}

/* An id may be dead in several groups: all of them are shown. */
static enum result show(struct pg *pg, const struct dead_filter *filter, bool json, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = json ? graveyard_list(pg, filter, true, &rows, err) : graveyard_show(pg, filter, &rows, err);
    if (result == OK && rows_n(rows) == 0)
        return error_reject(err, "there is no dead event %s", filter->id);
    if (result == OK && json) {
        for (int i = 0; i < rows_n(rows); i++)
            puts(rows_text(rows, i, 0));
    } else if (result == OK) {
        for (int i = 0; i < rows_n(rows); i++) {
            if (i > 0 && str_eq(rows_text(rows, i, 0), "event_id"))
                putchar('\n');
            if (!rows_null(rows, i, 1))
                print_field(rows_text(rows, i, 0), rows_text(rows, i, 1));
        }
    }
    return result;
}

/* --- retry, discard --- */

static void print_outcome(const char *action, bool dry, bool json, int64_t matched, int64_t changed, int64_t failed)
{
    if (json)
        printf("{\"action\":\"%s\",\"dry_run\":%s,\"matched\":%lld,\"changed\":%lld,\"failed\":%lld}\n", action,
               dry ? "true" : "false", (long long)matched, (long long)changed, (long long)failed);
    else if (dry)
        printf("would %s %lld events\n", action, (long long)matched);
    else if (str_eq(action, "discard"))
        printf("discarded %lld events\n", (long long)changed);
    else
        printf("handled %lld of %lld events; %lld failed again, %lld wait behind those\n", (long long)changed,
               (long long)matched, (long long)failed, (long long)(matched - changed - failed));
}

static void tell_failure(void *arg, const char *id, const char *why)
{
    (void)arg;
    fputs("event ", stderr);
    table_text(id, stderr);
    fputs(" failed again: ", stderr);
    table_text(why, stderr);
    fputc('\n', stderr);
}

static enum result retry(struct pg *pg, const struct config *config, const struct dead_filter *filter, bool json,
                         struct error *err)
{
    struct dead_retry retry = {.config = config, .filter = filter, .failed = tell_failure};
    enum result result = graveyard_retry(pg, &retry, err);
    if (result == OK || retry.handled > 0)
        log_warning("inbox retry: %lld of %lld dead events handled, %lld failed again", (long long)retry.handled,
                    (long long)retry.matched, (long long)retry.failures);
    if (result != OK)
        return result;
    print_outcome("retry", false, json, retry.matched, retry.handled, retry.failures);
    return retry.failures == 0 ? OK : error_reject(err, "%lld events failed again", (long long)retry.failures);
}

static enum result change(struct pg *pg, const struct config *config, const struct errand *errand,
                          const struct dead_filter *filter, struct error *err)
{
    int64_t n = 0;
    enum result result;
    if (errand->dry_run) {
        result = graveyard_count(pg, filter, &n, err);
        if (result == OK)
            print_outcome(errand->action, true, errand->json, n, 0, 0);
        return result;
    }
    if (errand->retry)
        return retry(pg, config, filter, errand->json, err);
    result = graveyard_discard(pg, filter, &n, err);
    if (result != OK)
        return result;
    log_warning("inbox discard: %lld dead events deleted", (long long)n);
    print_outcome(errand->action, false, errand->json, n, n, 0);
    return OK;
}

/* --- the command --- */

/* The handler that is known here is that of one group: another group's events are not for it. */
static enum result check_retry(const struct config *config, struct dead_filter *filter, struct error *err)
{
    if (config->consumer_group == NULL || config->consumer_handler == NULL) {
        error_fatal(err, "`outboxd inbox retry` needs OUTBOX_CONSUMER_GROUP and OUTBOX_CONSUMER_HANDLER");
        error_hint(err, "run it with the settings of the consumer whose events are to be handled");
        return FATAL;
    }
    if (filter->group != NULL && !str_eq(filter->group, config->consumer_group)) {
        error_fatal(err, "--group %s is not OUTBOX_CONSUMER_GROUP (%s): its handler is not known here", filter->group,
                    config->consumer_group);
        return FATAL;
    }
    filter->group = config->consumer_group;
    return OK;
}

static enum result act(struct pg *pg, const struct config *config, const struct errand *errand,
                       const struct dead_filter *filter, struct error *err)
{
    if (errand->list)
        return list(pg, filter, errand->json, err);
    if (errand->show)
        return show(pg, filter, errand->json, err);
    return change(pg, config, errand, filter, err);
}

int cmd_inbox(int argc, char **argv)
{
    struct errand errand;
    int code = errand_parse("inbox", argc, argv, &errand);
    if (code != EXIT_OK)
        return code;
    struct dead_filter filter = {
        .group = option_value(&errand.arguments, "--group"),
        .topic = option_value(&errand.arguments, "--topic"),
        .key = option_value(&errand.arguments, "--key"),
        .id = errand.id,
        .since = errand.since,
        .since_ms = errand.since_ms,
        .limit = errand.limit,
    };

    struct config config;
    if ((code = app_load_config(&config)) != EXIT_OK)
        return code;
    struct error err = {0};
    struct pg *pg = NULL;
    enum result result = errand.retry ? check_retry(&config, &filter, &err) : OK;
    if (result == OK)
        result = errand_open(&config, 2, "inbox", &pg, &err);
    if (result == OK)
        result = act(pg, &config, &errand, &filter, &err);
    pg_close(pg);
    config_done(&config);
    return result == OK ? EXIT_OK : app_fail(result, &err);
}
