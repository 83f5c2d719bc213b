#include "errand.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "app.h"
#include "parse.h"
#include "schema.h"
#include "str.h"

#define CONNECT_TIMEOUT_MS 15000

static const char *const filters[] = {"--status", "--group", "--topic", "--key", "--tenant", "--id", "--since"};

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

static int read_bounds(struct errand *errand)
{
    const char *command = errand->arguments.command;
    const char *limit = option_value(&errand->arguments, "--limit"),
               *since = option_value(&errand->arguments, "--since");
    errand->limit = errand->list && !option_given(&errand->arguments, "--all") ? LIST_LIMIT : 0;
    if (limit != NULL && (!parse_int(limit, &errand->limit) || errand->limit < 1))
        return app_usage(command, "--limit %s: a number from 1 on", limit);
    if (since == NULL || (parse_duration(since, &errand->since_ms) && errand->since_ms > 0))
        return EXIT_OK;
    if (!is_rfc3339(since))
        return app_usage(command, "--since %s: a duration such as 2h, or a time such as 2024-05-06T07:08:09Z", since);
    errand->since_ms = 0;
    errand->since = since;
    return EXIT_OK;
}

static bool is_filtered(const struct arguments *arguments)
{
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (option_known(arguments, filters[i]) && option_given(arguments, filters[i]))
            return true;
    return false;
}

int errand_parse(const char *command, int argc, char **argv, struct errand *ret)
{
    *ret = (struct errand){0};
    struct arguments *arguments = &ret->arguments;
    int code = options_parse(command, 2, argc, argv, arguments);
    if (code != EXIT_OK)
        return code;
    ret->action = arguments->n_operands > 0 ? arguments->operands[0] : "list";
    ret->list = str_eq(ret->action, "list");
    ret->show = str_eq(ret->action, "show");
    ret->retry = str_eq(ret->action, "retry");
    ret->discard = str_eq(ret->action, "discard");
    ret->json = option_given(arguments, "--json");
    ret->dry_run = option_given(arguments, "--dry-run");
    ret->id = ret->show && arguments->n_operands == 2 ? arguments->operands[1] : option_value(arguments, "--id");
    bool changes = ret->retry || ret->discard;
    if (!ret->list && !ret->show && !changes)
        return app_usage(command, "no action \"%s\"", ret->action);
    if (!ret->show && arguments->n_operands > 1)
        return app_usage(command, "\"%s\" is one argument too many", arguments->operands[1]);
    if (ret->show && ret->id == NULL)
        return app_usage(command, "show needs the ID of an event");
    if ((code = read_bounds(ret)) != EXIT_OK)
        return code;
    if (changes && !is_filtered(arguments) && !option_given(arguments, "--all"))
        return app_usage(command, "%s changes events: name them by a filter, or say --all", ret->action);
    if (!changes && ret->dry_run)
        return app_usage(command, "--dry-run is for retry and discard");
    return EXIT_OK;
}

char *errand_words(const struct errand *errand)
{
    const struct arguments *arguments = &errand->arguments;
    struct strbuf text = {0};
    strbuf_add(&text, "");
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (option_known(arguments, filters[i]) && option_given(arguments, filters[i]))
            strbuf_addf(&text, "%s%s %s", text.len ? " " : "", filters[i], option_value(arguments, filters[i]));
    if (errand->limit > 0)
        strbuf_addf(&text, "%s--limit %lld", text.len ? " " : "", (long long)errand->limit);
    if (option_given(arguments, "--all"))
        strbuf_addf(&text, "%s--all", text.len ? " " : "");
    return text.data;
}

enum result errand_open(const struct config *config, int version, const char *what, struct pg **ret, struct error *err)
{
    const struct pg_options options = {
        .url = config->database_url, .schema = config->schema, .connect_timeout_ms = CONNECT_TIMEOUT_MS, .stop_fd = -1};
    struct schema_state state;
    enum result result = pg_open(&options, ret, err);
    if (result == OK)
        result = schema_read(*ret, &state, err);
    if (result != OK || state.version >= version)
        return result;
    error_fatal(err, "there is no %s in schema %s", what, pg_schema(*ret));
    error_hint(err, "run `outboxd migrate up`, or set OUTBOX_SCHEMA");
    return FATAL;
}
