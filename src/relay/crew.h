/* What the threads of a daemon share: the wish to stop, who looks for work, and how each of them is. Small, and behind one
 * lock; every function here may be called on any thread. */
#ifndef OUTBOXD_CREW_H
#define OUTBOXD_CREW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "error.h"
#include "str.h"

#define CREW_MAX 16 /* OUTBOX_WORKERS */

struct crew_member {
    int wake_fd;                /* readable: there is work, look at once */
    char trouble[600];          /* why this worker does not deliver; "": it does */
    bool paused;                /* PostgreSQL or Kafka is away: its breaker is open */
    int lanes;                  /* held now */
    _Atomic int64_t beat;       /* clock_ms of its last step: the watchdog's question */
    _Atomic int64_t busy_until; /* a step that may take longer than usual says until when */
};

struct crew {
    const struct config *config;
    int n;
    int stop_fd; /* readable for ever once a stop was asked for */
    _Atomic bool stopping;
    pthread_mutex_t lock;
    int looker; /* the worker that looks for work while the others sleep; -1: none */
    int last_looker;
    int64_t look_dropped; /* when that one stopped looking */
    int64_t figures_ms;   /* clock_ms when they were counted; before that, of the start */
    char *figures;        /* the outbox in numbers, as members of a JSON object; NULL: not counted yet */
    struct crew_member members[CREW_MAX];
};

enum result crew_init(struct crew *crew, const struct config *config, struct error *err) CHECK_RESULT;
void crew_done(struct crew *crew);

void crew_stop(struct crew *crew);
static inline bool crew_stopping(const struct crew *crew)
{
    return atomic_load(&crew->stopping);
}

/* One idle worker looks; when it has found work and gone to it, another takes over after `patience_ms`: that one is busy for
 * long. true: the caller is the one. */
bool crew_take_look(struct crew *crew, int worker, int64_t patience_ms);
void crew_drop_look(struct crew *crew, int worker);
void crew_wake_others(struct crew *crew, int worker);
void crew_hear(struct crew *crew, int worker); /* empties its wake_fd */

void crew_beat(struct crew *crew, int worker, int64_t step_ms); /* alive; the next step takes at most step_ms */
void crew_lanes(struct crew *crew, int worker, int lanes);
void crew_trouble(struct crew *crew, int worker, const char *trouble); /* NULL: none */

/* Is the daemon delivering? A daemon that stands by is; one of whose workers is in trouble is not, and ret has its reason. */
bool crew_ready(struct crew *crew, char *ret, size_t size);
int crew_lanes_held(struct crew *crew);
bool crew_paused(struct crew *crew); /* some worker waits for PostgreSQL or Kafka to come back */
bool crew_alive(struct crew *crew);  /* every worker beats */

void crew_post(struct crew *crew, char *figures);        /* takes the text over */
double crew_figures_age(struct crew *crew);              /* in seconds */
void crew_status(struct crew *crew, struct strbuf *out); /* figures, readiness and workers as a JSON object */

#endif
