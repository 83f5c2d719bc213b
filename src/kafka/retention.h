/* How long a topic keeps its messages, as its configuration says. For the files of this folder. */
#ifndef OUTBOXD_RETENTION_H
#define OUTBOXD_RETENTION_H

#include <stdint.h>

#include <librdkafka/rdkafka.h>

/* In ms, MS_FOREVER without an end; -1: nobody says so within timeout_ms. Whole segments go, so some stay for longer. */
int64_t retention_of(rd_kafka_t *rk, const char *topic, int timeout_ms);

#endif
