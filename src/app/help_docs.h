/* The commands and their options as documents: for the reference, the man page and the completions of two shells. They are
 * written by tools/reference.py, and the lint suite fails when they differ from the tree. */
#ifndef OUTBOXD_HELP_DOCS_H
#define OUTBOXD_HELP_DOCS_H

#include <stdio.h>

struct exit_code {
    int code;
    const char *meaning;
};
extern const struct exit_code exit_codes[];
extern const size_t n_exit_codes;

void help_options(const char *command, FILE *out); /* for people, a line each */
void help_markdown(FILE *out);
void help_man(FILE *out); /* the sections COMMANDS and EXIT STATUS */
void help_bash(FILE *out);
void help_zsh(FILE *out);

#endif
