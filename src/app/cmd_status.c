#include <inttypes.h>
#include <string.h>

#include "app.h"
#include "figures.h"
#include "options.h"
#include "parse.h"
#include "schema.h"
#include "show.h"
#include "watch.h"

#define CONNECT_TIMEOUT_MS 15000
#define BOUND              10000000 /* of a single answer: a few seconds at worst */

static void print_text(const struct figures *figures, FILE *out)
{
    char number[32], age[32];
    const char *more = figures->capped ? " or more" : "";
    format_age(figures->oldest_pending_s, age);
    show_count(figures->pending, number);
    fprintf(out, "pending  %11s%s%s%s\n", number, more, figures->pending > 0 ? ", the oldest since " : "",
            figures->pending > 0 ? age : "");
    show_count(figures->failed, number);
    fprintf(out, "failed   %11s%s\n", number, figures->failed > 0 ? "  refused, waiting for the next try" : "");
    show_count(figures->held, number);
    fprintf(out, "held     %11s%s\n", number, figures->held > 0 ? "  behind an earlier event or a parked topic" : "");
    show_count(figures->dead, number);
    fprintf(out, "dead     %11s%s\n", number,
            figures->dead > 0 ? "  `outboxd events list --status DEAD` shows them" : "");
    for (size_t i = 0; i < figures->n_parked; i++) {
        const struct parked_figure *topic = &figures->parked[i];
        show_count(topic->held, number);
        fprintf(out, "%s %s since %s, %s held: ", topic->state, topic->topic, topic->since, number);
        show_plain(out, topic->reason);
        fputc('\n', out);
    }
}

static int answer(struct pg *pg, bool json)
{
    struct error err = {0};
    struct figures figures;
    struct schema_state state;
    enum result result = schema_current(pg, &state, &err);
    if (result == FATAL &&
        state.version > 0) { /* older: in the midst of an upgrade one wants to see the backlog all the same */
        app_complain(&err);
        result = OK;
    }
    if (result == OK)
        result = figures_read(pg, BOUND, &figures, &err);
    if (result != OK)
        return app_fail(result, &err);
    if (json) {
        struct strbuf text = {0};
        figures_json(&figures, &text);
        printf("{%s}\n", text.data);
        strbuf_done(&text);
    } else {
        print_text(&figures, stdout);
    }
    figures_done(&figures);
    return EXIT_OK;
}

int cmd_status(int argc, char **argv)
{
    struct arguments arguments;
    int code = options_parse("status", 0, argc, argv, &arguments);
    if (code != EXIT_OK)
        return code;
    bool json = option_given(&arguments, "--json"), watching = option_given(&arguments, "--watch");
    if (json && watching)
        return app_usage("status", "--watch is for a person, --json for a machine");
    struct config config;
    struct error err = {0};
    struct pg *pg = NULL;
    code = app_load_config(&config);
    if (code != EXIT_OK)
        return code;
    const struct pg_options options = {
        .url = config.database_url, .schema = config.schema, .connect_timeout_ms = CONNECT_TIMEOUT_MS, .stop_fd = -1};
    enum result result = watching ? OK : pg_open(&options, &pg, &err);
    if (watching)
        code = watch(&config);
    else
        code = result == OK ? answer(pg, json) : app_fail(result, &err);
    pg_close(pg);
    config_done(&config);
    return code;
}
