/* Runs a daemon: checks what must be right at the start, starts the workers, and stops them when a signal says so. */
#ifndef OUTBOXD_SUPERVISOR_H
#define OUTBOXD_SUPERVISOR_H

#include "config.h"
#include "crew.h"
#include "error.h"
#include "stop.h"

/* What the caller wants to run beside the workers, and above this layer. */
struct supervisor_hooks {
    enum result (*open)(void *arg, struct crew *crew,
                        struct error *err); /* before the wait for PostgreSQL; FATAL ends the start */
    void (*close)(void *arg); /* the crew goes: after an open that was OK, unless the outcome is ENDED_ABANDONED */
    void *arg;
};

/* On the main thread, before any other thread exists (stop.h). ENDED_REFUSED: err names the setting or what is wrong with the
 * schema. */
enum ended supervisor_run(const struct config *config, const struct supervisor_hooks *hooks,
                          struct error *err) CHECK_RESULT;

#endif
