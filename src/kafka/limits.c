/* How large a record batch a topic takes: asked, or learned from what it refused. */
#include <stdlib.h>

#include "clock.h"
#include "str.h"
#include "topics.h"

#define LIMIT_AGE_MS (5 * 60 * 1000) /* a raised limit is noticed after so long */
#define DESCRIBE_MS  3000

/* max.message.bytes in the answer; 0 when it is not there. */
static size_t read_limit(rd_kafka_event_t *event)
{
    const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(event);
    size_t n_resources = 0, n_entries = 0;

    if (!result)
        return 0;
    const rd_kafka_ConfigResource_t **resources = rd_kafka_DescribeConfigs_result_resources(result, &n_resources);
    if (n_resources != 1 || rd_kafka_ConfigResource_error(resources[0]))
        return 0;
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resources[0], &n_entries);
    for (size_t i = 0; i < n_entries; i++)
        if (str_eq(rd_kafka_ConfigEntry_name(entries[i]), "max.message.bytes")) {
            const char *value = rd_kafka_ConfigEntry_value(entries[i]);
            return value ? (size_t)strtoull(value, NULL, 10) : 0;
        }
    return 0;
}

static size_t describe(struct topic *topic, struct handle *handle, int64_t deadline)
{
    char text[256];
    int left = clock_left_ms(deadline);
    int timeout = left < DESCRIBE_MS ? left : DESCRIBE_MS;
    size_t limit = 0;

    if (timeout < 1 || !handle || handle_is_used_up(handle))
        return 0;
    rd_kafka_queue_t *queue = rd_kafka_queue_new(handle->rk);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(handle->rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    rd_kafka_ConfigResource_t *resource = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic->name);
    if (!rd_kafka_AdminOptions_set_request_timeout(options, timeout, text, sizeof(text))) {
        rd_kafka_DescribeConfigs(handle->rk, &resource, 1, options, queue);
        rd_kafka_event_t *event = rd_kafka_queue_poll(queue, timeout);
        if (event) {
            limit = read_limit(event);
            rd_kafka_event_destroy(event);
        }
    }
    rd_kafka_ConfigResource_destroy(resource);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(queue);
    return limit;
}

static void set_limit(struct topic *topic, size_t limit, bool asked)
{
    topic->limit = limit;
    topic->limit_asked = asked;
    topic->limit_until = clock_ms() + LIMIT_AGE_MS;
}

void topic_ask_limit(struct topic *topic, struct handle *handle, size_t refused, int64_t deadline)
{
    /* Another partition's record batch of the same round may have told already. */
    if (topic->limit != NO_LIMIT && refused > topic->limit)
        return;
    size_t limit = topic->limit == NO_LIMIT ? describe(topic, handle, deadline) : 0;
    if (limit && limit < refused)
        set_limit(topic, limit, true);
    else /* no answer, or one that allows what was just refused */
        set_limit(topic, refused / 2, false);
}

void topic_refresh_limit(struct topic *topic, struct handle *handle, int64_t deadline)
{
    if (topic->limit == NO_LIMIT || clock_ms() < topic->limit_until)
        return;
    size_t limit = topic->limit_asked ? describe(topic, handle, deadline) : 0;
    if (limit)
        set_limit(topic, limit, true);
    else
        topic->limit = NO_LIMIT;
}
