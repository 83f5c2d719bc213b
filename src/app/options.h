/* The options of the commands: one table (options.c) that parsing, help, man page and completion come from. */
#ifndef OUTBOXD_OPTIONS_H
#define OUTBOXD_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

struct option_row {
    const char *command;
    const char *name;    /* --status; without dashes: an action, the command's first argument */
    const char *value;   /* what its value is called; NULL: a switch */
    const char *choices; /* a|b of its values; NULL: any */
    const char *help;
};

extern const struct option_row option_rows[];
extern const size_t n_option_rows;

#define OPERANDS_MAX 2

struct arguments {
    const char *command;
    const char *values[16]; /* by the number of the row among the command's; NULL: not given */
    const char *operands[OPERANDS_MAX];
    int n_operands;
};

/* Reads what follows the command's name: --name VALUE or --name=VALUE, operands between them. Returns EXIT_OK, or EXIT_USAGE
 * after telling why: unknown, given twice, no value, not one of the choices (letter case does not matter there). */
int options_parse(const char *command, int max_operands, int argc, char **argv, struct arguments *ret);

bool option_known(const struct arguments *arguments, const char *name);        /* does the command have it? */
const char *option_value(const struct arguments *arguments, const char *name); /* NULL: not given; a switch: "" */
bool option_given(const struct arguments *arguments, const char *name);

#endif
