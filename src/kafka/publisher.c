/* Prepare: the first third of a batch's way. Every event is looked at in order: a bad one is DEAD, one whose topic is away
 * is parked, and both stand in the way of what follows them in their streams; the rest become messages. Hand over and
 * judge: rounds.c. Wait, and the verdicts: settle.c. */
#include "publisher.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "publisher_state.h"
#include "str.h"

#define FATAL_BASE_MS 200
#define FATAL_CAP_MS  5000
#define FATAL_LOOK_MS 500 /* in which a broker that does not let an idempotent producer in says so */

enum result publisher_new(const struct config *config, struct metrics *metrics, struct publisher **ret,
                          struct error *err)
{
    struct publisher *publisher = mem_alloc(sizeof(*publisher));

    *publisher = (struct publisher){.config = config, .metrics = metrics};
    publisher->fatal_pause = (struct backoff){.base_ms = FATAL_BASE_MS, .cap_ms = FATAL_CAP_MS};
    publisher->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (publisher->fd < 0) {
        free(publisher);
        return error_fatal(err, "no file descriptor for a Kafka producer");
    }
    /* At once: settings that librdkafka does not take must stop the start. */
    enum result result = handle_new(config, publisher->fd, &publisher->outage, &publisher->handle, err);
    if (result != OK) {
        publisher_free(publisher);
        return result;
    }
    *ret = publisher;
    return OK;
}

void publisher_free(struct publisher *publisher)
{
    if (!publisher)
        return;
    if (publisher->handle)
        handle_purge(publisher->handle, true);
    topics_forget_handle(&publisher->topics);
    handle_free(publisher->handle);
    topics_done(&publisher->topics);
    headers_done(&publisher->headers);
    streams_done(&publisher->blocked);
    free(publisher->messages);
    close(publisher->fd);
    free(publisher);
}

int publisher_fd(const struct publisher *publisher)
{
    return publisher->fd;
}

bool publisher_ask_back(struct publisher *publisher, int timeout_ms)
{
    const struct rd_kafka_metadata *metadata;

    if (rd_kafka_metadata(publisher->handle->rk, 0, NULL, &metadata, timeout_ms) != 0)
        return false;
    rd_kafka_metadata_destroy(metadata);
    outage_over(&publisher->outage);
    return true;
}

void publisher_poll(struct publisher *publisher)
{
    struct outage *outage = &publisher->outage;
    uint64_t wakes;

    /* The descriptor first: what arrives while the queue is served must wake us again. */
    if (read(publisher->fd, &wakes, sizeof(wakes)) < 0)
        wakes = 0;
    if (!publisher->handle)
        return;
    handle_serve(publisher->handle, 0);
    /* All connections went away while nothing was on its way. A broker that closes idle ones is not away: asking makes
     * librdkafka connect again. */
    if (outage->since && !outage_is_sure(outage) && publisher->handle->out == 0)
        publisher_ask_back(publisher, clock_left_ms(outage->since + OUTAGE_GRACE_MS));
}

const char *publisher_away(const struct publisher *publisher)
{
    return outage_is_sure(&publisher->outage) ? publisher->outage.reason : NULL;
}

/* A cluster that answers may still be one that made the last producer fail at once. */
static bool fails_again(struct publisher *publisher, struct handle *handle)
{
    int64_t until = clock_ms() + FATAL_LOOK_MS;

    while (!handle->fatal && publisher->fatal_pause.tries && clock_left_ms(until) > 0)
        handle_serve(handle, clock_left_ms(until));
    if (handle->fatal)
        publisher->not_before = clock_ms() + backoff_next(&publisher->fatal_pause);
    return handle->fatal != 0;
}

enum result publisher_ping(struct publisher *publisher, int timeout_ms, struct error *err)
{
    const struct rd_kafka_metadata *metadata;

    if (clock_ms() < publisher->not_before)
        return error_retry(err, "%s", publisher->world_reason);
    publisher->world = false;
    struct handle *handle = publisher_handle(publisher);
    if (!handle)
        return error_retry(err, "%s", publisher->world_reason);
    rd_kafka_resp_err_t error = rd_kafka_metadata(handle->rk, 0, NULL, &metadata, timeout_ms);
    handle_serve(handle, 0);
    if (error)
        return error_retry(err, "Kafka does not answer: %s", outage_text(&publisher->outage));
    rd_kafka_metadata_destroy(metadata);
    if (fails_again(publisher, handle))
        return error_retry(err, "%s", handle->fatal_text);
    outage_over(&publisher->outage);
    return OK;
}

struct handle *publisher_handle(struct publisher *publisher)
{
    struct error err = {0};

    if (publisher->handle && handle_is_used_up(publisher->handle) && publisher->handle->out == 0)
        publisher_drop(publisher);
    if (!publisher->handle &&
        handle_new(publisher->config, publisher->fd, &publisher->outage, &publisher->handle, &err) != OK)
        publisher_blame_world(publisher, "no Kafka producer can be made: %s", err.message);
    return publisher->handle;
}

void publisher_drop(struct publisher *publisher)
{
    topics_forget_handle(&publisher->topics);
    handle_free(publisher->handle);
    publisher->handle = NULL;
    if (publisher->metrics)
        metrics_add(publisher->metrics, M_PRODUCER_REBUILDS, 1);
}

void publisher_blame_world(struct publisher *publisher, const char *format, ...)
{
    va_list args;

    if (publisher->world)
        return;
    publisher->world = true;
    va_start(args, format);
    vsnprintf(publisher->world_reason, sizeof(publisher->world_reason), format, args);
    va_end(args);
}

void publisher_blame_outage(struct publisher *publisher)
{
    const char *text = outage_text(&publisher->outage);

    if (publisher->outage.refused)
        publisher_blame_world(publisher, "%s", text);
    else
        publisher_blame_world(publisher, "no broker answers: %s", text);
}

enum result publisher_build_headers(struct publisher *publisher, const struct message *message, struct error *err)
{
    const struct config *config = publisher->config;
    struct event plain;

    enum result result =
        headers_build(&publisher->headers, message->event, (enum header_format)config->headers, config->source, err);
    if (!message->copy)
        return result;
    /* A copy for the dead topic: the row's own headers may be what is wrong with it. */
    if (result != OK) {
        plain = *message->event;
        plain.headers = (struct slice){"{}", 2};
        result = headers_build(&publisher->headers, &plain, (enum header_format)config->headers, config->source, err);
    }
    const struct event *event = message->event;
    headers_set(&publisher->headers, "outbox_error", event->reason ? event->reason : "");
    headers_set(&publisher->headers, "outbox_topic",
                event->routing_key.data ? event->routing_key.data : event->topic.data);
    return result;
}

bool publisher_is_passable(const struct publisher *publisher, const struct event *event)
{
    return event->verdict == VERDICT_DEAD && publisher->config->on_dead == ON_DEAD_SKIP;
}

static void block_followers(struct publisher *publisher, const struct event *event)
{
    if (publisher->ordered && !publisher_is_passable(publisher, event))
        streams_add_event(&publisher->blocked, event);
}

/* Faults that can be seen without Kafka; all topics, before anything is sent to the first. */
static bool is_bad(struct event *event)
{
    if (event->route.n == 0)
        event_judge(event, VERDICT_DEAD, "routing_key names no topic");
    if (event->route.n > ROUTE_MAX)
        event_judge(event, VERDICT_DEAD, "routing_key names more than %d topics", ROUTE_MAX);
    for (size_t i = 0; i < event->route.n; i++) {
        const char *fault = route_topic_fault(route_topic(&event->route, i));
        if (fault)
            event_judge(event, VERDICT_DEAD, "Kafka takes no topic named \"%s\": %s", route_topic(&event->route, i),
                        fault);
    }
    return event->verdict == VERDICT_DEAD;
}

/* Can all topics of the event be written to? If not it is parked, or the world is away, or time is up: a cluster that
 * answers, but not fast enough for so many topics, is no outage. */
static bool are_topics_ready(struct publisher *publisher, struct handle *handle, struct event *event, int64_t deadline)
{
    for (size_t i = 0; i < event->route.n; i++) {
        const char *name = route_topic(&event->route, i);
        struct topic *topic = topics_get(&publisher->topics, name);
        if (topic->limit != NO_LIMIT)
            topic_refresh_limit(topic, handle, deadline);
        switch (topic_ask(topic, handle, publisher->batch, deadline)) {
        case TOPIC_READY:
            continue;
        case TOPIC_AWAY:
            event_judge(event, VERDICT_PARK, "topic %s: %s", name, topic->reason);
            event->blame = name;
            return false;
        case TOPIC_WORLD:
            if (!handle->fatal && (handle->answered_in != publisher->batch || outage_is_sure(&publisher->outage)))
                publisher_blame_outage(publisher);
            return false;
        }
    }
    return true;
}

static void add_message(struct publisher *publisher, struct event *event, const char *name, bool copy)
{
    struct topic *topic = topics_get(&publisher->topics, name);

    publisher->messages[publisher->n++] = (struct message){
        .event = event, .name = name, .topic = topic, .partition = topic_partition(topic, event->key), .copy = copy};
}

/* One event; false: there is no point in going on with this batch. */
static bool prepare(struct publisher *publisher, struct handle *handle, struct event *event, int64_t deadline)
{
    if (is_bad(event)) {
        block_followers(publisher, event);
    } else if (streams_touch_event(&publisher->blocked, event)) {
        event_judge(event, VERDICT_LEFT, NULL);
        block_followers(publisher, event);
    } else if (!are_topics_ready(publisher, handle, event, deadline)) {
        block_followers(publisher, event);
        return event->verdict == VERDICT_PARK;
    } else {
        for (size_t i = 0; i < event->route.n; i++)
            add_message(publisher, event, route_topic(&event->route, i), false);
    }
    return true;
}

static void begin(struct publisher *publisher, size_t n, bool ordered)
{
    publisher->batch++;
    publisher->n = publisher->first = 0;
    publisher->ordered = ordered;
    publisher->world = publisher->answers = false;
    streams_clear(&publisher->blocked);
    topics_trim(&publisher->topics);
    if (publisher->outage.since)
        publisher->outage.since = clock_ms(); /* connections may come back when they are needed */
    if (n > publisher->cap) {
        publisher->messages = mem_grow(publisher->messages, n, sizeof(*publisher->messages));
        publisher->cap = n;
    }
}

bool publisher_watch_fired(const struct publisher_watch *watch)
{
    if (!watch)
        return false;
    struct pollfd fd = {.fd = watch->fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0 && watch->gone(watch->arg);
}

bool publisher_send(struct publisher *publisher, struct batch *batch, int64_t deadline,
                    const struct publisher_watch *watch)
{
    size_t n = 0;

    for (size_t i = 0; i < batch->n; i++)
        if (batch->events[i].verdict == VERDICT_NONE && batch->events[i].route.n <= ROUTE_MAX)
            n += batch->events[i].route.n;
    begin(publisher, n, publisher->config->ordering == ORDER_KEY);
    struct handle *handle = publisher_handle(publisher);
    int64_t half = clock_ms() + clock_left_ms(deadline) / 2; /* the rest is for what is ready then */
    for (size_t i = 0; handle && i < batch->n; i++)
        if (batch->events[i].verdict == VERDICT_NONE && !prepare(publisher, handle, &batch->events[i], half))
            break;
    /* All followers of what is blocked were left out above; from now on the set is for what happens on the way. */
    streams_clear(&publisher->blocked);
    if (publisher_watch_fired(watch))
        return false;
    round_hand_over(publisher, deadline);
    return true;
}

size_t publisher_bury(struct publisher *publisher, struct event *const *dead, size_t n, int64_t deadline)
{
    size_t lost = n;

    begin(publisher, n, false);
    struct handle *handle = publisher_handle(publisher);
    struct topic *topic = topics_get(&publisher->topics, publisher->config->dead_topic);
    if (!handle || topic_ask(topic, handle, publisher->batch, deadline) != TOPIC_READY)
        return n;
    for (size_t i = 0; i < n; i++)
        if (event_is_whole(dead[i])) /* else it would be a tombstone */
            add_message(publisher, dead[i], publisher->config->dead_topic, true);
    round_hand_over(publisher, deadline);
    (void)publisher_run_rounds(publisher, deadline, NULL); /* the messages tell how it went */
    for (size_t i = 0; i < publisher->n; i++)
        lost -= publisher->messages[i].state == MESSAGE_ACKED;
    return lost;
}

static bool has_broken_scram(const struct config *config)
{
    const char *mechanism = config_kafka(config, "sasl.mechanism");

    if (!mechanism)
        mechanism = config_kafka(config, "sasl.mechanisms");
    return mechanism && str_has_prefix(mechanism, "SCRAM") && rd_kafka_version() < 0x020601ff;
}

static bool has_idle_settings(const struct config *config)
{
    return config_kafka(config, "linger.ms") || config_kafka(config, "queue.buffering.max.ms") ||
           config_kafka(config, "batch.num.messages");
}

static const struct {
    bool (*holds)(const struct config *config);
    struct publisher_trap trap;
} traps[] = {
    {has_broken_scram,
     {"librdkafka before 2.6.1 cannot log in to Kafka 4 with SCRAM: it says that the credentials are invalid",
      "the login fails although the password is right",
      "OUTBOX_KAFKA_SASL_MECHANISM=PLAIN with OUTBOX_KAFKA_SECURITY_PROTOCOL=sasl_ssl, or librdkafka 2.6.1 or newer"}},
    {has_idle_settings,
     {"OUTBOX_KAFKA_LINGER_MS, OUTBOX_KAFKA_QUEUE_BUFFERING_MAX_MS and OUTBOX_KAFKA_BATCH_NUM_MESSAGES have no effect",
      "outboxd ends each record batch itself", "leave them out, and use OUTBOX_BATCH_SIZE"}},
};

const struct publisher_trap *publisher_trap(const struct config *config, size_t i)
{
    for (size_t k = 0; k < ARRAY_LEN(traps); k++)
        if (traps[k].holds(config) && i-- == 0)
            return &traps[k].trap;
    return NULL;
}
