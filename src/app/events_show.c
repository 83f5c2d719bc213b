#include "events_show.h"

#include <stdio.h>
#include <string.h>

#include "events.h"
#include "str.h"
#include "table.h"

static void print_json_text(const char *name, const struct rows *rows, int row, int column)
{
    struct strbuf text = {0};
    if (rows_null(rows, row, column))
        strbuf_add(&text, "null");
    else
        strbuf_add_json(&text, rows_text(rows, row, column));
    printf("\"%s\":%s", name, text.data);
    strbuf_done(&text);
}

/* The row's own object, with what it waits for added. */
static void print_view_json(const struct events_view *view)
{
    static const char *const parked[] = {"topic", "state", "reason", "since", "probe_after"};
    const char *object = rows_text(view->json, 0, 0);
    printf("%.*s,\"waits_for\":", (int)strlen(object) - 1, object);
    if (rows_n(view->ahead) == 0) {
        fputs("null", stdout);
    } else {
        putchar('{');
        print_json_text("id", view->ahead, 0, 0);
        printf(",\"seq\":%s,", rows_text(view->ahead, 0, 1));
        print_json_text("status", view->ahead, 0, 2);
        putchar(',');
        print_json_text("topic", view->ahead, 0, 3);
        putchar('}');
    }
    fputs(",\"parked\":[", stdout);
    for (int i = 0; i < rows_n(view->parked); i++) {
        fputs(i ? ",{" : "{", stdout);
        for (int c = 0; c < (int)ARRAY_LEN(parked); c++) {
            fputs(c ? "," : "", stdout);
            print_json_text(parked[c], view->parked, i, c);
        }
        putchar('}');
    }
    puts("]}");
}

static void print_waiting(const struct events_view *view)
{
    for (int i = 0; i < rows_n(view->parked); i++)
        printf("\nits topic %s is %s since %s: %s\n", rows_text(view->parked, i, 0), rows_text(view->parked, i, 1),
               rows_text(view->parked, i, 3), rows_text(view->parked, i, 2));
    if (rows_n(view->ahead) > 0) {
        printf("\nit waits for the event before it in its stream: %s (seq %s, %s", rows_text(view->ahead, 0, 0),
               rows_text(view->ahead, 0, 1), rows_text(view->ahead, 0, 2));
        if (!rows_null(view->ahead, 0, 4))
            printf(", next try %s", rows_text(view->ahead, 0, 4));
        fputs(")\n", stdout);
        if (!rows_null(view->ahead, 0, 5)) {
            fputs("  ", stdout);
            table_text(rows_text(view->ahead, 0, 5), stdout);
            putchar('\n');
        }
    } else if (view->ready && rows_n(view->parked) == 0) {
        puts("\nnothing is in its way: a running relay takes it next");
    } else if (view->held && rows_n(view->parked) == 0) {
        puts("\nwhat it waited for is gone: the next sweep (once a minute) releases it");
    }
}

/* Texts in the row are the writer's: no terminal is to obey them, but payloads keep their lines. */
static void print_field(const char *name, const char *text)
{
    if (strchr(text, '\n') == NULL) {
        printf("%-15s ", name);
        table_text(text, stdout);
        putchar('\n');
        return;
    }
    printf("%s\n", name);
    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_(str_free) char *line = str_dupn(text, len);
        fputs("  ", stdout);
        table_text(line, stdout);
        putchar('\n');
        text += len + (text[len] == '\n');
    }
}

enum result events_show_one(struct pg *pg, const char *id, bool dead_blocks, bool json, struct error *err)
{
    struct events_view view;
    enum result result = events_show(pg, id, dead_blocks, &view, err);
    if (result == OK && rows_n(view.json) == 0) {
        result = error_reject(err, "there is no event %s", id);
        error_hint(err, "SENT events are purged after OUTBOX_RETENTION, or deleted at once with OUTBOX_ON_SENT=delete");
    } else if (result == OK && json) {
        print_view_json(&view);
    } else if (result == OK) {
        for (int i = 0; i < rows_n(view.fields); i++)
            if (!rows_null(view.fields, i, 1))
                print_field(rows_text(view.fields, i, 0), rows_text(view.fields, i, 1));
        print_waiting(&view);
    }
    events_view_done(&view);
    return result;
}
