/* The daemon's window: /healthz, /readyz, /metrics and /status over HTTP, on a thread of its own.
 *
 * It asks its owner through a few callbacks and the metrics through their table; no answer waits for PostgreSQL or Kafka.
 * Connections, time and request sizes are bounded: when there are too many, those that were quiet longest have to go. */
#ifndef OUTBOXD_HTTP_H
#define OUTBOXD_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "config.h"
#include "error.h"
#include "str.h"

struct http;

/* All are called on http's thread. */
struct http_source {
    void *arg;
    bool (*ready)(void *arg, char *ret_reason, size_t size);
    void (*gauges)(void *arg);                     /* sets gauges that are worth asking for at each scrape */
    void (*status)(void *arg, struct strbuf *out); /* a JSON object */
};

/* Listens on OUTBOX_HTTP_LISTEN; *ret is NULL when that is off. FATAL: the address cannot be had, or is not for us to use without
 * a token. The source must live until http_stop. */
enum result http_start(const struct config *config, const struct http_source *source, struct http **ret,
                       struct error *err) CHECK_RESULT;
void http_stop(struct http *http); /* NULL-safe */

#endif
