/* A connection to PostgreSQL on which no call waits for ever, and whose errors keep SQLSTATE and no secret.
 *
 * Statements are constants (struct statement) in which `@.` stands for the outbox's schema. They are prepared on first
 * use; behind a PgBouncer in transaction mode, where a name would be lost with the server connection, they are sent
 * whole each time. A connection belongs to one thread. */
#ifndef OUTBOXD_PG_H
#define OUTBOXD_PG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "str.h"

struct pg;
struct rows; /* a result; rows_free it */

struct pg_options {
    const char *url; /* NULL: libpq's PG* variables */
    const char *schema;
    int connect_timeout_ms;
    int stop_fd;         /* readable: give up connecting (-1: none) */
    const char *session; /* SET commands for the session, or NULL; not behind a pooler */
    bool listen;         /* LISTEN for the outbox's notifications */
};

struct statement {
    const char *name; /* of the prepared statement */
    const char *sql;
};

/* RETRY: not there or not now. FATAL: the connection string cannot be parsed (its text is never repeated). */
enum result pg_open(const struct pg_options *options, struct pg **ret, struct error *err) CHECK_RESULT;
void pg_close(struct pg *pg); /* NULL-safe; does not wait */

int pg_socket(const struct pg *pg);
bool pg_pooled(const struct pg *pg); /* a PgBouncer in transaction or statement mode stands between */
int pg_server_version(const struct pg *pg);
const char *pg_schema(const struct pg *pg); /* quoted as an identifier */

/* From now on a stop (fd is readable) also ends the wait for an answer: for one who only looks. Then the connection is of no more
 * use. */
void pg_stop_on(struct pg *pg, int fd);

/* Did the server end the connection, or say something that ends it? Reads what is there; does not wait. For poll(2). */
bool pg_gone(void *pg);
bool pg_notified(struct pg *pg); /* a notification came since the last call */

/* One statement, one answer, at most timeout_ms. Texts as parameters, NULL for SQL NULL. *ret may be NULL pointer. */
enum result pg_query(struct pg *pg, const struct statement *statement, int n, const char *const *values, int timeout_ms,
                     struct rows **ret, struct error *err) CHECK_RESULT;
/* The same with a text that was put together for this once (`@.` in it is replaced); nothing is prepared. */
enum result pg_ask(struct pg *pg, const char *sql, int n, const char *const *values, int timeout_ms, struct rows **ret,
                   struct error *err) CHECK_RESULT;
/* Simple protocol: several statements in one text, for migrations, BEGIN and COMMIT. `@.` is replaced, too. */
enum result pg_script(struct pg *pg, const char *sql, int timeout_ms, struct error *err) CHECK_RESULT;

/* Pipeline: queue statements, then pg_sync sends them in one round trip and pg_next reads their answers in order; the
 * answer behind the last one is pg_end. After an error the rest of the pipeline was not executed. */
enum result pg_queue(struct pg *pg, const struct statement *statement, int n, const char *const *values, bool binary,
                     struct error *err) CHECK_RESULT;
/* One whose $1 is an array of ctids in binary: there are thousands, and as text they would cost both sides more than marking
 * the rows. `values` are those from $2 on. */
enum result pg_queue_tids(struct pg *pg, const struct statement *statement, const struct strbuf *tids, int n,
                          const char *const *values, struct error *err) CHECK_RESULT;
enum result pg_sync(struct pg *pg, int timeout_ms, struct error *err) CHECK_RESULT;
bool pg_wait(struct pg *pg, int timeout_ms); /* is the next answer, or the end of the connection, there in time? */
enum result pg_next(struct pg *pg, struct rows **ret, struct error *err) CHECK_RESULT;
enum result pg_end(struct pg *pg, struct error *err) CHECK_RESULT;

/* A pipeline of one statement. */
enum result pg_round_trip(struct pg *pg, const struct statement *statement, int n, const char *const *values,
                          bool binary, struct rows **ret, struct error *err) CHECK_RESULT;

#define STATEMENT_TIMEOUT_MS 30000
#define ANSWER_TIMEOUT_MS    (STATEMENT_TIMEOUT_MS + 10000) /* then the connection counts as dead */

/* Did pg_open fail because of the user or password? Only the caller knows whether that may mend itself. */
bool pg_login_refused(const struct error *err);

/* Was the error of a kind that no retry mends (missing privilege, missing table or column)? */
bool pg_error_is_permanent(const struct error *err);

int rows_n(const struct rows *rows);
int rows_affected(const struct rows *rows);
bool rows_null(const struct rows *rows, int row, int column);
const char *rows_text(const struct rows *rows, int row, int column); /* "" for NULL; terminated also when binary */
size_t rows_len(const struct rows *rows, int row, int column);
int64_t rows_int(const struct rows *rows, int row, int column); /* of a text result */
int64_t rows_binary_int(const struct rows *rows, int row,
                        int column); /* int2, int4, int8, timestamptz of a binary one */
bool rows_true(const struct rows *rows, int row, int column);
void rows_free(void *rows);
static inline void rows_cleanup(struct rows **rows)
{
    rows_free(*rows);
}

/* Array parameters: {"a","b"} with everything quoted. */
void pg_array_begin(struct strbuf *buf);
void pg_array_text(struct strbuf *buf, const char *text); /* NULL: SQL NULL */
void pg_array_int(struct strbuf *buf, int64_t value);
void pg_array_tid(struct strbuf *buf, uint32_t block, uint16_t offset);
void pg_array_end(struct strbuf *buf);

/* An array of ctids in binary, of up to `room` of them. */
void pg_tids_begin(struct strbuf *buf, size_t room);
void pg_tids_add(struct strbuf *buf, uint32_t block, uint16_t offset);
void pg_tids_end(struct strbuf *buf);

#endif
