#include "intake.h"

#include <stdlib.h>

#include "clock.h"
#include "log.h"
#include "parse.h"
#include "render.h"
#include "route.h"

#define PING_TIMEOUT_MS      2000
#define COMMIT_TIMEOUT_MS    3000
#define COMMIT_INTERVAL_MS   250 /* what was not committed is only read again, and known */
#define GAUGE_INTERVAL_MS    1000
#define RETENTION_TIMEOUT_MS 3000
#define WAITING_BATCHES      5      /* messages that wait in streams, at most, before partitions are paused */
#define AHEAD_MAX            100000 /* settled ones behind the first that is not, of all partitions together */

/* --- what comes and goes --- */

/* Offsets of what is settled, of all partitions at once. With `wait` for the answer: they are about to go. What is not committed
 * then is read again by whoever gets them, and known. */
static void commit(struct intake *intake, bool wait)
{
    struct error err = {0};
    size_t n = 0;
    bool repeat = consumer_commit_failed(intake->consumer);
    struct position *positions = mem_alloc((size_t)(intake->assigned + 1) * sizeof *positions);
    for (struct partition *partition = intake->hand.partitions; partition != NULL; partition = partition->next) {
        if (!partition->assigned || partition->position < 0 || (!repeat && partition->position == partition->committed))
            continue;
        positions[n++] = (struct position){partition->topic, partition->number, partition->position};
        partition->committed = partition->position;
    }
    if (n > 0 && !wait)
        consumer_commit(intake->consumer, positions, n);
    else if (n > 0 && consumer_commit_wait(intake->consumer, positions, n, COMMIT_TIMEOUT_MS, &err) != OK)
        log_debug("%s", err.message);
    free(positions);
    intake->committed_at = clock_ms();
}

static void assigned(void *arg, const char *topic, int number)
{
    struct intake *intake = arg;
    hand_assign(&intake->hand, hand_partition(&intake->hand, topic, number));
    atomic_store(&intake->duty->partitions, ++intake->assigned);
    /* Said either way: librdkafka remembers a pause from before the partition was taken away. */
    consumer_pause(intake->consumer, topic, number, intake->hushed);
    log_topic(LOG_LEVEL_INFO, topic, "got partition %d", number);
}

static void revoked(void *arg, const char *topic, int number, bool lost)
{
    struct intake *intake = arg;
    struct partition *partition = hand_partition(&intake->hand, topic, number);
    if (!partition->assigned)
        return;
    if (!lost)
        commit(intake, true);
    hand_revoke(&intake->hand, partition);
    atomic_store(&intake->duty->partitions, --intake->assigned);
    log_topic(LOG_LEVEL_INFO, topic, "%s partition %d", lost ? "lost" : "gave back", number);
}

/* --- opening and closing --- */

void intake_init(struct intake *intake, const struct config *config, struct duty *duty, struct metrics *metrics)
{
    *intake = (struct intake){.config = config, .duty = duty, .metrics = metrics};
    hand_init(&intake->hand);
}

/* A message that is still in Kafka when its mark has expired would be taken for new by a replay. Kafka deletes whole
 * segments, so it keeps some for longer than it says: equal is too short. */
static void compare_retention(struct intake *intake)
{
    struct route topics;
    char ours[32], theirs[32];
    format_duration(intake->config->inbox_retention, ours);
    route_init(&topics, "", intake->config->consumer_topics);
    for (size_t i = 0; i < topics.n && !duty_stopping(intake->duty); i++) {
        int64_t ms = consumer_retention(intake->consumer, route_topic(&topics, i), RETENTION_TIMEOUT_MS);
        if (ms < intake->config->inbox_retention)
            continue;
        if (ms != MS_FOREVER)
            format_duration(ms, theirs);
        log_topic(
            LOG_LEVEL_WARNING, route_topic(&topics, i),
            "OUTBOX_INBOX_RETENTION (%s) is not longer than the topic keeps events (%s): a replay of older ones would "
            "take effect again",
            ours, ms == MS_FOREVER ? "for ever" : theirs);
    }
    route_done(&topics);
}

enum result intake_open(struct intake *intake, struct error *err)
{
    const struct consumer_events events = {intake, assigned, revoked};
    enum result result = OK;
    if (intake->consumer == NULL)
        result = consumer_new(intake->config, &events, &intake->consumer, err);
    if (result == OK)
        result = consumer_ping(intake->consumer, PING_TIMEOUT_MS, err);
    if (result != OK)
        return result;
    compare_retention(intake);
    return consumer_join(intake->consumer, intake->config, err);
}

void intake_close(struct intake *intake)
{
    if (intake->consumer == NULL)
        return;
    commit(intake, true);
    for (struct partition *partition = intake->hand.partitions; partition != NULL; partition = partition->next)
        if (partition->assigned)
            hand_revoke(&intake->hand, partition); /* librdkafka waits for every letter that is out */
    intake->assigned = 0;
    atomic_store(&intake->duty->partitions, 0);
    consumer_free(TAKE(intake->consumer));
    intake->hushed = false;
}

void intake_done(struct intake *intake)
{
    intake_close(intake);
    hand_done(&intake->hand);
}

/* --- polling --- */

static bool is_full(const struct intake *intake, size_t enough)
{
    return intake->hand.ready >= enough || intake->hand.ready_bytes >= (size_t)intake->config->batch_bytes;
}

/* Once at least: whoever does not poll is thrown out of the group, and keeps it from rebalancing. false: nothing more
 * is there. */
static bool poll_some(struct intake *intake, size_t enough)
{
    struct letter letter;
    struct error err = {0};
    do {
        switch (consumer_poll(intake->consumer, &letter, &err)) {
        case POLLED_NOTHING:
            return false;
        case POLLED_COMPLAINT:
            log_warning("Kafka: %s", err.message);
            break;
        case POLLED_LETTER:
            hand_admit(&intake->hand, &letter, render_id(&letter));
            break;
        }
    } while (!is_full(intake, enough));
    return true;
}

bool intake_poll(struct intake *intake, size_t enough)
{
    intake_resume(intake);
    return poll_some(intake, enough);
}

static void pause_all(struct intake *intake, bool pause)
{
    for (struct partition *partition = intake->hand.partitions; partition != NULL; partition = partition->next)
        if (partition->assigned && !partition->paused)
            consumer_pause(intake->consumer, partition->topic, partition->number, pause);
}

void intake_hush(struct intake *intake, size_t enough)
{
    if (intake->consumer == NULL)
        return;
    if (!intake->hushed && is_full(intake, enough)) {
        pause_all(intake, true);
        intake->hushed = true;
    }
    poll_some(intake, enough);
}

void intake_resume(struct intake *intake)
{
    if (intake->hushed)
        pause_all(intake, false);
    intake->hushed = false;
}

/* --- tending --- */

static void bound(struct intake *intake)
{
    const struct hand *hand = &intake->hand;
    size_t most = WAITING_BATCHES * (size_t)intake->config->batch_size;
    size_t most_bytes = WAITING_BATCHES * (size_t)intake->config->batch_bytes;
    bool full = hand->waiting > most || hand->waiting_bytes > most_bytes || hand->settled > AHEAD_MAX;
    bool room = hand->waiting <= most / 2 && hand->waiting_bytes <= most_bytes / 2 && hand->settled <= AHEAD_MAX / 2;
    int paused = 0;

    for (struct partition *partition = hand->partitions; partition != NULL; partition = partition->next) {
        if (!partition->assigned)
            continue;
        if (partition->paused ? room || partition->waiting == 0 : full && partition->waiting > 0) {
            partition->paused = !partition->paused;
            if (partition->paused)
                log_topic(LOG_LEVEL_INFO, partition->topic,
                          "partition %d is paused: too much waits behind events that failed", partition->number);
            else
                log_topic(LOG_LEVEL_INFO, partition->topic, "partition %d goes on", partition->number);
            if (!intake->hushed)
                consumer_pause(intake->consumer, partition->topic, partition->number, partition->paused);
        }
        paused += partition->paused;
    }
    metrics_set(intake->metrics, M_CONSUMER_PAUSED, paused);
}

static void set_gauges(struct intake *intake)
{
    int64_t lag = 0;
    for (struct partition *partition = intake->hand.partitions; partition != NULL; partition = partition->next) {
        if (!partition->assigned || partition->position < 0)
            continue;
        int64_t end = consumer_end(intake->consumer, partition->topic, partition->number);
        if (end > partition->position)
            lag += end - partition->position;
    }
    metrics_set(intake->metrics, M_CONSUMER_LAG, (double)lag);
    metrics_set(intake->metrics, M_CONSUMER_WAITING, (double)intake->hand.waiting);
    metrics_set(intake->metrics, M_CONSUMER_PARTITIONS, intake->assigned);
    intake->gauged_at = clock_ms();
}

void intake_tend(struct intake *intake)
{
    int64_t time = clock_ms();
    if (intake->consumer == NULL)
        return;
    bound(intake);
    if (time - intake->committed_at >= COMMIT_INTERVAL_MS)
        commit(intake, false);
    if (time - intake->gauged_at >= GAUGE_INTERVAL_MS)
        set_gauges(intake);
}
