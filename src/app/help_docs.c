#include "help_docs.h"

#include <string.h>

#include "app.h"
#include "options.h"
#include "str.h"

static bool belongs(const struct option_row *row, const char *command)
{
    return str_eq(row->command, command);
}

static bool is_action(const struct option_row *row)
{
    return row->name[0] != '-';
}

static bool has_rows(const char *command)
{
    for (size_t i = 0; i < n_option_rows; i++)
        if (belongs(&option_rows[i], command))
            return true;
    return false;
}

/* Each character through `escape`, a pair of what it is and what stands for it. */
static void put(const char *text, const char *const (*escape)[2], FILE *out)
{
    for (; *text; text++) {
        size_t i = 0;
        while (escape[i][0] != NULL && escape[i][0][0] != *text)
            i++;
        if (escape[i][0] != NULL)
            fputs(escape[i][1], out);
        else
            fputc(*text, out);
    }
}

void help_options(const char *command, FILE *out)
{
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (!belongs(row, command))
            continue;
        _cleanup_(str_free) char *name =
            str_format("%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
        fprintf(out, "  %-18s %s\n", name, row->help);
        if (row->choices)
            fprintf(out, "  %-18s one of %s\n", "", row->choices);
    }
}

/* --- reference --- */

static const char *const in_cell[][2] = {{"|", "\\|"}, {NULL, NULL}}; /* a bar would end the cell */

void help_markdown(FILE *out)
{
    fputs("| Command | What it does |\n|---|---|\n", out);
    for (size_t i = 0; i < n_commands; i++) {
        fprintf(out, "| `outboxd %s%s", commands[i].name, *commands[i].arguments ? " " : "");
        put(commands[i].arguments, in_cell, out);
        fprintf(out, "` | %s |\n", commands[i].help);
    }
    fputs("\n| Command | Option or action | Meaning |\n|---|---|---|\n", out);
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        fprintf(out, "| `%s` | `%s%s%s` | %s", row->command, row->name, row->value ? " " : "",
                row->value ? row->value : "", row->help);
        if (row->choices) {
            fputs(": `", out);
            put(row->choices, in_cell, out);
            fputs("`", out);
        }
        fputs(" |\n", out);
    }
    fputs("\n| Exit code | Meaning |\n|---|---|\n", out);
    for (size_t i = 0; i < n_exit_codes; i++)
        fprintf(out, "| %d | %s |\n", exit_codes[i].code, exit_codes[i].meaning);
}

/* --- man page --- */

static const char *const in_troff[][2] = {{"\\", "\\e"}, {"-", "\\-"}, {"`", ""}, {"'", "\\(aq"}, {NULL, NULL}};

void help_man(FILE *out)
{
    fputs(".SH COMMANDS\n", out);
    for (size_t i = 0; i < n_commands; i++) {
        fputs(".TP\n.B outboxd ", out);
        put(commands[i].name, in_troff, out);
        fputs(*commands[i].arguments ? " \\fR" : "", out);
        put(commands[i].arguments, in_troff, out);
        fputc('\n', out);
        put(commands[i].help, in_troff, out);
        fputs(".\n", out);
        if (!has_rows(commands[i].name))
            continue;
        fputs(".RS\n", out);
        for (size_t o = 0; o < n_option_rows; o++) {
            const struct option_row *row = &option_rows[o];
            if (!belongs(row, commands[i].name))
                continue;
            fputs(".TP\n.B ", out);
            put(row->name, in_troff, out);
            if (row->value)
                fprintf(out, " \\fI%s", row->value);
            fputc('\n', out);
            put(row->help, in_troff, out);
            if (row->choices) {
                fputs(": ", out);
                put(row->choices, in_troff, out);
            }
            fputs(".\n", out);
        }
        fputs(".RE\n", out);
    }
    fputs(".SH EXIT STATUS\n", out);
    for (size_t i = 0; i < n_exit_codes; i++) {
        fprintf(out, ".TP\n.B %d\n", exit_codes[i].code);
        put(exit_codes[i].meaning, in_troff, out);
        fputs(".\n", out);
    }
}

/* --- bash --- */

static const char *const as_words[][2] = {{"|", " "}, {NULL, NULL}};

/* The words that may follow a command: its actions and options. */
static void put_words(const char *command, FILE *out)
{
    const char *glue = "";
    for (size_t i = 0; i < n_option_rows; i++) {
        if (!belongs(&option_rows[i], command))
            continue;
        fprintf(out, "%s%s", glue, option_rows[i].name);
        glue = " ";
    }
}

void help_bash(FILE *out)
{
    fputs("# bash completion of outboxd; written by tools/reference.py\n"
          "_outboxd() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        words='",
          out);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(out, "%s%s", i ? " " : "", commands[i].name);
    fputs("'\n    else\n        case \"${COMP_WORDS[1]} $previous\" in\n", out);
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->value == NULL)
            continue;
        fprintf(out, "        '%s %s') words='", row->command, row->name);
        put(row->choices ? row->choices : "", as_words, out);
        fputs("' ;;\n", out);
    }
    fputs("        *)\n            case ${COMP_WORDS[1]} in\n            help) words='", out);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(out, "%s%s", i ? " " : "", commands[i].name);
    fputs("' ;;\n", out);
    for (size_t i = 0; i < n_commands; i++) {
        if (!has_rows(commands[i].name))
            continue;
        fprintf(out, "            %s) words='", commands[i].name);
        put_words(commands[i].name, out);
        fputs("' ;;\n", out);
    }
    fputs("            esac\n            ;;\n        esac\n    fi\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n}\n"
          "complete -F _outboxd outboxd\n",
          out);
}

/* --- zsh --- */

/* Inside single quotes, in a place where _arguments and _describe give a meaning to colons and brackets. */
static const char *const in_zsh[][2] = {{"'", "'\\''"}, {":", "\\:"}, {"[", "\\["},
                                        {"]", "\\]"},   {"`", ""},    {NULL, NULL}};

static void zsh_arguments(const char *command, FILE *out)
{
    bool actions = false;
    fprintf(out, "    %s)\n        _arguments", command);
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (!belongs(row, command))
            continue;
        if (is_action(row)) {
            actions = true;
            continue;
        }
        fprintf(out, " \\\n            '%s[", row->name);
        put(row->help, in_zsh, out);
        fputs("]", out);
        if (row->value) {
            fputs(":", out);
            put(row->value, in_zsh, out);
            fputs(":", out);
            if (row->choices) {
                fputs("(", out);
                put(row->choices, as_words, out);
                fputs(")", out);
            }
        }
        fputs("'", out);
    }
    if (actions) {
        fputs(" \\\n            '1:action:(", out);
        const char *glue = "";
        for (size_t i = 0; i < n_option_rows; i++) {
            if (!belongs(&option_rows[i], command) || !is_action(&option_rows[i]))
                continue;
            fprintf(out, "%s%s", glue, option_rows[i].name);
            glue = " ";
        }
        fputs(")'", out);
    }
    fputs("\n        ;;\n", out);
}

void help_zsh(FILE *out)
{
    fputs("#compdef outboxd\n# zsh completion of outboxd; written by tools/reference.py\nlocal -a commands=(\n", out);
    for (size_t i = 0; i < n_commands; i++) {
        fprintf(out, "    '%s:", commands[i].name);
        put(commands[i].help, in_zsh, out);
        fputs("'\n", out);
    }
    fputs(")\nif ((CURRENT == 2)); then\n    _describe command commands\n    return\nfi\n"
          "local command=$words[2]\nshift words\n((CURRENT--))\ncase $command in\n"
          "    help) _describe command commands ;;\n",
          out);
    for (size_t i = 0; i < n_commands; i++)
        if (has_rows(commands[i].name))
            zsh_arguments(commands[i].name, out);
    fputs("esac\n", out);
}
