#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config_check.h"
#include "config_table.h"
#include "parse.h"
#include "route.h"
#include "str.h"

#define PREFIX      "OUTBOX_"
#define FILE_SUFFIX "_FILE"
#define FILE_MAX    (1 << 20)
#define VALUE_SHOWN 60 /* characters of a bad value that are worth repeating */

#define ANY         .min = NULL
#define RANGE(a, b) .min = a, .max = b
#define CHOICES(c)  .choices = c
#define CHECKED(f)  .check = f
#define PARAM(member, name_, type_, default_, limits, prose_) \
    {.name = name_,                                           \
     .type = PARAM_##type_,                                   \
     .offset = offsetof(struct config, member),               \
     .default_text = default_,                                \
     .prose = prose_,                                         \
     limits},
const struct param params[] = {
#include "config.def"
};
#undef PARAM
const size_t n_params = ARRAY_LEN(params);

_Static_assert(ARRAY_LEN(params) <= 64, "struct config.given has a bit for each setting");

/* What is wrong, gathered over the whole environment: one start tells it all. */
struct problems {
    struct strbuf text;
    size_t n;
};

static void problem(struct problems *problems, const char *name, const char *format, ...) PRINTF_ARGS(3, 4);
static void problem(struct problems *problems, const char *name, const char *format, ...)
{
    va_list args;

    strbuf_addf(&problems->text, "\n  %s: ", name);
    va_start(args, format);
    strbuf_addv(&problems->text, format, args);
    va_end(args);
    problems->n++;
}

static void *member(const struct config *config, const struct param *param)
{
    return (char *)(uintptr_t)config + param->offset;
}

bool param_parse(const struct param *param, const char *text, int64_t *ret)
{
    switch (param->type) {
    case PARAM_INT:
        return parse_int(text, ret);
    case PARAM_DURATION:
        return parse_duration(text, ret);
    case PARAM_SIZE:
        return parse_size(text, ret);
    default:
        return false;
    }
}

static void load_number(struct config *config, const struct param *param, const char *text, struct problems *problems)
{
    static const char *const kinds[] = {
        [PARAM_INT] = "a whole number", [PARAM_DURATION] = "a duration", [PARAM_SIZE] = "a size"};
    static const char *const examples[] = {[PARAM_INT] = "",
                                           [PARAM_DURATION] = " (like 500ms, 10s, 5m, 24h, 7d)",
                                           [PARAM_SIZE] = " (like 4096, 512KiB, 8MiB)"};
    int64_t value, min = 0, max = 0;

    if (param_parse(param, text, &value) && param_parse(param, param->min, &min) &&
        param_parse(param, param->max, &max) && value >= min && value <= max)
        *(int64_t *)member(config, param) = value;
    else
        problem(problems, param->name, "\"%.*s\" is not %s from %s to %s%s", VALUE_SHOWN, text, kinds[param->type],
                param->min, param->max, examples[param->type]);
}

/* The position of `text` in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == len && memcmp(choices, text, n) == 0)
            return i;
        if (choices[n] == '\0')
            return -1;
        choices += n + 1;
    }
}

static void load_choice(struct config *config, const struct param *param, const char *text, struct problems *problems)
{
    int index = choice_index(param->choices, text);

    if (index >= 0)
        *(int *)member(config, param) = index;
    else if (param->offset == offsetof(struct config, delivery) && str_eq(text, "exactly-once"))
        problem(problems, param->name, "exactly-once is not built yet; leave it at at-least-once");
    else
        problem(problems, param->name, "\"%.*s\" is not one of %s", VALUE_SHOWN, text, param->choices);
}

static void load_text(struct config *config, const struct param *param, const char *text, struct problems *problems)
{
    const char *fault = param->check ? param->check(text) : NULL;
    char **value = member(config, param);

    if (!fault)
        *value = str_dup(text);
    else if (param->type == PARAM_SECRET)
        problem(problems, param->name, "%s", fault);
    else
        problem(problems, param->name, "\"%.*s\": %s", VALUE_SHOWN, text, fault);
}

static void load_value(struct config *config, const struct param *param, const char *text, struct problems *problems)
{
    bool is_text = param->type == PARAM_TEXT || param->type == PARAM_SECRET;

    if (*text == '\0' && is_text && !param->default_text) {
        const char *fault = param->type == PARAM_SECRET && param->check ? param->check(text) : NULL;
        if (fault)
            problem(problems, param->name, "%s", fault);
        return;
    }
    if (*text == '\0') {
        problem(problems, param->name, "the value is empty; leave it out for the default, %s", param->default_text);
        return;
    }
    switch (param->type) {
    case PARAM_TEXT:
    case PARAM_SECRET:
        load_text(config, param, text, problems);
        break;
    case PARAM_INT:
    case PARAM_DURATION:
    case PARAM_SIZE:
        load_number(config, param, text, problems);
        break;
    case PARAM_SWITCH:
        if (!parse_bool(text, member(config, param)))
            problem(problems, param->name, "\"%.*s\" is neither on nor off", VALUE_SHOWN, text);
        break;
    case PARAM_CHOICE:
        load_choice(config, param, text, problems);
        break;
    }
}

static const char *find_env(char **env, const char *name)
{
    size_t len = strlen(name);

    for (; *env; env++)
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env + len + 1;
    return NULL;
}

/* The content of the file without its last newline; NULL and errno. */
static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct strbuf text = {0};
    char chunk[4096];
    ssize_t n = -1;

    if (fd < 0)
        return NULL;
    strbuf_add(&text, "");
    while (text.len <= FILE_MAX && (n = read(fd, chunk, sizeof(chunk))) > 0)
        strbuf_addn(&text, chunk, (size_t)n);
    int saved = n < 0 ? errno : text.len > FILE_MAX ? EFBIG : strlen(text.data) != text.len ? EILSEQ : 0;
    close(fd);
    if (saved) {
        strbuf_done(&text);
        errno = saved;
        return NULL;
    }
    if (text.len && text.data[text.len - 1] == '\n')
        text.data[--text.len] = '\0';
    if (text.len && text.data[text.len - 1] == '\r')
        text.data[--text.len] = '\0';
    return text.data;
}

/* The value of NAME, or the content of the file that NAME_FILE names; NULL: neither, or a problem. Owned. */
static char *get_value(char **env, const char *name, bool secret, struct problems *problems)
{
    _cleanup_(str_free) char *file_name = str_format("%s" FILE_SUFFIX, name);
    const char *value = find_env(env, name), *path = find_env(env, file_name);

    if (path && *path == '\0')
        path = NULL;
    if (value && path) {
        problem(problems, name, "given twice, here and in %s", file_name);
        return NULL;
    }
    if (!path)
        return value ? str_dup(value) : NULL;
    char *content = read_file(path);
    /* Somebody may have put the secret itself where its file should be named. */
    if (!content && secret)
        problem(problems, file_name, "cannot read the file that it names: %s", strerror(errno));
    else if (!content)
        problem(problems, file_name, "cannot read %s: %s", path, strerror(errno));
    if (content && *content == '\0' && secret) {
        problem(problems, file_name, "the file that it names is empty");
        str_free(&content);
    }
    return content;
}

static void load_params(struct config *config, char **env, struct problems *problems)
{
    for (size_t i = 0; i < n_params; i++) {
        const struct param *param = &params[i];
        _cleanup_(str_free) char *value = get_value(env, param->name, param->type == PARAM_SECRET, problems);
        if (value && *value)
            config->given |= (uint64_t)1 << i;
        if (value)
            load_value(config, param, value, problems);
        else if (param->default_text)
            load_value(config, param, param->default_text, problems);
    }
}

/* SASL_MECHANISM -> sasl.mechanism, DR__CB -> dr_cb; false: not the name of a property. */
static bool property_name(const char *setting, struct strbuf *ret)
{
    for (const char *c = setting; *c; c++) {
        if (*c == '_' && c[1] == '_') {
            strbuf_add(ret, "_");
            c++;
        } else if (*c == '_') {
            strbuf_add(ret, ".");
        } else if (isupper((unsigned char)*c) || isdigit((unsigned char)*c)) {
            char lower = (char)tolower((unsigned char)*c);
            strbuf_addn(ret, &lower, 1);
        } else {
            return false;
        }
    }
    return ret->len > 0 && ret->data[0] != '.' && ret->data[ret->len - 1] != '.';
}

static void check_property(const char *setting, const char *property, const char *value,
                           const struct config_demands *demands, struct problems *problems)
{
    const char *reason = kafka_refusal(property);
    _cleanup_(str_free) char *fault =
        !reason && demands && demands->property_fault ? demands->property_fault(property, value) : NULL;

    if (reason)
        problem(problems, setting, "%s is not yours to set: %s", property, reason);
    else if (fault)
        problem(problems, setting, "%s", fault);
}

static void load_property(struct config *config, char **env, const char *setting, const struct config_demands *demands,
                          struct problems *problems)
{
    struct strbuf property = {0};

    if (!property_name(setting + strlen(KAFKA_PREFIX), &property)) {
        problem(problems, setting, "not the name of a librdkafka property: write it in capitals, _ for . and __ for _");
    } else if (!config_kafka(config, property.data)) {
        char *value = get_value(env, setting, config_kafka_secret(property.data), problems);
        if (value && *value) {
            check_property(setting, property.data, value, demands, problems);
            config->kafka = mem_grow(config->kafka, config->n_kafka + 1, sizeof(*config->kafka));
            config->kafka[config->n_kafka++] = (struct kafka_property){TAKE(property.data), TAKE(value)};
        }
        free(value);
    }
    strbuf_done(&property);
}

/* Kubernetes puts OUTBOX_PORT, OUTBOX_SERVICE_HOST and the like into every pod beside a service called
 * "outbox". */
static bool is_service_link(const char *name, const char *value)
{
    size_t len = strlen(name);

    if (strstr(name, "_SERVICE_PORT") || (len > 13 && str_eq(name + len - 13, "_SERVICE_HOST")))
        return true;
    if (strstr(name, "_PORT_") && (strstr(name, "_TCP") || strstr(name, "_UDP")))
        return true;
    return len > 5 && str_eq(name + len - 5, "_PORT") &&
           (str_has_prefix(value, "tcp://") || str_has_prefix(value, "udp://"));
}

/* The first `len` characters of the name are to be known; behind them stands _FILE or nothing. */
static void refuse_unknown(const char *name, size_t len, struct problems *problems)
{
    _cleanup_(str_free) char *base = str_dupn(name, len);
    const char *nearest = BROKERS_SETTING;
    size_t best = str_distance(base, nearest);

    for (size_t i = 0; i < n_params; i++) {
        size_t distance = str_distance(base, params[i].name);
        if (distance < best) {
            best = distance;
            nearest = params[i].name;
        }
    }
    if (best <= 2 + len / 5)
        problem(problems, name, "no such setting; did you mean %s%s?", nearest, name + len);
    else
        problem(problems, name, "no such setting; `outboxd config` lists them all");
}

static bool is_param(const char *name)
{
    for (size_t i = 0; i < n_params; i++)
        if (str_eq(name, params[i].name))
            return true;
    return false;
}

static void strip_file_suffix(char *name)
{
    size_t len = strlen(name), suffix = strlen(FILE_SUFFIX);

    if (len > suffix && str_eq(name + len - suffix, FILE_SUFFIX))
        name[len - suffix] = '\0';
}

/* Everything else that is called OUTBOX_*: properties of librdkafka, and mistakes. */
static void load_others(struct config *config, char **env, const struct config_demands *demands,
                        struct problems *problems)
{
    for (char **entry = env; *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (!equals || !str_has_prefix(*entry, PREFIX))
            continue;
        _cleanup_(str_free) char *name = str_dupn(*entry, (size_t)(equals - *entry));
        if (is_service_link(name, equals + 1))
            continue;
        _cleanup_(str_free) char *base = str_dup(name);
        strip_file_suffix(base);
        if (!str_eq(base, name) && find_env(env, base))
            continue; /* the entry without _FILE stands for both */
        if (str_has_prefix(base, KAFKA_PREFIX))
            load_property(config, env, base, demands, problems);
        else if (!is_param(base))
            refuse_unknown(name, strlen(base), problems);
    }
}

static void check_together(const struct config *config, struct problems *problems)
{
    if (config->retry_base > config->retry_max && config->retry_max > 0)
        problem(problems, "OUTBOX_RETRY_BASE", "it is greater than OUTBOX_RETRY_MAX");
    if (config->consumer_topics && config->consumer_dead_topic) {
        struct route topics, dead;
        route_init(&topics, "", config->consumer_topics);
        route_init(&dead, config->consumer_dead_topic, NULL);
        if (route_overlaps(&topics, &dead))
            problem(problems, "OUTBOX_CONSUMER_DEAD_TOPIC",
                    "it is one of OUTBOX_CONSUMER_TOPICS: failures would come back");
        route_done(&topics);
        route_done(&dead);
    }
}

static int compare_properties(const void *va, const void *vb)
{
    const struct kafka_property *a = va, *b = vb;
    return strcmp(a->name, b->name);
}

enum result config_load(struct config *config, char **env, const struct config_demands *demands, struct error *err)
{
    struct problems problems = {0};

    *config = (struct config){0};
    load_params(config, env, &problems);
    load_others(config, env, demands, &problems);
    check_together(config, &problems);
    if (demands && demands->brokers && !config_brokers(config))
        problem(&problems, BROKERS_SETTING, "it is not set; write " BROKERS_REMEDY);
    if (problems.n == 0) {
        if (config->n_kafka)
            qsort(config->kafka, config->n_kafka, sizeof(*config->kafka), compare_properties);
        return OK;
    }
    /* A single problem is one line; several are a list. */
    enum result result = problems.n == 1 ? error_fatal(err, "bad setting %s", problems.text.data + 3)
                                         : error_fatal(err, "%zu bad settings:%s", problems.n, problems.text.data);
    error_hint(err, "`outboxd config --markdown` describes every setting");
    strbuf_done(&problems.text);
    config_done(config);
    return result;
}

void config_done(struct config *config)
{
    for (size_t i = 0; i < n_params; i++)
        if (params[i].type == PARAM_TEXT || params[i].type == PARAM_SECRET)
            str_free(member(config, &params[i]));
    for (size_t i = 0; i < config->n_kafka; i++) {
        free(config->kafka[i].name);
        free(config->kafka[i].value);
    }
    free(config->kafka);
    *config = (struct config){0};
}
