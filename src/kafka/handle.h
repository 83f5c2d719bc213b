/* One librdkafka producer: its settings, what it has out, and whether it is still good.
 *
 * It is idempotent, and it lingers until it is flushed: what was handed over since the last flush goes out as one record
 * batch a partition. A purged or fatal handle is never used again.
 *
 * Reports and errors are served on the thread that owns the handle, in handle_serve and handle_flush, and nowhere else. */
#ifndef OUTBOXD_HANDLE_H
#define OUTBOXD_HANDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <librdkafka/rdkafka.h>

#include "config.h"
#include "error.h"
#include "headers.h"
#include "message.h"

/* What librdkafka's errors say about the brokers; outlives the handle that told it. */
struct outage {
    int64_t since;    /* clock_ms of the first sign; 0: none */
    bool refused;     /* somebody did not let us in: that is the reason, not "all brokers are down" */
    char reason[512]; /* the true one where there is one, not "all brokers are down" */
    char last[512];   /* the last error of any broker */
};

/* Every broker gone for so long is an outage; a broker that only closed an idle connection is back before. One that does
 * not let us in may be one of many, so that alone says nothing yet: whoever finds the outage sure asks the cluster. */
#define OUTAGE_GRACE_MS 2000
bool outage_is_sure(const struct outage *outage);
void outage_over(struct outage *outage);
const char *outage_text(const struct outage *outage); /* the best reason there is; never NULL */

struct handle {
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    size_t max_bytes;   /* message.max.bytes */
    size_t batch_bytes; /* of a record batch at most: batch.size, message.max.bytes */
    int64_t refresh_ms; /* topic.metadata.refresh.interval.ms: a topic that has grown is noticed after so long */
    unsigned out;       /* messages whose report is out */
    bool purged;        /* by us */
    int fatal;          /* librdkafka's code, or that of a report that is the producer's fault; 0: none */
    char fatal_text[512];
    struct outage *outage;
    unsigned patient_in; /* the batch in which new topics are waited for, and until when */
    int64_t patience;
    unsigned answered_in; /* the last batch in which a topic that was asked for was answered */
};

/* Checks the settings and starts librdkafka's threads; does not wait for a broker. FATAL: err names the setting.
 * `fd`, a non-blocking eventfd, is written to when there is something to serve. */
enum result handle_new(const struct config *config, int fd, struct outage *outage, struct handle **ret,
                       struct error *err) CHECK_RESULT;

/* Nothing that librdkafka borrowed is in use afterwards. Messages that are still out get no report. NULL-safe. */
void handle_free(struct handle *handle);

static inline bool handle_is_used_up(const struct handle *handle)
{
    return handle->purged || handle->fatal;
}

/* Serves what is there, at most timeout_ms long: messages become ACKED or BACK, errors feed the outage. */
void handle_serve(struct handle *handle, int timeout_ms);

/* Ends the linger, and serves until nothing is out, at most timeout_ms long. */
void handle_flush(struct handle *handle, int timeout_ms);

/* Hands one message over; the value is borrowed until its report. 0 or librdkafka's code; then it is not out. */
rd_kafka_resp_err_t handle_produce(struct handle *handle, rd_kafka_topic_t *rkt, struct message *message,
                                   const struct header_list *headers);

/* Everything out comes back soon with _PURGE_QUEUE or _PURGE_INFLIGHT. With `inflight` false only what was not sent
 * yet: the rest may still be acknowledged. */
void handle_purge(struct handle *handle, bool inflight);

#endif
