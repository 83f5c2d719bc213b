#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config.h"
#include "config_table.h"
#include "str.h"

#define CANARY "S3cr3tC4n4ry"

#define ENV(...) ((char *[]){__VA_ARGS__, NULL})

/* The message of a configuration that must be refused; static. */
static const char *refused(char **env)
{
    static struct error err;
    struct config config;

    error_clear(&err);
    assert_int_equal(config_load(&config, env, NULL, &err), FATAL);
    assert_null(strstr(err.message, CANARY));
    assert_null(strstr(err.hint, CANARY));
    return err.message;
}

static void assert_refused(char **env, const char *part)
{
    const char *message = refused(env);
    if (!strstr(message, part))
        fail_msg("no \"%s\" in: %s", part, message);
}

static void load(struct config *config, char **env)
{
    struct error err = {0};
    if (config_load(config, env, NULL, &err) != OK)
        fail_msg("%s", err.message);
}

static char *print(const struct config *config, enum config_output output)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    config_print(config, output, out);
    fclose(out);
    return text;
}

static void defaults(void **state)
{
    struct config config;

    (void)state;
    load(&config, (char *[]){(char *)"PATH=/bin", NULL});
    assert_null(config.database_url);
    assert_string_equal(config.schema, "public");
    assert_int_equal(config.workers, 2);
    assert_int_equal(config.batch_size, 2000);
    assert_int_equal(config.batch_bytes, 8 << 20);
    assert_int_equal(config.poll_interval, 50);
    assert_false(config.notify);
    assert_int_equal(config.ordering, ORDER_KEY);
    assert_int_equal(config.delivery, DELIVERY_AT_LEAST_ONCE);
    assert_int_equal(config.delivery_timeout, 30000);
    assert_int_equal(config.on_dead, ON_DEAD_SKIP);
    assert_int_equal(config.retry_max, 300000);
    assert_int_equal(config.retention, 86400000);
    assert_int_equal(config.dead_retention, 0);
    assert_int_equal(config.inbox_retention, 604800000);
    assert_int_equal(config.log_level, 2);
    assert_string_equal(config.http_listen, "127.0.0.1:9464");
    assert_int_equal(config.n_kafka, 0);
    assert_int_equal(config.given, 0);
    config_done(&config);
}

/* Whatever the table says as default and as ends of the range must load, and what lies beside them must not. */
static void every_setting(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_params; i++) {
        const struct param *param = &params[i];
        struct config config;
        char *entry = str_format("%s=\x01%s", param->name, CANARY), *bad = NULL;

        /* One control character breaks every kind but a connection string, which libpq judges. */
        if (param->check || param->min || param->choices || param->type == PARAM_SWITCH) {
            const char *message = param->type == PARAM_SECRET ? refused(ENV(entry)) : NULL;
            if (!message) {
                free(entry);
                entry = str_format("%s=\x01", param->name);
                message = refused(ENV(entry));
            }
            assert_non_null(strstr(message, param->name));
        }
        free(entry);

        /* Settings that are checked against each other need their partner out of the way. */
        char *partner = (char *)"OUTBOX_RETRY_MAX=1d";
        if (str_eq(param->name, "OUTBOX_RETRY_MAX"))
            partner = (char *)"OUTBOX_RETRY_BASE=10ms";
        if (param->min) {
            for (int end = 0; end < 2; end++) {
                entry = str_format("%s=%s", param->name, end ? param->max : param->min);
                load(&config, ENV(entry, partner));
                config_done(&config);
                free(entry);
            }
            int64_t max;
            assert_true(param_parse(param, param->max, &max));
            bad = str_format("%s=%lld%s", param->name, (long long)max + 1, param->type == PARAM_DURATION ? "ms" : "");
            assert_refused(ENV(bad, partner), param->max);
            free(bad);
            bad = str_format("%s=-1", param->name);
            assert_refused(ENV(bad, partner), param->min);
            free(bad);
        }
        if (param->default_text) {
            bad = str_format("%s=", param->name);
            assert_refused(ENV(bad), "empty");
            free(bad);
        }
        for (const char *c = param->choices; c && *c; c += strcspn(c, "|"), c += *c == '|') {
            entry = str_format("%s=%.*s", param->name, (int)strcspn(c, "|"), c);
            load(&config, ENV(entry));
            config_done(&config);
            free(entry);
        }
        assert_true(strlen(param->prose) > 20);
    }
}

static void bad_texts(void **state)
{
    static const char *const bad[] = {
        "OUTBOX_SCHEMA=pg_mine",
        "OUTBOX_SCHEMA=a2345678901234567890123456789012345678901234567890123456789012345",
        "OUTBOX_DEAD_TOPIC=a b",
        "OUTBOX_DEAD_TOPIC=..",
        "OUTBOX_SOURCE=two words",
        "OUTBOX_HTTP_LISTEN=9464",
        "OUTBOX_HTTP_LISTEN=:9464",
        "OUTBOX_HTTP_LISTEN=localhost:",
        "OUTBOX_HTTP_LISTEN=localhost:65536",
        "OUTBOX_HTTP_LISTEN=::1:9464",
        "OUTBOX_HTTP_LISTEN=[::1:9464",
        "OUTBOX_HTTP_LISTEN=localhost:-1",
        "OUTBOX_CONSUMER_TOPICS=,",
        "OUTBOX_CONSUMER_TOPICS=a,b c",
        "OUTBOX_CONSUMER_HANDLER=f()",
        "OUTBOX_CONSUMER_HANDLER=a.b.c",
        "OUTBOX_CONSUMER_HANDLER=.f",
        "OUTBOX_CONSUMER_HANDLER=f.",
        "OUTBOX_CONSUMER_HANDLER=f\xff",
        "OUTBOX_CONSUMER_GROUP=g\xff",
        "OUTBOX_ORDERING=Key",
        "OUTBOX_NOTIFY=yes",
        "OUTBOX_LOG_FORMAT=text|json",
    };
    static const char *const good[] = {
        "OUTBOX_SCHEMA=My \"Schema\"",  "OUTBOX_HTTP_LISTEN=off",        "OUTBOX_HTTP_LISTEN=[::1]:9464",
        "OUTBOX_HTTP_LISTEN=0.0.0.0:0", "OUTBOX_CONSUMER_TOPICS= a , b", "OUTBOX_CONSUMER_HANDLER=app.handle",
    };
    struct config config;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        (void)refused(ENV((char *)bad[i]));
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        load(&config, ENV((char *)good[i]));
        config_done(&config);
    }
}

static void exactly_once_is_planned(void **state)
{
    (void)state;
    assert_refused(ENV((char *)"OUTBOX_DELIVERY=exactly-once"), "not built yet");
    assert_refused(ENV((char *)"OUTBOX_DELIVERY=at-most-once"), "not one of at-least-once");
}

static void combinations(void **state)
{
    (void)state;
    assert_refused(ENV((char *)"OUTBOX_RETRY_BASE=10m"), "greater than OUTBOX_RETRY_MAX");
    assert_refused(ENV((char *)"OUTBOX_CONSUMER_TOPICS=a, b", (char *)"OUTBOX_CONSUMER_DEAD_TOPIC=b"), "come back");
}

static void unknown_names(void **state)
{
    (void)state;
    assert_refused(ENV((char *)"OUTBOX_WORKRES=" CANARY), "did you mean OUTBOX_WORKERS?");
    assert_refused(ENV((char *)"OUTBOX_DATABASEURL=" CANARY), "did you mean OUTBOX_DATABASE_URL?");
    assert_refused(ENV((char *)"OUTBOX_HTTP_TOKN_FILE=" CANARY),
                   "OUTBOX_HTTP_TOKN_FILE: no such setting; did you mean OUTBOX_HTTP_TOKEN_FILE?");
    assert_refused(ENV((char *)"OUTBOX_SCHEMAX_FILE=x"), "did you mean OUTBOX_SCHEMA_FILE?");
    assert_refused(ENV((char *)"OUTBOX_BOOTSTRAP_SERVERS=x"), "did you mean OUTBOX_KAFKA_BOOTSTRAP_SERVERS?");
    assert_refused(ENV((char *)"OUTBOX_SOMETHING_QUITE_DIFFERENT=1"), "`outboxd config` lists");
    assert_refused(ENV((char *)"OUTBOX_=1"), "no such setting");
    assert_refused(ENV((char *)"OUTBOX_PROGRESS_TOPIC=p"), "no such setting");
}

static void names_of_others(void **state)
{
    struct config config;

    (void)state;
    load(&config, ENV((char *)"OUTBOXD_SEAM=x:1:kill", (char *)"OUTBOX_SERVICE_HOST=10.0.0.1",
                      (char *)"OUTBOX_SERVICE_PORT_HTTP=80", (char *)"OUTBOX_PORT=tcp://10.0.0.1:80",
                      (char *)"OUTBOX_PORT_80_TCP_ADDR=10.0.0.1", (char *)"OUTBOX_KAFKA_SERVICE_HOST=10.0.0.2",
                      (char *)"OUTBOX_KAFKA_PORT=tcp://10.0.0.2:9092", (char *)"OUTBOX_WITHOUT_EQUALS"));
    assert_int_equal(config.n_kafka, 0);
    config_done(&config);
    (void)refused(ENV((char *)"OUTBOX_PORT=9464"));
}

static void all_problems_at_once(void **state)
{
    const char *message = refused(ENV((char *)"OUTBOX_WORKERS=x", (char *)"OUTBOX_BATCH_BYTES=8MB",
                                      (char *)"OUTBOX_NOPE=1", (char *)"OUTBOX_KAFKA_ACKS=1"));
    (void)state;
    assert_true(str_has_prefix(message, "4 bad settings:\n"));
    assert_non_null(strstr(message, "OUTBOX_WORKERS: \"x\" is not a whole number from 1 to 16"));
    assert_non_null(strstr(message, "OUTBOX_BATCH_BYTES"));
    assert_non_null(strstr(message, "OUTBOX_NOPE"));
    assert_non_null(strstr(message, "OUTBOX_KAFKA_ACKS"));

    /* Even when every setting is bad, all of them are named. */
    char *env[80] = {0};
    size_t n = 0;
    for (size_t i = 0; i < n_params; i++)
        if (params[i].min || params[i].choices)
            env[n++] = str_format("%s=bad", params[i].name);
    message = refused(env);
    for (size_t i = 0; i < n; i++) {
        *strchr(env[i], '=') = '\0';
        assert_non_null(strstr(message, env[i]));
        free(env[i]);
    }
}

static void kafka_properties(void **state)
{
    struct config config;

    (void)state;
    load(&config, ENV((char *)"OUTBOX_KAFKA_SASL_MECHANISM=PLAIN", (char *)"OUTBOX_KAFKA_LINGER_MS=5",
                      (char *)"OUTBOX_KAFKA_BOOTSTRAP_SERVERS=a:9092,b:9092", (char *)"OUTBOX_KAFKA_LOG__LEVEL=3",
                      (char *)"OUTBOX_KAFKA_DEBUG="));
    assert_int_equal(config.n_kafka, 4);
    assert_string_equal(config.kafka[0].name, "bootstrap.servers");
    assert_string_equal(config.kafka[0].value, "a:9092,b:9092");
    assert_string_equal(config_kafka(&config, "log_level"), "3");
    assert_string_equal(config_kafka(&config, "sasl.mechanism"), "PLAIN");
    assert_null(config_kafka(&config, "debug"));
    config_done(&config);

    char *name = config_kafka_setting("sasl.oauthbearer.x_y");
    assert_string_equal(name, "OUTBOX_KAFKA_SASL_OAUTHBEARER_X__Y");
    free(name);
    assert_refused(ENV((char *)"OUTBOX_KAFKA_=1"), "not the name");
    assert_refused(ENV((char *)"OUTBOX_KAFKA_linger_ms=1"), "in capitals");
    assert_refused(ENV((char *)"OUTBOX_KAFKA__X_=1"), "not the name");
}

static void kafka_promises(void **state)
{
    const char *property, *reason;
    char *env[2] = {0};

    (void)state;
    for (size_t i = 0; (property = kafka_refused(i, &reason)); i++) {
        char *name = config_kafka_setting(*property == '*' ? property + 1 : property);
        if (*property != '*') {
            env[0] = str_format("%s=" CANARY, name);
            assert_refused(env, reason);
            free(env[0]);
        }
        free(name);
    }
    assert_refused(ENV((char *)"OUTBOX_KAFKA_DR__MSG__CB=x"), "pointer");
    assert_refused(ENV((char *)"OUTBOX_KAFKA_ENABLE_IDEMPOTENCE=false"), "order");
}

static char *secret_file(const char *text, size_t len)
{
    static char path[] = "/tmp/outboxd-test-XXXXXX";

    memcpy(path + sizeof(path) - 7, "XXXXXX", 6);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, text, len), (ssize_t)len);
    close(fd);
    return path;
}

static void files(void **state)
{
    struct config config;
    char *path = secret_file("s3same\n", 7);
    char *token = str_format("OUTBOX_HTTP_TOKEN_FILE=%s", path);
    char *password = str_format("OUTBOX_KAFKA_SASL_PASSWORD_FILE=%s", path);

    (void)state;
    load(&config, ENV(token, password));
    assert_string_equal(config.http_token, "s3same");
    assert_string_equal(config_kafka(&config, "sasl.password"), "s3same");
    config_done(&config);
    assert_refused(ENV(token, (char *)"OUTBOX_HTTP_TOKEN=" CANARY), "given twice");
    assert_refused(ENV(password, (char *)"OUTBOX_KAFKA_SASL_PASSWORD=" CANARY),
                   "bad setting OUTBOX_KAFKA_SASL_PASSWORD: given twice"); /* and said once */
    unlink(path);
    assert_refused(ENV(token), "OUTBOX_HTTP_TOKEN_FILE: cannot read the file");
    free(token);
    free(password);

    path = secret_file("line 1\r\nline 2\r\n", 16);
    char *pem = str_format("OUTBOX_KAFKA_SSL_KEY_PEM_FILE=%s", path);
    load(&config, ENV(pem));
    assert_string_equal(config_kafka(&config, "ssl.key.pem"), "line 1\r\nline 2");
    config_done(&config);
    unlink(path);
    free(pem);

    path = secret_file("a\0b", 3);
    char *nul = str_format("OUTBOX_SCHEMA_FILE=%s", path);
    assert_refused(ENV(nul), path);
    unlink(path);
    free(nul);
    assert_refused(ENV((char *)"OUTBOX_SCHEMA_FILE=/"), "cannot read /: Is a directory");
    /* The secret where the path should be. */
    assert_refused(ENV((char *)"OUTBOX_DATABASE_URL_FILE=" CANARY), "OUTBOX_DATABASE_URL_FILE");
    assert_refused(ENV((char *)"OUTBOX_KAFKA_SASL_PASSWORD_FILE=" CANARY), "OUTBOX_KAFKA_SASL_PASSWORD_FILE");
}

/* An empty secret is a mistake somewhere else, and must not open what it is to close. */
static void empty_secrets(void **state)
{
    static const char *const names[] = {"OUTBOX_HTTP_TOKEN", "OUTBOX_DATABASE_URL", "OUTBOX_KAFKA_SASL_PASSWORD"};
    char *path = secret_file("\n", 1);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char *file = str_format("%s_FILE=%s", names[i], path), *words = str_format("%s_FILE: the file", names[i]);
        assert_refused(ENV(file), words);
        free(file);
        free(words);
    }
    unlink(path);
    assert_refused(ENV((char *)"OUTBOX_HTTP_TOKEN="), "OUTBOX_HTTP_TOKEN: it is empty");
}

static void secrets_stay_secret(void **state)
{
    static const char *const secret[] = {
        "OUTBOX_DATABASE_URL=postgresql://u:" CANARY "@h/db",
        "OUTBOX_HTTP_TOKEN=" CANARY,
        "OUTBOX_KAFKA_SASL_PASSWORD=" CANARY,
        "OUTBOX_KAFKA_SSL_KEY_PASSWORD=" CANARY,
        "OUTBOX_KAFKA_SSL_KEY_PEM=" CANARY,
        "OUTBOX_KAFKA_SSL_KEYSTORE_PASSWORD=" CANARY,
        "OUTBOX_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET=" CANARY,
        "OUTBOX_KAFKA_SASL_OAUTHBEARER_CONFIG=" CANARY,
        "OUTBOX_KAFKA_SASL_JAAS_CONFIG=" CANARY,
    };
    char *env[ARRAY_LEN(secret) + 3] = {0};
    struct config config;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(secret); i++)
        env[i] = (char *)secret[i];
    load(&config, env);
    for (enum config_output output = CONFIG_TABLE; output <= CONFIG_MAN; output++) {
        char *text = print(&config, output);
        assert_null(strstr(text, CANARY));
        free(text);
    }
    char *text = print(&config, CONFIG_ENV);
    assert_non_null(strstr(text, "\n#OUTBOX_HTTP_TOKEN=\n"));
    assert_non_null(strstr(text, "\n#OUTBOX_KAFKA_SASL_PASSWORD=\n"));
    free(text);
    config_done(&config);
    env[ARRAY_LEN(secret)] = (char *)"OUTBOX_WORKERS=0";
    env[ARRAY_LEN(secret) + 1] = (char *)"OUTBOX_RETRY_BASE=1d";
    (void)refused(env);
    assert_refused(ENV((char *)"OUTBOX_HTTP_TOKEN=" CANARY " " CANARY), "OUTBOX_HTTP_TOKEN: a token");
}

static void outputs(void **state)
{
    struct config config;

    (void)state;
    load(&config,
         ENV((char *)"OUTBOX_SCHEMA=my \"sch$ema", (char *)"OUTBOX_RETENTION=90s", (char *)"OUTBOX_BATCH_BYTES=2097152",
             (char *)"OUTBOX_ON_DEAD=block", (char *)"OUTBOX_KAFKA_BOOTSTRAP_SERVERS=k:9092"));
    char *text = print(&config, CONFIG_JSON);
    assert_non_null(strstr(text, "  \"OUTBOX_SCHEMA\": \"my \\\"sch$ema\",\n"));
    assert_non_null(strstr(text, "\"OUTBOX_RETENTION\": \"90s\""));
    assert_non_null(strstr(text, "\"OUTBOX_BATCH_BYTES\": \"2MiB\""));
    assert_non_null(strstr(text, "\"OUTBOX_ON_DEAD\": \"block\""));
    assert_non_null(strstr(text, "\"OUTBOX_DEAD_TOPIC\": null"));
    assert_non_null(strstr(text, "\"OUTBOX_KAFKA_BOOTSTRAP_SERVERS\": \"k:9092\"\n}\n"));
    free(text);
    text = print(&config, CONFIG_ENV);
    assert_non_null(strstr(text, "\nOUTBOX_SCHEMA=\"my \\\"sch\\$ema\"\n"));
    assert_non_null(strstr(text, "\nOUTBOX_WORKERS=2\n"));
    assert_non_null(strstr(text, "\n#OUTBOX_DEAD_TOPIC=\n"));
    free(text);
    text = print(&config, CONFIG_MARKDOWN); /* the reference does not depend on this machine's settings */
    assert_null(strstr(text, "sch$ema"));
    assert_non_null(strstr(text, "| `OUTBOX_RETENTION` | `24h` | duration, 0 to 3650d |"));
    free(text);
    text = print(&config, CONFIG_MAN);
    assert_non_null(strstr(text, ".TP\n.B OUTBOX_SCHEMA\n"));
    free(text);
    config_done(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(every_setting),
        cmocka_unit_test(bad_texts),
        cmocka_unit_test(exactly_once_is_planned),
        cmocka_unit_test(combinations),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(names_of_others),
        cmocka_unit_test(all_problems_at_once),
        cmocka_unit_test(kafka_properties),
        cmocka_unit_test(kafka_promises),
        cmocka_unit_test(files),
        cmocka_unit_test(empty_secrets),
        cmocka_unit_test(secrets_stay_secret),
        cmocka_unit_test(outputs),
    };
    return RUN_TESTS(tests);
}
