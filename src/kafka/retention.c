#include "retention.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "str.h"

static int64_t read_retention(const rd_kafka_ConfigResource_t *resource)
{
    size_t n;
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);
    int64_t retention = -1;
    bool deletes = true;

    for (size_t i = 0; i < n; i++) {
        const char *name = rd_kafka_ConfigEntry_name(entries[i]), *value = rd_kafka_ConfigEntry_value(entries[i]);
        if (value != NULL && str_eq(name, "retention.ms"))
            retention = strtoll(value, NULL, 10) < 0 ? MS_FOREVER : strtoll(value, NULL, 10);
        else if (value != NULL && str_eq(name, "cleanup.policy"))
            deletes = strstr(value, "delete") != NULL;
    }
    return deletes || retention < 0 ? retention : MS_FOREVER;
}

int64_t retention_of(rd_kafka_t *rk, const char *topic, int timeout_ms)
{
    rd_kafka_ConfigResource_t *resource = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    char text[256];
    int64_t retention = -1;

    rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, text, sizeof text);
    rd_kafka_DescribeConfigs(rk, &resource, 1, options, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, timeout_ms + 500);
    const rd_kafka_DescribeConfigs_result_t *result = event ? rd_kafka_event_DescribeConfigs_result(event) : NULL;
    if (result != NULL && rd_kafka_event_error(event) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        size_t n;
        const rd_kafka_ConfigResource_t **found = rd_kafka_DescribeConfigs_result_resources(result, &n);
        if (n == 1 && rd_kafka_ConfigResource_error(found[0]) == RD_KAFKA_RESP_ERR_NO_ERROR)
            retention = read_retention(found[0]);
    }
    rd_kafka_event_destroy(event);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(queue);
    rd_kafka_ConfigResource_destroy(resource);
    return retention;
}
