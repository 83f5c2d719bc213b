#include "describe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "str.h"

static void read_entries(const rd_kafka_ConfigResource_t *resource, struct topic_config *ret)
{
    size_t n;
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);
    bool deletes = true;

    for (size_t i = 0; i < n; i++) {
        const char *name = rd_kafka_ConfigEntry_name(entries[i]), *value = rd_kafka_ConfigEntry_value(entries[i]);
        if (!value)
            continue;
        long number = strtol(value, NULL, 10);
        if (str_eq(name, "max.message.bytes"))
            ret->max_bytes = number;
        else if (str_eq(name, "min.insync.replicas"))
            ret->min_isr = number;
        else if (str_eq(name, "retention.ms"))
            ret->retention_ms = number < 0 ? MS_FOREVER : number;
        else if (str_eq(name, "cleanup.policy"))
            deletes = strstr(value, "delete") != NULL;
    }
    if (!deletes && ret->retention_ms >= 0)
        ret->retention_ms = MS_FOREVER;
}

struct topic_config describe_topic(rd_kafka_t *rk, const char *topic, int timeout_ms)
{
    struct topic_config config = {.error = RD_KAFKA_RESP_ERR__TIMED_OUT, .retention_ms = -1};
    rd_kafka_ConfigResource_t *resource = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    char text[256];
    size_t n = 0;

    rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, text, sizeof(text));
    rd_kafka_DescribeConfigs(rk, &resource, 1, options, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, timeout_ms);
    const rd_kafka_DescribeConfigs_result_t *result = event ? rd_kafka_event_DescribeConfigs_result(event) : NULL;
    if (result) {
        const rd_kafka_ConfigResource_t **resources = rd_kafka_DescribeConfigs_result_resources(result, &n);
        config.error = n == 1 ? rd_kafka_ConfigResource_error(resources[0]) : rd_kafka_event_error(event);
        if (n == 1 && !config.error)
            read_entries(resources[0], &config);
    }
    if (event)
        rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(queue);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_ConfigResource_destroy(resource);
    return config;
}
