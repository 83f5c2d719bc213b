#include "table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "parse.h"
#include "str.h"

#define GAP               2
#define TABLE_COLUMNS_MAX 16

int table_width(void)
{
    const char *given = getenv("COLUMNS");
    int64_t columns = 0;
    struct winsize size = {0};
    if ((given == NULL || !parse_int(given, &columns)) && isatty(STDOUT_FILENO) &&
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        columns = size.ws_col;
    return columns >= 40 && columns <= 10000 ? (int)columns : columns > 0 && columns < 40 ? 40 : 80;
}

/* Prints at most `width` characters; a longer text ends with "…". Returns how many it printed. */
static int print_cut(const char *text, int width, FILE *out)
{
    int n = 0;
    for (const char *c = text; *c; c += str_utf8_len(c) ? str_utf8_len(c) : 1)
        n++;
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

void table_line(const struct table_column *columns, int n, const char *const *cells, FILE *out)
{
    int left = table_width() - GAP * (n - 1), shares = 0;
    for (int i = 0; i < n; i++) {
        left -= columns[i].width;
        shares += columns[i].share;
    }
    for (int i = 0; i < n; i++) {
        int more = left > 0 && shares > 0 ? left * columns[i].share / shares : 0;
        int width = columns[i].width + more;
        const char *cell = cells == NULL ? columns[i].title : cells[i] == NULL ? "" : cells[i];
        int pad = width - (int)strlen(cell);
        if (columns[i].right && pad > 0)
            fprintf(out, "%*s", pad, "");
        int printed = print_cut(cell, width, out);
        if (i + 1 < n)
            fprintf(out, "%*s", GAP + (columns[i].right ? 0 : width - printed), "");
    }
    fputc('\n', out);
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
    const char *cells[TABLE_COLUMNS_MAX];
    char text[32];

    table_line(columns, n, NULL, stdout);
    for (int i = 0; i < rows_n(rows); i++) {
        for (int c = 0; c < n && c < TABLE_COLUMNS_MAX; c++)
            cells[c] = rows_text(rows, i, c);
        table_age(rows_int(rows, i, age), text);
        cells[age] = text;
        table_line(columns, n, cells, stdout);
    }
}

void table_json(const struct rows *rows)
{
    fputs("[", stdout);
    for (int i = 0; i < rows_n(rows); i++)
        printf("%s\n  %s", i ? "," : "", rows_text(rows, i, 0));
    printf("%s]", rows_n(rows) ? "\n" : "");
}
