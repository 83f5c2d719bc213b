#include "doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "event.h"
#include "migration.h"
#include "predicates.h"
#include "schema.h"

#define ASK_TIMEOUT_MS 15000
#define OLDEST_VERSION 140000
#define CLOCK_BOUND_MS 2000

struct rows *doctor_ask(struct pg *pg, const char *name, const char *sql, int n, const char *const *values,
                        struct findings *findings)
{
    struct error err = {0};
    struct rows *rows = NULL;
    if (pg_ask(pg, sql, n, values, ASK_TIMEOUT_MS, &rows, &err) == OK)
        return rows;
    struct finding *finding =
        finding_add(findings, FINDING_WARNING, name, "this could not be looked at", "%s", err.message);
    if (err.hint[0])
        finding_remedy(finding, "%s", err.hint);
    return NULL;
}

/* --- no connection --- */

void doctor_unreachable(const struct error *err, struct findings *findings)
{
    static const struct {
        const char *words, *remedy;
    } known[] = {
        {"password authentication failed",
         "put the right password into OUTBOX_DATABASE_URL (or OUTBOX_DATABASE_URL_FILE), or set it: "
         "ALTER ROLE <user> PASSWORD '<password>'"},
        {"no password supplied", "put the password into OUTBOX_DATABASE_URL, or into a file: OUTBOX_DATABASE_URL_FILE"},
        {"pg_hba.conf",
         "let the host in: a line `hostssl <database> <user> <address> scram-sha-256` in pg_hba.conf, then "
         "SELECT pg_reload_conf()"},
        {"database \"", "CREATE DATABASE, or correct the name at the end of OUTBOX_DATABASE_URL"},
        {"role \"", "CREATE ROLE <user> LOGIN PASSWORD '<password>', or correct the user in OUTBOX_DATABASE_URL"},
        {"Connection refused",
         "start PostgreSQL, or correct host and port in OUTBOX_DATABASE_URL; `pg_isready -h <host> -p <port>` "
         "shows whether it listens"},
        {"too many clients", "raise max_connections, or lower OUTBOX_WORKERS, or put PgBouncer between"},
        {"could not translate host name", "correct the host name in OUTBOX_DATABASE_URL"},
        {"SSL", "correct sslmode, sslrootcert, sslcert and sslkey in OUTBOX_DATABASE_URL"},
    };
    struct finding *finding =
        finding_add(findings, FINDING_ERROR, "connection",
                    "without PostgreSQL nothing can be relayed; a running daemon waits for it", "%s", err->message);
    finding_remedy(finding, "%s",
                   err->hint[0] ? err->hint : "check host, port and network between here and the server");
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strstr(err->message, known[i].words) != NULL) {
            finding_remedy(finding, "%s", known[i].remedy);
            return;
        }
}

/* --- the server --- */

static void check_server(struct pg *pg, const struct config *config, struct findings *findings)
{
    int version = pg_server_version(pg);
    int64_t before = clock_wall_ms();
    _cleanup_(rows_cleanup) struct rows *rows = doctor_ask(
        pg, "server",
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_is_in_recovery(), current_user, "
        "current_database(), current_setting('server_version'), "
        "current_setting('default_transaction_read_only') = 'on', format('ALTER ROLE %I RESET default_transaction_read_only; "
        "ALTER DATABASE %I RESET default_transaction_read_only;', current_user, current_database()), "
        "getdatabaseencoding() = 'SQL_ASCII'",
        0, NULL, findings);
    if (rows == NULL)
        return;
    int64_t middle = before + (clock_wall_ms() - before) / 2, apart = rows_int(rows, 0, 0) - middle;
    if (version < OLDEST_VERSION)
        finding_remedy(finding_add(findings, FINDING_ERROR, "version",
                                   "the schema's functions need PostgreSQL 14 or newer", "PostgreSQL %s",
                                   rows_text(rows, 0, 4)),
                       "upgrade the server to PostgreSQL 14 or newer");
    else
        finding_add(findings, FINDING_OK, "version", NULL, "PostgreSQL %s, database %s, user %s", rows_text(rows, 0, 4),
                    rows_text(rows, 0, 3), rows_text(rows, 0, 2));
    if (rows_true(rows, 0, 1))
        finding_remedy(finding_add(findings, FINDING_ERROR, "standby", "nothing can be marked on a standby",
                                   "the server is a standby"),
                       "name all servers in OUTBOX_DATABASE_URL and add target_session_attrs=read-write");
    else if (rows_true(rows, 0, 5))
        finding_remedy(finding_add(findings, FINDING_ERROR, "read-only",
                                   "nothing can be marked: events would come again and again",
                                   "default_transaction_read_only is on for this user or database"),
                       "%s", rows_text(rows, 0, 6));
    if (rows_true(rows, 0, 7))
        finding_remedy(finding_add(findings, FINDING_WARNING, "encoding",
                                   "JSON is UTF-8: when some writer sends anything else, no claim that meets its event "
                                   "succeeds until that row is gone",
                                   "the database is SQL_ASCII, so it takes every byte for text"),
                       "dump it, and restore it into one made by `createdb -T template0 -E UTF8`");
    if (llabs(apart) > CLOCK_BOUND_MS)
        finding_remedy(
            finding_add(findings, FINDING_WARNING, "clock",
                        "PostgreSQL's clock decides, so nothing breaks; but the times in logs and those in the tables "
                        "do not fit together",
                        "the clocks of this host and of PostgreSQL are %.1f s apart", (double)llabs(apart) / 1000),
            "synchronise both: `timedatectl set-ntp true`, or chrony");
    if (pg_pooled(pg) && config->notify)
        finding_remedy(finding_add(findings, FINDING_WARNING, "pgbouncer",
                                   "a pooler loses LISTEN without a word: nothing wakes the "
                                   "relay, and NOTIFY costs the service its lock for nothing",
                                   "a PgBouncer in transaction mode stands between, and OUTBOX_NOTIFY is on"),
                       "OUTBOX_NOTIFY=off outboxd migrate up\n"
                       "with the same setting for the daemon; or connect outboxd to PostgreSQL directly");
    else if (pg_pooled(pg))
        finding_remedy(
            finding_add(findings, FINDING_INFO, "pgbouncer",
                        "it works, but statements are not prepared, and each transaction costs a little more",
                        "a PgBouncer in transaction mode stands between"),
            "for the highest rates let OUTBOX_DATABASE_URL name PostgreSQL itself");
}

/* --- the schema --- */

/* Which of our tables are there, and may we use the schema? Through the catalog: that needs no privilege. */
static bool check_usage(struct pg *pg, const struct config *config, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows = doctor_ask(
        pg, "schema",
        "SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false), format('GRANT USAGE ON SCHEMA %I TO %I', "
        "$1::text, current_user), EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND relname = 'outbox_events') "
        "FROM (SELECT $1::text AS name) w LEFT JOIN pg_namespace n ON n.nspname = w.name",
        1, (const char *[]){config->schema}, findings);
    if (rows == NULL)
        return false;
    if (!rows_true(rows, 0, 3)) {
        finding_remedy(finding_add(findings, FINDING_ERROR, "schema", "there is nothing to relay from",
                                   "there is no outbox in schema %s", pg_schema(pg)),
                       "outboxd migrate up\nor set OUTBOX_SCHEMA to where it is");
        return false;
    }
    if (!rows_true(rows, 0, 1)) {
        finding_remedy(finding_add(findings, FINDING_ERROR, "privileges", "the relay cannot see its tables",
                                   "this user may not use schema %s", pg_schema(pg)),
                       "%s;\nthe role outbox_relay of sql/roles.sql has this and all the rest", rows_text(rows, 0, 2));
        return false;
    }
    return true;
}

/* What the relay, the purge and the operator's commands need: roles.sql grants the same to outbox_relay. */
static bool check_privileges(struct pg *pg, const struct config *config, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows = doctor_ask(
        pg, "privileges",
        "SELECT string_agg(p, ', ' ORDER BY n), t, format('GRANT %s ON %I.%I TO %I', string_agg(p, ', ' ORDER BY n), $1::text, t, "
        "current_user), current_user FROM (VALUES "
        "('outbox_events', '{SELECT,UPDATE,DELETE}'::text[]), ('outbox_lanes', '{SELECT,UPDATE}'), "
        "('outbox_parked_topics', '{SELECT,INSERT,UPDATE,DELETE}'), ('outbox_schema_version', '{SELECT}'), "
        "('processed_events', '{SELECT,INSERT,DELETE}'), ('inbox_dead', '{SELECT,INSERT,UPDATE,DELETE}')) v(t, ps), "
        "unnest(ps) WITH ORDINALITY u(p, n), pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace "
        "WHERE s.nspname = $1 AND c.relname = t AND NOT has_table_privilege(c.oid, p) GROUP BY t UNION ALL "
        "SELECT 'EXECUTE', proname, format('GRANT EXECUTE ON FUNCTION %I.%I(%s) TO %I', $1::text, proname, "
        "pg_get_function_identity_arguments(f.oid), current_user), current_user "
        "FROM pg_proc f JOIN pg_namespace s ON s.oid = pronamespace WHERE nspname = $1 "
        "AND proname IN ('outbox_lane', 'outbox_topics', 'outbox_status_name') AND NOT has_function_privilege(f.oid, 'EXECUTE') "
        "ORDER BY 2",
        1, (const char *[]){config->schema}, findings);
    for (int i = 0; rows != NULL && i < rows_n(rows); i++)
        finding_remedy(finding_add(findings, FINDING_ERROR, "privileges",
                                   "the relay or one of its commands will be refused", "the user %s lacks %s on %s",
                                   rows_text(rows, i, 3), rows_text(rows, i, 0), rows_text(rows, i, 1)),
                       "%s;", rows_text(rows, i, 2));
    if (rows != NULL && rows_n(rows) == 0)
        finding_add(findings, FINDING_OK, "privileges", NULL, "the user may do all that the relay does");
    return rows != NULL && rows_n(rows) == 0;
}

static bool check_version(struct pg *pg, const struct config *config, struct findings *findings)
{
    struct schema_state state;
    struct error err = {0};
    if (schema_read(pg, &state, &err) != OK) {
        finding_remedy(
            finding_add(findings, FINDING_ERROR, "schema", "`outboxd run` refuses such a schema", "%s", err.message),
            "%s", err.hint[0] ? err.hint : "outboxd migrate status");
        return false;
    }
    if (state.version < state.latest) {
        finding_remedy(finding_add(findings, FINDING_ERROR, "schema", "`outboxd run` refuses an older schema",
                                   "the schema is at version %d, this outboxd needs %d", state.version, state.latest),
                       "outboxd migrate up");
        return false;
    }
    finding_add(findings, FINDING_OK, "schema", NULL, "schema %s is at version %d", pg_schema(pg), state.version);
    if (state.notify != config->notify)
        finding_remedy(finding_add(findings, FINDING_WARNING, "notify",
                                   state.notify
                                       ? "NOTIFY takes a lock at every commit of the service, and nobody listens"
                                       : "the relay listens, and nobody notifies: it finds events by polling only",
                                   "OUTBOX_NOTIFY is %s, but the trigger in the database is %s",
                                   config->notify ? "on" : "off", state.notify ? "on" : "off"),
                       "OUTBOX_NOTIFY=%s outboxd migrate up\nor change the setting", config->notify ? "on" : "off");
    return true;
}

/* --- tables and functions that the migrations make: a restored backup may lack some --- */

static void check_objects(struct pg *pg, const struct config *config, struct findings *findings)
{
    static const struct {
        const char *create, *kind, *sql;
    } kinds[] = {
        {"CREATE TABLE ", "table",
         "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2"},
        {"CREATE FUNCTION ", "function",
         "SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1 AND p.proname = $2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds) * (size_t)n_migrations; i++) {
        size_t kind = i % ARRAY_LEN(kinds), len = strlen(kinds[kind].create);
        for (const char *at = migrations[i / ARRAY_LEN(kinds)].up; (at = strstr(at, kinds[kind].create)) != NULL;) {
            at += len;
            _cleanup_(str_free) char *name = str_dupn(at, strcspn(at, " ("));
            _cleanup_(rows_cleanup) struct rows *rows =
                doctor_ask(pg, "schema", kinds[kind].sql, 2, (const char *[]){config->schema, name}, findings);
            if (rows != NULL && rows_n(rows) == 0)
                finding_remedy(finding_add(findings, FINDING_ERROR, "schema", "the relay or one of its commands fails",
                                           "the %s %s is missing in schema %s", kinds[kind].kind, name, pg_schema(pg)),
                               "outboxd migrate print\nshows the statement that makes it; or restore it from a backup");
        }
    }
}

/* --- indexes: those that the migrations make --- */

/* The statement without its end; the table's name with its schema. */
static char *mending(struct pg *pg, const char *statement)
{
    struct strbuf text = {0};
    const char *on = strstr(statement, " ON ");
    const char *name = statement + strlen("CREATE INDEX ");
    size_t len = strcspn(statement, ";");
    strbuf_addf(&text, "CREATE INDEX CONCURRENTLY %.*s ON %s.", (int)(on - name), name, pg_schema(pg));
    bool blank = false; /* the text has line breaks and indents */
    for (const char *c = on + 4; c < statement + len; c++) {
        bool now = *c == ' ' || *c == '\n';
        if (!now || !blank)
            strbuf_addn(&text, now ? " " : c, 1);
        blank = now;
    }
    return text.data;
}

static void check_index(struct pg *pg, const char *statement, const struct config *config, struct findings *findings)
{
    const char *start = statement + strlen("CREATE INDEX ");
    _cleanup_(str_free) char *name = str_dupn(start, strcspn(start, " "));
    _cleanup_(rows_cleanup) struct rows *rows =
        doctor_ask(pg, "index",
                   "SELECT i.indisvalid AND i.indisready FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                   "JOIN pg_index i ON i.indexrelid = c.oid WHERE n.nspname = $1 AND c.relname = $2",
                   2, (const char *[]){config->schema, name}, findings);
    if (rows == NULL || (rows_n(rows) == 1 && rows_true(rows, 0, 0)))
        return;
    if (rows_n(rows) == 1) {
        finding_remedy(finding_add(findings, FINDING_ERROR, "index",
                                   "the server does not use it: claims read the whole table",
                                   "the index %s is not valid", name),
                       "REINDEX INDEX CONCURRENTLY %s.%s;", pg_schema(pg), name);
        return;
    }
    _cleanup_(str_free) char *create = mending(pg, statement);
    finding_remedy(finding_add(findings, FINDING_ERROR, "index", "claims and releases read the whole table without it",
                               "the index %s is missing", name),
                   "%s;", create);
}

static void check_indexes(struct pg *pg, const struct config *config, struct findings *findings)
{
    size_t before = findings->n;
    for (int m = 0; m < n_migrations; m++)
        for (const char *at = migrations[m].up; (at = strstr(at, "CREATE INDEX ")) != NULL; at++)
            check_index(pg, at, config, findings);
    if (findings->n == before)
        finding_add(findings, FINDING_OK, "index", NULL, "every index is there and valid");
}

/* --- the tables --- */

static void check_tables(struct pg *pg, const struct config *config, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *stored = doctor_ask(
        pg, "storage",
        "SELECT attname, format('ALTER TABLE %I.outbox_events ALTER COLUMN %I SET STORAGE EXTERNAL', $1::text, attname) "
        "FROM pg_attribute WHERE attrelid = to_regclass($2 || '.outbox_events') AND attname IN ('payload', 'payload_bytes', 'headers', "
        "'metadata') AND attstorage <> 'e' ORDER BY attnum",
        2, (const char *[]){config->schema, pg_schema(pg)}, findings);
    for (int i = 0; stored != NULL && i < rows_n(stored); i++)
        finding_remedy(
            finding_add(
                findings, FINDING_WARNING, "storage",
                "compressed values look small to a claim: a batch may take far more memory than OUTBOX_BATCH_BYTES",
                "the column %s may be stored compressed", rows_text(stored, i, 0)),
            "%s;", rows_text(stored, i, 1));
    _cleanup_(rows_cleanup) struct rows *lanes =
        doctor_ask(pg, "lanes",
                   "SELECT count(*), (SELECT cache_size FROM pg_sequences WHERE format('%I.%I', schemaname, "
                   "sequencename) = pg_get_serial_sequence($1 || '.outbox_events', 'seq')), "
                   "pg_get_serial_sequence($1 || '.outbox_events', 'seq') FROM @.outbox_lanes",
                   1, (const char *[]){pg_schema(pg)}, findings);
    if (lanes == NULL)
        return;
    if (rows_int(lanes, 0, 0) != LANES)
        finding_remedy(
            finding_add(findings, FINDING_ERROR, "lanes", "events of a lane that has no row are never relayed",
                        "outbox_lanes has %s rows instead of %d", rows_text(lanes, 0, 0), LANES),
            "INSERT INTO %s.outbox_lanes (lane) SELECT generate_series(0, 15) ON CONFLICT DO NOTHING;", pg_schema(pg));
    if (!rows_null(lanes, 0, 1) && rows_int(lanes, 0, 1) != 1)
        finding_remedy(finding_add(findings, FINDING_ERROR, "sequence",
                                   "seq is the order of events; a cache hands numbers to sessions "
                                   "in blocks, and the order is lost",
                                   "the sequence of seq caches %s numbers", rows_text(lanes, 0, 1)),
                       "ALTER SEQUENCE %s CACHE 1;", rows_text(lanes, 0, 2));
}

/* --- the events --- */

static void check_parked(struct pg *pg, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows =
        doctor_ask(pg, "parked",
                   "SELECT topic, reason, to_json(since) #>> '{}' FROM @.outbox_parked_topics WHERE state = 'parked' "
                   "ORDER BY since LIMIT 20",
                   0, NULL, findings);
    for (int i = 0; rows != NULL && i < rows_n(rows); i++)
        finding_remedy(finding_add(findings, FINDING_WARNING, "parked",
                                   "its events wait; other topics go on, and no attempt is counted",
                                   "topic %s is parked since %s: %s", rows_text(rows, i, 0), rows_text(rows, i, 2),
                                   rows_text(rows, i, 1)),
                       "mend the topic (see the findings about Kafka), then:\noutboxd events retry --topic %s",
                       rows_text(rows, i, 0));
}

static void check_dead(struct pg *pg, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows =
        doctor_ask(pg, "dead",
                   "SELECT count(*) FROM (SELECT FROM generate_series(0, 15) l CROSS JOIN LATERAL (SELECT FROM "
                   "@.outbox_events e WHERE e.lane = l::smallint AND " DEAD " LIMIT 1000) d LIMIT 1000) x",
                   0, NULL, findings);
    if (rows == NULL || rows_int(rows, 0, 0) == 0)
        return;
    finding_remedy(finding_add(findings, FINDING_INFO, "dead", "they were refused for good and wait for a decision",
                               "%s%s DEAD events", rows_text(rows, 0, 0),
                               rows_int(rows, 0, 0) == 1000 ? " or more" : ""),
                   "outboxd events list --status dead\nthen `outboxd events retry`, or `discard`");
}

void doctor_look(struct pg *pg, const struct config *config, struct findings *findings)
{
    findings->area = "postgresql";
    check_server(pg, config, findings);
    if (check_usage(pg, config, findings) && check_privileges(pg, config, findings) &&
        check_version(pg, config, findings)) {
        check_objects(pg, config, findings);
        check_indexes(pg, config, findings);
        check_tables(pg, config, findings);
        check_parked(pg, findings);
        check_dead(pg, findings);
    }
    doctor_vacuum(pg, findings);
}

enum result doctor_topics(struct pg *pg, struct rows **ret, struct error *err)
{
#define SOME(predicate)                                                                                             \
    "SELECT * FROM (SELECT e.topic, e.routing_key FROM @.outbox_events e WHERE e.lane = l::smallint AND " predicate \
    " LIMIT 2000) x"
/* One step a topic, however many rows are held. */
#define STEPS(predicate)                                                                                                  \
    "SELECT topic, NULL FROM (WITH RECURSIVE step AS ((SELECT e.topic FROM @.outbox_events e WHERE e.lane = l::smallint " \
    "AND " predicate                                                                                                      \
    " ORDER BY e.topic LIMIT 1) UNION ALL SELECT (SELECT e.topic FROM @.outbox_events e WHERE e.lane = "                  \
    "l::smallint AND e.topic > step.topic AND " predicate                                                                 \
    " ORDER BY e.topic LIMIT 1) FROM step WHERE topic IS NOT NULL) "                                                      \
    "SELECT topic FROM step WHERE topic IS NOT NULL LIMIT 200) s"
    return pg_ask(
        pg,
        "SELECT DISTINCT t FROM (SELECT unnest(@.outbox_topics(x.topic, x.routing_key)) AS t FROM generate_series(0, 15) l "
        "CROSS JOIN LATERAL (" SOME(READY) " UNION ALL " SOME(ROUTED) " UNION ALL " SOME(DEAD) " UNION ALL " STEPS(
            HELD) " UNION ALL " STEPS(HEAD) ") x "
                                            "UNION ALL SELECT topic FROM @.outbox_parked_topics) a ORDER BY t LIMIT $1::int",
        1, (const char *[]){"200"}, ASK_TIMEOUT_MS, ret, err);
}
