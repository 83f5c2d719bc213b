#include "pg.h"

#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "conninfo.h"

/* Statements are few and live in static tables: a linear list of what this connection has prepared will do. */
#define HOST_TIMEOUT_MS 3000

#define TEXT_MAX 600 /* characters of a message that are kept */

#define PREPARED_MAX 64

struct pg {
    PGconn *conn;
    char *schema; /* quoted */
    char *url;    /* for scrubbing messages; never printed */
    bool pooled;
    bool notified;
    int64_t deadline; /* of the pipeline in flight */
    int stop_fd;
    const struct statement *prepared[PREPARED_MAX];
    char *sql[PREPARED_MAX]; /* expanded texts, same index */
    int n_prepared;
    bool announced[PREPARED_MAX]; /* PREPARE was sent on this connection */
    int unsure[PREPARED_MAX];     /* those of them whose answer is out, in their order */
    int n_unsure;
};

/* --- errors without secrets --- */

/* The server's or libpq's own words, on one line. Owned by the caller. */
static char *tell(struct pg *pg, const PGresult *result, struct error *err)
{
    char raw[4 * TEXT_MAX + 1];
    const char *text = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    if (text == NULL)
        text = result ? PQresultErrorMessage(result) : PQerrorMessage(pg->conn);
    snprintf(raw, sizeof raw, "%s", text && *text ? text : "the connection is gone");
    for (char *c = raw; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t')
            *c = c[1] == '\0' || c[1] == '\n' ? '\0' : ' ';
    conninfo_scrub(pg->url, pg->conn ? PQpass(pg->conn) : NULL, raw);
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    if (state)
        snprintf(err->sqlstate, sizeof err->sqlstate, "%s", state);
    return str_clean(raw, TEXT_MAX);
}

static enum result fail(struct pg *pg, const PGresult *result, const char *what, struct error *err)
{
    error_clear(err);
    _cleanup_(str_free) char *text = tell(pg, result, err);
    char state[6];
    memcpy(state, err->sqlstate, sizeof state);
    error_retry(err, "%s: %s", what, text);
    memcpy(err->sqlstate, state, sizeof state);
    if (strcmp(state, "42501") == 0)
        error_hint(err, "grant the role outbox_relay (sql/roles.sql) to the user of OUTBOX_DATABASE_URL");
    else if (strcmp(state, "42P01") == 0 || strcmp(state, "3F000") == 0 || strcmp(state, "42883") == 0)
        error_hint(err, "run `outboxd migrate up`, and check OUTBOX_SCHEMA");
    return RETRY;
}

bool pg_login_refused(const struct error *err)
{
    /* libpq has no SQLSTATE of a connection that did not come about. */
    return strstr(err->message, "password authentication failed") || strstr(err->message, "no password supplied");
}

bool pg_error_is_permanent(const struct error *err)
{
    static const char *const states[] = {"42501", "42P01", "42703", "42883", "3F000"};
    for (size_t i = 0; i < ARRAY_LEN(states); i++)
        if (strcmp(err->sqlstate, states[i]) == 0)
            return true;
    return false;
}

/* --- waiting --- */

/* OK when the socket is ready for `events`; RETRY when time is up or a stop was asked for. */
static enum result wait_socket(struct pg *pg, short events, int64_t deadline, struct error *err)
{
    for (;;) {
        struct pollfd fds[2] = {{PQsocket(pg->conn), events, 0}, {pg->stop_fd, POLLIN, 0}};
        int n = poll(fds, pg->stop_fd >= 0 ? 2 : 1, clock_left_ms(deadline));
        if (n < 0 && errno != EINTR)
            return error_retry(err, "cannot wait for PostgreSQL: %s", strerror(errno));
        if (n > 0 && fds[0].revents)
            return OK;
        if (n > 0 && fds[1].revents)
            return error_retry(err, "stopped while waiting for PostgreSQL");
        if (clock_left_ms(deadline) == 0)
            return error_retry(err, "PostgreSQL did not answer in time");
    }
}

static void collect_notifications(struct pg *pg)
{
    PGnotify *notify;
    while ((notify = PQnotifies(pg->conn)) != NULL) {
        pg->notified = true;
        PQfreemem(notify);
    }
}

/* The next result (NULL at the end of a statement's results), at most until `deadline`. */
static enum result wait_result(struct pg *pg, int64_t deadline, PGresult **ret, struct error *err)
{
    *ret = NULL;
    for (;;) {
        int flushing = PQflush(pg->conn);
        if (flushing < 0 || PQstatus(pg->conn) == CONNECTION_BAD)
            return fail(pg, NULL, "lost the connection to PostgreSQL", err);
        if (!PQisBusy(pg->conn))
            break;
        enum result result = wait_socket(pg, (short)(POLLIN | (flushing ? POLLOUT : 0)), deadline, err);
        if (result != OK)
            return result;
        if (!PQconsumeInput(pg->conn))
            return fail(pg, NULL, "lost the connection to PostgreSQL", err);
    }
    *ret = PQgetResult(pg->conn);
    collect_notifications(pg);
    return OK;
}

/* --- connecting --- */

static enum result connect_wait(struct pg *pg, int64_t deadline, struct error *err)
{
    PostgresPollingStatusType status = PGRES_POLLING_WRITING;
    while (status != PGRES_POLLING_OK) {
        if (status == PGRES_POLLING_FAILED)
            return fail(pg, NULL, "cannot connect to PostgreSQL", err);
        enum result result = wait_socket(pg, status == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline, err);
        if (result != OK)
            return result;
        status = PQconnectPoll(pg->conn);
    }
    return OK;
}

/* libpq would write what the server says unasked to stderr, in the midst of our log. What matters of it comes back
 * as the error of the next call. */
static void ignore_notice(void *arg, const char *message)
{
    (void)arg;
    (void)message;
}

/* The settings of the connection: the URL's, else those of libpq's PG* variables. */
static enum result parse_options(const struct pg_options *options, PQconninfoOption **ret, struct error *err)
{
    char *text = NULL;
    *ret = options->url ? PQconninfoParse(options->url, &text) : PQconndefaults();
    PQfreemem(text); /* it may repeat the password */
    if (*ret == NULL) {
        error_fatal(err, "OUTBOX_DATABASE_URL is not a connection string that libpq understands");
        error_hint(err, "postgresql://user:password@host:5432/database, with special characters in the password "
                        "percent-encoded, or key=value pairs");
        return FATAL;
    }
    for (PQconninfoOption *o = *ret; options->url && o->keyword; o++)
        if (o->val && str_eq(o->keyword, "port") && !conninfo_ports_valid(o->val)) {
            PQconninfoFree(*ret);
            error_fatal(err, "the port in OUTBOX_DATABASE_URL is not a number up to 65535");
            error_hint(err, "a password stands between the user and the host: user:password@host:5432");
            return FATAL;
        }
    return OK;
}

static const char *option(const PQconninfoOption *parsed, const char *keyword)
{
    for (; parsed->keyword; parsed++)
        if (str_eq(parsed->keyword, keyword))
            return parsed->val;
    return NULL;
}

/* libpq looks at the values of its options before it connects, and has no code of its own for what it finds. */
static bool option_refused(const PGconn *conn)
{
    const char *text = PQerrorMessage(conn);
    return str_has_prefix(text, "invalid ") || strstr(text, " value \"") != NULL;
}

/* One host of the list. libpq would go through the list itself, but only its blocking connect gives each host a time of its
 * own: one that accepts and never answers would take all of ours, every time. */
static enum result connect_host(struct pg *pg, const PQconninfoOption *parsed, int host, int64_t deadline,
                                struct error *err)
{
    static const char *const ours[][2] = {
        /* what the user did not set: notice a dead peer within about 15 seconds */
        {"keepalives", "1"},       {"keepalives_idle", "5"},      {"keepalives_interval", "3"},
        {"keepalives_count", "3"}, {"tcp_user_timeout", "15000"}, {"application_name", "outboxd"},
    };
    static const char *const lists[] = {"host", "hostaddr", "port"};
    _cleanup_(str_free) char *first = conninfo_item(option(parsed, lists[0]), host);
    _cleanup_(str_free) char *second = conninfo_item(option(parsed, lists[1]), host);
    _cleanup_(str_free) char *third = conninfo_item(option(parsed, lists[2]), host);
    const char *items[] = {first, second, third};
    const char *names[64], *values[64];
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        names[n] = ours[i][0], values[n++] = ours[i][1];
    for (const PQconninfoOption *o = parsed; o->keyword && n < 50; o++)
        if (o->val)
            names[n] = o->keyword, values[n++] = o->val;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) /* a later one counts */
        if (items[i])
            names[n] = lists[i], values[n++] = items[i];
    names[n] = "client_encoding",
    values[n++] = "UTF8"; /* what JSON is on its way to Kafka, whatever PGCLIENTENCODING says */
    names[n] = NULL, values[n] = NULL;
    PQfinish(pg->conn);
    pg->conn = PQconnectStartParams(names, values, 0);
    PQsetNoticeProcessor(pg->conn, ignore_notice, NULL);
    if (pg->conn == NULL || PQstatus(pg->conn) == CONNECTION_BAD) {
        fail(pg, NULL, "cannot connect to PostgreSQL", err);
        return option_refused(pg->conn) ? FATAL : RETRY;
    }
    return connect_wait(pg, deadline, err);
}

/* Each host has its share of the time, and at least some seconds. */
static enum result connect_any(struct pg *pg, const struct pg_options *options, struct error *err)
{
    PQconninfoOption *parsed;
    enum result result = parse_options(options, &parsed, err);
    if (result != OK)
        return result;
    const char *hosts = option(parsed, "host") ? option(parsed, "host") : option(parsed, "hostaddr");
    int n = conninfo_count(hosts);
    int64_t each =
        options->connect_timeout_ms / n > HOST_TIMEOUT_MS ? options->connect_timeout_ms / n : HOST_TIMEOUT_MS;
    result = RETRY;
    for (int host = 0; host < n && result == RETRY; host++) {
        struct pollfd stop = {pg->stop_fd, POLLIN, 0};
        if (host > 0 && poll(&stop, 1, 0) > 0)
            break;
        result = connect_host(pg, parsed, host, clock_ms() + each, err);
    }
    PQconninfoFree(parsed);
    return result;
}

static enum result greet(struct pg *pg, const struct pg_options *options, struct error *err)
{
    static const struct statement who = {"outboxd_who", "SELECT pg_backend_pid()"};
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    pg->pooled = true; /* prepare nothing before we know */
    enum result result = pg_query(pg, &who, 0, NULL, options->connect_timeout_ms, &rows, err);
    if (result != OK)
        return result;
    pg->pooled = rows_int(rows, 0, 0) != PQbackendPID(pg->conn);
    if (pg->pooled)
        return OK;
    if (options->session != NULL)
        result = pg_script(pg, options->session, options->connect_timeout_ms, err);
    if (result != OK || !options->listen)
        return result;
    return pg_script(pg, "LISTEN outboxd", options->connect_timeout_ms, err);
}

enum result pg_open(const struct pg_options *options, struct pg **ret, struct error *err)
{
    struct pg *pg = mem_alloc(sizeof *pg);
    pg->stop_fd = options->stop_fd;
    pg->url = options->url ? str_dup(options->url) : NULL;
    enum result result = connect_any(pg, options, err);
    if (result == RETRY && pg_login_refused(err))
        error_hint(err, "check the user and password of OUTBOX_DATABASE_URL (or PGUSER, PGPASSWORD)");
    if (result == OK && PQsetnonblocking(pg->conn, 1) != 0)
        result = fail(pg, NULL, "cannot use the connection to PostgreSQL", err);
    if (result == OK) {
        char *quoted = PQescapeIdentifier(pg->conn, options->schema, strlen(options->schema));
        if (quoted == NULL)
            result = error_fatal(err, "OUTBOX_SCHEMA is not a name: it is not valid in the database's encoding");
        else
            pg->schema = str_dup(quoted);
        PQfreemem(quoted);
    }
    if (result == OK)
        result = greet(pg, options, err);
    pg->stop_fd = -1; /* from here on a stop waits for the answer: what was sent may be a mark */
    if (result != OK)
        pg_close(TAKE(pg));
    *ret = pg;
    return result;
}

void pg_close(struct pg *pg)
{
    if (pg == NULL)
        return;
    PQfinish(pg->conn);
    for (int i = 0; i < pg->n_prepared; i++)
        free(pg->sql[i]);
    free(pg->schema);
    free(pg->url);
    free(pg);
}

void pg_stop_on(struct pg *pg, int fd)
{
    pg->stop_fd = fd;
}

int pg_socket(const struct pg *pg)
{
    return PQsocket(pg->conn);
}

bool pg_pooled(const struct pg *pg)
{
    return pg->pooled;
}

int pg_server_version(const struct pg *pg)
{
    return PQserverVersion(pg->conn);
}

const char *pg_schema(const struct pg *pg)
{
    return pg->schema;
}

bool pg_gone(void *arg)
{
    struct pg *pg = arg;
    if (!PQconsumeInput(pg->conn) || PQstatus(pg->conn) == CONNECTION_BAD)
        return true;
    collect_notifications(pg);
    return false;
}

bool pg_notified(struct pg *pg)
{
    bool notified = pg->notified;
    pg->notified = false;
    return notified;
}

/* --- statements --- */

static char *expand(const struct pg *pg, const char *sql)
{
    struct strbuf buf = {0};
    for (const char *at; (at = strstr(sql, "@.")) != NULL; sql = at + 1) {
        strbuf_addn(&buf, sql, (size_t)(at - sql));
        strbuf_add(&buf, pg->schema);
    }
    strbuf_add(&buf, sql);
    return buf.data;
}

static int find_statement(struct pg *pg, const struct statement *statement)
{
    for (int i = 0; i < pg->n_prepared; i++)
        if (pg->prepared[i] == statement)
            return i;
    if (pg->n_prepared == PREPARED_MAX)
        abort(); /* more statements than the program has */
    pg->prepared[pg->n_prepared] = statement;
    pg->sql[pg->n_prepared] = expand(pg, statement->sql);
    return pg->n_prepared++;
}

struct params {
    int n;
    const char *const *values;
    const int *lengths, *formats; /* NULL: all are texts */
};

/* Outside a pipeline a PREPARE needs its own answer first; inside, its answer comes before the statement's and
 * pg_next passes over it. */
static bool send_statement(struct pg *pg, const struct statement *statement, const struct params *params, bool binary,
                           bool prepare)
{
    int i = find_statement(pg, statement), n = params->n;
    if (pg->pooled || (!pg->announced[i] && !prepare))
        return PQsendQueryParams(pg->conn, pg->sql[i], n, NULL, params->values, params->lengths, params->formats,
                                 binary);
    if (!pg->announced[i]) {
        if (!PQsendPrepare(pg->conn, statement->name, pg->sql[i], 0, NULL))
            return false;
        pg->announced[i] = true;
        pg->unsure[pg->n_unsure++] = i;
    }
    return PQsendQueryPrepared(pg->conn, statement->name, n, params->values, params->lengths, params->formats, binary);
}

static bool succeeded(const PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK || status == PGRES_EMPTY_QUERY;
}

/* Reads results until the statement's end; keeps the last good one. */
static enum result finish_statement(struct pg *pg, int64_t deadline, struct rows **ret, const char *what,
                                    struct error *err)
{
    enum result outcome = OK;
    PGresult *kept = NULL;
    for (;;) {
        PGresult *result;
        enum result waited = wait_result(pg, deadline, &result, err);
        if (waited != OK) {
            PQclear(kept);
            return waited;
        }
        if (result == NULL)
            break;
        if (outcome == OK && !succeeded(result))
            outcome = fail(pg, result, what, err);
        PQclear(kept);
        kept = result;
    }
    if (outcome == OK && ret != NULL)
        *ret = (struct rows *)TAKE(kept);
    PQclear(kept);
    return outcome;
}

enum result pg_query(struct pg *pg, const struct statement *statement, int n, const char *const *values, int timeout_ms,
                     struct rows **ret, struct error *err)
{
    if (!send_statement(pg, statement, &(struct params){n, values, NULL, NULL}, false, false))
        return fail(pg, NULL, "cannot send to PostgreSQL", err);
    return finish_statement(pg, clock_ms() + timeout_ms, ret, statement->name, err);
}

enum result pg_ask(struct pg *pg, const char *sql, int n, const char *const *values, int timeout_ms, struct rows **ret,
                   struct error *err)
{
    _cleanup_(str_free) char *expanded = expand(pg, sql);
    if (!PQsendQueryParams(pg->conn, expanded, n, NULL, values, NULL, NULL, 0))
        return fail(pg, NULL, "cannot send to PostgreSQL", err);
    return finish_statement(pg, clock_ms() + timeout_ms, ret, "statement failed", err);
}

enum result pg_script(struct pg *pg, const char *sql, int timeout_ms, struct error *err)
{
    _cleanup_(str_free) char *expanded = expand(pg, sql);
    if (!PQsendQuery(pg->conn, expanded))
        return fail(pg, NULL, "cannot send to PostgreSQL", err);
    return finish_statement(pg, clock_ms() + timeout_ms, NULL, "statement failed", err);
}

/* --- pipeline --- */

static enum result queue(struct pg *pg, const struct statement *statement, const struct params *params, bool binary,
                         struct error *err)
{
    if (PQpipelineStatus(pg->conn) == PQ_PIPELINE_OFF && !PQenterPipelineMode(pg->conn))
        return fail(pg, NULL, "cannot start a pipeline to PostgreSQL", err);
    if (!send_statement(pg, statement, params, binary, true))
        return fail(pg, NULL, "cannot send to PostgreSQL", err);
    return OK;
}

enum result pg_queue(struct pg *pg, const struct statement *statement, int n, const char *const *values, bool binary,
                     struct error *err)
{
    return queue(pg, statement, &(struct params){n, values, NULL, NULL}, binary, err);
}

enum result pg_queue_tids(struct pg *pg, const struct statement *statement, const struct strbuf *tids, int n,
                          const char *const *values, struct error *err)
{
    const char *all[8] = {tids->data};
    const int lengths[ARRAY_LEN(all)] = {(int)tids->len}, formats[ARRAY_LEN(all)] = {1};
    if (n >= (int)ARRAY_LEN(all))
        abort(); /* a statement with more parameters than the program has */
    for (int i = 0; i < n; i++)
        all[i + 1] = values[i];
    return queue(pg, statement, &(struct params){n + 1, all, lengths, formats}, false, err);
}

enum result pg_sync(struct pg *pg, int timeout_ms, struct error *err)
{
    pg->deadline = clock_ms() + timeout_ms;
    if (PQpipelineStatus(pg->conn) == PQ_PIPELINE_OFF && !PQenterPipelineMode(pg->conn))
        return fail(pg, NULL, "cannot start a pipeline to PostgreSQL", err);
    if (!PQpipelineSync(pg->conn))
        return fail(pg, NULL, "cannot send to PostgreSQL", err);
    return OK;
}

bool pg_wait(struct pg *pg, int timeout_ms)
{
    struct error ignored;
    int64_t deadline = clock_ms() + timeout_ms;
    for (;;) {
        int flushing = PQflush(pg->conn);
        if (flushing < 0 || !PQisBusy(pg->conn))
            return true;
        if (wait_socket(pg, (short)(POLLIN | (flushing ? POLLOUT : 0)), deadline, &ignored) != OK)
            return false;
        if (!PQconsumeInput(pg->conn))
            return true;
    }
}

/* A statement that was prepared on its way has two answers: the first is an empty COMMAND_OK with no command tag. */
static bool is_prepare(const PGresult *result)
{
    return PQresultStatus(result) == PGRES_COMMAND_OK && PQcmdStatus((PGresult *)result)[0] == '\0';
}

static void prepared_one(struct pg *pg)
{
    if (pg->n_unsure > 0)
        memmove(pg->unsure, pg->unsure + 1, (size_t)--pg->n_unsure * sizeof pg->unsure[0]);
}

enum result pg_next(struct pg *pg, struct rows **ret, struct error *err)
{
    for (;;) {
        PGresult *result;
        enum result waited = wait_result(pg, pg->deadline, &result, err);
        if (waited != OK)
            return waited;
        if (result == NULL)
            continue; /* the end of the previous statement */
        if (is_prepare(result)) {
            prepared_one(pg);
            PQclear(result);
            continue;
        }
        if (!succeeded(result)) {
            enum result outcome = fail(pg, result, "statement failed", err);
            PQclear(result);
            return outcome;
        }
        if (ret != NULL)
            *ret = (struct rows *)result;
        else
            PQclear(result);
        return OK;
    }
}

enum result pg_end(struct pg *pg, struct error *err)
{
    enum result outcome = OK;
    for (;;) {
        PGresult *result;
        enum result waited = wait_result(pg, pg->deadline, &result, err);
        if (waited != OK)
            return waited;
        if (result == NULL)
            continue;
        ExecStatusType status = PQresultStatus(result);
        if (is_prepare(result))
            prepared_one(pg);
        if (outcome == OK && status != PGRES_PIPELINE_SYNC && !succeeded(result) && status != PGRES_PIPELINE_ABORTED)
            outcome = fail(pg, result, "statement failed", err);
        PQclear(result);
        if (status == PGRES_PIPELINE_SYNC)
            break;
    }
    /* A PREPARE that stands behind the statement that failed was skipped like everything else there. */
    while (pg->n_unsure > 0)
        pg->announced[pg->unsure[--pg->n_unsure]] = false;
    if (!PQexitPipelineMode(pg->conn))
        return fail(pg, NULL, "cannot end the pipeline to PostgreSQL", err);
    return outcome;
}

enum result pg_round_trip(struct pg *pg, const struct statement *statement, int n, const char *const *values,
                          bool binary, struct rows **ret, struct error *err)
{
    struct rows *rows = NULL;
    enum result result = pg_queue(pg, statement, n, values, binary, err);
    if (result == OK)
        result = pg_sync(pg, ANSWER_TIMEOUT_MS, err);
    if (result == OK)
        result = pg_next(pg, &rows, err);
    if (result == OK)
        result = pg_end(pg, err);
    if (result == OK)
        *ret = TAKE(rows);
    rows_free(rows);
    return result;
}
