/* What an operator comes for: list, show, retry or discard, of events or of what a consumer gave up. What `events` and `inbox`
 * have in common of it: the arguments, and a connection to a schema that is there. */
#ifndef OUTBOXD_ERRAND_H
#define OUTBOXD_ERRAND_H

#include "config.h"
#include "options.h"
#include "pg.h"

#define LIST_LIMIT 50

struct errand {
    struct arguments arguments;
    const char *action; /* as it was called */
    bool list, show, retry, discard;
    bool json, dry_run;
    const char *id;    /* --id, or the one to show; NULL: none */
    const char *since; /* RFC 3339; NULL: any */
    int64_t since_ms;  /* or so long ago; 0: any */
    int64_t limit;     /* 0: none */
};

/* Returns EXIT_OK, or EXIT_USAGE after telling why. A change names what it changes: by a filter, or by --all. */
int errand_parse(const char *command, int argc, char **argv, struct errand *ret);

/* The filter in words, for the log. Owned by the caller. */
char *errand_words(const struct errand *errand);

/* A connection to a schema at least at `version`; what: that which comes with it. */
enum result errand_open(const struct config *config, int version, const char *what, struct pg **ret,
                        struct error *err) CHECK_RESULT;

#endif
