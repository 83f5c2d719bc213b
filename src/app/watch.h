/* `outboxd status --watch`: one full screen, redrawn until Ctrl-C. */
#ifndef OUTBOXD_WATCH_H
#define OUTBOXD_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "figures.h"
#include "str.h"

#define HISTORY 600 /* looks that are remembered */

struct look {
    int64_t at_ms;
    int64_t pending, dead, inserted, updated, deleted;
    bool capped;
};

struct view {
    const char *title;
    bool color, utf8;
    int width, height;
    struct figures figures;
    struct details details;
    struct look history[HISTORY]; /* a ring; `looks` have been taken so far */
    int64_t looks;
    bool delete_sent;    /* OUTBOX_ON_SENT=delete: what leaves is counted as deleted */
    const char *trouble; /* "": the figures are fresh */
    int64_t every_ms;
};

int watch(const struct config *config); /* the exit code */

/* The whole screen as one text. No line is longer than view->width, and there are no more than view->height of them. */
void watch_draw(const struct view *view, struct strbuf *out);

#endif
