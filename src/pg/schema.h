/* The outbox's schema: how it comes into the database, and whether the one that is there is ours. */
#ifndef OUTBOXD_SCHEMA_H
#define OUTBOXD_SCHEMA_H

#include <stdbool.h>
#include <stdio.h>

#include "pg.h"

struct schema_state {
    int version; /* 0: not there */
    int latest;  /* what this program brings */
    bool notify; /* the NOTIFY trigger is on */
};

/* FATAL: a migration in the database is newer than the program's, was changed, or is missing before a later one. */
enum result schema_read(struct pg *pg, struct schema_state *ret, struct error *err) CHECK_RESULT;

/* Is it exactly ours? FATAL with the remedy if not; *ret is what is there, version 0 when that cannot be told. */
enum result schema_current(struct pg *pg, struct schema_state *ret, struct error *err) CHECK_RESULT;

/* For run: is it exactly ours, and may this user do the relay's work? FATAL with the command or the GRANT if not. */
enum result schema_check(struct pg *pg, bool needs_delete, struct schema_state *ret, struct error *err) CHECK_RESULT;

/* Up to version `to`, in one transaction that two programs cannot run at once. `report` gets a line a migration, when all are
 * committed. */
enum result schema_up(struct pg *pg, const char *schema, int to, bool notify, FILE *report,
                      struct error *err) CHECK_RESULT;
enum result schema_down(struct pg *pg, int to, FILE *report, struct error *err) CHECK_RESULT;

void schema_print(const char *schema, int to, bool notify,
                  FILE *out); /* the script that `up` runs in an empty schema */
void schema_status(const struct schema_state *state, FILE *out);

#endif
