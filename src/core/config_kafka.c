/* OUTBOX_KAFKA_<PROPERTY>: names, secrets, and the properties that are not the operator's to set. */
#include <ctype.h>
#include <string.h>

#include "config_table.h"
#include "str.h"

#define ACKNOWLEDGED "a row may be marked only when all replicas in sync have the event"
#define ONE_REQUEST  "the order of events rests on it"
#define WHOLE_BATCH  "outboxd gives up a batch as a whole, never a message inside it; use OUTBOX_DELIVERY_TIMEOUT"
#define NO_RETRIES   "librdkafka tries again until OUTBOX_DELIVERY_TIMEOUT ends"
#define NOT_BUILT    "transactions are not built yet"
#define OFFSETS      "outboxd consume commits offsets itself, after the database has committed"
#define MOCK         "a mock cluster swallows events; use outboxd dev-broker and its address"
#define INTERNAL     "it holds a pointer of the program"
#define REPORTS      "outboxd counts on the report of every message"
#define SIGNALS      "a thread of librdkafka would take the signal that is to stop outboxd"

/* A name that starts with * stands for all that end so. */
static const struct {
    const char *property, *reason;
} refusals[] = {
    {"acks", ACKNOWLEDGED},
    {"request.required.acks", ACKNOWLEDGED},
    {"enable.idempotence", ONE_REQUEST},
    {"enable.gapless.guarantee", ONE_REQUEST},
    {"max.in.flight", ONE_REQUEST},
    {"max.in.flight.requests.per.connection", ONE_REQUEST},
    {"queuing.strategy", ONE_REQUEST},
    {"message.timeout.ms", WHOLE_BATCH},
    {"delivery.timeout.ms", WHOLE_BATCH},
    {"retries", NO_RETRIES},
    {"message.send.max.retries", NO_RETRIES},
    {"partitioner", "keys go to the partitions that Java clients choose (murmur2_random)"},
    {"delivery.report.only.error", REPORTS},
    {"enabled_events", REPORTS},
    {"transactional.id", NOT_BUILT},
    {"transaction.timeout.ms", NOT_BUILT},
    {"isolation.level", "outboxd consume reads only what was committed"},
    {"group.id", "use OUTBOX_CONSUMER_GROUP"},
    {"enable.auto.commit", OFFSETS},
    {"auto.commit.enable", OFFSETS},
    {"auto.commit.interval.ms", OFFSETS},
    {"enable.auto.offset.store", OFFSETS},
    {"offset.store.method", OFFSETS},
    {"internal.termination.signal", SIGNALS},
    {"test.mock.num.brokers", MOCK},
    {"test.mock.broker.rtt", MOCK},
    {"*_cb", INTERNAL},
    {"*_cb_data", INTERNAL},
    {"*_callback_data", INTERNAL},
    {"opaque", INTERNAL},
    {"default_topic_conf", INTERNAL},
    {"msg_order_cmp", INTERNAL},
    {"interceptors", INTERNAL},
    {"ssl_certificate", INTERNAL},
    {"ssl_key", INTERNAL},
    {"ssl_ca", INTERNAL},
};

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && str_eq(s + n - m, suffix);
}

const char *kafka_refusal(const char *property)
{
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        const char *name = refusals[i].property;
        if (*name == '*' ? has_suffix(property, name + 1) : str_eq(property, name))
            return refusals[i].reason;
    }
    return NULL;
}

const char *kafka_refused(size_t i, const char **ret_reason)
{
    if (i >= ARRAY_LEN(refusals))
        return NULL;
    *ret_reason = refusals[i].reason;
    return refusals[i].property;
}

bool config_kafka_secret(const char *property)
{
    /* By words and not by names: a property of a later librdkafka is a secret, too. An address of a
     * token service is none. */
    static const char *const words[] = {"password", "secret", ".pem", "jaas", "private", "token", "oauthbearer.config"};

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strstr(property, words[i]) && !has_suffix(property, ".url"))
            return true;
    return false;
}

char *config_kafka_setting(const char *property)
{
    struct strbuf name = {0};

    strbuf_add(&name, KAFKA_PREFIX);
    for (const char *c = property; *c; c++) {
        char upper = (char)toupper((unsigned char)*c);
        if (*c == '_')
            strbuf_add(&name, "__");
        else
            strbuf_addn(&name, *c == '.' ? "_" : &upper, 1);
    }
    return name.data;
}

const char *config_kafka(const struct config *config, const char *property)
{
    for (size_t i = 0; i < config->n_kafka; i++)
        if (str_eq(config->kafka[i].name, property))
            return config->kafka[i].value;
    return NULL;
}

const char *config_brokers(const struct config *config)
{
    const char *brokers = config_kafka(config, "bootstrap.servers");
    return brokers ? brokers : config_kafka(config, "metadata.broker.list");
}
