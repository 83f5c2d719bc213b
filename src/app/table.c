#include "table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "parse.h"
#include "str.h"

#define GAP               2
#define TABLE_COLUMNS_MAX 16
#define WIDE              200
#define INDENT            4

/* $COLUMNS, else the terminal's width, else 80; never less than 40. *ret_cut: it is a bound. Without a terminal it is none: who reads
 * the table in a file, or through grep, wants all of it. */
static int table_width(bool *ret_cut)
{
    const char *given = getenv("COLUMNS");
    int64_t columns = 0;
    struct winsize size = {0};
    bool known = given != NULL && parse_int(given, &columns);
    *ret_cut = known || isatty(STDOUT_FILENO);
    if (!*ret_cut)
        return WIDE;
    if (!known && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        columns = size.ws_col;
    return columns >= 40 && columns <= 10000 ? (int)columns : columns > 0 && columns < 40 ? 40 : 80;
}

static int count_characters(const char *text)
{
    int n = 0;
    for (; *text; text += str_utf8_len(text) ? str_utf8_len(text) : 1)
        n++;
    return n;
}

/* Prints at most `width` characters; a longer text ends with "…". Returns how many it printed. */
static int print_cut(const char *text, int width, FILE *out)
{
    int n = count_characters(text);
    bool cut = n > width;
    int room = cut ? width - 1 : n;
    for (int i = 0; i < room; i++) {
        size_t len = str_utf8_len(text);
        if (!str_is_printable(text))
            fputc(*text == '\n' || *text == '\t' ? ' ' : '?', out);
        else
            fwrite(text, 1, len, out);
        text += len ? len : 1;
    }
    if (cut && width > 0)
        fputs("…", out);
    return cut ? width : n;
}

void table_text(const char *text, FILE *out)
{
    print_cut(text, (int)strlen(text), out);
}

/* The last cell is cut only when there is a terminal. Returns whether it was. */
static bool print_line(const struct table_column *columns, int n, const char *const *cells, FILE *out)
{
    bool bounded, cut = false;
    int left = table_width(&bounded) - GAP * (n - 1), shares = 0;
    for (int i = 0; i < n; i++) {
        left -= columns[i].width;
        shares += columns[i].share;
    }
    for (int i = 0; i < n; i++) {
        int more = left > 0 && shares > 0 ? left * columns[i].share / shares : 0;
        int width = columns[i].width + more;
        const char *cell = cells == NULL ? columns[i].title : cells[i] == NULL ? "" : cells[i];
        if (i + 1 == n && !bounded)
            width = count_characters(cell);
        cut = count_characters(cell) > width;
        int pad = width - (int)strlen(cell);
        if (columns[i].right && pad > 0)
            fprintf(out, "%*s", pad, "");
        int printed = print_cut(cell, width, out);
        if (i + 1 < n)
            fprintf(out, "%*s", GAP + (columns[i].right ? 0 : width - printed), "");
    }
    fputc('\n', out);
    return cut;
}

void table_age(int64_t seconds, char ret[32])
{
    static const struct {
        int64_t seconds;
        char unit;
    } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}};
    if (seconds < 0)
        seconds = 0;
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        if (seconds >= units[i].seconds) {
            snprintf(ret, 32, "%lld%c", (long long)(seconds / units[i].seconds), units[i].unit);
            return;
        }
    }
    snprintf(ret, 32, "%llds", (long long)seconds);
}

void table_rows(const struct table_column *columns, int n, const struct rows *rows, int age)
{
    const char *cells[TABLE_COLUMNS_MAX], *told = NULL;
    char text[32];
    bool bounded;

    print_line(columns, n, NULL, stdout);
    for (int i = 0; i < rows_n(rows); i++) {
        for (int c = 0; c < n && c < TABLE_COLUMNS_MAX; c++)
            cells[c] = rows_text(rows, i, c);
        table_age(rows_int(rows, i, age), text);
        cells[age] = text;
        if (!print_line(columns, n, cells, stdout) || (told != NULL && str_eq(told, cells[n - 1])))
            continue;
        told = cells[n - 1];
        printf("%*s", INDENT, "");
        print_cut(told, table_width(&bounded) - INDENT, stdout);
        putchar('\n');
    }
}

void table_json(const struct rows *rows)
{
    fputs("[", stdout);
    for (int i = 0; i < rows_n(rows); i++)
        printf("%s\n  %s", i ? "," : "", rows_text(rows, i, 0));
    printf("%s]", rows_n(rows) ? "\n" : "");
}
