/* The commands as one table: dispatch, help and the reference come from it. */
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "str.h"

/* In the order in which `help` shows them. */
const struct command commands[] = {
    {"run", "", "relay events until SIGTERM", cmd_run},
    {"consume", "", "call a SQL function once for each event of some topics, until SIGTERM", cmd_consume},
    {"migrate", "[up|down|status|print] [--to N]", "bring the tables into the database, or see what is pending",
     cmd_migrate},
    {"status", "[--json] [--watch]", "show the backlog, its age, failures, dead events and parked topics", cmd_status},
    {"check", "[--json]", "a doctor: looks at both sides and names the remedy for what it finds", cmd_check},
    {"events", "[list|show ID|retry|discard] [FILTER] [--limit N] [--all] [--dry-run] [--json]",
     "look at events; retry or discard those that failed", cmd_events},
    {"purge", "[--once]", "delete rows that are finished and past their time, until SIGTERM or once", cmd_purge},
    {"inbox", "[list|show ID|retry|discard] [FILTER] [--limit N] [--all] [--dry-run] [--json]",
     "look at events that a consumer gave up; retry or discard them", cmd_inbox},
    {"config", "[--json|--markdown|--env]", "show the settings in force; secrets are hidden", cmd_config},
    {"dev-broker", "[--listen HOST:PORT]", "run an in-memory Kafka for demos on this machine", cmd_dev_broker},
    {"ulid", "[N]", "print one or N new ids", cmd_ulid},
    {"version", "", "print the version", cmd_version},
    {"help", "[COMMAND]", "show this text, or the usage of a command", cmd_help},
};

const size_t n_commands = ARRAY_LEN(commands);

const struct command *app_command(const char *name)
{
    for (size_t i = 0; i < n_commands; i++)
        if (str_eq(commands[i].name, name))
            return &commands[i];
    return NULL;
}

int app_refuse_command(const char *name)
{
    const char *nearest = "help";
    size_t best = 3; /* edits; a name farther away is not a slip of the finger */

    fprintf(stderr, "outboxd: no command \"%s\"\n", name);
    for (size_t i = 0; i < n_commands; i++) {
        size_t distance = str_distance(name, commands[i].name);
        if (distance < best) {
            best = distance;
            nearest = commands[i].name;
        }
    }
    fprintf(stderr, best < 3 ? "hint: did you mean `outboxd %s`?\n" : "hint: `outboxd %s` lists the commands\n",
            nearest);
    return EXIT_USAGE;
}

int app_usage(const char *command, const char *format, ...)
{
    const struct command *row = app_command(command);
    va_list args;

    fprintf(stderr, "outboxd %s: ", command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nusage: outboxd %s %s\n", command, row ? row->arguments : "");
    return EXIT_USAGE;
}

/* A standard stream that is closed would be the next socket, and answers and log lines would go to PostgreSQL or Kafka.
 * Read only: to write there still fails, and an answer that nobody gets is told. */
static void keep_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    keep_standard_streams();
    if (argc < 2) {
        app_help(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (str_eq(name, "--help") || str_eq(name, "-h"))
        name = "help";
    else if (str_eq(name, "--version") || str_eq(name, "-V"))
        name = "version";
    const struct command *command = app_command(name);
    if (!command)
        return app_refuse_command(name);
    for (int i = 2; i < argc; i++)
        if (str_eq(argv[i], "--help") || str_eq(argv[i], "-h"))
            return app_finish(cmd_help(2, (char *[]){argv[0], argv[1], NULL}));
    return app_finish(command->run(argc - 1, argv + 1));
}
