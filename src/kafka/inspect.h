/* The doctor's look at Kafka: can we reach it, may we log in, and will the topics take our events? Writes nothing and
 * creates no topic. */
#ifndef OUTBOXD_INSPECT_H
#define OUTBOXD_INSPECT_H

#include "config.h"
#include "error.h"
#include "finding.h"

/* Does librdkafka know the properties, and take their values? FATAL: err names the first setting that it does not take. */
enum result inspect_settings(const struct config *config, struct error *err) CHECK_RESULT;

/* `topics`: those that events wait for. FATAL: a property that librdkafka does not take (err names the setting). */
enum result inspect_kafka(const struct config *config, const char *const *topics, size_t n, int timeout_ms,
                          struct findings *findings, struct error *err) CHECK_RESULT;

#endif
