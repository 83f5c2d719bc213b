/* A worker's way to Kafka: every event handed over comes back with a verdict, in an order that can be trusted.
 *
 * The broker takes or refuses a record batch as a whole, and librdkafka publishes what stands behind a refused one. So a
 * batch travels in rounds of at most one record batch a partition, and nothing stands behind it (rounds.c has the
 * argument). What was refused is tried again in parts, in order; only a refusal while alone is the event's own. Rows with
 * retry_count > 0 and probes go alone at once. A purged or fatal librdkafka handle is replaced and counted.
 *
 * One thread owns a publisher; nothing in here is shared but librdkafka's own threads. No call blocks longer than the
 * time it is given. */
#ifndef OUTBOXD_PUBLISHER_H
#define OUTBOXD_PUBLISHER_H

#include <stdbool.h>
#include <stdint.h>

#include "batch.h"
#include "config.h"
#include "error.h"
#include "metrics.h"

struct publisher;

/* FATAL: a property that librdkafka does not know or take (err names the OUTBOX_KAFKA_ setting). Does not wait for a
 * broker. `config` must outlive the publisher; `metrics` may be NULL. */
enum result publisher_new(const struct config *config, struct metrics *metrics, struct publisher **ret,
                          struct error *err) CHECK_RESULT;
void publisher_free(struct publisher *publisher); /* NULL-safe; bounded: purges, does not flush */

/* Becomes readable when publisher_poll has something to do. For poll(2). */
int publisher_fd(const struct publisher *publisher);

/* Serves reports and errors without waiting; only when every connection went away while idle it asks back, for two seconds
 * at most. */
void publisher_poll(struct publisher *publisher);

/* Are all brokers away for two seconds, or do they not let us in? Then the reason, the true one as librdkafka's
 * error events tell it; else NULL. */
const char *publisher_away(const struct publisher *publisher);

/* The breaker's question: does the cluster answer a metadata request within timeout_ms? OK closes it. */
enum result publisher_ping(struct publisher *publisher, int timeout_ms, struct error *err) CHECK_RESULT;

/* What is watched beside Kafka (NULL: nothing): when `gone(arg)` says so after fd became readable, the batch is no
 * longer ours. */
struct publisher_watch {
    int fd;
    bool (*gone)(void *arg);
    void *arg;
};

enum settled {
    SETTLED, /* every event has a verdict; LEFT among them only for nobody's fault */
    SETTLED_WORLD, /* Kafka is away (publisher_away or the error has the reason): what was acknowledged is SENT, the rest LEFT */
    SETTLED_GONE, /* the watch fired: nothing of this batch may be marked */
};

/* publish: hands the events that have no verdict yet (VERDICT_NONE) to Kafka in order, each to all topics of its route.
 * Bad events (topic name, headers, size) become VERDICT_DEAD here. A full queue is polled and gone on with. Topics are
 * asked for by metadata before their first message: a missing or forbidden one is VERDICT_PARK at once. That takes half of
 * the time at most; what is not ready then is left. false: the watch fired meanwhile, and nothing was handed over.
 * settle: waits until each has its verdict, for probes alone at most two seconds, at most until `deadline` (clock_ms) and
 * PUBLISHER_GIVE_UP_MS, in which it asks whether the cluster or a topic is at fault and gets back what is out; isolates
 * suspects; replaces the handle where need be.
 * After settle no report is out: the batch's memory may go. reasons are set on all but SENT and LEFT. */
#define PUBLISHER_GIVE_UP_MS 5000
bool publisher_send(struct publisher *publisher, struct batch *batch, int64_t deadline,
                    const struct publisher_watch *watch) CHECK_RESULT;
enum settled publisher_settle(struct publisher *publisher, struct batch *batch, int64_t deadline,
                              const struct publisher_watch *watch, struct error *err) CHECK_RESULT;

/* Copies of events that become DEAD go to OUTBOX_DEAD_TOPIC with headers outbox_error and outbox_topic. Returns how many
 * could not be sent, as those that are not whole; it holds up nothing longer than until `deadline` and PUBLISHER_BURY_MS. */
#define PUBLISHER_BURY_MS 2000
size_t publisher_bury(struct publisher *publisher, struct event *const *dead, size_t n, int64_t deadline);

/* For run and check: what the librdkafka in use makes of these settings, and nobody would expect. */
struct publisher_trap {
    const char *seen, *why, *remedy; /* static */
};
const struct publisher_trap *publisher_trap(const struct config *config,
                                            size_t i); /* the i-th, from 0; NULL: no more */

#endif
