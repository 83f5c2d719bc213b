/* A publisher, a batch, a mock cluster, and a consumer that tells what is in the log. Included by one test binary each. */
#ifndef OUTBOXD_KAFKA_RIG_H
#define OUTBOXD_KAFKA_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include "batch.h"
#include "clock.h"
#include "metrics.h"
#include "mock.h"
#include "publisher.h"
#include "str.h"
#include "unit.h"

/* Kafka's numbers of the requests. */
#define PRODUCE          0
#define INIT_PRODUCER_ID 22

struct rig {
    struct mock *mock;
    rd_kafka_mock_cluster_t *cluster;
    struct config config;
    struct publisher *publisher;
    struct batch batch;
    struct error err;
    int64_t silent_at; /* for a test that silences the cluster under way */
};

static inline void rig_publisher(struct rig *rig)
{
    publisher_free(rig->publisher);
    rig->publisher = NULL;
    if (publisher_new(&rig->config, NULL, &rig->publisher, &rig->err) != OK)
        fail_msg("%s", rig->err.message);
}

static inline void rig_config(struct rig *rig, const char *const *more)
{
    char *env[16] = {str_format("OUTBOX_KAFKA_BOOTSTRAP_SERVERS=%s", mock_bootstrap(rig->mock))};
    size_t n = 1;

    while (more && *more)
        env[n++] = str_dup(*more++);
    config_done(&rig->config);
    if (config_load(&rig->config, env, NULL, &rig->err) != OK)
        fail_msg("%s", rig->err.message);
    for (size_t i = 0; i < n; i++)
        free(env[i]);
}

static inline int rig_setup(void **state)
{
    struct rig *rig = mem_alloc(sizeof(*rig));

    *state = rig;
    if (mock_new(1, &rig->mock, &rig->err) != OK)
        return -1;
    rig->cluster = mock_cluster(rig->mock);
    rig_config(rig, NULL);
    rig_publisher(rig);
    batch_init(&rig->batch);
    return 0;
}

static inline int rig_teardown(void **state)
{
    struct rig *rig = *state;

    publisher_free(rig->publisher);
    batch_done(&rig->batch);
    config_done(&rig->config);
    mock_free(rig->mock);
    free(rig);
    return 0;
}

static inline struct slice text_slice(const char *text)
{
    return (struct slice){text, text ? strlen(text) : 0};
}

/* One NEW row; `id` is also its payload, so that the log can be compared. */
static inline struct event *rig_add(struct rig *rig, const char *topic, const char *key, const char *id)
{
    static int64_t seq;
    struct event *event = batch_add(&rig->batch);

    event->seq = ++seq;
    event->id = text_slice(id);
    event->topic = event->event_type = text_slice(topic);
    event->aggregate_type = text_slice("order");
    event->aggregate_id = text_slice(key);
    event->tenant_id = text_slice("default");
    event->payload = text_slice(id);
    event->headers = event->metadata = text_slice("{}");
    event->occurred_at = text_slice("2026-01-01T00:00:00Z");
    event->schema_version = 1;
    event->max_retries = 5;
    event->taken = true;
    event_prepare(event);
    return event;
}

static inline void rig_clear(struct rig *rig)
{
    batch_clear(&rig->batch);
}

static inline enum settled rig_publish(struct rig *rig, int timeout_ms)
{
    int64_t deadline = clock_ms() + timeout_ms;

    rig->err = (struct error){0};
    assert_true(publisher_send(rig->publisher, &rig->batch, deadline, NULL));
    return publisher_settle(rig->publisher, &rig->batch, deadline, NULL, &rig->err);
}

static inline void assert_verdict_of(const struct event *event, enum verdict verdict)
{
    if (event->verdict != verdict)
        fail_msg("%s is %s (%s), not %s", event->id.data, verdict_name(event->verdict),
                 event->reason ? event->reason : "no reason", verdict_name(verdict));
}

static inline size_t count_verdict(const struct rig *rig, enum verdict verdict)
{
    size_t n = 0;

    for (size_t i = 0; i < rig->batch.n; i++)
        n += rig->batch.events[i].verdict == verdict;
    return n;
}

/* The payloads in the topic, partition by partition, each with a blank behind it. Owned by the caller. */
static inline char *rig_log(struct rig *rig, const char *topic)
{
    struct strbuf out = {0};
    char text[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();

    rd_kafka_conf_set(conf, "bootstrap.servers", mock_bootstrap(rig->mock), text, sizeof(text));
    rd_kafka_conf_set(conf, "group.id", "rig", text, sizeof(text));
    rd_kafka_conf_set(conf, "enable.partition.eof", "true", text, sizeof(text));
    rd_kafka_conf_set(conf, "fetch.wait.max.ms", "10", text, sizeof(text));
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof(text));
    strbuf_add(&out, "");
    for (int partition = 0; partition < 4; partition++) {
        rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(list, topic, partition)->offset = RD_KAFKA_OFFSET_BEGINNING;
        rd_kafka_assign(rk, list);
        rd_kafka_topic_partition_list_destroy(list);
        for (bool more = true; more;) {
            rd_kafka_message_t *message = rd_kafka_consumer_poll(rk, 10000);
            more = message && !message->err;
            if (more)
                strbuf_addf(&out, "%.*s ", (int)message->len, (const char *)message->payload);
            if (message)
                rd_kafka_message_destroy(message);
        }
    }
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    return out.data;
}

static inline void assert_log(struct rig *rig, const char *topic, const char *expected)
{
    char *log = rig_log(rig, topic);

    assert_string_equal(log, expected);
    free(log);
}

#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

#endif
