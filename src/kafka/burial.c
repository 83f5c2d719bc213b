#include "burial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <librdkafka/rdkafka.h>

#include "log.h"
#include "settings.h"
#include "str.h"
#include "verdicts.h"

#define ASK_TIMEOUT_MS 2000

struct burial {
    rd_kafka_t *rk;
    const char *topic; /* the config's */
};

struct report {
    bool done;
    rd_kafka_resp_err_t code;
};

static void reported(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct report *report = message->_private;
    (void)rk;
    (void)opaque;
    if (report != NULL)
        *report = (struct report){true, message->err};
}

/* Errors come with the report of the message; without this librdkafka would print them. */
static void complained(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    (void)rk;
    (void)opaque;
    log_debug("librdkafka, dead topic: %d %s", code, reason);
}

static const struct setting defaults[] = {
    {"client.id", "outboxd"},
    {"enable.idempotence", "true"},
    {"partitioner", "murmur2_random"},
    {"reconnect.backoff.max.ms", "1000"},
    {"topic.metadata.propagation.max.ms", "3000"},
    {NULL, NULL},
};

/* Every report comes in time, so that nothing of a caller's is borrowed for longer; what could be read can be sent. A copy
 * travels alone: a linger of the user's would only let it wait, or die before it is sent. */
static const struct setting promises[] = {
    {"linger.ms", "0"},
    {"message.timeout.ms", "5000"},
    {"message.max.bytes", "1000000000"},
    {"queue.buffering.max.kbytes", "2147483647"},
    {NULL, NULL},
};

enum result burial_new(const struct config *config, struct burial **ret, struct error *err)
{
    _cleanup_(settings_free) rd_kafka_conf_t *conf = NULL;
    char text[512];
    enum result result = settings_begin(config, defaults, &conf, err);

    if (result == OK)
        result = settings_apply(conf, promises, err);
    if (result != OK)
        return result;
    rd_kafka_conf_set_dr_msg_cb(conf, reported);
    rd_kafka_conf_set_error_cb(conf, complained);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof text);
    if (rk == NULL)
        return error_fatal(err, "the OUTBOX_KAFKA_ settings do not fit together: %s", text);
    conf = NULL; /* librdkafka's now */
    *ret = mem_alloc(sizeof **ret);
    **ret = (struct burial){rk, config->consumer_dead_topic};
    return OK;
}

void burial_free(struct burial *burial)
{
    if (burial == NULL)
        return;
    rd_kafka_purge(burial->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
    rd_kafka_destroy(burial->rk);
    free(burial);
}

/* In the place of any of that name: the event may itself come from a dead topic. */
static void set_header(rd_kafka_headers_t *headers, const char *name, const char *value)
{
    rd_kafka_header_remove(headers, name);
    rd_kafka_header_add(headers, name, -1, value, -1);
}

static rd_kafka_headers_t *make_headers(const struct letter *letter, const char *id, const char *error,
                                        unsigned attempts)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(16);
    const char *name;
    struct slice value;
    bool has_id = false;

    for (size_t i = 0; consumer_header(letter, i, &name, &value); i++) {
        has_id |= str_eq(name, "id") || str_eq(name, "ce_id");
        rd_kafka_header_add(headers, name, -1, value.data, value.data ? (ssize_t)value.len : 0);
    }
    char partition[16], offset[24], tries[16];
    snprintf(partition, sizeof partition, "%d", letter->partition);
    snprintf(offset, sizeof offset, "%lld", (long long)letter->offset);
    snprintf(tries, sizeof tries, "%u", attempts);
    if (!has_id)
        rd_kafka_header_add(headers, "id", -1, id, -1);
    set_header(headers, "outbox_error", error);
    set_header(headers, "outbox_topic", letter->topic);
    set_header(headers, "outbox_partition", partition);
    set_header(headers, "outbox_offset", offset);
    set_header(headers, "outbox_attempts", tries);
    return headers;
}

/* Its copies travel alone: what the broker says of the batch it says of the event. */
static enum result refuse(const struct burial *burial, rd_kafka_resp_err_t code, struct error *err)
{
    error_retry(err, "the dead topic %s did not take the event: %s", burial->topic, ruling_text(code));
    bool for_good = ruling_of(code)->fault == FAULT_EVENT || code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    return for_good ? REJECT : RETRY;
}

/* A message to a topic that is not there would wait for it, and its sender with it: ask first. */
static rd_kafka_resp_err_t ask(const struct burial *burial)
{
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(burial->rk, burial->topic, NULL);
    rd_kafka_resp_err_t code = rd_kafka_metadata(burial->rk, 0, topic, &metadata, ASK_TIMEOUT_MS);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        if (metadata->topic_cnt == 1)
            code = metadata->topics[0].err;
        rd_kafka_metadata_destroy(metadata);
    }
    rd_kafka_topic_destroy(topic);
    return code;
}

enum result burial_send(struct burial *burial, const struct letter *letter, const char *id, const char *error,
                        unsigned attempts, struct error *err)
{
    struct report report = {0};
    rd_kafka_resp_err_t code = ask(burial);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return refuse(burial, code, err);
    rd_kafka_headers_t *headers = make_headers(letter, id, error, attempts);
    code = rd_kafka_producev(burial->rk, RD_KAFKA_V_TOPIC(burial->topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                             RD_KAFKA_V_KEY(letter->key.data, letter->key.len),
                             RD_KAFKA_V_VALUE((void *)(uintptr_t)letter->value.data, letter->value.len),
                             RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_OPAQUE(&report), RD_KAFKA_V_END);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        rd_kafka_headers_destroy(headers);
        return refuse(burial, code, err);
    }
    while (!report.done)
        rd_kafka_poll(burial->rk, 100);
    return report.code == RD_KAFKA_RESP_ERR_NO_ERROR ? OK : refuse(burial, report.code, err);
}
