#include "topics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "str.h"
#include "verdicts.h"

#define TOPICS_MAX  10000
#define ASK_MS      500 /* for an answer, before a look at what the error events say; then ask again, with more time */
#define ASK_MOST_MS 2000
#define CREATE_MS   500 /* a broker that makes topics by itself needs a moment */

static uint64_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash ^ (hash >> 29);
}

static struct topic **find_slot(const struct topics *topics, const char *name, uint64_t hash)
{
    size_t i = (size_t)hash & (topics->cap - 1);

    while (topics->slots[i] && (topics->slots[i]->hash != hash || !str_eq(topics->slots[i]->name, name)))
        i = (i + 1) & (topics->cap - 1);
    return &topics->slots[i];
}

static void grow(struct topics *topics)
{
    struct topics bigger = {.n = topics->n, .cap = topics->cap ? topics->cap * 2 : 64, .last = topics->last};

    bigger.slots = mem_alloc(bigger.cap * sizeof(struct topic *));
    for (size_t i = 0; i < topics->cap; i++)
        if (topics->slots[i])
            *find_slot(&bigger, topics->slots[i]->name, topics->slots[i]->hash) = topics->slots[i];
    free(topics->slots);
    *topics = bigger;
}

struct topic *topics_get(struct topics *topics, const char *name)
{
    if (topics->last && str_eq(topics->last->name, name))
        return topics->last;
    if (topics->n * 2 >= topics->cap)
        grow(topics);
    uint64_t hash = hash_name(name);
    struct topic **slot = find_slot(topics, name, hash);
    if (!*slot) {
        *slot = mem_alloc(sizeof(struct topic));
        **slot = (struct topic){.name = str_dup(name), .hash = hash, .limit = NO_LIMIT};
        topics->n++;
    }
    return topics->last = *slot;
}

static void forget(struct topic *topic)
{
    if (topic->rkt)
        rd_kafka_topic_destroy(topic->rkt);
    topic->rkt = NULL;
    topic->known = false;
}

void topics_forget_handle(struct topics *topics)
{
    for (size_t i = 0; i < topics->cap; i++)
        if (topics->slots[i])
            forget(topics->slots[i]);
}

void topics_done(struct topics *topics)
{
    for (size_t i = 0; i < topics->cap; i++)
        if (topics->slots[i]) {
            free(topics->slots[i]->name);
            free(topics->slots[i]->shares);
            free(topics->slots[i]);
        }
    free(topics->slots);
    *topics = (struct topics){0};
}

void topics_trim(struct topics *topics)
{
    if (topics->n < TOPICS_MAX)
        return;
    topics_forget_handle(topics);
    topics_done(topics);
}

static enum topic_answer away(struct topic *topic, unsigned batch, int error, const char *reason)
{
    topic->away_in = batch;
    topic->away_error = error;
    snprintf(topic->reason, sizeof(topic->reason), "%s", reason);
    /* librdkafka asks for the metadata of every topic object that it has, so one that is away must not stay. */
    forget(topic);
    return TOPIC_AWAY;
}

void topic_failed(struct topic *topic, unsigned batch, int error)
{
    away(topic, batch, error, ruling_text(error));
}

/* Any leaderless partition parks the topic: its keys would wait for the deadline in every batch, and a probe that lands
 * on another partition would declare the topic well. */
static enum topic_answer judge_metadata(struct topic *topic, unsigned batch,
                                        const struct rd_kafka_metadata_topic *answer)
{
    char reason[sizeof(topic->reason)];

    if (answer->err)
        return away(topic, batch, answer->err, ruling_text(answer->err));
    if (answer->partition_cnt == 0)
        return away(topic, batch, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, "the topic has no partition");
    for (int i = 0; i < answer->partition_cnt; i++) {
        const struct rd_kafka_metadata_partition *partition = &answer->partitions[i];
        if (partition->leader >= 0 && partition->err != RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE)
            continue;
        snprintf(reason, sizeof(reason), "partition %d of the topic has no leader", (int)partition->id);
        return away(topic, batch, RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, reason);
    }
    size_t n = (size_t)answer->partition_cnt;
    if (n != topic->n_shares) {
        free(topic->shares);
        topic->shares = mem_alloc(n * sizeof(*topic->shares));
        topic->n_shares = n;
    }
    topic->known = true;
    return TOPIC_READY;
}

static enum topic_answer ask_once(struct topic *topic, struct handle *handle, unsigned batch, int64_t deadline)
{
    const struct rd_kafka_metadata *metadata;

    if (!topic->rkt)
        topic->rkt = rd_kafka_topic_new(handle->rk, topic->name, NULL);
    if (!topic->rkt)
        return away(topic, batch, rd_kafka_last_error(), rd_kafka_err2str(rd_kafka_last_error()));
    for (int slice = ASK_MS; !handle_is_used_up(handle); slice = slice * 2 < ASK_MOST_MS ? slice * 2 : ASK_MOST_MS) {
        int left = clock_left_ms(deadline);
        rd_kafka_resp_err_t error =
            rd_kafka_metadata(handle->rk, 0, topic->rkt, &metadata, left < slice ? left : slice);
        handle_serve(handle, 0);
        if (error == 0) {
            enum topic_answer answer = TOPIC_WORLD;
            outage_over(handle->outage);
            handle->answered_in = batch;
            topic->known_until = handle->refresh_ms > 0 ? clock_ms() + handle->refresh_ms : INT64_MAX;
            if (metadata->topic_cnt == 1)
                answer = judge_metadata(topic, batch, &metadata->topics[0]);
            rd_kafka_metadata_destroy(metadata);
            return answer;
        }
        if (left <= slice || outage_is_sure(handle->outage))
            break;
    }
    return TOPIC_WORLD;
}

enum topic_answer topic_ask(struct topic *topic, struct handle *handle, unsigned batch, int64_t deadline)
{
    if (topic->away_in == batch)
        return TOPIC_AWAY;
    if (topic->used_in != batch && clock_ms() >= topic->known_until)
        topic->known = false;
    topic->used_in = batch;
    if (topic->known)
        return TOPIC_READY;
    if (handle->patient_in != batch) { /* all new topics of a batch share it: a hundred of them are no outage */
        handle->patient_in = batch;
        handle->patience = 0;
    }
    if (!topic->met && handle->patience == 0)
        handle->patience = clock_ms() + CREATE_MS;
    int64_t patience = topic->met ? 0 : handle->patience;
    for (;;) {
        topic->away_in = 0;
        enum topic_answer answer = ask_once(topic, handle, batch, deadline);
        topic->met |= answer != TOPIC_WORLD;
        if (answer != TOPIC_AWAY || clock_ms() >= patience ||
            (topic->away_error != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART &&
             topic->away_error != RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE))
            return answer;
        usleep(50 * 1000);
    }
}

int topic_partition(const struct topic *topic, struct slice key)
{
    return rd_kafka_msg_partitioner_murmur2(topic->rkt, key.data, key.len, (int32_t)topic->n_shares, NULL, NULL);
}

struct share *topic_share(const struct topic *topic, int partition)
{
    /* One that is there no more, for the topic was made again under way: librdkafka will not take the message. */
    return &topic->shares[(size_t)partition < topic->n_shares ? partition : 0];
}
