#include "inbox.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "schema.h"

#define ASK_TIMEOUT_MS  10000
#define MARK_TIMEOUT_MS 60000 /* another consumer's transaction may hold the same ids for so long */
#define ANSWER_SLACK_MS 10000
#define WAIT_MS         1000

#define ERROR_MAX 1000 /* characters of an error text that is kept */

#define HANDLER_ARGUMENTS "(text,text,text,jsonb,jsonb)"

/* --- checks --- */

static enum result check_schema(struct pg *pg, struct error *err)
{
    struct schema_state state;
    enum result result = schema_read(pg, &state, err);
    if (result == RETRY && pg_error_is_permanent(err))
        return FATAL;
    if (result != OK)
        return result;
    if (state.version >= state.latest)
        return OK;
    error_fatal(err, "the schema %s is at version %d, this outboxd needs %d", pg_schema(pg), state.version,
                state.latest);
    error_hint(err, "run `outboxd migrate up`%s", state.version == 0 ? ", or set OUTBOX_SCHEMA" : "");
    return FATAL;
}

static enum result check_privileges(struct pg *pg, struct error *err)
{
    static const struct statement missing = {
        "inbox_privileges",
        "SELECT string_agg(format('%s ON %s', p, t), ', '), current_user, current_setting('server_encoding') "
        "FROM (VALUES ('SELECT', 'processed_events'), ('INSERT', 'processed_events'), ('DELETE', 'processed_events'), "
        "('SELECT', 'inbox_dead'), ('INSERT', 'inbox_dead'), ('UPDATE', 'inbox_dead')) v(p, t) "
        "WHERE NOT has_table_privilege($1 || '.' || t, p)"};
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = pg_query(pg, &missing, 1, (const char *[]){pg_schema(pg)}, ASK_TIMEOUT_MS, &rows, err);
    if (result != OK)
        return result == RETRY && pg_error_is_permanent(err) ? FATAL : result;
    if (!rows_null(rows, 0, 0)) {
        error_fatal(err, "the user %s lacks a privilege: %s", rows_text(rows, 0, 1), rows_text(rows, 0, 0));
        error_hint(err, "GRANT outbox_relay TO %s (the role comes from sql/roles.sql)", rows_text(rows, 0, 1));
        return FATAL;
    }
    if (!str_eq(rows_text(rows, 0, 2), "UTF8")) {
        error_fatal(err, "the database has the encoding %s: events are UTF-8 and do not all fit into it",
                    rows_text(rows, 0, 2));
        error_hint(err, "consume into a database that was created with ENCODING 'UTF8'");
        return FATAL;
    }
    return OK;
}

/* OUTBOX_CONSUMER_HANDLER as SQL writes it: name or schema.name, each part quoted. */
static char *quote_handler(const char *name)
{
    struct strbuf buf = {0};
    const char *dot = strchr(name, '.');
    if (dot != NULL) {
        strbuf_add(&buf, "\"");
        strbuf_addn(&buf, name, (size_t)(dot - name));
        strbuf_add(&buf, "\".");
        name = dot + 1;
    }
    strbuf_addf(&buf, "\"%s\"", name); /* config_check lets no quote pass */
    return buf.data;
}

static enum result refuse_handler(const char *name, const struct rows *rows, struct error *err)
{
    const char *others = rows_text(rows, 0, 4), *user = rows_text(rows, 0, 5);
    if (rows_null(rows, 0, 0)) {
        error_fatal(err, "OUTBOX_CONSUMER_HANDLER: there is no function %s" HANDLER_ARGUMENTS "%s%s", name,
                    *others ? "; there is " : "", others);
        error_hint(
            err,
            "CREATE FUNCTION %s(event_id text, topic text, key text, payload jsonb, headers jsonb) RETURNS void ...; "
            "a name without a schema is looked for in the user's search_path",
            name);
    } else if (!rows_true(rows, 0, 1)) {
        error_fatal(err, "OUTBOX_CONSUMER_HANDLER: %s is not a plain function", name);
        error_hint(err, "a procedure, an aggregate or a function that returns a set cannot be a handler: make it a "
                        "function that returns void");
    } else {
        error_fatal(err, "OUTBOX_CONSUMER_HANDLER: the user %s may not execute %s", user, name);
        error_hint(err, "GRANT EXECUTE ON FUNCTION %s" HANDLER_ARGUMENTS " TO %s; GRANT USAGE ON its schema, too", name,
                   user);
    }
    return FATAL;
}

/* *ret: the handler's name, quoted and with its schema, so that no later search_path matters. */
static enum result find_handler(struct pg *pg, const char *name, char **ret, struct error *err)
{
    static const struct statement find = {
        "inbox_handler",
        "SELECT p.oid, p.prokind = 'f' AND NOT p.proretset, "
        "has_function_privilege(p.oid, 'EXECUTE') AND has_schema_privilege(p.pronamespace, 'USAGE'), "
        "quote_ident(n.nspname) || '.' || quote_ident(p.proname), "
        "(SELECT string_agg(o.oid::regprocedure::text, ' and ') FROM pg_proc o WHERE o.proname = $2), current_user "
        "FROM (SELECT to_regprocedure($1) AS oid) h LEFT JOIN pg_proc p ON p.oid = h.oid "
        "LEFT JOIN pg_namespace n ON n.oid = p.pronamespace"};
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    _cleanup_(str_free) char *quoted = quote_handler(name);
    _cleanup_(str_free) char *signature = str_format("%s" HANDLER_ARGUMENTS, quoted);
    const char *dot = strchr(name, '.');
    enum result result =
        pg_query(pg, &find, 2, (const char *[]){signature, dot ? dot + 1 : name}, ASK_TIMEOUT_MS, &rows, err);
    if (result != OK) {
        if (!pg_error_is_permanent(err))
            return result;
        error_hint(err, "GRANT USAGE on the schema of OUTBOX_CONSUMER_HANDLER to the user of OUTBOX_DATABASE_URL");
        return FATAL;
    }
    if (rows_null(rows, 0, 0) || !rows_true(rows, 0, 1) || !rows_true(rows, 0, 2))
        return refuse_handler(name, rows, err);
    *ret = str_dup(rows_text(rows, 0, 3));
    return OK;
}

enum result inbox_check(struct pg *pg, const struct config *config, struct error *err)
{
    _cleanup_(str_free) char *handler = NULL;
    enum result result = check_schema(pg, err);
    if (result == OK)
        result = check_privileges(pg, err);
    if (result == OK)
        result = find_handler(pg, config->consumer_handler, &handler, err);
    return result;
}

enum result inbox_init(struct inbox *inbox, struct pg *pg, const struct config *config, struct error *err)
{
    *inbox = (struct inbox){.pg = pg, .group = config->consumer_group, .timeout_ms = (int)config->consumer_timeout};
    enum result result = find_handler(pg, config->consumer_handler, &inbox->handler, err);
    if (result != OK)
        return result;
    snprintf(inbox->retention, sizeof inbox->retention, "%" PRId64 " ms", config->inbox_retention);
    snprintf(inbox->timeout, sizeof inbox->timeout, "%d", inbox->timeout_ms);
    /* A consumer that hangs, or whose host vanished, must not keep its marks, and with them another, for hours. */
    snprintf(inbox->idle_timeout, sizeof inbox->idle_timeout, "%d", MARK_TIMEOUT_MS);
    /* The sort says in which order the handler is called; a count needs every call and sends nothing back. OFFSET keeps
     * the planner from moving the calls below the sort. */
    inbox->all = (struct statement){
        "inbox_all",
        str_format("SELECT count(%s(u.id, u.topic, u.key, u.payload::jsonb, u.headers::jsonb)) "
                   "FROM (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) "
                   "WITH ORDINALITY AS u(id, topic, key, payload, headers, n) ORDER BY n OFFSET 0) u",
                   inbox->handler)};
    inbox->one = (struct statement){
        "inbox_one",
        str_format("SELECT count(%s($1::text, $2::text, $3::text, $4::jsonb, $5::jsonb))", inbox->handler)};
    return OK;
}

void inbox_done(struct inbox *inbox)
{
    free(inbox->handler);
    free((char *)(uintptr_t)inbox->all.sql);
    free((char *)(uintptr_t)inbox->one.sql);
    *inbox = (struct inbox){0};
}

/* --- the way of a batch --- */

/* Sends what is queued and reads `n` answers; *ret gets the one at `kept`. After an error the pipeline is empty again, unless
 * the connection is gone. */
static enum result exchange(struct inbox *inbox, int n, int kept, int timeout_ms, struct rows **ret, struct error *err)
{
    struct error ignored = {0};
    int64_t deadline = clock_ms() + timeout_ms;
    enum result result = pg_sync(inbox->pg, timeout_ms, err);
    while (result == OK && !pg_wait(inbox->pg, WAIT_MS) && clock_left_ms(deadline) > 0)
        if (inbox->idle != NULL)
            inbox->idle(inbox->arg);
    for (int i = 0; i < n && result == OK; i++)
        result = pg_next(inbox->pg, i == kept ? ret : NULL, err);
    if (result == OK)
        return pg_end(inbox->pg, err);
    if (err->sqlstate[0] != '\0' && pg_end(inbox->pg, &ignored) != OK && ignored.sqlstate[0] == '\0')
        err->sqlstate[0] = '\0'; /* the connection went, too */
    return result;
}

static enum result queue(struct inbox *inbox, const struct statement *statement, int n, const char *const *values,
                         struct error *err)
{
    return pg_queue(inbox->pg, statement, n, values, false, err);
}

enum result inbox_begin(struct inbox *inbox, const char *ids, struct rows **ret, struct error *err)
{
    static const struct statement begin = {"inbox_begin", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"};
    static const struct statement guards = {"inbox_guards",
                                            "SELECT set_config('idle_in_transaction_session_timeout', $1, true), "
                                            "set_config('statement_timeout', $1, true)"};
    static const struct statement mark = {
        "inbox_mark",
        "INSERT INTO @.processed_events (consumer_group, event_id, expires_at) "
        "SELECT $1, u.id, clock_timestamp() + $3::interval FROM unnest($2::text[]) WITH ORDINALITY AS u(id, n) "
        "ORDER BY u.n ON CONFLICT DO NOTHING RETURNING event_id"};
    static const struct statement limit = {"inbox_limit", "SELECT set_config('statement_timeout', $1, true)"};
    enum result result = queue(inbox, &begin, 0, NULL, err);
    if (result == OK)
        result = queue(inbox, &guards, 1, (const char *[]){inbox->idle_timeout}, err);
    if (result == OK)
        result = queue(inbox, &mark, 3, (const char *[]){inbox->group, ids, inbox->retention}, err);
    if (result == OK)
        result = queue(inbox, &limit, 1, (const char *[]){inbox->timeout}, err);
    if (result == OK)
        result = exchange(inbox, 4, 2, MARK_TIMEOUT_MS + ANSWER_SLACK_MS, ret, err);
    return result;
}

enum result inbox_all(struct inbox *inbox, const struct inbox_calls *calls, struct error *err)
{
    const char *const values[] = {calls->ids, calls->topics, calls->keys, calls->payloads, calls->headers};
    enum result result = queue(inbox, &inbox->all, 5, values, err);
    return result == OK ? exchange(inbox, 1, -1, inbox->timeout_ms + ANSWER_SLACK_MS, NULL, err) : result;
}

static const struct statement savepoint = {"inbox_savepoint", "SAVEPOINT event"};
static const struct statement release = {"inbox_release", "RELEASE SAVEPOINT event"};

/* Back to the savepoint. REJECT: as if nothing had been tried; err stays what it is. */
static enum result undo(struct inbox *inbox, struct error *err)
{
    struct error failure = {0};
    if (pg_script(inbox->pg, "ROLLBACK TO SAVEPOINT event; RELEASE SAVEPOINT event", ASK_TIMEOUT_MS, &failure) == OK)
        return REJECT;
    *err = failure;
    err->sqlstate[0] = '\0';
    return RETRY;
}

enum result inbox_one(struct inbox *inbox, const struct inbox_call *call, struct error *err)
{
    /* A deferred constraint that fails is this event's fault, too, and not that of the whole batch at its COMMIT. */
    static const struct statement test = {"inbox_test", "SET CONSTRAINTS ALL IMMEDIATE"};
    static const struct statement defer = {"inbox_defer", "SET CONSTRAINTS ALL DEFERRED"};
    static const struct statement *const after[] = {&test, &defer, &release};
    const char *const values[] = {call->id, call->topic, call->key, call->payload, call->headers};
    enum result result = queue(inbox, &savepoint, 0, NULL, err);
    if (result == OK)
        result = queue(inbox, &inbox->one, 5, values, err);
    for (size_t i = 0; i < ARRAY_LEN(after) && result == OK; i++)
        result = queue(inbox, after[i], 0, NULL, err);
    if (result == OK)
        result = exchange(inbox, 5, -1, inbox->timeout_ms + ANSWER_SLACK_MS, NULL, err);
    return result == OK || err->sqlstate[0] == '\0' ? result : undo(inbox, err);
}

static enum result put_into_dead(struct inbox *inbox, const char *const values[10], struct error *err)
{
    static const struct statement bury = {
        "inbox_bury",
        "INSERT INTO @.inbox_dead AS d (consumer_group, event_id, topic, key, payload, headers, partition, \"offset\", error, attempts) "
        "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (consumer_group, event_id) DO UPDATE SET "
        "topic = excluded.topic, key = excluded.key, payload = excluded.payload, headers = excluded.headers, "
        "partition = excluded.partition, \"offset\" = excluded.\"offset\", error = excluded.error, "
        "attempts = d.attempts + excluded.attempts, died_at = clock_timestamp()"};
    enum result result = queue(inbox, &savepoint, 0, NULL, err);
    if (result == OK)
        result = queue(inbox, &bury, 10, values, err);
    if (result == OK)
        result = queue(inbox, &release, 0, NULL, err);
    if (result == OK)
        result = exchange(inbox, 3, -1, MARK_TIMEOUT_MS, NULL, err);
    return result == OK || inbox_blame(err) != BLAME_EVENT ? result : undo(inbox, err);
}

enum result inbox_bury(struct inbox *inbox, const struct inbox_call *call, int partition, int64_t offset,
                       const char *error, unsigned attempts, struct error *err)
{
    char place[3][24];
    snprintf(place[0], sizeof place[0], "%d", partition);
    snprintf(place[1], sizeof place[1], "%" PRId64, offset);
    snprintf(place[2], sizeof place[2], "%u", attempts);
    const char *values[] = {inbox->group,  call->id, call->topic, call->key, call->payload,
                            call->headers, place[0], place[1],    error,     place[2]};
    enum result result = put_into_dead(inbox, values, err);
    if (result != REJECT)
        return result;
    /* What PostgreSQL cannot hold must not hold up everything else: its place in Kafka will do. */
    _cleanup_(str_free) char *stub = str_format("{\"too_large\": %zu}", call->payload ? strlen(call->payload) : 0);
    _cleanup_(str_free) char *reason = inbox_tell(err);
    _cleanup_(str_free) char *both = str_format("%s" INBOX_STUB "%s", error, reason);
    values[4] = stub;
    values[5] = "{}";
    values[8] = both;
    result = put_into_dead(inbox, values, err);
    return result == REJECT ? RETRY : result;
}

enum result inbox_finish(struct inbox *inbox, const char *unmark, struct error *err)
{
    static const struct statement take_back = {
        "inbox_unmark", "DELETE FROM @.processed_events WHERE consumer_group = $1 AND event_id = ANY ($2::text[])"};
    /* The offsets follow the COMMIT: effects that a crash of the server could still take back would be lost. */
    static const struct statement durable = {
        "inbox_durable",
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"};
    static const struct statement commit = {"inbox_commit", "COMMIT"};
    enum result result = OK;
    if (unmark != NULL)
        result = queue(inbox, &take_back, 2, (const char *[]){inbox->group, unmark}, err);
    if (result == OK)
        result = queue(inbox, &durable, 0, NULL, err);
    if (result == OK)
        result = queue(inbox, &commit, 0, NULL, err);
    return result == OK ? exchange(inbox, unmark ? 3 : 2, -1, MARK_TIMEOUT_MS, NULL, err) : result;
}

enum result inbox_rollback(struct inbox *inbox, struct error *err)
{
    return pg_script(inbox->pg, "ROLLBACK", ASK_TIMEOUT_MS, err);
}

/* By SQLSTATE class: a handler's mistake must not stop the rest, and a server's trouble must not cost an event its tries. */
enum inbox_blame inbox_blame(const struct error *err)
{
    static const char *const world[] = {
        "08", "25006", "26",
        "53", "57P",   "58", /* connection, standby, a pooler that forgot, resources, shutdown, disk */
    };
    const char *state = err->sqlstate;
    if (state[0] == '\0')
        return BLAME_WORLD;
    if (strncmp(state, "40", 2) == 0)
        return BLAME_NOBODY;
    for (size_t i = 0; i < ARRAY_LEN(world); i++)
        if (strncmp(state, world[i], strlen(world[i])) == 0)
            return BLAME_WORLD;
    return BLAME_EVENT;
}

bool inbox_handler_is_gone(struct inbox *inbox, const struct config *config, const struct error *failure,
                           struct error *ret)
{
    _cleanup_(str_free) char *handler = NULL;
    if (!pg_error_is_permanent(failure))
        return false;
    bool gone = find_handler(inbox->pg, config->consumer_handler, &handler, ret) == FATAL;
    ret->sqlstate[0] = '\0';
    return gone;
}

char *inbox_tell(const struct error *err)
{
    static const char prefix[] = "statement failed: ";
    const char *text = str_has_prefix(err->message, prefix) ? err->message + sizeof prefix - 1 : err->message;
    _cleanup_(str_free) char *cut = str_clean(text, ERROR_MAX);
    return str_format("%s (SQLSTATE %s)", cut, err->sqlstate);
}
