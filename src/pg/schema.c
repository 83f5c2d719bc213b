#include "schema.h"

#include <stdlib.h>
#include <string.h>

#include "migration.h"

#define TIMEOUT_MS 600000 /* building an index on a large table takes its time */

#define ENABLE_NOTIFY  "ALTER TABLE outbox_events ENABLE TRIGGER outbox_notify"
#define DISABLE_NOTIFY "ALTER TABLE outbox_events DISABLE TRIGGER outbox_notify"

static const char version_table[] = "CREATE TABLE IF NOT EXISTS outbox_schema_version (\n"
                                    "    version    INTEGER PRIMARY KEY,\n"
                                    "    name       TEXT NOT NULL,\n"
                                    "    checksum   TEXT NOT NULL,\n"
                                    "    applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()\n"
                                    ");\n";

/* --- what is there --- */

static enum result compare(const struct rows *rows, struct schema_state *state, struct error *err)
{
    int highest = rows_n(rows) > 0 ? (int)rows_int(rows, rows_n(rows) - 1, 0) : 0;
    if (highest > n_migrations) {
        error_fatal(err, "the schema is at version %d, newer than this outboxd needs (%d)", highest, n_migrations);
        error_hint(err, "install the outboxd that migrated it, or let that one run `outboxd migrate down --to %d`",
                   n_migrations);
        return FATAL;
    }
    for (int i = 0; i < rows_n(rows); i++) {
        int version = (int)rows_int(rows, i, 0);
        const char *name = rows_text(rows, i, 1);
        if (version != i + 1) {
            error_fatal(err,
                        "migration %03d_%s is missing in outbox_schema_version, but a later one (%03d_%s) is there",
                        i + 1, migrations[i].name, version, name);
            error_hint(err, "restore the table, or migrate an empty schema anew");
            return FATAL;
        }
        const struct migration *known = &migrations[i];
        if (strcmp(name, known->name) != 0 || strcmp(rows_text(rows, i, 2), known->checksum) != 0) {
            error_fatal(err, "migration %03d_%s was changed: the database has %s with checksum %s, this outboxd %s",
                        version, known->name, name, rows_text(rows, i, 2), known->checksum);
            error_hint(err, "use the outboxd that applied it; migrations are never edited, only added");
            return FATAL;
        }
        state->version = version;
    }
    return OK;
}

enum result schema_read(struct pg *pg, struct schema_state *ret, struct error *err)
{
    static const struct statement there = {"schema", "SELECT to_regclass($1 || '.outbox_schema_version') IS NOT NULL"};
    static const struct statement applied = {
        "schema", "SELECT version, name, checksum FROM @.outbox_schema_version ORDER BY version"};
    static const struct statement trigger = {"schema",
                                             "SELECT tgenabled <> 'D' FROM pg_trigger WHERE tgname = 'outbox_notify' "
                                             "AND tgrelid = to_regclass($1 || '.outbox_events')"};
    const char *const schema[] = {pg_schema(pg)};
    *ret = (struct schema_state){.latest = n_migrations};
    _cleanup_(rows_cleanup) struct rows *exists = NULL;
    enum result result = pg_query(pg, &there, 1, schema, 10000, &exists, err);
    if (result != OK || !rows_true(exists, 0, 0))
        return result;
    _cleanup_(rows_cleanup) struct rows *versions = NULL;
    result = pg_query(pg, &applied, 0, NULL, 10000, &versions, err);
    if (result == OK)
        result = compare(versions, ret, err);
    _cleanup_(rows_cleanup) struct rows *notify = NULL;
    if (result == OK)
        result = pg_query(pg, &trigger, 1, schema, 10000, &notify, err);
    ret->notify = result == OK && rows_n(notify) == 1 && rows_true(notify, 0, 0);
    return result;
}

static enum result check_privileges(struct pg *pg, bool needs_delete, struct error *err)
{
    static const struct statement missing = {
        "privileges", "SELECT string_agg(lack, ', '), current_user FROM ("
                      "SELECT format('%s ON %s', p, t) AS lack FROM (VALUES ('SELECT', 'outbox_events'), "
                      "('UPDATE', 'outbox_events'), ('DELETE', CASE WHEN $1::boolean THEN 'outbox_events' END), "
                      "('SELECT', 'outbox_lanes'), ('UPDATE', 'outbox_lanes'), ('SELECT', 'outbox_parked_topics'), "
                      "('INSERT', 'outbox_parked_topics'), ('UPDATE', 'outbox_parked_topics'), "
                      "('DELETE', 'outbox_parked_topics')) v(p, t) "
                      "WHERE t IS NOT NULL AND NOT has_table_privilege($2 || '.' || t, p) UNION ALL "
                      "SELECT 'EXECUTE ON FUNCTION outbox_topics' "
                      "WHERE NOT has_function_privilege($2 || '.outbox_topics(text, text)', 'EXECUTE')) m"};
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result =
        pg_query(pg, &missing, 2, (const char *[]){needs_delete ? "t" : "f", pg_schema(pg)}, 10000, &rows, err);
    if (result != OK)
        return result;
    if (rows_null(rows, 0, 0))
        return OK;
    error_fatal(err, "the user %s lacks a privilege: %s", rows_text(rows, 0, 1), rows_text(rows, 0, 0));
    error_hint(err, "GRANT outbox_relay TO %s (the role comes from sql/roles.sql)", rows_text(rows, 0, 1));
    return FATAL;
}

/* Waiting mends neither a privilege nor a table that is not there. */
static enum result unless_permanent(enum result result, const struct error *err)
{
    return result == RETRY && pg_error_is_permanent(err) ? FATAL : result;
}

enum result schema_current(struct pg *pg, struct schema_state *ret, struct error *err)
{
    enum result result = unless_permanent(schema_read(pg, ret, err), err);
    if (result != OK)
        return result;
    if (ret->version < ret->latest) {
        if (ret->version == 0)
            error_fatal(err, "there is no outbox in schema %s", pg_schema(pg));
        else
            error_fatal(err, "the schema is at version %d, older than this outboxd needs (%d)", ret->version,
                        ret->latest);
        error_hint(err, "run `outboxd migrate up`%s", ret->version == 0 ? ", or set OUTBOX_SCHEMA" : "");
        return FATAL;
    }
    return OK;
}

enum result schema_check(struct pg *pg, bool needs_delete, struct schema_state *ret, struct error *err)
{
    enum result result = schema_current(pg, ret, err);
    return result == OK ? unless_permanent(check_privileges(pg, needs_delete, err), err) : result;
}

/* --- migrating --- */

/* One transaction for all steps. The lock is of the transaction, so it works behind a pooler; whoever comes second finds
 * nothing left to do, which takes a snapshot that is younger than the lock. */
static enum result begin(struct pg *pg, struct error *err)
{
    return pg_script(
        pg,
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '60s';"
        "SET LOCAL client_min_messages = warning;"
        "SELECT pg_advisory_xact_lock(hashtextextended('outboxd migrate', 0))",
        TIMEOUT_MS, err);
}

static enum result run(struct pg *pg, const struct migration *migration, bool up, struct error *err)
{
    struct error why;
    _cleanup_(str_free) char *note =
        up ? str_format("INSERT INTO outbox_schema_version (version, name, checksum) VALUES (%d, '%s', '%s')",
                        migration->version, migration->name, migration->checksum)
           : str_format("DELETE FROM outbox_schema_version WHERE version = %d", migration->version);
    enum result result = pg_script(pg, up ? migration->up : migration->down, TIMEOUT_MS, &why);
    if (result == OK)
        result = pg_script(pg, note, TIMEOUT_MS, &why);
    if (result == OK)
        return OK;
    error_retry(err, "migration %03d_%s failed and was rolled back: %s", migration->version, migration->name,
                why.message);
    memcpy(err->sqlstate, why.sqlstate, sizeof why.sqlstate);
    return result;
}

static enum result end(struct pg *pg, enum result result, struct error *err)
{
    struct error ignored;
    if (result == OK)
        return pg_script(pg, "COMMIT", TIMEOUT_MS, err);
    if (strcmp(err->sqlstate, "42501") == 0 && strstr(err->message, "for database"))
        error_hint(err, "create the schema %s first, or let this user do it: GRANT CREATE ON DATABASE <name> TO <user>",
                   pg_schema(pg));
    else if (strcmp(err->sqlstate, "42501") == 0)
        error_hint(
            err,
            "run it as the owner of schema %s and its tables; the first time GRANT CREATE ON SCHEMA %s TO <user> is enough",
            pg_schema(pg), pg_schema(pg));
    if (pg_script(pg, "ROLLBACK", 10000, &ignored) != OK)
        return result; /* the connection is gone, and the transaction with it */
    return result;
}

static enum result enter_schema(struct pg *pg, bool create, struct error *err)
{
    enum result result = OK;
    static const struct statement there = {"schema", "SELECT to_regnamespace($1) IS NOT NULL"};
    _cleanup_(rows_cleanup) struct rows *exists = NULL;
    result = pg_query(pg, &there, 1, (const char *[]){pg_schema(pg)}, 10000, &exists, err);
    if (result == OK && !rows_true(exists, 0, 0) && create) {
        _cleanup_(str_free) char *sql = str_format("CREATE SCHEMA %s", pg_schema(pg));
        result = pg_script(pg, sql, 10000, err);
    }
    _cleanup_(str_free) char *path = str_format("SET LOCAL search_path = %s, pg_temp", pg_schema(pg));
    if (result == OK)
        result = pg_script(pg, path, 10000, err);
    if (result == OK && create)
        result = pg_script(pg, version_table, 10000, err);
    return result;
}

/* What was done is done when all of it is committed; before that nothing was. */
static enum result tell(enum result result, struct strbuf *done, FILE *report)
{
    if (result == OK && done->len > 0)
        fputs(done->data, report);
    strbuf_done(done);
    return result;
}

enum result schema_up(struct pg *pg, const char *schema, int to, bool notify, FILE *report, struct error *err)
{
    struct schema_state state = {0};
    struct strbuf done = {0};
    enum result result = begin(pg, err);
    if (result != OK)
        return result;
    result = enter_schema(pg, true, err);
    if (result == OK)
        result = schema_read(pg, &state, err);
    if (result == OK && state.version >= to)
        strbuf_addf(&done, "schema %s is at version %d: nothing to do\n", schema, state.version);
    for (int v = state.version; result == OK && v < to; v++) {
        result = run(pg, &migrations[v], true, err);
        strbuf_addf(&done, "applied %03d_%s\n", migrations[v].version, migrations[v].name);
    }
    if (result == OK && to >= 1 && state.notify != notify) {
        result = pg_script(pg, notify ? ENABLE_NOTIFY : DISABLE_NOTIFY, TIMEOUT_MS, err);
        strbuf_addf(&done, "notify trigger: %s\n", notify ? "on" : "off");
    }
    return tell(end(pg, result, err), &done, report);
}

enum result schema_down(struct pg *pg, int to, FILE *report, struct error *err)
{
    struct schema_state state = {0};
    struct strbuf done = {0};
    enum result result = begin(pg, err);
    if (result != OK)
        return result;
    result = enter_schema(pg, false, err);
    if (result == OK)
        result = schema_read(pg, &state, err);
    if (result == OK && state.version <= to)
        strbuf_addf(&done, "schema is at version %d: nothing to do\n", state.version);
    for (int v = result == OK ? state.version : 0; result == OK && v > to; v--) {
        result = run(pg, &migrations[v - 1], false, err);
        strbuf_addf(&done, "reverted %03d_%s\n", migrations[v - 1].version, migrations[v - 1].name);
    }
    if (result == OK && to == 0 && state.version > 0)
        result = pg_script(pg, "DROP TABLE outbox_schema_version", 10000, err);
    return tell(end(pg, result, err), &done, report);
}

/* --- for people --- */

static void print_identifier(const char *name, FILE *out)
{
    fputc('"', out);
    for (; *name; name++) {
        if (*name == '"')
            fputc('"', out);
        fputc(*name, out);
    }
    fputc('"', out);
}

void schema_print(const char *schema, int to, bool notify, FILE *out)
{
    fprintf(out, "BEGIN;\nCREATE SCHEMA IF NOT EXISTS ");
    print_identifier(schema, out);
    fprintf(out, ";\nSET LOCAL search_path = ");
    print_identifier(schema, out);
    fprintf(out, ", pg_temp;\n%s", version_table);
    for (int i = 0; i < n_migrations && i < to; i++)
        fprintf(
            out,
            "\n-- %03d_%s\n%sINSERT INTO outbox_schema_version (version, name, checksum) VALUES (%d, '%s', '%s');\n",
            migrations[i].version, migrations[i].name, migrations[i].up, migrations[i].version, migrations[i].name,
            migrations[i].checksum);
    if (notify && to >= 1)
        fprintf(out, "\n" ENABLE_NOTIFY ";\n");
    fprintf(out, "COMMIT;\n");
}

void schema_status(const struct schema_state *state, FILE *out)
{
    for (int i = 0; i < n_migrations; i++)
        fprintf(out, "%03d_%-20s %s\n", migrations[i].version, migrations[i].name,
                i < state->version ? "applied" : "pending");
    fprintf(out, "notify trigger: %s\n", state->notify ? "on" : "off");
}
