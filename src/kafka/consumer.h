/* A member of a consumer group: hands out messages, tells which partitions come and go, commits offsets.
 *
 * One thread owns a consumer; its callbacks run inside consumer_poll and consumer_free, on that thread. Offsets are committed
 * only when the owner says so: after its database has committed. */
#ifndef OUTBOXD_CONSUMER_H
#define OUTBOXD_CONSUMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "error.h"
#include "event.h"

struct consumer;

struct consumer_events {
    void *arg;
    void (*assigned)(void *arg, const char *topic, int partition);
    /* Before the partition goes. `lost`: it is another's already, so nothing can be committed any more. */
    void (*revoked)(void *arg, const char *topic, int partition, bool lost);
};

/* FATAL: a setting that librdkafka does not take (err names it). Does not wait for a broker, and does not join. */
enum result consumer_new(const struct config *config, const struct consumer_events *events, struct consumer **ret,
                         struct error *err) CHECK_RESULT;
/* Joins the group for OUTBOX_CONSUMER_TOPICS; partitions come with later polls. */
enum result consumer_join(struct consumer *consumer, const struct config *config, struct error *err) CHECK_RESULT;
/* Leaves the group: partitions are revoked first. Letters must have been released. NULL-safe. */
void consumer_free(struct consumer *consumer);

int consumer_fd(const struct consumer *consumer); /* readable: consumer_poll has something. For poll(2) */

/* A message with its place; bytes are borrowed until consumer_release. */
struct letter {
    const char *topic;
    int partition;
    int64_t offset;
    struct slice key, value; /* data NULL: none */
    size_t size;             /* of key, value and headers, in memory */
    void *message;
    struct letter_copy *copy;
};

enum polled {
    POLLED_NOTHING,   /* nothing now */
    POLLED_LETTER,    /* *ret */
    POLLED_COMPLAINT, /* err says what librdkafka complains of: worth a line in the log */
};
/* Does not wait. Must be called every few seconds, also while every partition is paused: a member that does not ask for
 * messages for max.poll.interval.ms is thrown out of the group. */
enum polled consumer_poll(struct consumer *consumer, struct letter *ret, struct error *err);
void consumer_release(struct letter *letter); /* may be called twice */
/* For a letter that stays longer: copies its bytes and gives the message back, which holds on to all that was fetched with it. */
void consumer_keep(struct letter *letter);

/* Header number i of a letter; false: there are not so many. A null header has data NULL. */
bool consumer_header(const struct letter *letter, size_t i, const char **ret_name, struct slice *ret_value);

void consumer_pause(struct consumer *consumer, const char *topic, int partition, bool pause);

struct position {
    const char *topic;
    int partition;
    int64_t offset; /* of the first message that is not settled */
};
/* Sends the offsets and does not wait; a later commit of the same partition replaces an earlier one. */
void consumer_commit(struct consumer *consumer, const struct position *positions, size_t n);
/* Waits for the answer, at most timeout_ms. */
enum result consumer_commit_wait(struct consumer *consumer, const struct position *positions, size_t n, int timeout_ms,
                                 struct error *err) CHECK_RESULT;
/* Did a commit fail since the last call? Then it is to be repeated. */
bool consumer_commit_failed(struct consumer *consumer);

/* Offset behind the last message of a partition as the last fetch saw it; -1: not known yet. */
int64_t consumer_end(struct consumer *consumer, const char *topic, int partition);

/* Are all brokers away, or is authentication refused? Then the reason; else NULL. */
const char *consumer_away(struct consumer *consumer);
/* Why Kafka gives this member no partitions: it may not, or there is no such topic. NULL: no reason was heard since the last
 * rebalance. */
const char *consumer_refusal(const struct consumer *consumer);
/* Nothing was heard for some seconds, or a connection failed: worth a ping. An idle topic looks like this, too. */
bool consumer_is_quiet(const struct consumer *consumer);
/* Does the cluster answer within timeout_ms? OK ends an outage. */
enum result consumer_ping(struct consumer *consumer, int timeout_ms, struct error *err) CHECK_RESULT;
/* librdkafka has given this member up (err says why): free it and make a new one. */
bool consumer_is_dead(struct consumer *consumer, struct error *err);

/* How long the topic keeps messages in ms (describe.h). */
int64_t consumer_retention(struct consumer *consumer, const char *topic, int timeout_ms);

#endif
