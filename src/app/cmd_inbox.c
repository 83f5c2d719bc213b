/* inbox: an operator looks at events that a consumer gave up, has their handler called again, or discards them. */
#include <ctype.h>
#include <string.h>

#include "app.h"
#include "graveyard.h"
#include "log.h"
#include "options.h"
#include "parse.h"
#include "pg.h"
#include "schema.h"
#include "str.h"
#include "table.h"

#define CONNECT_TIMEOUT_MS 15000
#define LIST_LIMIT         50

static const struct table_column columns[] = {
    {"ID", 26, 0, false}, {"GROUP", 6, 1, false}, {"AGE", 4, 0, true},    {"TOPIC", 8, 2, false},
    {"KEY", 6, 1, false}, {"TRIES", 5, 0, true},  {"ERROR", 8, 4, false},
};

static int read_filter(const struct arguments *arguments, bool list, struct dead_filter *ret)
{
    *ret = (struct dead_filter){
        .group = option_value(arguments, "--group"),
        .topic = option_value(arguments, "--topic"),
        .key = option_value(arguments, "--key"),
        .id = option_value(arguments, "--id"),
        .limit = list && !option_given(arguments, "--all") ? LIST_LIMIT : 0,
    };
    const char *limit = option_value(arguments, "--limit"), *since = option_value(arguments, "--since");
    if (limit != NULL && (!parse_int(limit, &ret->limit) || ret->limit < 1))
        return app_usage("inbox", "--limit %s: a number from 1 on", limit);
    if (since == NULL || (parse_duration(since, &ret->since_ms) && ret->since_ms > 0))
        return EXIT_OK;
    if (strlen(since) < 20 || !isdigit((unsigned char)since[0]) || since[10] != 'T')
        return app_usage("inbox", "--since %s: a duration such as 2h, or a time such as 2024-05-06T07:08:09Z", since);
    ret->since = since;
    return EXIT_OK;
}

static bool is_filtered(const struct dead_filter *filter)
{
    return filter->group || filter->topic || filter->key || filter->id || filter->since || filter->since_ms;
}

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
    fprintf(stderr, "event %s failed again: %s\n", id, why);
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

static enum result change(struct pg *pg, const struct config *config, const char *action,
                          const struct arguments *arguments, const struct dead_filter *filter, struct error *err)
{
    bool json = option_given(arguments, "--json");
    int64_t n = 0;
    enum result result;
    if (option_given(arguments, "--dry-run")) {
        result = graveyard_count(pg, filter, &n, err);
        if (result == OK)
            print_outcome(action, true, json, n, 0, 0);
        return result;
    }
    if (str_eq(action, "retry"))
        return retry(pg, config, filter, json, err);
    result = graveyard_discard(pg, filter, &n, err);
    if (result != OK)
        return result;
    log_warning("inbox discard: %lld dead events deleted", (long long)n);
    print_outcome(action, false, json, n, n, 0);
    return OK;
}

/* --- the command --- */

static enum result act(struct pg *pg, const struct config *config, const char *action,
                       const struct arguments *arguments, struct dead_filter *filter, struct error *err)
{
    bool json = option_given(arguments, "--json");
    if (str_eq(action, "list"))
        return list(pg, filter, json, err);
    if (str_eq(action, "show"))
        return show(pg, filter, json, err);
    return change(pg, config, action, arguments, filter, err);
}

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

static int run(const struct config *config, const char *action, const struct arguments *arguments,
               struct dead_filter *filter)
{
    struct error err = {0};
    struct pg *pg = NULL;
    struct schema_state state;
    const struct pg_options options = {
        .url = config->database_url, .schema = config->schema, .connect_timeout_ms = CONNECT_TIMEOUT_MS, .stop_fd = -1};
    enum result result = str_eq(action, "retry") ? check_retry(config, filter, &err) : OK;
    if (result == OK)
        result = pg_open(&options, &pg, &err);
    if (result == OK)
        result = schema_read(pg, &state, &err);
    if (result == OK && state.version < 2) {
        result = error_fatal(&err, "there is no inbox in schema %s", pg_schema(pg));
        error_hint(&err, "run `outboxd migrate up`, or set OUTBOX_SCHEMA");
    }
    if (result == OK)
        result = act(pg, config, action, arguments, filter, &err);
    pg_close(pg);
    return result == OK ? EXIT_OK : app_fail(result, &err);
}

int cmd_inbox(int argc, char **argv)
{
    struct arguments arguments;
    struct dead_filter filter;
    int code = options_parse("inbox", 2, argc, argv, &arguments);
    if (code != EXIT_OK)
        return code;
    const char *action = arguments.n_operands > 0 ? arguments.operands[0] : "list";
    bool is_list = str_eq(action, "list"), is_show = str_eq(action, "show");
    bool changes = str_eq(action, "retry") || str_eq(action, "discard");
    if (!is_list && !is_show && !changes)
        return app_usage("inbox", "no action \"%s\"", action);
    if (!is_show && arguments.n_operands > 1)
        return app_usage("inbox", "\"%s\" is one argument too many", arguments.operands[1]);
    if ((code = read_filter(&arguments, is_list, &filter)) != EXIT_OK)
        return code;
    if (is_show && arguments.n_operands == 2)
        filter.id = arguments.operands[1];
    if (is_show && filter.id == NULL)
        return app_usage("inbox", "show needs the ID of an event");
    if (changes && !is_filtered(&filter) && !option_given(&arguments, "--all"))
        return app_usage("inbox", "%s changes events: name them by a filter, or say --all", action);
    if (!changes && option_given(&arguments, "--dry-run"))
        return app_usage("inbox", "--dry-run is for retry and discard");

    struct config config;
    if ((code = app_load_config(&config)) != EXIT_OK)
        return code;
    code = run(&config, action, &arguments, &filter);
    config_done(&config);
    return code;
}
