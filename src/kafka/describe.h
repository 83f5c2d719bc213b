/* What Kafka says of a topic's configuration. For the files of this folder. */
#ifndef OUTBOXD_DESCRIBE_H
#define OUTBOXD_DESCRIBE_H

#include <stdint.h>

#include <librdkafka/rdkafka.h>

struct topic_config {
    rd_kafka_resp_err_t error; /* set: nothing else is known */
    long max_bytes;            /* max.message.bytes; 0: not told */
    long min_isr;              /* min.insync.replicas; 0: not told */
    int64_t retention_ms;      /* MS_FOREVER without an end; -1: not told. Whole segments go, so some stay for longer */
};

/* Waits for the answer, at most timeout_ms (1 or more) long. */
struct topic_config describe_topic(rd_kafka_t *rk, const char *topic, int timeout_ms);

#endif
