/* events: an operator looks at events, retries and discards them. */
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "app.h"
#include "events.h"
#include "events_show.h"
#include "log.h"
#include "options.h"
#include "parse.h"
#include "pg.h"
#include "schema.h"
#include "str.h"
#include "table.h"

#define CONNECT_TIMEOUT_MS 15000
#define LIST_LIMIT         50
#define CHANGE_BATCH       1000 /* a lane is held for some ten milliseconds */

static const struct table_column columns[] = {
    {"ID", 26, 0, false}, {"STATUS", 6, 0, false}, {"AGE", 4, 0, true},    {"TOPIC", 8, 2, false},
    {"KEY", 6, 2, false}, {"TRIES", 5, 0, true},   {"ERROR", 8, 4, false},
};

/* --- the filter --- */

/* 2024-05-06T07:08:09, fractions, and Z or an offset: what every reader takes for the same moment. */
static bool is_rfc3339(const char *text)
{
    static const char shape[] = "0000-00-00T00:00:00";
    for (size_t i = 0; i < sizeof shape - 1; i++) {
        bool digit = text[i] != '\0' && isdigit((unsigned char)text[i]);
        if (shape[i] == '0' ? !digit
                            : toupper((unsigned char)text[i]) != shape[i] && !(shape[i] == 'T' && text[i] == ' '))
            return false;
    }
    const char *at = text + sizeof shape - 1;
    if (*at == '.')
        for (at++; isdigit((unsigned char)*at);)
            at++;
    if (strcasecmp(at, "Z") == 0)
        return true;
    return (*at == '+' || *at == '-') && strlen(at) == 6 && isdigit((unsigned char)at[1]) &&
           isdigit((unsigned char)at[2]) && at[3] == ':' && isdigit((unsigned char)at[4]) &&
           isdigit((unsigned char)at[5]);
}

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

static int read_filter(const struct arguments *arguments, bool list, struct events_filter *ret)
{
    *ret = (struct events_filter){
        .kinds = read_kinds(option_value(arguments, "--status")),
        .topic = option_value(arguments, "--topic"),
        .key = option_value(arguments, "--key"),
        .tenant = option_value(arguments, "--tenant"),
        .id = option_value(arguments, "--id"),
        .limit = list && !option_given(arguments, "--all") ? LIST_LIMIT : 0,
    };
    const char *limit = option_value(arguments, "--limit"), *since = option_value(arguments, "--since");
    if (limit != NULL && (!parse_int(limit, &ret->limit) || ret->limit < 1))
        return app_usage("events", "--limit %s: a number from 1 on", limit);
    if (since != NULL && (!parse_duration(since, &ret->since_ms) || ret->since_ms == 0)) {
        if (!is_rfc3339(since))
            return app_usage("events", "--since %s: a duration such as 2h, or a time such as 2024-05-06T07:08:09Z",
                             since);
        ret->since = since;
    }
    return EXIT_OK;
}

static bool is_filtered(const struct events_filter *filter)
{
    return filter->kinds || filter->topic || filter->key || filter->tenant || filter->id || filter->since ||
           filter->since_ms;
}

/* The filter in words, for the log. */
static char *describe(const struct arguments *arguments)
{
    static const char *const names[] = {"--status", "--topic", "--key",   "--tenant",
                                        "--id",     "--since", "--limit", "--all"};
    struct strbuf text = {0};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *value = option_value(arguments, names[i]);
        if (value != NULL)
            strbuf_addf(&text, "%s%s%s%s", text.len ? " " : "", names[i], *value ? " " : "", value);
    }
    return text.data ? text.data : str_dup("");
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

static void print_outcome(const struct events_change *change, const char *action, bool dry, bool json)
{
    if (json) {
        printf("{\"action\":\"%s\",\"dry_run\":%s,\"matched\":%lld,\"changed\":%lld,\"freed\":%lld,\"probes\":%lld",
               action, dry ? "true" : "false", (long long)change->matched, (long long)change->changed,
               (long long)change->freed, (long long)change->probes);
        return;
    }
    long long n = dry ? change->matched : change->changed;
    const char *done = change->discard ? "discarded" : "retried";
    printf("%s%s %lld event%s", dry ? "would " : "", dry ? action : done, n, n == 1 ? "" : "s");
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

static enum result preview(struct pg *pg, struct events_change *change, const char *action, bool json,
                           struct error *err)
{
    struct events_filter filter = *change->filter;
    if (filter.limit == 0)
        filter.limit = LIST_LIMIT;
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = events_count(pg, change, err);
    if (result == OK && change->matched > 0)
        result = events_list(pg, &filter, json, &rows, err);
    if (result != OK)
        return result;
    print_outcome(change, action, true, json);
    if (json) {
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

static enum result apply(struct pg *pg, struct events_change *change, const char *action, const char *words, bool json,
                         struct error *err)
{
    bool terminal = isatty(STDERR_FILENO);
    if (terminal)
        change->progress = show_progress;
    enum result result = events_apply(pg, change, err);
    if (terminal)
        fputs("\r\033[K", stderr);
    /* What was done is logged also when the rest could not be. */
    if (result == OK || change->changed > 0)
        log_warning("events %s by %s: %s: %lld changed, %lld freed, %lld parked topics to be probed", action,
                    change->user, words, (long long)change->changed, (long long)change->freed,
                    (long long)change->probes);
    if (result != OK)
        return result;
    print_outcome(change, action, false, json);
    if (json)
        puts("}");
    return OK;
}

/* --- the command --- */

static enum result act(struct pg *pg, const struct config *config, const char *action,
                       const struct arguments *arguments, const struct events_filter *filter, struct error *err)
{
    bool json = option_given(arguments, "--json");
    if (str_eq(action, "list"))
        return list(pg, filter, json, err);
    if (str_eq(action, "show"))
        return events_show_one(pg, arguments->operands[1], config->on_dead == ON_DEAD_BLOCK, json, err);
    const struct events_filter to_change = events_to_change(filter);
    struct events_change change = {
        .discard = str_eq(action, "discard"), .batch_size = CHANGE_BATCH, .filter = &to_change};
    _cleanup_(str_free) char *words = describe(arguments);
    enum result result = option_given(arguments, "--dry-run") ? preview(pg, &change, action, json, err)
                                                              : apply(pg, &change, action, words, json, err);
    if (result == OK && filter->id != NULL && change.matched == 0)
        result = tell_untouched(pg, filter->id, err);
    return result;
}

static int run(const struct config *config, const char *action, const struct arguments *arguments,
               const struct events_filter *filter)
{
    struct error err = {0};
    struct pg *pg = NULL;
    struct schema_state state;
    const struct pg_options options = {
        .url = config->database_url, .schema = config->schema, .connect_timeout_ms = CONNECT_TIMEOUT_MS, .stop_fd = -1};
    enum result result = pg_open(&options, &pg, &err);
    if (result == OK)
        result = schema_read(pg, &state, &err);
    if (result == OK && state.version < 1) {
        result = error_fatal(&err, "there is no outbox in schema %s", pg_schema(pg));
        error_hint(&err, "run `outboxd migrate up`, or set OUTBOX_SCHEMA");
    }
    if (result == OK)
        result = act(pg, config, action, arguments, filter, &err);
    pg_close(pg);
    return result == OK ? EXIT_OK : app_fail(result, &err);
}

int cmd_events(int argc, char **argv)
{
    struct arguments arguments;
    struct events_filter filter;
    int code = options_parse("events", 2, argc, argv, &arguments);
    if (code != EXIT_OK)
        return code;
    const char *action = arguments.n_operands > 0 ? arguments.operands[0] : "list";
    bool is_list = str_eq(action, "list"), is_show = str_eq(action, "show");
    bool changes = str_eq(action, "retry") || str_eq(action, "discard");
    if (!is_list && !is_show && !changes)
        return app_usage("events", "no action \"%s\"", action);
    if (is_show && arguments.n_operands == 1 && option_given(&arguments, "--id"))
        arguments.operands[arguments.n_operands++] = option_value(&arguments, "--id");
    if (is_show && arguments.n_operands < 2)
        return app_usage("events", "show needs the ID of an event");
    if (!is_show && arguments.n_operands > 1)
        return app_usage("events", "\"%s\" is one argument too many", arguments.operands[1]);
    if ((code = read_filter(&arguments, is_list, &filter)) != EXIT_OK)
        return code;
    if (changes && !is_filtered(&filter) && !option_given(&arguments, "--all"))
        return app_usage("events", "%s changes events: name them by a filter, or say --all", action);
    if (changes && filter.kinds && !(filter.kinds & (EVENTS_FAILED | EVENTS_HELD | EVENTS_DEAD)))
        return app_usage("events", "%s never touches NEW or SENT events", action);
    if (!changes && option_given(&arguments, "--dry-run"))
        return app_usage("events", "--dry-run is for retry and discard");

    struct config config;
    if ((code = app_load_config(&config)) != EXIT_OK)
        return code;
    code = run(&config, action, &arguments, &filter);
    config_done(&config);
    return code;
}
