/* One row of outbox_events on its way, and what became of it. */
#ifndef OUTBOXD_EVENT_H
#define OUTBOXD_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "route.h"
#include "verdict.h"

enum event_status { EVENT_NEW = 0, EVENT_SENT = 1, EVENT_FAILED = 2, EVENT_DEAD = 9 };

#define LANES 16

/* A borrowed run of bytes; data NULL is SQL NULL. Text in it is also terminated (libpq does so). */
struct slice {
    const char *data;
    size_t len;
};

/* Texts are borrowed from what the batch owns (the PGresult) and live as long as the batch. */
struct event {
    int64_t seq;
    uint32_t block; /* with `offset`, the row's ctid: where it is while we hold its lock */
    uint16_t offset;
    int lane;
    struct slice id, topic, event_type, aggregate_type, aggregate_id, tenant_id;
    struct slice routing_key, partition_key; /* data NULL: none */
    struct slice key;                        /* partition_key, else aggregate_id */
    struct slice payload;                    /* JSON text */
    struct slice payload_bytes;              /* data NULL: none; wins over payload */
    struct slice headers, metadata;          /* JSON text */
    struct slice occurred_at;                /* RFC 3339, UTC; in occurred_text once the batch is sorted */
    char occurred_text[40];
    int64_t created_ms; /* age at the claim on PostgreSQL's clock, for outboxd_delivery_seconds */
    int schema_version, retry_count, max_retries; /* max_retries: the row's, or OUTBOX_MAX_RETRIES */
    enum event_status status;                     /* NEW or FAILED */

    bool must_wait;       /* the claim says: an earlier unfinished row of its stream is not in the batch */
    bool taken;           /* locked by us and with its payload; false: seen, but another session holds it */
    const char *why_wait; /* static text for last_error of a held row */
    bool drained;         /* a held row of a draining topic, taken straight from the queue */
    bool probe;           /* the row that is to find out whether a parked topic is back */

    struct route route; /* its topics; filled by event_prepare */

    enum verdict verdict; /* VERDICT_NONE until somebody knows */
    char *reason;         /* of a verdict that is written down; owned, at most 1,000 characters */
    const char *blame;    /* the topic at fault, of VERDICT_PARK; points into route */
};

/* After the columns are filled in: sets key and route. */
void event_prepare(struct event *event);

/* The value to send: payload_bytes, or payload, or a tombstone ({NULL, 0}). */
struct slice event_value(const struct event *event);

/* Are its bytes here? Those of a row larger than any message are not fetched. */
bool event_is_whole(const struct event *event);

/* Does its verdict make the row DEAD: at once, or because this refusal was the last that it had? */
bool event_dies(const struct event *event);

/* Sets verdict and reason (formatted, cut at 1,000 characters on a UTF-8 boundary). A worse verdict wins over a better
 * one; of equals the first. SENT and LEFT keep no reason. */
void event_judge(struct event *event, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void event_done(struct event *event);

#endif
