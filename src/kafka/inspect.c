#include "inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <librdkafka/rdkafka.h>

#include "clock.h"
#include "config_table.h"
#include "describe.h"
#include "parse.h"
#include "publisher.h"
#include "route.h"
#include "settings.h"
#include "str.h"

#define SLICE_MS    200
#define DESCRIBE_MS 3000
#define DAY_MS      86400000

/* One client that asks. It is a consumer, because the metadata requests of a producer make missing topics on brokers that
 * allow it; it joins no group. */
struct inspection {
    const struct config *config;
    struct findings *findings;
    rd_kafka_t *rk;
    int64_t deadline;
    int brokers;
    long producer_max;  /* message.max.bytes */
    char trouble[512];  /* the last error of a broker */
    bool authenticated; /* false: a broker refused who we are */
};

static const char *bootstrap(const struct inspection *inspection)
{
    const char *brokers = config_brokers(inspection->config);
    return brokers ? brokers : "<host:port>";
}

static bool is_plain(const struct inspection *inspection)
{
    const char *protocol = config_kafka(inspection->config, "security.protocol");
    return protocol == NULL || strcasecmp(protocol, "plaintext") == 0;
}

static const char *principal(const struct inspection *inspection)
{
    const char *user = config_kafka(inspection->config, "sasl.username");
    return is_plain(inspection) ? "ANONYMOUS" : user ? user : "<name>";
}

/* The arguments of Kafka's own tools that say where and as whom; with SASL or TLS they need a file. */
static const char *tool_login(const struct inspection *inspection)
{
    return is_plain(inspection) ? "" : " --command-config admin.properties";
}

/* Any thread of librdkafka; but it is served by rd_kafka_poll only, so on ours. */
static void note_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    struct inspection *inspection = opaque;
    (void)rk;
    if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && inspection->trouble[0])
        return; /* the error before it says more */
    if (!inspection->authenticated)
        return;
    inspection->authenticated = code != RD_KAFKA_RESP_ERR__AUTHENTICATION;
    snprintf(inspection->trouble, sizeof(inspection->trouble), "%s", reason);
}

/* The setting of the property that has nearly this name; NULL: none has. Owned by the caller. librdkafka tells the names only as
 * a table for people, a line each that begins with one. */
static char *nearest_setting(const char *property)
{
    _cleanup_(str_free) char *text = NULL, *nearest = NULL;
    size_t size, best = 3 + strlen(property) / 5;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    rd_kafka_conf_properties_show(out);
    if (fclose(out) != 0)
        return NULL;
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        _cleanup_(str_free) char *name = str_dupn(line, strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789._"));
        size_t distance = str_distance(property, name);
        if (*name == '\0' || distance >= best || kafka_refusal(name))
            continue;
        best = distance;
        str_free(&nearest);
        nearest = TAKE(name);
    }
    return nearest ? config_kafka_setting(nearest) : NULL;
}

char *inspect_property(const char *property, const char *value)
{
    _cleanup_(settings_free) rd_kafka_conf_t *conf = rd_kafka_conf_new();
    _cleanup_(str_free) char *fault = settings_set(conf, property, value), *nearest = NULL;
    size_t size;

    if (fault && rd_kafka_conf_get(conf, property, NULL, &size) == RD_KAFKA_CONF_UNKNOWN)
        nearest = nearest_setting(property);
    return nearest ? str_format("%s; did you mean %s?", fault, nearest) : TAKE(fault);
}

static enum result connect_client(struct inspection *inspection, struct error *err)
{
    char text[512], value[64];
    size_t len = sizeof(value);
    _cleanup_(settings_free) rd_kafka_conf_t *conf = NULL;
    enum result result = settings_begin(inspection->config, NULL, &conf, err);

    if (result != OK)
        return result;
    inspection->producer_max = 1000000;
    if (rd_kafka_conf_get(conf, "message.max.bytes", value, &len) == RD_KAFKA_CONF_OK)
        inspection->producer_max = strtol(value, NULL, 10);
    rd_kafka_conf_set(conf, "client.id", "outboxd-check", NULL, 0);
    rd_kafka_conf_set(conf, "group.id", "outboxd-check", NULL, 0);
    rd_kafka_conf_set(conf, "reconnect.backoff.max.ms", "500", NULL, 0);
    rd_kafka_conf_set_error_cb(conf, note_error);
    rd_kafka_conf_set_opaque(conf, inspection);
    inspection->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof(text));
    if (inspection->rk == NULL)
        return error_fatal(err, "the OUTBOX_KAFKA_ settings do not fit together: %s", text);
    conf = NULL; /* librdkafka's now */
    return OK;
}

/* --- the cluster --- */

static void tell_unreachable(struct inspection *inspection)
{
    const char *trouble = inspection->trouble[0] ? inspection->trouble : "no broker answered";
    struct finding *finding;
    if (!inspection->authenticated) {
        finding = finding_add(inspection->findings, FINDING_ERROR, "authentication",
                              "without a login nothing can be published; a running daemon waits", "%s", trouble);
        finding_remedy(finding, "correct OUTBOX_KAFKA_SASL_USERNAME, OUTBOX_KAFKA_SASL_PASSWORD (or its _FILE) and "
                                "OUTBOX_KAFKA_SASL_MECHANISM");
        return;
    }
    finding = finding_add(inspection->findings, FINDING_ERROR, "connection",
                          "without Kafka nothing can be published; a running daemon waits for it", "%s: %s",
                          bootstrap(inspection), trouble);
    finding_remedy(
        finding, strstr(trouble, "ssl") || strstr(trouble, "SSL")
                     ? "correct OUTBOX_KAFKA_SECURITY_PROTOCOL and OUTBOX_KAFKA_SSL_CA_LOCATION"
                     : "start Kafka, or correct OUTBOX_KAFKA_BOOTSTRAP_SERVERS; the address that the brokers advertise "
                       "must be reachable from here, too");
}

/* Asks for one topic; NULL: for the list of all, which also tells the brokers. */
static const struct rd_kafka_metadata *ask(struct inspection *inspection, rd_kafka_topic_t *rkt)
{
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_resp_err_t error;
    do {
        error = rd_kafka_metadata(inspection->rk, rkt == NULL, rkt, &metadata, SLICE_MS);
        rd_kafka_poll(inspection->rk, 0);
    } while (error && inspection->authenticated && clock_left_ms(inspection->deadline) > 0);
    return error ? NULL : metadata;
}

static bool check_cluster(struct inspection *inspection)
{
    if (config_brokers(inspection->config) == NULL) {
        finding_remedy(finding_add(inspection->findings, FINDING_ERROR, "connection",
                                   "the relay does not know where Kafka is", NO_BROKERS),
                       BROKERS_REMEDY);
        return false;
    }
    const struct rd_kafka_metadata *metadata = ask(inspection, NULL);
    if (metadata == NULL) {
        tell_unreachable(inspection);
        return false;
    }
    inspection->brokers = metadata->broker_cnt;
    finding_add(inspection->findings, FINDING_OK, "connection", NULL, "%d broker%s, librdkafka %s",
                metadata->broker_cnt, metadata->broker_cnt == 1 ? "" : "s", rd_kafka_version_str());
    rd_kafka_metadata_destroy(metadata);
    return true;
}

/* The producer has its id when its statistics say so: there is no other way to see it. */
static int note_assigned(rd_kafka_t *rk, char *json, size_t len, void *opaque)
{
    (void)rk;
    if (memmem(json, len, "\"idemp_state\":\"Assigned\"", strlen("\"idemp_state\":\"Assigned\"")) != NULL)
        *(bool *)opaque = true;
    return 0;
}

/* An idempotent producer asks for an id as soon as it is connected; when that is forbidden, it says so at once. */
static void check_idempotence(struct inspection *inspection)
{
    char text[512];
    bool assigned = false;
    struct error ignored = {0}; /* the settings were taken before */
    _cleanup_(settings_free) rd_kafka_conf_t *conf = NULL;
    if (settings_begin(inspection->config, NULL, &conf, &ignored) != OK)
        return;
    rd_kafka_conf_set(conf, "enable.idempotence", "true", text, sizeof(text));
    rd_kafka_conf_set(conf, "client.id", "outboxd-check", text, sizeof(text));
    rd_kafka_conf_set(conf, "statistics.interval.ms", "50", text, sizeof(text));
    rd_kafka_conf_set_stats_cb(conf, note_assigned);
    rd_kafka_conf_set_opaque(conf, &assigned);
    rd_kafka_t *producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    if (producer == NULL)
        return;
    conf = NULL; /* librdkafka's now */
    rd_kafka_resp_err_t fatal = 0;
    for (int64_t end = clock_ms() + 1500; !fatal && !assigned && clock_ms() < end;) {
        rd_kafka_poll(producer, 50);
        fatal = rd_kafka_fatal_error(producer, text, sizeof(text));
    }
    rd_kafka_destroy(producer);
    if (fatal)
        finding_remedy(
            finding_add(inspection->findings, FINDING_ERROR, "acl",
                        "the relay's producer cannot start: nothing is published", "the producer was refused: %s",
                        text),
            "kafka-acls.sh --bootstrap-server %s%s --add --allow-principal User:%s --operation IdempotentWrite --cluster\n"
            "or allow Write on its topics, which implies it since Kafka 2.8",
            bootstrap(inspection), tool_login(inspection), principal(inspection));
}

/* --- topics --- */

static const char *purpose(const struct inspection *inspection, const char *topic)
{
    const char *dead = inspection->config->dead_topic, *consumers = inspection->config->consumer_dead_topic;
    if (dead && str_eq(dead, topic))
        return "OUTBOX_DEAD_TOPIC";
    return consumers && str_eq(consumers, topic) ? "OUTBOX_CONSUMER_DEAD_TOPIC" : "topic";
}

static void tell_missing(struct inspection *inspection, const char *topic)
{
    finding_remedy(finding_add(inspection->findings, FINDING_ERROR, "topic",
                               "events for it wait until it is there; other topics go on", "%s %s does not exist",
                               purpose(inspection, topic), topic),
                   "kafka-topics.sh --bootstrap-server %s%s --create --topic %s --partitions 6 --replication-factor %d",
                   bootstrap(inspection), tool_login(inspection), topic,
                   inspection->brokers < 3 ? inspection->brokers : 3);
}

static void tell_denied(struct inspection *inspection, const char *topic)
{
    finding_remedy(
        finding_add(inspection->findings, FINDING_ERROR, "acl",
                    "events for it wait until it is allowed; other topics go on", "%s %s: not authorized",
                    purpose(inspection, topic), topic),
        "kafka-acls.sh --bootstrap-server %s%s --add --allow-principal User:%s --operation Write --operation Describe "
        "--topic %s",
        bootstrap(inspection), tool_login(inspection), principal(inspection), topic);
}

static void check_limit(struct inspection *inspection, const char *topic, long limit)
{
    if (limit == 0 || limit >= inspection->producer_max)
        return;
    finding_remedy(
        finding_add(inspection->findings, FINDING_WARNING, "size",
                    "an event between the two sizes is refused by the broker until it is DEAD, and costs many tries",
                    "topic %s takes %ld bytes (max.message.bytes), the producer sends up to %ld", topic, limit,
                    inspection->producer_max),
        "kafka-configs.sh --bootstrap-server %s%s --alter --entity-type topics --entity-name %s --add-config "
        "max.message.bytes=%ld\nor OUTBOX_KAFKA_MESSAGE_MAX_BYTES=%ld",
        bootstrap(inspection), tool_login(inspection), topic, inspection->producer_max + 12, limit);
}

static void check_replicas(struct inspection *inspection, const struct rd_kafka_metadata_topic *topic, long min_isr)
{
    int replicas = 0, in_sync = 0, leaderless = 0;
    for (int i = 0; i < topic->partition_cnt; i++) {
        const struct rd_kafka_metadata_partition *partition = &topic->partitions[i];
        replicas = i == 0 || partition->replica_cnt < replicas ? partition->replica_cnt : replicas;
        in_sync = i == 0 || partition->isr_cnt < in_sync ? partition->isr_cnt : in_sync;
        leaderless += partition->leader < 0;
    }
    if (leaderless > 0)
        finding_remedy(finding_add(inspection->findings, FINDING_ERROR, "leader", "events for them wait",
                                   "topic %s: %d of %d partitions have no leader", topic->topic, leaderless,
                                   topic->partition_cnt),
                       "kafka-topics.sh --bootstrap-server %s%s --describe --unavailable-partitions\n"
                       "names the brokers that hold them: start those",
                       bootstrap(inspection), tool_login(inspection));
    if (min_isr > replicas)
        finding_remedy(
            finding_add(inspection->findings, FINDING_ERROR, "replicas", "no event for it can ever be acknowledged",
                        "topic %s has %d replicas, but min.insync.replicas is %ld", topic->topic, replicas, min_isr),
            "kafka-configs.sh --bootstrap-server %s%s --alter --entity-type topics --entity-name %s --add-config "
            "min.insync.replicas=%d",
            bootstrap(inspection), tool_login(inspection), topic->topic, replicas > 1 ? replicas - 1 : 1);
    else if (min_isr > in_sync)
        finding_remedy(finding_add(inspection->findings, FINDING_ERROR, "replicas",
                                   "its events are not acknowledged until more brokers are back",
                                   "topic %s has %d replicas in sync, min.insync.replicas is %ld", topic->topic,
                                   in_sync, min_isr),
                       "kafka-topics.sh --bootstrap-server %s%s --describe --under-min-isr-partitions\n"
                       "names the missing brokers: start those",
                       bootstrap(inspection), tool_login(inspection));
    else if (min_isr == replicas && replicas > 1)
        finding_remedy(
            finding_add(inspection->findings, FINDING_WARNING, "replicas", "one broker that restarts stops it",
                        "topic %s has %d replicas, and min.insync.replicas is %ld, too", topic->topic, replicas,
                        min_isr),
            "kafka-configs.sh --bootstrap-server %s%s --alter --entity-type topics --entity-name %s --add-config "
            "min.insync.replicas=%d",
            bootstrap(inspection), tool_login(inspection), topic->topic, replicas - 1);
    else if (replicas == 1 && inspection->brokers > 1)
        finding_remedy(finding_add(inspection->findings, FINDING_WARNING, "replicas", "what one disk loses is lost",
                                   "topic %s has one replica, with %d brokers there", topic->topic,
                                   inspection->brokers),
                       "give it more with kafka-reassign-partitions.sh");
}

static bool check_topic(struct inspection *inspection, const char *name)
{
    rd_kafka_topic_t *rkt = route_topic_fault(name) ? NULL : rd_kafka_topic_new(inspection->rk, name, NULL);
    if (rkt == NULL)
        return true; /* not a name that Kafka takes: its events are DEAD, and say why */
    const struct rd_kafka_metadata *metadata = ask(inspection, rkt);
    bool good = metadata != NULL && metadata->topic_cnt == 1;
    size_t before = inspection->findings->n;
    rd_kafka_resp_err_t error = good ? metadata->topics[0].err : RD_KAFKA_RESP_ERR__TIMED_OUT;
    if (error == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART || error == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC) {
        tell_missing(inspection, name);
    } else if (error == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED) {
        tell_denied(inspection, name);
    } else if (error) {
        finding_remedy(finding_add(inspection->findings, FINDING_WARNING, "topic", "its state is not known",
                                   "topic %s: %s", name, rd_kafka_err2str(error)),
                       "run `outboxd check` again");
    } else {
        int left = clock_left_ms(inspection->deadline);
        struct topic_config config = describe_topic(inspection->rk, name, left < DESCRIBE_MS ? left + 1 : DESCRIBE_MS);
        check_limit(inspection, name, config.max_bytes);
        check_replicas(inspection, &metadata->topics[0], config.min_isr);
        if (config.error == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
            finding_remedy(
                finding_add(inspection->findings, FINDING_INFO, "size",
                            "how large an event the topic takes must then be found out by trying",
                            "topic %s: its configuration may not be read", name),
                "kafka-acls.sh --bootstrap-server %s%s --add --allow-principal User:%s --operation DescribeConfigs --topic %s",
                bootstrap(inspection), tool_login(inspection), principal(inspection), name);
    }
    if (metadata)
        rd_kafka_metadata_destroy(metadata);
    rd_kafka_topic_destroy(rkt);
    return inspection->findings->n == before;
}

static void check_topics(struct inspection *inspection, const char *const *topics, size_t n)
{
    const char *dead = inspection->config->dead_topic, *consumers = inspection->config->consumer_dead_topic;
    size_t good = 0, checked = 0;
    for (size_t i = 0; i < n && clock_left_ms(inspection->deadline) > 0; i++, checked++)
        good += check_topic(inspection, topics[i]);
    if (dead)
        check_topic(inspection, dead);
    if (consumers && !(dead && str_eq(dead, consumers)))
        check_topic(inspection, consumers);
    if (good > 0)
        finding_add(inspection->findings, FINDING_OK, "topic", NULL, "%zu of %zu topics with waiting events are fine",
                    good, n);
    if (checked < n)
        finding_remedy(finding_add(inspection->findings, FINDING_INFO, "topic", "the others may have something, too",
                                   "time was up after %zu of %zu topics", checked, n),
                       "run `outboxd check` again");
}

/* Marks must outlive the messages: see intake.c. */
static void check_retention(struct inspection *inspection)
{
    struct route topics;
    char ours[32], theirs[32];
    int64_t kept = inspection->config->inbox_retention;
    format_duration(kept, ours);
    route_init(&topics, "", inspection->config->consumer_topics);
    for (size_t i = 0; i < topics.n && clock_left_ms(inspection->deadline) > 0; i++) {
        int64_t ms = describe_topic(inspection->rk, route_topic(&topics, i), DESCRIBE_MS).retention_ms;
        if (ms < kept)
            continue;
        if (ms != MS_FOREVER)
            format_duration(ms, theirs);
        struct finding *finding = finding_add(inspection->findings, FINDING_WARNING, "retention",
                                              "a replay of an event whose mark has expired takes effect again",
                                              "topic %s keeps events for %s, OUTBOX_INBOX_RETENTION is %s",
                                              route_topic(&topics, i), ms == MS_FOREVER ? "ever" : theirs, ours);
        if (ms == MS_FOREVER)
            finding_remedy(finding, "replay nothing older than %s, or a longer OUTBOX_INBOX_RETENTION", ours);
        else
            finding_remedy(finding, "OUTBOX_INBOX_RETENTION=%" PRId64 "d\nKafka keeps some for longer than it says",
                           ms / DAY_MS + 2);
    }
    route_done(&topics);
}

enum result inspect_kafka(const struct config *config, const char *const *topics, size_t n, int timeout_ms,
                          struct findings *findings, struct error *err)
{
    struct inspection inspection = {
        .config = config, .findings = findings, .authenticated = true, .deadline = clock_ms() + timeout_ms};
    findings->area = "kafka";
    const struct publisher_trap *trap;
    for (size_t i = 0; (trap = publisher_trap(config, i)) != NULL; i++)
        finding_remedy(finding_add(findings, FINDING_WARNING, "librdkafka", trap->why, "%s", trap->seen), "%s",
                       trap->remedy);
    enum result result = connect_client(&inspection, err);
    if (result != OK)
        return result;
    if (check_cluster(&inspection)) {
        check_idempotence(&inspection);
        check_topics(&inspection, topics, n);
        if (config->consumer_topics != NULL)
            check_retention(&inspection);
    }
    rd_kafka_destroy(inspection.rk);
    return OK;
}
