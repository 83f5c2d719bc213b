/* Runs a consumer: checks what must be right at the start, starts its thread, and stops it when a signal says so. */
#ifndef OUTBOXD_KEEPER_H
#define OUTBOXD_KEEPER_H

#include "config.h"
#include "duty.h"
#include "error.h"

enum kept {
    KEPT_STOPPED,   /* the batch was finished */
    KEPT_ABANDONED, /* stopped, but the thread still runs: leave without cleaning up. Nothing is lost by it. */
    KEPT_REFUSED,   /* configuration, schema or handler; err says what */
};

/* What the caller wants to run beside the consumer, and above this layer. */
struct keeper_hooks {
    enum result (*open)(void *arg, struct duty *duty, struct error *err); /* FATAL ends the start */
    void (*close)(void *arg); /* after an open that was OK, unless the outcome is KEPT_ABANDONED */
    void *arg;
};

/* On the main thread, before any other thread exists: blocks SIGTERM and SIGINT and takes them from a descriptor. */
enum kept keeper_run(const struct config *config, const struct keeper_hooks *hooks, struct error *err) CHECK_RESULT;

#endif
