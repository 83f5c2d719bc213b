/* The five faces of the settings: for people, for programs, for the reference, for an env file, for the man
 * page. */
#include <stdlib.h>
#include <string.h>

#include "config_table.h"
#include "parse.h"
#include "str.h"

#define HIDDEN "(secret)"

static const void *member(const struct config *config, const struct param *param)
{
    return (const char *)config + param->offset;
}

static bool is_given(const struct config *config, size_t i)
{
    return config->given >> i & 1;
}

static char *choice_text(const char *choices, int index)
{
    while (index-- > 0)
        choices += strcspn(choices, "|") + 1;
    return str_dupn(choices, strcspn(choices, "|"));
}

/* The value as one would write it; NULL: unset. Secrets are hidden here, so that no caller can forget it.
 * Owned. */
static char *value_text(const struct config *config, size_t i)
{
    const struct param *param = &params[i];
    const void *value = member(config, param);
    int64_t default_number;
    char number[32];

    if (!is_given(config, i))
        return param->default_text ? str_dup(param->default_text) : NULL;
    /* The default given in words is shown in the same words: 24h and not 1d. */
    if (param->min && param_parse(param, param->default_text, &default_number) &&
        default_number == *(const int64_t *)value)
        return str_dup(param->default_text);
    switch (param->type) {
    case PARAM_TEXT:
        return str_dup(*(char *const *)value);
    case PARAM_SECRET:
        return str_dup(HIDDEN);
    case PARAM_INT:
        return str_format("%lld", (long long)*(const int64_t *)value);
    case PARAM_DURATION:
        format_duration(*(const int64_t *)value, number);
        return str_dup(number);
    case PARAM_SIZE:
        format_size(*(const int64_t *)value, number);
        return str_dup(number);
    case PARAM_SWITCH:
        return str_dup(*(const bool *)value ? "on" : "off");
    case PARAM_CHOICE:
        return choice_text(param->choices, *(const int *)value);
    }
    return NULL;
}

static const char *property_text(const struct kafka_property *property)
{
    return config_kafka_secret(property->name) ? HIDDEN : property->value;
}

/* What values the setting takes, in words. Owned. */
static char *values_text(const struct param *param)
{
    switch (param->type) {
    case PARAM_TEXT:
        return str_dup("text");
    case PARAM_SECRET:
        return str_dup("text, secret");
    case PARAM_INT:
        return str_format("%s to %s", param->min, param->max);
    case PARAM_DURATION:
        return str_format("duration, %s to %s", param->min, param->max);
    case PARAM_SIZE:
        return str_format("size, %s to %s", param->min, param->max);
    case PARAM_SWITCH:
        return str_dup("on, off");
    case PARAM_CHOICE:
        break;
    }
    struct strbuf text = {0};
    for (const char *c = param->choices; *c; c++)
        strbuf_addn(&text, *c == '|' ? ", " : c, *c == '|' ? 2 : 1);
    return text.data;
}

static void print_table(const struct config *config, FILE *out)
{
    for (size_t i = 0; i < n_params; i++) {
        _cleanup_(str_free) char *value = value_text(config, i);
        fprintf(out, "%-28s %-20s %s\n", params[i].name, value ? value : "-", is_given(config, i) ? "set" : "default");
    }
    for (size_t i = 0; i < config->n_kafka; i++) {
        _cleanup_(str_free) char *setting = config_kafka_setting(config->kafka[i].name);
        fprintf(out, "%-28s %-20s set\n", setting, property_text(&config->kafka[i]));
    }
}

static void print_json_pair(const char *name, const char *value, bool last, FILE *out)
{
    struct strbuf line = {0};

    strbuf_add_json(&line, name);
    strbuf_add(&line, ": ");
    if (value)
        strbuf_add_json(&line, value);
    else
        strbuf_add(&line, "null");
    fprintf(out, "  %s%s\n", line.data, last ? "" : ",");
    strbuf_done(&line);
}

/* One flat object, names as in the environment, values as one would write them there. */
static void print_json(const struct config *config, FILE *out)
{
    fputs("{\n", out);
    for (size_t i = 0; i < n_params; i++) {
        _cleanup_(str_free) char *value = value_text(config, i);
        print_json_pair(params[i].name, value, i + 1 == n_params && config->n_kafka == 0, out);
    }
    for (size_t i = 0; i < config->n_kafka; i++) {
        _cleanup_(str_free) char *setting = config_kafka_setting(config->kafka[i].name);
        print_json_pair(setting, property_text(&config->kafka[i]), i + 1 == config->n_kafka, out);
    }
    fputs("}\n", out);
}

static void print_markdown(FILE *out)
{
    const char *property, *reason;

    fputs("| Setting | Default | Values | Meaning |\n|---|---|---|---|\n", out);
    for (size_t i = 0; i < n_params; i++) {
        const struct param *param = &params[i];
        _cleanup_(str_free) char *values = values_text(param);
        const char *tick = param->default_text ? "`" : "";
        fprintf(out, "| `%s` | %s%s%s | %s | %s |\n", param->name, tick,
                param->default_text ? param->default_text : "unset", tick, values, param->prose);
    }
    fputs("\nAny other property of librdkafka is `" KAFKA_PREFIX
          "<PROPERTY>`, in capitals, with `_` for `.` and `__` for "
          "`_`: `" KAFKA_PREFIX
          "BOOTSTRAP_SERVERS`\nis `bootstrap.servers`. These are refused, because a promise rests on "
          "what outboxd sets there:\n\n| Property | Why |\n|---|---|\n",
          out);
    for (size_t i = 0; (property = kafka_refused(i, &reason)); i++)
        fprintf(out, "| `%s` | %s |\n", property, reason);
}

/* Double quotes and backslashes as systemd's EnvironmentFile and a shell both read them; only where needed,
 * because docker's --env-file knows no quotes. */
static void print_env_value(const char *value, FILE *out)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:/@%+=[]";
    bool quote = value[strspn(value, safe)] != '\0';

    if (quote)
        fputc('"', out);
    for (; *value; value++) {
        if (strchr("\"\\$`", *value))
            fputc('\\', out);
        fputc(*value, out);
    }
    if (quote)
        fputc('"', out);
    fputc('\n', out);
}

static void print_env_comment(const char *prose, FILE *out)
{
    const size_t width = 110;

    while (*prose) {
        size_t n = strlen(prose);
        if (n > width)
            for (n = width; n > 1 && prose[n] != ' '; n--)
                ;
        fprintf(out, "# %.*s\n", (int)n, prose);
        prose += n;
        prose += strspn(prose, " ");
    }
}

static void print_env_line(const char *name, const char *value, bool secret, FILE *out)
{
    fprintf(out, "%s%s=", secret || !value ? "#" : "", name);
    print_env_value(secret || !value ? "" : value, out);
}

/* X_FILE would be read as the file of X: a property of such a name can only come from a file itself, X_FILE_FILE, and
 * its line is left to be filled in, like that of a secret. */
static void print_env_property(const struct kafka_property *property, FILE *out)
{
    _cleanup_(str_free) char *setting = config_kafka_setting(property->name);
    size_t len = strlen(setting);

    if (str_eq(setting + len - 5, "_FILE")) {
        _cleanup_(str_free) char *file = str_format("%s_FILE", setting);
        print_env_line(file, NULL, false, out);
    } else {
        print_env_line(setting, property->value, config_kafka_secret(property->name), out);
    }
}

static void print_env(const struct config *config, FILE *out)
{
    fputs("# Settings of outboxd. Any of them can also be read from a file: NAME_FILE=/path instead of "
          "NAME=value.\n",
          out);
    for (size_t i = 0; i < n_params; i++) {
        const struct param *param = &params[i];
        _cleanup_(str_free) char *value = value_text(config, i);
        _cleanup_(str_free) char *values = values_text(param);
        fputc('\n', out);
        print_env_comment(param->prose, out);
        fprintf(out, "# Values: %s. Default: %s.\n", values, param->default_text ? param->default_text : "unset");
        print_env_line(param->name, value, param->type == PARAM_SECRET, out);
    }
    fputc('\n', out);
    print_env_comment("Properties of librdkafka: " KAFKA_PREFIX "<PROPERTY>, _ for a dot and __ for _.", out);
    if (config->n_kafka == 0)
        print_env_line(KAFKA_PREFIX "BOOTSTRAP_SERVERS", "localhost:9092", false, out);
    for (size_t i = 0; i < config->n_kafka; i++)
        print_env_property(&config->kafka[i], out);
}

/* `code` becomes bold, and what troff would take for its own is escaped. */
static void print_troff(const char *text, FILE *out)
{
    bool code = false;

    for (; *text; text++) {
        if (*text == '`') {
            code = !code;
            fputs(code ? "\\fB" : "\\fR", out);
        } else if (*text == '\\') {
            fputs("\\e", out);
        } else if (*text == '-') {
            fputs("\\-", out);
        } else {
            fputc(*text, out);
        }
    }
    fputc('\n', out);
}

static void print_man(FILE *out)
{
    const char *property, *reason;

    for (size_t i = 0; i < n_params; i++) {
        const struct param *param = &params[i];
        _cleanup_(str_free) char *values = values_text(param);
        fprintf(out, ".TP\n.B %s\n", param->name);
        print_troff(param->prose, out);
        _cleanup_(str_free) char *limits =
            str_format("Values: %s; default: %s.", values, param->default_text ? param->default_text : "unset");
        print_troff(limits, out);
    }
    fputs(".SH REFUSED PROPERTIES\n", out);
    for (size_t i = 0; (property = kafka_refused(i, &reason)); i++) {
        fprintf(out, ".TP\n.B %s\n", property);
        print_troff(reason, out);
    }
}

void config_print(const struct config *config, enum config_output output, FILE *out)
{
    switch (output) {
    case CONFIG_TABLE:
        print_table(config, out);
        break;
    case CONFIG_JSON:
        print_json(config, out);
        break;
    case CONFIG_MARKDOWN:
        print_markdown(out);
        break;
    case CONFIG_ENV:
        print_env(config, out);
        break;
    case CONFIG_MAN:
        print_man(out);
        break;
    }
}
