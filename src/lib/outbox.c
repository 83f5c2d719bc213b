#include "outbox.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ulid.h"

/* "schema." as SQL writes it, or "" without a schema. NULL: no memory, or not a text in the connection's encoding (then
 * PQerrorMessage has the reason). The caller frees it. */
static char *qualifier(PGconn *conn, const char *schema)
{
    if (schema == NULL)
        return calloc(1, 1);
    char *quoted = PQescapeIdentifier(conn, schema, strlen(schema));
    if (quoted == NULL)
        return NULL;
    char *ret = malloc(strlen(quoted) + 2);
    if (ret != NULL)
        snprintf(ret, strlen(quoted) + 2, "%s.", quoted);
    PQfreemem(quoted);
    return ret;
}

/* SELECT schema.function. The first row's only value is in the result, or NULL is returned. */
static PGresult *call(PGconn *conn, const char *schema, const char *function, int n, const char *const *values,
                      const int *lengths, const int *formats)
{
    char *prefix = qualifier(conn, schema), *sql = NULL;
    if (prefix == NULL || asprintf(&sql, "SELECT %s%s", prefix, function) < 0)
        sql = NULL;
    free(prefix);
    if (sql == NULL)
        return NULL;
    PGresult *result = PQexecParams(conn, sql, n, NULL, values, lengths, formats, 0);
    free(sql);
    if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
        return result;
    PQclear(result);
    return NULL;
}

/* The server says it, so that PQerrorMessage does: libpq has no way to put a text there. */
static int refuse(PGconn *conn, const char *raise)
{
    PQclear(PQexec(conn, raise));
    return -1;
}

int outbox_publish(PGconn *conn, const struct outbox_event *event, char ret_id[27])
{
    if (event->payload_bytes_len > INT_MAX)
        return refuse(conn,
                      "DO $$ BEGIN RAISE EXCEPTION 'outbox_publish() was called with payload_bytes of more than 2 GiB' "
                      "USING ERRCODE = 'program_limit_exceeded'; END $$");
    char version[16];
    snprintf(version, sizeof version, "%d", event->schema_version ? event->schema_version : 1);
    const char *values[] = {event->topic,         event->aggregate_type, event->aggregate_id,
                            event->payload,       event->event_type,     version,
                            event->tenant_id,     event->routing_key,    event->partition_key,
                            event->payload_bytes, event->headers,        event->metadata};
    enum { N = sizeof values / sizeof *values, BYTES = 9 };
    int lengths[N] = {[BYTES] = (int)event->payload_bytes_len};
    int formats[N] = {[BYTES] = 1};
    PGresult *result = call(conn, event->schema,
                            "outbox_publish(topic => $1, aggregate_type => $2, aggregate_id => $3, payload => $4, "
                            "event_type => $5, schema_version => $6, tenant_id => $7, routing_key => $8, "
                            "partition_key => $9, payload_bytes => $10, headers => $11, metadata => $12)",
                            N, values, lengths, formats);
    if (result == NULL)
        return -1;
    if (ret_id != NULL)
        snprintf(ret_id, 27, "%s", PQgetvalue(result, 0, 0));
    PQclear(result);
    return 0;
}

int inbox_accept(PGconn *conn, const char *schema, const char *consumer_group, const char *event_id)
{
    if (PQtransactionStatus(conn) == PQTRANS_IDLE)
        return refuse(conn, "DO $$ BEGIN RAISE EXCEPTION 'inbox_accept() was called outside a transaction' USING "
                            "ERRCODE = 'no_active_sql_transaction', "
                            "HINT = 'BEGIN first, and commit the effect together with it.'; END $$");
    const char *values[] = {consumer_group, event_id};
    PGresult *result = call(conn, schema, "inbox_accept($1, $2)", 2, values, NULL, NULL);
    if (result == NULL)
        return -1;
    int first = PQgetvalue(result, 0, 0)[0] == 't';
    PQclear(result);
    return first;
}

_Static_assert(sizeof(struct ulid_generator) <= sizeof(struct outbox_ulid_generator), "the public struct has room");

int outbox_ulid_generator_init(struct outbox_ulid_generator *generator)
{
    memset(generator, 0, sizeof *generator);
    return ulid_generator_init((struct ulid_generator *)generator, ULID_SECURE);
}

void outbox_ulid_generate(struct outbox_ulid_generator *generator, char ret[27])
{
    ulid_generate((struct ulid_generator *)generator, ret);
}

void outbox_ulid_encode(char ret[27], const unsigned char ulid[16])
{
    ulid_encode(ret, ulid);
}

int outbox_ulid_decode(unsigned char ret[16], const char *text)
{
    return ulid_decode(ret, text);
}
