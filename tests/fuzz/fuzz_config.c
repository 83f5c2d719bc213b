/* An environment, whatever it holds: loaded, printed in every way, and never a secret in what is said.
 *
 * Input: an environment as /proc/PID/environ shows it, NAME=value with a NUL behind each. Every value of a secret gets
 * HUSH planted into it. A NAME_FILE whose value starts with @ names a file with the rest of the value as its content;
 * with anything else it names no file. */
#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config.h"
#include "fuzz.h"
#include "str.h"

#define HUSH    "qHUSHq"
#define ENV_MAX 64

/* What must not be seen, by the books of PostgreSQL and librdkafka and not by config_kafka_secret. */
static const char *const secrets[] = {
    "OUTBOX_DATABASE_URL",
    "OUTBOX_HTTP_TOKEN",
    "OUTBOX_KAFKA_SASL_PASSWORD",
    "OUTBOX_KAFKA_SASL_OAUTHBEARER_CONFIG",
    "OUTBOX_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET",
    "OUTBOX_KAFKA_SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY_PASSPHRASE",
    "OUTBOX_KAFKA_SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY_PEM",
    "OUTBOX_KAFKA_SSL_KEY_PASSWORD",
    "OUTBOX_KAFKA_SSL_KEY_PEM",
    "OUTBOX_KAFKA_SSL_KEYSTORE_PASSWORD",
};

struct environment {
    char *entries[ENV_MAX + 1];
    int files[ENV_MAX];
    size_t n, n_files;
};

static bool is_named(struct input entry, const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return entry.left > n + m && memcmp(entry.at, name, n) == 0 && memcmp(entry.at + n, suffix, m) == 0 &&
           entry.at[n + m] == '=';
}

static bool is_secret(struct input entry)
{
    for (size_t i = 0; i < ARRAY_LEN(secrets); i++)
        if (is_named(entry, secrets[i], "") || is_named(entry, secrets[i], "_FILE"))
            return true;
    return false;
}

/* The path of a file with this content; static. */
static const char *make_file(struct environment *env, const char *content)
{
    static char path[32];
    int fd = memfd_create("setting", MFD_CLOEXEC);

    REQUIRE(fd >= 0 && write(fd, content, strlen(content)) == (ssize_t)strlen(content));
    env->files[env->n_files++] = fd;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return path;
}

static void add_entry(struct environment *env, struct input entry)
{
    const char *equals = entry.left ? memchr(entry.at, '=', entry.left) : NULL;
    _cleanup_(str_free) char *text = copy_exactly(entry, true);
    const char *plant = is_secret(entry) ? HUSH : "";
    struct strbuf made = {0};

    if (!equals) {
        env->entries[env->n++] = str_dup(text);
        return;
    }
    size_t name_len = (size_t)(equals - entry.at);
    const char *value = text + name_len + 1;
    bool is_file = name_len > 5 && memcmp(equals - 5, "_FILE", 5) == 0;
    /* In the middle: the beginning and the end mean something to those who check it. An empty value stays empty. */
    size_t half = strlen(value) / 2;
    _cleanup_(str_free) char *planted = str_format("%.*s%s%s", (int)half, value, *value ? plant : "", value + half);
    strbuf_addn(&made, text, name_len + 1);
    if (is_file && planted[0] == '@')
        strbuf_add(&made, make_file(env, planted + 1));
    else
        strbuf_addf(&made, "%s%s", is_file && *planted ? "/nonexistent/" : "", planted);
    env->entries[env->n++] = copy_exactly((struct input){made.data, made.len}, true);
    strbuf_done(&made);
}

static void environment_done(struct environment *env)
{
    for (size_t i = 0; i < env->n; i++)
        free(env->entries[i]);
    for (size_t i = 0; i < env->n_files; i++)
        close(env->files[i]);
}

static char *print(const struct config *config, enum config_output output)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    REQUIRE(out);
    config_print(config, output, out);
    fclose(out);
    REQUIRE(strlen(text) == len);
    REQUIRE(!strstr(text, HUSH));
    return text;
}

/* A reader of env files as systemd and a shell are: NAME=value or NAME="value" with backslashes. */
static char *next_env(const char **at)
{
    struct strbuf entry = {0};

    while (**at == '#' || **at == '\n')
        *at = strchr(*at, '\n') + 1;
    if (**at == '\0')
        return NULL;
    for (bool quoted = false; quoted || **at != '\n'; ++*at) {
        REQUIRE(**at != '\0');
        if (**at == '"') {
            quoted = !quoted;
            continue;
        }
        if (**at == '\\')
            ++*at;
        strbuf_addn(&entry, *at, 1);
    }
    ++*at;
    return entry.data;
}

/* A property x.file comes only from a file; what is called like a Kubernetes service is no setting. */
static bool is_left_open(const char *name)
{
    return str_eq(name + strlen(name) - 5, "_FILE") || strstr(name, "_SERVICE_") || strstr(name, "_PORT");
}

/* What is printed as an env file reads back as the same settings. */
static void check_env_file(const char *text, const char *json)
{
    char *env[256];
    size_t n = 0;
    struct config config;
    struct error err;

    while ((env[n] = next_env(&text)))
        REQUIRE(++n < ARRAY_LEN(env) - 1);
    REQUIRE(config_load(&config, env, NULL, &err) == OK);
    _cleanup_(str_free) char *again = print(&config, CONFIG_JSON);
    json_t *a = json_loads(json, 0, NULL), *b = json_loads(again, 0, NULL), *value;
    const char *name;
    json_object_foreach(a, name, value)
    {
        const char *shown = json_string_value(value);
        if (!is_left_open(name) && (!shown || strcmp(shown, "(secret)") != 0))
            REQUIRE(json_equal(value, json_object_get(b, name)));
    }
    json_decref(a);
    json_decref(b);
    config_done(&config);
    for (size_t i = 0; i < n; i++)
        free(env[i]);
}

static void check_outputs(const struct config *config)
{
    _cleanup_(str_free) char *json = print(config, CONFIG_JSON), *env = print(config, CONFIG_ENV);
    json_t *object = json_loads(json, JSON_REJECT_DUPLICATES, NULL);

    REQUIRE(json_is_object(object));
    for (size_t i = 0; i < config->n_kafka; i++) {
        _cleanup_(str_free) char *setting = config_kafka_setting(config->kafka[i].name);
        REQUIRE(json_is_string(json_object_get(object, setting)));
        REQUIRE(config_kafka(config, config->kafka[i].name) == config->kafka[i].value);
    }
    json_decref(object);
    check_env_file(env, json);
    free(print(config, CONFIG_TABLE));
}

/* These know only the table of settings: once is enough. */
static void check_descriptions(void)
{
    static bool done;

    if (done)
        return;
    done = true;
    free(print(NULL, CONFIG_MARKDOWN));
    free(print(NULL, CONFIG_MAN));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {(const char *)data, size};
    struct environment env = {0};
    struct config config;
    struct error err = {0};

    check_descriptions();
    if (size && memmem(data, size, HUSH, strlen(HUSH)))
        return 0; /* what looks like the plant and is none would be a false alarm */
    while (input.left && env.n < ENV_MAX)
        add_entry(&env, take_field(&input));
    enum result result = config_load(&config, env.entries, NULL, &err);
    REQUIRE(result == OK || (result == FATAL && err.message[0] && err.hint[0]));
    REQUIRE(!strstr(err.message, HUSH) && !strstr(err.hint, HUSH));
    if (result == OK)
        check_outputs(&config);
    config_done(&config);
    environment_done(&env);
    return 0;
}
