/* The doctor's look at PostgreSQL: what would keep the relay from working, or make it slow. Changes nothing. */
#ifndef OUTBOXD_DOCTOR_H
#define OUTBOXD_DOCTOR_H

#include "config.h"
#include "finding.h"
#include "pg.h"

/* Why there is no connection, with a remedy as far as the server's words tell. */
void doctor_unreachable(const struct error *err, struct findings *findings);

/* Everything else. A question that cannot be asked becomes a finding, too; the others go on. */
void doctor_look(struct pg *pg, const struct config *config, struct findings *findings);

/* The parts of doctor_look that need no table of ours: who holds back vacuum, and how it is set up (doctor_vacuum.c). */
void doctor_vacuum(struct pg *pg, struct findings *findings);

/* Topics that events wait for: one text a row. Bounded: the first rows of each lane, and at most DOCTOR_TOPICS. */
#define DOCTOR_TOPICS 200
enum result doctor_topics(struct pg *pg, struct rows **ret, struct error *err) CHECK_RESULT;

/* For the files of the doctor: asks; on failure adds a finding and returns NULL. rows_free the answer. */
struct rows *doctor_ask(struct pg *pg, const char *name, const char *sql, int n, const char *const *values,
                        struct findings *findings);

#endif
