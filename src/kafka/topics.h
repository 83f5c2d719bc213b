/* What a publisher knows about topics: librdkafka's objects, whether they can be written to, how much they take.
 *
 * A topic is asked for (metadata) before the first message that a handle sends to it: a missing, forbidden or
 * leaderless one is known in milliseconds, and the first message does not wait for librdkafka to find out by itself.
 * What answered well is remembered until a delivery fails, or for topic.metadata.refresh.interval.ms: it may have got
 * more partitions. What did not is asked again with the next batch. A batch stands on the partitions that were there
 * when it began. */
#ifndef OUTBOXD_TOPICS_H
#define OUTBOXD_TOPICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "handle.h"

#define NO_LIMIT SIZE_MAX

/* The part of a partition in the rounds of a batch (rounds.c): what a round hands over of it is one record batch. */
struct share {
    unsigned batch; /* number of the batch that group_n belongs to */
    size_t group_n; /* messages that its record batch may have now; 0: no bound */
    unsigned round; /* what follows belongs to this round */
    size_t n, bytes;
    bool full, refused;
};

struct topic {
    char *name;
    uint64_t hash;
    rd_kafka_topic_t *rkt;  /* NULL: not made */
    bool known;             /* the handle has its metadata */
    int64_t known_until;    /* clock_ms: the first batch after that asks again */
    unsigned used_in;       /* number of the last batch that asked for it */
    bool met;               /* asked at least once: a broker that makes topics has had its chance */
    unsigned questioned_in; /* number of the batch after whose deadline it was asked for */

    unsigned away_in; /* number of the batch in which it could not be written to, with the reason */
    int away_error;   /* librdkafka's code */
    char reason[256];

    size_t limit;        /* bytes of a record batch that it takes; NO_LIMIT: as much as we send */
    bool limit_asked;    /* by DescribeConfigs; false: learned from refusals */
    int64_t limit_until; /* clock_ms: then it may have been raised */

    struct share *shares; /* one a partition */
    size_t n_shares;
};

struct topics {
    struct topic **slots; /* open addressing on the name */
    size_t n, cap;
    struct topic *last; /* mostly the next one, too */
};

struct topic *topics_get(struct topics *topics, const char *name); /* made when new; never NULL */
void topics_forget_handle(struct topics *topics);                  /* before the handle is freed */
void topics_done(struct topics *topics);                           /* after that */

/* Bounds the memory when somebody writes ever new names; only between batches. */
void topics_trim(struct topics *topics);

enum topic_answer {
    TOPIC_READY,
    TOPIC_AWAY,  /* away_in, away_error and reason are set */
    TOPIC_WORLD, /* nobody answered until the deadline or the outage */
};

/* `batch` is the number of the batch: an answer counts for all of it. Serves the handle's queue while it waits. */
enum topic_answer topic_ask(struct topic *topic, struct handle *handle, unsigned batch, int64_t deadline);

/* A delivery failed for the topic's fault: it is away for this batch and asked again in the next one. */
void topic_failed(struct topic *topic, unsigned batch, int error);

/* Asks what the topic takes; when that is forbidden, or nobody answers, the limit is learned: at most `refused` / 2.
 * `handle` may be NULL: learn it. */
void topic_ask_limit(struct topic *topic, struct handle *handle, size_t refused, int64_t deadline);

/* Asks again for a limit that is some minutes old; a learned one is forgotten. */
void topic_refresh_limit(struct topic *topic, struct handle *handle, int64_t deadline);

/* Of a topic that is TOPIC_READY: the partition that Java clients put the key into, and the share that it counts in. */
int topic_partition(const struct topic *topic, struct slice key);
struct share *topic_share(const struct topic *topic, int partition);

#endif
