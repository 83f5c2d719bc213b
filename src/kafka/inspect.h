/* The doctor's look at Kafka: can we reach it, may we log in, and will the topics take our events? Writes nothing and
 * creates no topic. */
#ifndef OUTBOXD_INSPECT_H
#define OUTBOXD_INSPECT_H

#include "config.h"
#include "error.h"
#include "finding.h"

/* Does librdkafka know the property, and take this value? NULL: yes; else why not, with the nearest name that it knows and without
 * the value of a secret. Owned by the caller. */
char *inspect_property(const char *property, const char *value);

/* `topics`: those that events wait for. FATAL: a property that librdkafka does not take (err names the setting). */
enum result inspect_kafka(const struct config *config, const char *const *topics, size_t n, int timeout_ms,
                          struct findings *findings, struct error *err) CHECK_RESULT;

#endif
