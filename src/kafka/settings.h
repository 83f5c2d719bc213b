/* Settings on their way to librdkafka: defaults of ours, then the user's, then what nothing may replace. */
#ifndef OUTBOXD_SETTINGS_H
#define OUTBOXD_SETTINGS_H

#include <librdkafka/rdkafka.h>

#include "config.h"
#include "error.h"

struct setting { /* a table of them ends with a NULL name */
    const char *name, *value;
};

/* The defaults (NULL: none) and over them the user's; properties of producers and of consumers are both taken, one set serves
 * both. librdkafka's own lines go to our log, for people who debug librdkafka. FATAL: err names the setting and not its value,
 * when that is a secret. *ret is the caller's, until rd_kafka_new takes it. */
enum result settings_begin(const struct config *config, const struct setting *defaults, rd_kafka_conf_t **ret,
                           struct error *err) CHECK_RESULT;

/* One property of the user's. NULL: done; else why librdkafka does not take it, without the value of a secret. Owned by the
 * caller. */
char *settings_set(rd_kafka_conf_t *conf, const char *property, const char *value);

/* Over what is there. */
enum result settings_apply(rd_kafka_conf_t *conf, const struct setting *settings, struct error *err) CHECK_RESULT;

void settings_free(rd_kafka_conf_t **conf); /* for _cleanup_; NULL-safe */

#endif
