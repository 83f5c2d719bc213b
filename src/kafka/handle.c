#include "handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "settings.h"
#include "str.h"
#include "verdicts.h"

/* Defaults of ours, which the user's settings replace. */
static const struct setting defaults[] = {
    {"reconnect.backoff.max.ms", "1000"},
    {"client.id", "outboxd"},
    {NULL, NULL},
};

/* What the promises stand on; nothing replaces these. A record batch ends where we flush and nowhere else, so
 * linger.ms of the user has nothing to decide, and batch.size is kept by rounds.c. Our own deadline ends a batch as a
 * whole; librdkafka must not time out a message inside it. */
static const struct setting promises[] = {
    {"enable.idempotence", "true"},
    {"message.send.max.retries", "2147483647"},
    {"message.timeout.ms", "0"},
    {"linger.ms", "900000"},
    {"batch.num.messages", "1000000"},
    {"batch.size", "2147483647"},
    {"delivery.report.only.error", "false"},
    {NULL, NULL},
};

bool outage_is_sure(const struct outage *outage)
{
    return outage->since && clock_ms() - outage->since >= OUTAGE_GRACE_MS;
}

void outage_over(struct outage *outage)
{
    if (outage->since || outage->last[0])
        *outage = (struct outage){0};
}

const char *outage_text(const struct outage *outage)
{
    return outage->reason[0] ? outage->reason : outage->last[0] ? outage->last : "no answer";
}

static void note_error(struct outage *outage, rd_kafka_resp_err_t code, const char *text)
{
    bool refused = code == RD_KAFKA_RESP_ERR__AUTHENTICATION || code == RD_KAFKA_RESP_ERR__SSL;

    if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
        snprintf(outage->last, sizeof(outage->last), "%s", text);
    if (!refused && code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
        return;
    if (!outage->since)
        outage->since = clock_ms();
    if (refused || !outage->refused)
        snprintf(outage->reason, sizeof(outage->reason), "%s", outage->last[0] ? outage->last : text);
    outage->refused |= refused;
}

static int64_t get_number(rd_kafka_conf_t *conf, const char *name, int64_t otherwise)
{
    char value[64];
    size_t len = sizeof(value);

    if (rd_kafka_conf_get(conf, name, value, &len) != RD_KAFKA_CONF_OK)
        return otherwise;
    return strtoll(value, NULL, 10);
}

/* The handle is used up: librdkafka says so itself, or with `code`, a report's that no other message can get over. */
static void set_fatal(struct handle *handle, int code)
{
    if (handle->fatal)
        return;
    handle->fatal = rd_kafka_fatal_error(handle->rk, handle->fatal_text, sizeof(handle->fatal_text));
    if (handle->fatal)
        return;
    handle->fatal = code;
    snprintf(handle->fatal_text, sizeof(handle->fatal_text), "%s", rd_kafka_err2str((rd_kafka_resp_err_t)code));
}

/* Both callbacks run inside handle_serve and handle_flush, on the thread that owns the handle. */

static void serve_report(rd_kafka_t *rk, const rd_kafka_message_t *report, void *opaque)
{
    struct handle *handle = opaque;
    struct message *message = report->_private;

    (void)rk;
    message->error = report->err;
    message->state = report->err ? MESSAGE_BACK : MESSAGE_ACKED;
    handle->out--;
    if (!report->err)
        outage_over(handle->outage);
    else if (ruling_of(report->err)->fault == FAULT_PRODUCER)
        set_fatal(handle, report->err);
}

static void serve_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    struct handle *handle = opaque;

    (void)rk;
    if (code == RD_KAFKA_RESP_ERR__FATAL)
        set_fatal(handle, code);
    else
        note_error(handle->outage, (rd_kafka_resp_err_t)code, reason);
}

static enum result make_conf(const struct config *config, struct handle *handle, rd_kafka_conf_t **ret,
                             struct error *err)
{
    _cleanup_(settings_free) rd_kafka_conf_t *conf = NULL;
    enum result result = settings_begin(config, defaults, &conf, err);

    if (result != OK)
        return result;
    handle->max_bytes = (size_t)get_number(conf, "message.max.bytes", 1000000);
    handle->batch_bytes = (size_t)get_number(conf, "batch.size", (int64_t)handle->max_bytes);
    handle->refresh_ms = get_number(conf, "topic.metadata.refresh.interval.ms", 300000);
    if (handle->batch_bytes > handle->max_bytes)
        handle->batch_bytes = handle->max_bytes;
    if ((result = settings_apply(conf, promises, err)) != OK)
        return result;
    rd_kafka_conf_set_opaque(conf, handle);
    rd_kafka_conf_set_dr_msg_cb(conf, serve_report);
    rd_kafka_conf_set_error_cb(conf, serve_error);
    *ret = TAKE(conf);
    return OK;
}

enum result handle_new(const struct config *config, int fd, struct outage *outage, struct handle **ret,
                       struct error *err)
{
    static const uint64_t one = 1; /* what an eventfd takes */
    _cleanup_(settings_free) rd_kafka_conf_t *conf = NULL;
    char text[512];

    struct handle *handle = mem_alloc(sizeof(*handle));
    handle->outage = outage;
    enum result result = make_conf(config, handle, &conf, err);
    if (result == OK && !(handle->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text))))
        result = error_fatal(err, "the OUTBOX_KAFKA_ settings do not fit together: %s", text);
    if (result != OK) {
        free(handle);
        return result;
    }
    conf = NULL; /* librdkafka's now */
    handle->queue = rd_kafka_queue_get_main(handle->rk);
    rd_kafka_queue_io_event_enable(handle->queue, fd, &one, sizeof(one));
    *ret = handle;
    return OK;
}

void handle_free(struct handle *handle)
{
    if (!handle)
        return;
    rd_kafka_queue_io_event_enable(handle->queue, -1, NULL, 0);
    rd_kafka_queue_destroy(handle->queue);
    rd_kafka_destroy(handle->rk);
    free(handle);
}

void handle_serve(struct handle *handle, int timeout_ms)
{
    while (rd_kafka_poll(handle->rk, timeout_ms) > 0)
        timeout_ms = 0;
}

void handle_flush(struct handle *handle, int timeout_ms)
{
    rd_kafka_flush(handle->rk, timeout_ms); /* what it did not get done, handle->out tells */
}

static rd_kafka_headers_t *make_headers(const struct header_list *list)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(list->n);

    for (size_t i = 0; i < list->n; i++) {
        const struct header *header = &list->items[i];
        rd_kafka_header_add(headers, header->name, (ssize_t)header->name_len, header->value,
                            header->value ? (ssize_t)header->value_len : 0);
    }
    return headers;
}

rd_kafka_resp_err_t handle_produce(struct handle *handle, rd_kafka_topic_t *rkt, struct message *message,
                                   const struct header_list *headers)
{
    const struct event *event = message->event;
    struct slice value = event_value(event);
    rd_kafka_headers_t *list = make_headers(headers);
    enum message_state before = message->state;

    /* Only this thread serves reports, so the state can be set before the outcome is known. */
    message->state = MESSAGE_OUT;
    rd_kafka_resp_err_t error = rd_kafka_producev(
        handle->rk, RD_KAFKA_V_RKT(rkt), RD_KAFKA_V_PARTITION(message->partition), RD_KAFKA_V_MSGFLAGS(0),
        RD_KAFKA_V_KEY(event->key.data, event->key.len), RD_KAFKA_V_VALUE((void *)(uintptr_t)value.data, value.len),
        RD_KAFKA_V_HEADERS(list), RD_KAFKA_V_OPAQUE(message), RD_KAFKA_V_END);
    if (error) {
        rd_kafka_headers_destroy(list);
        message->state = before;
        if (error == RD_KAFKA_RESP_ERR__FATAL)
            set_fatal(handle, error);
        return error;
    }
    handle->out++;
    return 0;
}

void handle_purge(struct handle *handle, bool inflight)
{
    handle->purged = true;
    /* Not blocking: a broker thread that resolves a name may take its time, and the reports tell when it is done. */
    rd_kafka_purge(handle->rk,
                   RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING | (inflight ? RD_KAFKA_PURGE_F_INFLIGHT : 0));
}
