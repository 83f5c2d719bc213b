/* The commands: one function each, called with argv[0] = its own name. They return the exit code. */
#ifndef OUTBOXD_APP_H
#define OUTBOXD_APP_H

#include <stdbool.h>
#include <stdio.h>

#include "config.h"
#include "error.h"
#include "stop.h"

enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 64,  /* EX_USAGE of sysexits.h */
    EXIT_CONFIG = 78, /* EX_CONFIG: configuration or schema; systemd need not start us again */
};

struct command {
    const char *name, *arguments, *help;
    int (*run)(int argc, char **argv);
};

extern const struct command commands[]; /* in the order in which `help` shows them */
extern const size_t n_commands;
const struct command *app_command(const char *name); /* NULL: none */
int app_refuse_command(const char *name);            /* says which one was meant; returns EXIT_USAGE */

int cmd_check(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_consume(int argc, char **argv);
int cmd_dev_broker(int argc, char **argv);
int cmd_events(int argc, char **argv);
int cmd_help(int argc, char **argv);
int cmd_inbox(int argc, char **argv);
int cmd_migrate(int argc, char **argv);
int cmd_purge(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_ulid(int argc, char **argv);
int cmd_version(int argc, char **argv);

/* Loads the settings from the environment and sets up the log. Returns EXIT_OK, or EXIT_CONFIG after telling
 * why on stderr. Every command asks librdkafka about its properties, too: what is none may be a secret whose name was mistyped,
 * and must not be shown. */
int app_load_config(struct config *config);

/* Tells an error and its hint on stderr: as text for people, of a daemon as a line of its log. */
void app_complain(const struct error *err);

/* First thing in a command that runs until SIGTERM. Started by a person in a terminal it still speaks to that person. */
void app_is_daemon(void);

/* The whole of a command that works with Kafka until SIGTERM: arguments, settings, `run`, and its end. What `run` gives to
 * threads must stay when it returns ENDED_ABANDONED. */
int app_daemon(const char *command, int argc, enum ended (*run)(const struct config *config, struct error *err));

/* Tells why a command could not do its work, and returns its exit code: EXIT_CONFIG for a fault that stays until
 * somebody mends it (settings, login, privileges, schema), EXIT_USAGE for an argument that PostgreSQL cannot read (a
 * time, a text that is not UTF-8); the same for every command. */
int app_fail(enum result result, const struct error *err);

/* "outboxd ulid: too many arguments", and how to call it; returns EXIT_USAGE. */
int app_usage(const char *command, const char *format, ...) PRINTF_LIKE(2, 3);

void app_help(FILE *out); /* all commands */

/* Flushes stdout: an answer that could not be written is a failure. */
int app_finish(int code);

#endif
