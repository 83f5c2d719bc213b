/* The way of a message whose handler failed for good into a dead topic: one producer, one message at a time, and the
 * broker's acknowledgement before anybody says that it is settled. One thread owns it. */
#ifndef OUTBOXD_BURIAL_H
#define OUTBOXD_BURIAL_H

#include "config.h"
#include "consumer.h"
#include "error.h"

struct burial;

/* FATAL: a setting that librdkafka does not take. Does not wait for a broker. */
enum result burial_new(const struct config *config, struct burial **ret, struct error *err) CHECK_RESULT;
void burial_free(struct burial *burial); /* NULL-safe; does not flush */

/* Sends a copy of the letter (key, value, headers) to OUTBOX_CONSUMER_DEAD_TOPIC with the headers `id` (when it had no
 * id of its own), outbox_error, outbox_topic, outbox_partition, outbox_offset and outbox_attempts, and waits for the
 * acknowledgement. RETRY: the topic is not there, or it was not acknowledged within five seconds and may be there
 * nevertheless. REJECT: the topic will never take this event, or nothing of ours. Make a new burial after both: this one
 * may be used up. */
enum result burial_send(struct burial *burial, const struct letter *letter, const char *id, const char *error,
                        unsigned attempts, struct error *err) CHECK_RESULT;

#endif
