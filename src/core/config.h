/* The settings: environment variables only, one table (config.def). */
#ifndef OUTBOXD_CONFIG_H
#define OUTBOXD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "error.h"

/* The values of choices, in the order of their texts in config.def. log_level is an enum log_level, headers an enum
 * header_format. */
enum ordering { ORDER_KEY, ORDER_NONE };
enum delivery { DELIVERY_AT_LEAST_ONCE, DELIVERY_EXACTLY_ONCE };
enum on_sent { ON_SENT_MARK, ON_SENT_DELETE };
enum on_dead { ON_DEAD_SKIP, ON_DEAD_BLOCK };
enum log_format { LOG_TEXT, LOG_JSON };

struct kafka_property { /* OUTBOX_KAFKA_<PROPERTY>, already turned into librdkafka's name */
    char *name, *value;
};

/* One member a row of config.def: texts `char *` (owned, NULL when unset), whole numbers, durations in ms and sizes
 * in bytes `int64_t`, switches `bool`, choices `int` (the enums above). */
struct config {
#define PARAM(member, name, type, ...) CONFIG_TYPE_##type member;
#define CONFIG_TYPE_TEXT               char *
#define CONFIG_TYPE_SECRET             char *
#define CONFIG_TYPE_INT                int64_t
#define CONFIG_TYPE_DURATION           int64_t
#define CONFIG_TYPE_SIZE               int64_t
#define CONFIG_TYPE_SWITCH             bool
#define CONFIG_TYPE_CHOICE             int
#include "config.def"
#undef PARAM
    struct kafka_property *kafka; /* sorted by name */
    size_t n_kafka;
    uint64_t given; /* bit i: row i of config.def came from the environment */
};

/* What the settings must suffice for, beyond the table. */
struct config_demands {
    bool brokers; /* the address of Kafka must be there */
    /* Why librdkafka does not take the value, without that of a secret, the caller's; NULL: it does. */
    char *(*property_fault)(const char *property, const char *value);
};

/* Reads `env` (as of main). Every problem in one message, a line each: unknown names with the nearest known one, bad
 * values with the range, NAME and NAME_FILE both given, and what the demands (NULL: none) find. FATAL on any; the config is
 * then empty. An empty value counts as unset where unset has a meaning, but not that of a token, and not the content of a
 * secret's file. No message holds the value of a secret. */
enum result config_load(struct config *config, char **env, const struct config_demands *demands,
                        struct error *err) CHECK_RESULT;
void config_done(struct config *config);

enum config_output { CONFIG_TABLE, CONFIG_JSON, CONFIG_MARKDOWN, CONFIG_ENV, CONFIG_MAN };
/* Secrets are never shown. The markdown and man outputs describe the table and need no config (NULL). */
void config_print(const struct config *config, enum config_output output, FILE *out);

/* librdkafka's property as its setting is called: sasl.password -> OUTBOX_KAFKA_SASL_PASSWORD. Owned by the caller. */
char *config_kafka_setting(const char *property);

/* The value of a librdkafka property in `config`, NULL when it was not given. */
const char *config_kafka(const struct config *config, const char *property);

/* The addresses of the brokers, under either of librdkafka's names; NULL: not set. */
const char *config_brokers(const struct config *config);
#define BROKERS_SETTING "OUTBOX_KAFKA_BOOTSTRAP_SERVERS"
#define NO_BROKERS      BROKERS_SETTING " is not set"
#define BROKERS_REMEDY  BROKERS_SETTING "=<host:port>,<host:port>"

/* Is the property's value one that must never be shown? */
bool config_kafka_secret(const char *property);

#endif
