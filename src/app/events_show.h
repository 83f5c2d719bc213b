/* One event on the screen, or as JSON: its columns, and what it waits for. */
#ifndef OUTBOXD_EVENTS_SHOW_H
#define OUTBOXD_EVENTS_SHOW_H

#include <stdbool.h>

#include "pg.h"

/* REJECT: there is no such event. */
enum result events_show_one(struct pg *pg, const char *id, bool dead_blocks, bool json, struct error *err) CHECK_RESULT;

#endif
