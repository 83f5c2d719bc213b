#include "options.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "app.h"
#include "str.h"

#define DRY_RUN "say what would happen and change nothing"
#define JSON    "answer as JSON"

const struct option_row option_rows[] = {
    {"migrate", "up", NULL, NULL, "apply what is pending; the default"},
    {"migrate", "down", NULL, NULL, "revert to an earlier version: drops tables"},
    {"migrate", "status", NULL, NULL, "show what is applied; exit code 1 while something is pending"},
    {"migrate", "print", NULL, NULL, "print the script that `up` runs"},
    {"migrate", "--to", "N", NULL, "the version to go to; `down` needs it"},
    {"check", "--json", NULL, NULL, JSON},
    {"config", "--json", NULL, NULL, "one object, names as in the environment"},
    {"config", "--markdown", NULL, NULL, "describe the settings as in the reference"},
    {"config", "--env", NULL, NULL, "as an environment file; secrets are commented out"},
    {"dev-broker", "--listen", "HOST:PORT", NULL, "where to listen"},
    {"status", "--json", NULL, NULL, JSON},
    {"status", "--watch", NULL, NULL, "one screen, redrawn until Ctrl-C"},
    {"purge", "--once", NULL, NULL, "one round over everything, and its figures"},
    {"events", "list", NULL, NULL, "what is unfinished or DEAD, oldest first, then SENT"},
    {"events", "show", NULL, NULL, "one event, and what it waits for: `outboxd events show ID`"},
    {"events", "retry", NULL, NULL,
     "make FAILED and DEAD events due now with a fresh count, and parked topics' probes; needs a filter or --all"},
    {"events", "discard", NULL, NULL,
     "delete FAILED and DEAD events and free what waits behind them; needs a filter or --all"},
    {"events", "--status", "STATUS", "new|sent|failed|dead|held",
     "only these, separated by commas; failed means refused, held rows are changed only when named"},
    {"events", "--topic", "TOPIC", NULL, "only of this topic, or routed to it"},
    {"events", "--key", "KEY", NULL, "only of this key (partition_key, else aggregate_id)"},
    {"events", "--tenant", "TENANT", NULL, "only of this tenant"},
    {"events", "--id", "ID", NULL, "only this event"},
    {"events", "--since", "TIME", NULL, "only written since: a duration such as `2h`, or RFC 3339"},
    {"events", "--limit", "N", NULL, "at most N events; 50 for `list`, no limit for changes"},
    {"events", "--all", NULL, NULL, "without a filter; for `list`: no limit"},
    {"events", "--dry-run", NULL, NULL, DRY_RUN},
    {"events", "--json", NULL, NULL, JSON},
    {"inbox", "list", NULL, NULL, "events whose handler failed for good, oldest first"},
    {"inbox", "show", NULL, NULL, "one event with its payload and error: `outboxd inbox show ID`"},
    {"inbox", "retry", NULL, NULL,
     "call OUTBOX_CONSUMER_HANDLER again, by offset, a transaction an event; it leaves the list together with its effect"},
    {"inbox", "discard", NULL, NULL, "delete them; a later delivery of the same id has no effect either"},
    {"inbox", "--group", "GROUP", NULL, "only of this consumer group; OUTBOX_CONSUMER_GROUP for `retry`"},
    {"inbox", "--topic", "TOPIC", NULL, "only of this topic"},
    {"inbox", "--key", "KEY", NULL, "only of this key"},
    {"inbox", "--id", "ID", NULL, "only this event"},
    {"inbox", "--since", "TIME", NULL, "only dead since: a duration such as `2h`, or RFC 3339"},
    {"inbox", "--limit", "N", NULL, "at most N events; 50 for `list`, no limit for changes"},
    {"inbox", "--all", NULL, NULL, "without a filter; for `list`: no limit"},
    {"inbox", "--dry-run", NULL, NULL, DRY_RUN},
    {"inbox", "--json", NULL, NULL, JSON},
};
const size_t n_option_rows = ARRAY_LEN(option_rows);

static const struct option_row *find(const char *command, const char *name, size_t len, size_t *ret_index)
{
    size_t index = 0;
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (!str_eq(row->command, command) || row->name[0] != '-')
            continue;
        if (strlen(row->name) == len && memcmp(row->name, name, len) == 0) {
            *ret_index = index;
            return row;
        }
        index++;
    }
    return NULL;
}

static bool is_choice(const char *choices, const char *word, size_t len)
{
    for (const char *at = choices; *at; at += strcspn(at, "|"), at += *at == '|')
        if (strcspn(at, "|") == len && strncasecmp(at, word, len) == 0)
            return true;
    return false;
}

static bool all_choices(const char *choices, const char *list)
{
    for (;;) {
        size_t len = strcspn(list, ",");
        if (!is_choice(choices, list, len))
            return false;
        if (list[len] == '\0')
            return true;
        list += len + 1;
    }
}

/* argv[*i] is an option; *i moves over its value. */
static int take_option(int argc, char **argv, int *i, struct arguments *ret)
{
    const char *command = ret->command, *word = argv[*i];
    size_t len = strcspn(word, "="), index;
    const struct option_row *row = find(command, word, len, &index);
    if (row == NULL)
        return app_usage(command, "no option %s", word);
    if (ret->values[index] != NULL)
        return app_usage(command, "%s is given twice", row->name);
    if (row->value == NULL) {
        if (word[len] == '=')
            return app_usage(command, "%s takes no value", row->name);
        ret->values[index] = "";
        return EXIT_OK;
    }
    const char *value = word[len] == '=' ? word + len + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (value == NULL || *value == '\0')
        return app_usage(command, "%s needs a value: %s", row->name, row->value);
    if (row->choices != NULL && !all_choices(row->choices, value))
        return app_usage(command, "%s %s: one of %s", row->name, value, row->choices);
    ret->values[index] = value;
    return EXIT_OK;
}

int options_parse(const char *command, int max_operands, int argc, char **argv, struct arguments *ret)
{
    *ret = (struct arguments){.command = command};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            int code = take_option(argc, argv, &i, ret);
            if (code != EXIT_OK)
                return code;
        } else if (ret->n_operands == max_operands) {
            return app_usage(command, "\"%s\" is one argument too many", argv[i]);
        } else {
            ret->operands[ret->n_operands++] = argv[i];
        }
    }
    return EXIT_OK;
}

bool option_known(const struct arguments *arguments, const char *name)
{
    size_t index;
    return find(arguments->command, name, strlen(name), &index) != NULL;
}

const char *option_value(const struct arguments *arguments, const char *name)
{
    size_t index;
    if (find(arguments->command, name, strlen(name), &index) == NULL)
        abort(); /* not in the table */
    return arguments->values[index];
}

bool option_given(const struct arguments *arguments, const char *name)
{
    return option_value(arguments, name) != NULL;
}
