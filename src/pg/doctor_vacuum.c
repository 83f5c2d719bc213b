/* Vacuum: a queue in a table lives by it. Who holds it back, and is it set up? */
#include "doctor.h"

#include <stdlib.h>

#include "parse.h"
#include "predicates.h"

#define WHY_HELD "vacuum cannot remove rows that such a transaction might still see: claims read ever more dead entries"

/* Long enough to do harm: a minute, or ten thousand transactions. */
#define LONG(since, xmin) "(" since " < clock_timestamp() - interval '1 minute' OR age(" xmin ") > 10000)"
#define AGE(since)        "extract(epoch FROM clock_timestamp() - " since ")"

static const char *age(const struct rows *rows, int row, int column, char ret[32])
{
    format_age(strtod(rows_text(rows, row, column), NULL), ret);
    return ret;
}

static void check_sessions(struct pg *pg, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows = doctor_ask(
        pg, "xmin",
        "SELECT pid, coalesce(usename, '?'), coalesce(application_name, ''), coalesce(state, '?'), " AGE(
            "xact_start") ", "
                          "age(coalesce(backend_xmin, backend_xid)) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender') "
                          "AND pid <> pg_backend_pid() AND coalesce(backend_xmin, backend_xid) IS NOT NULL "
                          "AND " LONG("xact_start",
                                      "coalesce(backend_xmin, backend_xid)") " ORDER BY xact_start LIMIT 5",
        0, NULL, findings);
    char how_long[32];
    for (int i = 0; rows != NULL && i < rows_n(rows); i++)
        finding_remedy(
            finding_add(
                findings, FINDING_WARNING, "xmin", WHY_HELD,
                "pid %s (user %s, application \"%s\", %s) has had a transaction open for %s, over %s transactions",
                rows_text(rows, i, 0), rows_text(rows, i, 1), rows_text(rows, i, 2), rows_text(rows, i, 3),
                age(rows, i, 4, how_long), rows_text(rows, i, 5)),
            "SELECT pg_terminate_backend(%s);\nand set idle_in_transaction_session_timeout for that user",
            rows_text(rows, i, 0));
    _cleanup_(rows_cleanup) struct rows *sees = doctor_ask(
        pg, "xmin",
        "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), format('GRANT pg_read_all_stats TO %I', "
        "current_user)",
        0, NULL, findings);
    if (sees != NULL && !rows_true(sees, 0, 0))
        finding_remedy(finding_add(findings, FINDING_INFO, "xmin",
                                   "a long transaction of another user would not be noticed",
                                   "this user does not see the transactions of others"),
                       "%s;", rows_text(sees, 0, 1));
}

static void check_prepared(struct pg *pg, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows = doctor_ask(
        pg, "xmin",
        "SELECT gid, owner, " AGE("prepared") ", database, quote_literal(gid) FROM pg_prepared_xacts WHERE " LONG(
            "prepared", "transaction") " ORDER BY prepared LIMIT 5",
        0, NULL, findings);
    char how_long[32];
    for (int i = 0; rows != NULL && i < rows_n(rows); i++)
        finding_remedy(finding_add(findings, FINDING_WARNING, "xmin", WHY_HELD,
                                   "the prepared transaction %s of %s in database %s has waited for %s",
                                   rows_text(rows, i, 0), rows_text(rows, i, 1), rows_text(rows, i, 3),
                                   age(rows, i, 2, how_long)),
                       "in database %s, as whoever prepared it decided:\nCOMMIT PREPARED %s;\nROLLBACK PREPARED %s;",
                       rows_text(rows, i, 3), rows_text(rows, i, 4), rows_text(rows, i, 4));
}

static void check_slots(struct pg *pg, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows = doctor_ask(
        pg, "slot",
        "SELECT slot_name, active, coalesce(age(xmin), age(catalog_xmin), 0), quote_literal(slot_name), "
        "coalesce(pg_size_pretty(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
        "ELSE pg_current_wal_lsn() END, restart_lsn)), 'no') FROM pg_replication_slots "
        "WHERE NOT active OR age(xmin) > 10000 ORDER BY slot_name LIMIT 5",
        0, NULL, findings);
    for (int i = 0; rows != NULL && i < rows_n(rows); i++)
        finding_remedy(
            finding_add(findings, FINDING_WARNING, "slot",
                        "a slot that nobody reads keeps WAL until the disk is full, and may hold back vacuum",
                        "the replication slot %s is %s, keeps %s of WAL, xmin is %s transactions old",
                        rows_text(rows, i, 0), rows_true(rows, i, 1) ? "active" : "not in use", rows_text(rows, i, 4),
                        rows_text(rows, i, 2)),
            "when its reader is gone for good:\nSELECT pg_drop_replication_slot(%s);", rows_text(rows, i, 3));
}

static void check_settings(struct pg *pg, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows =
        doctor_ask(pg, "autovacuum",
                   "SELECT name FROM pg_settings WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off'", 0,
                   NULL, findings);
    for (int i = 0; rows != NULL && i < rows_n(rows); i++)
        finding_remedy(finding_add(findings, FINDING_WARNING, "autovacuum",
                                   "nothing removes the dead rows of the outbox: claims become slower and slower",
                                   "%s is off in this server", rows_text(rows, i, 0)),
                       "ALTER SYSTEM SET %s = on; SELECT pg_reload_conf();", rows_text(rows, i, 0));
}

static void check_table(struct pg *pg, struct findings *findings)
{
    _cleanup_(rows_cleanup) struct rows *rows = doctor_ask(
        pg, "autovacuum",
        "SELECT coalesce(c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0', "
        "'autovacuum_enabled=no'], false), coalesce(c.reloptions @> ARRAY['autovacuum_vacuum_scale_factor=0'], false), "
        "coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0), coalesce(to_json(greatest(s.last_autovacuum, s.last_vacuum)) #>> '{}', "
        "'never') FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid WHERE c.oid = to_regclass($1 || '.outbox_events')",
        1, (const char *[]){pg_schema(pg)}, findings);
    if (rows == NULL || rows_n(rows) == 0)
        return;
    if (rows_true(rows, 0, 0))
        finding_remedy(finding_add(findings, FINDING_WARNING, "autovacuum",
                                   "nothing removes the dead rows of the outbox: claims become slower and slower",
                                   "autovacuum is off for outbox_events"),
                       "ALTER TABLE %s.outbox_events RESET (autovacuum_enabled);", pg_schema(pg));
    else if (!rows_true(rows, 0, 1))
        finding_remedy(
            finding_add(findings, FINDING_WARNING, "autovacuum",
                        "a share of the table's size is too late: the whole table turns over in minutes",
                        "outbox_events has lost its own autovacuum settings"),
            "ALTER TABLE %s.outbox_events SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, "
            "autovacuum_vacuum_cost_delay = 0);",
            pg_schema(pg));
    else
        finding_add(findings, FINDING_OK, "autovacuum", NULL, "autovacuum is set up for outbox_events; last run: %s",
                    rows_text(rows, 0, 4));
    if (rows_int(rows, 0, 2) > 200000 && rows_int(rows, 0, 2) > rows_int(rows, 0, 3))
        finding_remedy(
            finding_add(findings, FINDING_WARNING, "bloat", "claims read dead entries, and the table grows",
                        "outbox_events has %s dead rows beside %s live ones; last vacuum: %s", rows_text(rows, 0, 2),
                        rows_text(rows, 0, 3), rows_text(rows, 0, 4)),
            "VACUUM (VERBOSE, ANALYZE) %s.outbox_events;\nif the rows stay, see who holds back vacuum (xmin)",
            pg_schema(pg));
}

void doctor_vacuum(struct pg *pg, struct findings *findings)
{
    check_settings(pg, findings);
    _cleanup_(rows_cleanup) struct rows *usable =
        doctor_ask(pg, "autovacuum", "SELECT coalesce(has_schema_privilege(to_regnamespace($1), 'USAGE'), false)", 1,
                   (const char *[]){pg_schema(pg)}, findings);
    if (usable != NULL && rows_true(usable, 0, 0))
        check_table(pg, findings);
    check_sessions(pg, findings);
    check_prepared(pg, findings);
    check_slots(pg, findings);
}
