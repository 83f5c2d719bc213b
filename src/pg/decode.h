/* Rows of outbox_events into events. The select lists and the decoder know the same columns; they stay together here. */
#ifndef OUTBOXD_DECODE_H
#define OUTBOXD_DECODE_H

#include <stdbool.h>
#include <stdint.h>

#include "batch.h"
#include "pg.h"

/* Inside, where the row is locked: plain columns. */
#define DECODE_RAW                                                                                              \
    "seq, lane, id, topic, event_type, schema_version, aggregate_type, aggregate_id, tenant_id, routing_key, "  \
    "partition_key, payload, payload_bytes, headers, metadata, status, retry_count, max_retries, occurred_at, " \
    "created_at"

/* In a few bytes jsonb keeps a number whose text has 131,072 digits before the point and 16,383 behind it: ten thousand
 * of them are more than PostgreSQL can hand out in one row. This counts such digits; a walk over the whole JSON, so only for a
 * transaction that is wary (claim.h). (No "@" before a dot: that is our schema.) */
#define DECODE_DIGITS                                                                                                   \
    "(SELECT coalesce(sum(scale(n::numeric) + CASE WHEN abs(n::numeric) >= 1e1000 THEN 131072 ELSE 0 END), 0)::bigint " \
    "FROM jsonb_array_elements(jsonb_path_query_array(jsonb_build_array(payload, headers, metadata), "                  \
    "'strict $.** ? (@ .type() == \"number\")')) n)"

/* What the row will cost in memory, without fetching it: the columns are stored uncompressed. A list of topics is kept
 * twice, and each of its topics, ROUTE_MAX at most and of two characters at least, becomes a message. */
#define DECODE_SIZE                                                                                                  \
    "least(256 + pg_column_size(payload) + coalesce(pg_column_size(payload_bytes), 0) + pg_column_size(headers) + "  \
    "pg_column_size(metadata) + coalesce(octet_length(routing_key) * 2::bigint + least(octet_length(routing_key) * " \
    "32::bigint, 65536), 0) + CASE WHEN (SELECT current_setting('outboxd.wary', true) = 'on') THEN " DECODE_DIGITS   \
    " ELSE 0 END, 2147483647)::int"

/* Outside: as decode_event wants them, in binary. */
#define DECODE_COLUMNS   "ctid, size, " DECODE_RAW
#define DECODE_N_COLUMNS 22

/* The same, but the bytes only of rows for which `wanted` is true: a row may be too much to fetch. A list of topics is cut
 * behind what ROUTE_MAX names can need: such a row is not sent, but its streams count. */
#define DECODE_COLUMNS_IF(wanted)                                                                             \
    "ctid, size, seq, lane, id, topic, event_type, schema_version, aggregate_type, aggregate_id, tenant_id, " \
    "CASE WHEN " wanted " THEN routing_key ELSE left(routing_key, 1000000) END, partition_key, "              \
    "CASE WHEN " wanted " THEN payload END, CASE WHEN " wanted " THEN payload_bytes END, "                    \
    "CASE WHEN " wanted " THEN headers END, CASE WHEN " wanted " THEN metadata END, "                         \
    "status, retry_count, max_retries, occurred_at, created_at"

/* A row that we see and do not hold: enough to keep its stream behind it. */
#define DECODE_BYSTANDER "seq, lane, topic, routing_key, partition_key, aggregate_id"

/* Returns the row's size. */
int64_t decode_event(struct event *event, const struct rows *rows, int row, int max_retries, int64_t now_us);
void decode_bystanders(struct batch *batch, const struct rows *rows);

#endif
