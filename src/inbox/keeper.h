/* Runs a consumer: checks what must be right at the start, starts its thread, and stops it when a signal says so. */
#ifndef OUTBOXD_KEEPER_H
#define OUTBOXD_KEEPER_H

#include "config.h"
#include "duty.h"
#include "error.h"
#include "stop.h"

/* What the caller wants to run beside the consumer, and above this layer. */
struct keeper_hooks {
    enum result (*open)(void *arg, struct duty *duty, struct error *err); /* FATAL ends the start */
    void (*close)(void *arg); /* after an open that was OK, unless the outcome is ENDED_ABANDONED */
    void *arg;
};

/* On the main thread, before any other thread exists (stop.h). ENDED_REFUSED: err names the setting, the schema or the
 * handler. */
enum ended keeper_run(const struct config *config, const struct keeper_hooks *hooks, struct error *err) CHECK_RESULT;

#endif
