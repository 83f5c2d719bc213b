/* Help for people, and the generated documents: everything from the tables of commands, options, exit codes and metrics. */
#include <string.h>

#include "app.h"
#include "help_docs.h"
#include "metrics.h"
#include "str.h"

const struct exit_code exit_codes[] = {
    {EXIT_OK, "good; also after SIGTERM"},
    {EXIT_FAILED, "failed; stderr says why"},
    {EXIT_USAGE, "usage: unknown command, option or argument"},
    {EXIT_CONFIG, "configuration or schema: starting again will not help"},
};
const size_t n_exit_codes = ARRAY_LEN(exit_codes);

void app_help(FILE *out)
{
    fputs("outboxd relays committed events from PostgreSQL's outbox table to Kafka.\n\ncommands:\n", out);
    for (size_t i = 0; i < n_commands; i++) {
        _cleanup_(str_free) char *call = str_format("%s %s", commands[i].name, commands[i].arguments);
        if (strlen(call) > 34)
            fprintf(out, "  %s\n  %-34s %s\n", call, "", commands[i].help);
        else
            fprintf(out, "  %-34s %s\n", call, commands[i].help);
    }
    fputs("\nSettings are environment variables: `outboxd config` shows them.\n", out);
}

static void print_metrics_markdown(FILE *out)
{
    struct strbuf text = {0};

    metrics_print_markdown(&text);
    fputs(text.data, out);
    strbuf_done(&text);
}

/* For the generated documents (tools/reference.py), so not in the help text. */
static const struct {
    const char *option;
    void (*print)(FILE *out);
} documents[] = {
    {"--markdown", help_markdown}, {"--metrics", print_metrics_markdown}, {"--man", help_man}, {"--bash", help_bash},
    {"--zsh", help_zsh},
};

int cmd_help(int argc, char **argv)
{
    if (argc > 2)
        return app_usage("help", "too many arguments");
    if (argc < 2) {
        app_help(stdout);
        return EXIT_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(documents); i++)
        if (str_eq(argv[1], documents[i].option)) {
            documents[i].print(stdout);
            return EXIT_OK;
        }
    const struct command *command = app_command(argv[1]);
    if (!command)
        return app_refuse_command(argv[1]);
    printf("usage: outboxd %s %s\n%s\n", command->name, command->arguments, command->help);
    help_options(command->name, stdout);
    return EXIT_OK;
}
