#include "consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <librdkafka/rdkafka.h>

#include "clock.h"
#include "describe.h"
#include "log.h"
#include "route.h"
#include "settings.h"
#include "str.h"

#define QUIET_MS      5000
#define AWAY_GRACE_MS 2000 /* a broker that only closed an idle connection is back before */
#define HEADER_BYTES  64   /* what a header takes besides its name and value */

struct consumer {
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    int fd;
    struct consumer_events events;
    int64_t away_since; /* 0: not away */
    bool away_for_sure; /* authentication was refused, or nobody answered a ping */
    int64_t heard_at;   /* clock_ms of the last letter or answer */
    bool doubt;         /* a broker's connection failed since */
    char away[512], last[512], refusal[512];
    bool commit_failed;
};

/* Defaults of ours, which the user's settings replace. */
static const struct setting defaults[] = {
    {"client.id", "outboxd"},
    {"partition.assignment.strategy", "cooperative-sticky"},
    {"session.timeout.ms", "10000"},
    {"auto.offset.reset", "earliest"},
    {"reconnect.backoff.max.ms", "1000"},
    {"topic.metadata.refresh.interval.ms", "10000"}, /* how soon a topic that was missing is found */
    {"queued.max.messages.kbytes", "32768"},         /* of all partitions together */
    {"fetch.wait.max.ms", "100"},
    {NULL, NULL},
};

/* What the promises stand on; nothing replaces these. */
static const struct setting promises[] = {
    {"enable.auto.commit", "false"},
    {"enable.auto.offset.store", "false"},
    {"isolation.level", "read_committed"},
    {"enable.partition.eof", "false"},
    {NULL, NULL},
};

/* --- callbacks of librdkafka, on the owner's thread --- */

static void rebalanced(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct consumer *consumer = opaque;
    const struct consumer_events *events = &consumer->events;
    const char *protocol = rd_kafka_rebalance_protocol(rk);
    bool cooperative = protocol != NULL && strcmp(protocol, "COOPERATIVE") == 0;
    bool assign = code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
    bool lost = rd_kafka_assignment_lost(rk);

    if (!assign)
        for (int i = 0; i < list->cnt; i++)
            events->revoked(events->arg, list->elems[i].topic, list->elems[i].partition, lost);
    else
        consumer->refusal[0] = '\0';
    rd_kafka_error_t *error = NULL;
    if (cooperative)
        error = assign ? rd_kafka_incremental_assign(rk, list) : rd_kafka_incremental_unassign(rk, list);
    else if (rd_kafka_assign(rk, assign ? list : NULL) != RD_KAFKA_RESP_ERR_NO_ERROR)
        log_warning("Kafka did not take the assignment of partitions");
    if (error != NULL) {
        log_warning("Kafka did not take the assignment of partitions: %s", rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
    }
    if (assign)
        for (int i = 0; i < list->cnt; i++)
            events->assigned(events->arg, list->elems[i].topic, list->elems[i].partition);
}

static void complained(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    struct consumer *consumer = opaque;
    bool sure = code == RD_KAFKA_RESP_ERR__AUTHENTICATION || code == RD_KAFKA_RESP_ERR__SSL;
    (void)rk;

    consumer->doubt = true;
    if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
        snprintf(consumer->last, sizeof consumer->last, "%s", reason);
    if (!sure && code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
        return;
    if (consumer->away_since == 0)
        consumer->away_since = clock_ms();
    if (sure || !consumer->away_for_sure)
        snprintf(consumer->away, sizeof consumer->away, "%s", consumer->last[0] ? consumer->last : reason);
    consumer->away_for_sure |= sure;
}

static void committed(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct consumer *consumer = opaque;
    (void)rk;
    (void)list;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR && code != RD_KAFKA_RESP_ERR__NO_OFFSET) {
        log_debug("a commit of offsets failed: %s", rd_kafka_err2str(code));
        consumer->commit_failed = true;
    }
}

/* --- making and ending --- */

static enum result make_conf(const struct config *config, struct consumer *consumer, rd_kafka_conf_t **ret,
                             struct error *err)
{
    _cleanup_(settings_free) rd_kafka_conf_t *conf = NULL;
    const struct setting group[] = {{"group.id", config->consumer_group}, {NULL, NULL}};
    enum result result = settings_begin(config, defaults, &conf, err);

    if (result != OK || (result = settings_apply(conf, promises, err)) != OK ||
        (result = settings_apply(conf, group, err)) != OK)
        return result;
    rd_kafka_conf_set_opaque(conf, consumer);
    rd_kafka_conf_set_rebalance_cb(conf, rebalanced);
    rd_kafka_conf_set_offset_commit_cb(conf, committed);
    rd_kafka_conf_set_error_cb(conf, complained);
    *ret = TAKE(conf);
    return OK;
}

enum result consumer_join(struct consumer *consumer, const struct config *config, struct error *err)
{
    struct route topics;
    route_init(&topics, "", config->consumer_topics);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)topics.n);
    for (size_t i = 0; i < topics.n; i++)
        rd_kafka_topic_partition_list_add(list, route_topic(&topics, i), RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t code = rd_kafka_subscribe(consumer->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    route_done(&topics);
    return code ? error_fatal(err, "cannot subscribe to OUTBOX_CONSUMER_TOPICS: %s", rd_kafka_err2str(code)) : OK;
}

enum result consumer_new(const struct config *config, const struct consumer_events *events, struct consumer **ret,
                         struct error *err)
{
    static const uint64_t one = 1; /* what an eventfd takes */
    _cleanup_(settings_free) rd_kafka_conf_t *conf = NULL;
    char text[512];
    struct consumer *consumer = mem_alloc(sizeof *consumer);

    *consumer = (struct consumer){.events = *events, .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    *ret = consumer;
    enum result result = consumer->fd < 0 ? error_fatal(err, "cannot make an event descriptor")
                                          : make_conf(config, consumer, &conf, err);
    if (result == OK) {
        consumer->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof text);
        if (consumer->rk != NULL)
            conf = NULL; /* librdkafka's now */
        else
            result = error_fatal(err, "the OUTBOX_KAFKA_ settings do not fit together: %s", text);
    }
    if (result == OK) {
        rd_kafka_poll_set_consumer(consumer->rk);
        consumer->queue = rd_kafka_queue_get_consumer(consumer->rk);
        rd_kafka_queue_io_event_enable(consumer->queue, consumer->fd, &one, sizeof one);
    }
    if (result != OK)
        consumer_free(TAKE(*ret));
    return result;
}

void consumer_free(struct consumer *consumer)
{
    if (consumer == NULL)
        return;
    if (consumer->rk != NULL) {
        rd_kafka_consumer_close(consumer->rk);
        if (consumer->queue != NULL) {
            rd_kafka_queue_io_event_enable(consumer->queue, -1, NULL, 0);
            rd_kafka_queue_destroy(consumer->queue);
        }
        rd_kafka_destroy(consumer->rk);
    }
    if (consumer->fd >= 0)
        close(consumer->fd);
    free(consumer);
}

int consumer_fd(const struct consumer *consumer)
{
    return consumer->fd;
}

/* --- messages --- */

static void back(struct consumer *consumer)
{
    consumer->away_since = 0;
    consumer->away_for_sure = consumer->doubt = false;
    consumer->last[0] = '\0';
    consumer->heard_at = clock_ms();
}

static size_t size_of(const struct letter *letter)
{
    const char *name;
    struct slice value;
    size_t size = letter->key.len + letter->value.len;
    for (size_t i = 0; consumer_header(letter, i, &name, &value); i++)
        size += HEADER_BYTES + strlen(name) + value.len;
    return size;
}

static bool is_refusal(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED ||
           code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED || code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
}

enum polled consumer_poll(struct consumer *consumer, struct letter *ret, struct error *err)
{
    uint64_t count;
    /* The descriptor first, then the queue: what comes in between writes to it again. */
    if (read(consumer->fd, &count, sizeof count) < 0)
        count = 0;
    rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer->rk, 0);
    if (message == NULL)
        return POLLED_NOTHING;
    if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        const char *topic = message->rkt ? rd_kafka_topic_name(message->rkt) : NULL;
        error_retry(err, "%s%s%s", topic ? topic : "", topic ? ": " : "", rd_kafka_message_errstr(message));
        if (is_refusal(message->err))
            snprintf(consumer->refusal, sizeof consumer->refusal, "Kafka: %.500s", err->message);
        rd_kafka_message_destroy(message);
        return POLLED_COMPLAINT;
    }
    back(consumer);
    *ret = (struct letter){
        .topic = rd_kafka_topic_name(message->rkt),
        .partition = message->partition,
        .offset = message->offset,
        .key = {message->key, message->key_len},
        .value = {message->payload, message->len},
        .message = message,
    };
    ret->size = size_of(ret);
    return POLLED_LETTER;
}

void consumer_pause(struct consumer *consumer, const char *topic, int partition, bool pause)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, partition);
    if (pause)
        rd_kafka_pause_partitions(consumer->rk, list);
    else
        rd_kafka_resume_partitions(consumer->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
}

/* --- offsets --- */

static rd_kafka_topic_partition_list_t *make_list(const struct position *positions, size_t n)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)n);
    for (size_t i = 0; i < n; i++)
        rd_kafka_topic_partition_list_add(list, positions[i].topic, positions[i].partition)->offset =
            positions[i].offset;
    return list;
}

void consumer_commit(struct consumer *consumer, const struct position *positions, size_t n)
{
    rd_kafka_topic_partition_list_t *list = make_list(positions, n);
    if (rd_kafka_commit(consumer->rk, list, 1) != RD_KAFKA_RESP_ERR_NO_ERROR)
        consumer->commit_failed = true;
    rd_kafka_topic_partition_list_destroy(list);
}

enum result consumer_commit_wait(struct consumer *consumer, const struct position *positions, size_t n, int timeout_ms,
                                 struct error *err)
{
    rd_kafka_topic_partition_list_t *list = make_list(positions, n);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(consumer->rk);
    rd_kafka_resp_err_t code = rd_kafka_commit_queue(consumer->rk, list, queue, NULL, NULL);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        rd_kafka_event_t *event = rd_kafka_queue_poll(queue, timeout_ms);
        code = event ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
        rd_kafka_event_destroy(event);
    }
    rd_kafka_queue_destroy(queue);
    rd_kafka_topic_partition_list_destroy(list);
    consumer->commit_failed |= code != RD_KAFKA_RESP_ERR_NO_ERROR;
    return code ? error_retry(err, "cannot commit offsets: %s", rd_kafka_err2str(code)) : OK;
}

bool consumer_commit_failed(struct consumer *consumer)
{
    bool failed = consumer->commit_failed;
    consumer->commit_failed = false;
    return failed;
}

int64_t consumer_end(struct consumer *consumer, const char *topic, int partition)
{
    int64_t low, high;
    if (rd_kafka_get_watermark_offsets(consumer->rk, topic, partition, &low, &high) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return -1;
    return high < 0 ? -1 : high;
}

/* --- how it is --- */

const char *consumer_away(struct consumer *consumer)
{
    if (consumer->away_for_sure || (consumer->away_since && clock_ms() - consumer->away_since >= AWAY_GRACE_MS))
        return consumer->away;
    return NULL;
}

const char *consumer_refusal(const struct consumer *consumer)
{
    return consumer->refusal[0] ? consumer->refusal : NULL;
}

bool consumer_is_quiet(const struct consumer *consumer)
{
    return consumer->doubt || consumer->away_since || clock_ms() - consumer->heard_at >= QUIET_MS;
}

enum result consumer_ping(struct consumer *consumer, int timeout_ms, struct error *err)
{
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_resp_err_t code = rd_kafka_metadata(consumer->rk, 0, NULL, &metadata, timeout_ms);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        if (consumer->away_since == 0) {
            snprintf(consumer->away, sizeof consumer->away, "%s",
                     consumer->last[0] ? consumer->last : rd_kafka_err2str(code));
            consumer->away_since = clock_ms();
        }
        consumer->away_for_sure = true;
        return error_retry(err, "Kafka is away: %s", consumer->away);
    }
    rd_kafka_metadata_destroy(metadata);
    back(consumer);
    return OK;
}

bool consumer_is_dead(struct consumer *consumer, struct error *err)
{
    char text[512];
    rd_kafka_resp_err_t code = rd_kafka_fatal_error(consumer->rk, text, sizeof text);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return false;
    error_retry(err, "Kafka gave this consumer up: %s", text);
    return true;
}

int64_t consumer_retention(struct consumer *consumer, const char *topic, int timeout_ms)
{
    return describe_topic(consumer->rk, topic, timeout_ms).retention_ms;
}
