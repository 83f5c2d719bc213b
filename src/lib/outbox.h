/* liboutbox: publish events and accept them once, from C, inside your own transaction.
 *
 *     cc service.c $(pkg-config --cflags --libs outbox)
 *
 * Every function works on a connection of yours and leaves BEGIN, COMMIT and ROLLBACK to you:
 *
 *     PQexec(conn, "BEGIN");
 *     ... your own rows ...
 *     struct outbox_event event = {.topic = "orders", .aggregate_type = "order", .aggregate_id = "4711",
 *                                  .payload = "{\"total\": 12}"};
 *     char id[27];
 *     if (outbox_publish(conn, &event, id) != 0)
 *         ... PQerrorMessage(conn) says why; ROLLBACK ...
 *     PQexec(conn, "COMMIT");                     both the rows and the event, or neither
 *
 * Threads: there is no state but the connection's, and a connection is used by one thread at a time, as libpq has it.
 * Different threads may use different connections at once.
 *
 * Errors: a function that fails returns -1 and PQerrorMessage(conn) has the reason. As after any SQL statement that
 * failed, the transaction is then aborted: roll it back, or back to a savepoint of yours. Nothing was published or
 * accepted. The functions wait for the server as PQexec does; a statement_timeout of yours bounds them. They need a
 * connection that is not in pipeline mode and has no answer outstanding.
 *
 * The tables come from `outboxd migrate up`. */
#ifndef OUTBOX_H
#define OUTBOX_H

#include <stddef.h>

#include <libpq-fe.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OUTBOX_API __attribute__((visibility("default")))
#else
#define OUTBOX_API
#endif

/* An event to publish. Zero the struct, so that what you do not set is NULL. Texts are UTF-8 and only borrowed. */
struct outbox_event {
    const char *topic;          /* Kafka topic: required */
    const char *aggregate_type; /* "order": required */
    const char *aggregate_id;   /* "4711": required; the key, unless partition_key is set */
    const char *payload;        /* JSON text: required, unless payload_bytes is set; "null" is a Kafka tombstone */

    const char *event_type;    /* NULL: the topic */
    const char *partition_key; /* NULL: aggregate_id. Events of one topic and key keep their order */
    const char *tenant_id;     /* NULL: "default" */
    const char *routing_key;   /* NULL, or a list of topics with commas between them, instead of `topic` */
    const char *headers;       /* JSON object, sent as Kafka headers; NULL: none */
    const char *metadata;      /* JSON object, kept in the table; traceparent and tracestate in it travel as headers */
    const char *schema;        /* where `outboxd migrate up` put the tables; NULL: found by your search_path */

    const void *payload_bytes; /* when not NULL this is the message's value, as it is (Avro, Protobuf) */
    size_t payload_bytes_len;
    int schema_version; /* 0: 1 */
};

/* Writes the event; the relay publishes it after your COMMIT. Returns 0 and the event's id (a ULID; ret_id may be NULL), or
 * -1. Outside a transaction the event is committed at once and alone, which is seldom what you want. */
OUTBOX_API int outbox_publish(PGconn *conn, const struct outbox_event *event, char ret_id[27]);

/* Is this the first time that the consumer group sees the event? 1: yes, go on, and commit your effect together with this
 * answer. 0: seen before, do nothing. -1: error. While another transaction accepts the same event the call waits for its
 * end: then 0 if it was committed and 1 if it was rolled back. Under REPEATABLE READ and SERIALIZABLE the wait may end in
 * SQLSTATE 40001 instead of 0: roll back and try again. Outside a transaction it is refused: an answer that is committed
 * before the effect would lose the event in a crash. Answers are remembered for 7 days; the SQL function inbox_accept()
 * takes another time. */
OUTBOX_API int inbox_accept(PGconn *conn, const char *schema, const char *consumer_group, const char *event_id);

/* ULIDs: 26 characters, sorted by time. A generator's ids also sort in the order in which they were made within one
 * millisecond. One thread at a time uses a generator; its members are private. */
struct outbox_ulid_generator {
    unsigned long long opaque[8];
};

OUTBOX_API int outbox_ulid_generator_init(struct outbox_ulid_generator *generator); /* 0, or -1: no randomness */
OUTBOX_API void outbox_ulid_generate(struct outbox_ulid_generator *generator, char ret[27]);
OUTBOX_API void outbox_ulid_encode(char ret[27], const unsigned char ulid[16]);
OUTBOX_API int outbox_ulid_decode(unsigned char ret[16], const char *text); /* either case; 0, or -1: not a ULID */

#ifdef __cplusplus
}
#endif

#endif
