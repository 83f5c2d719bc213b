/* What `status --watch` shows. Pure: a view becomes a text. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "parse.h"
#include "show.h"
#include "watch.h"

#define RATE_MS       10000 /* rates are over this time */
#define TOPIC_COLUMNS 70
#define STEADY        0.1 /* in and out differ by less than this part: neither grows nor shrinks */

struct screen {
    const struct view *view;
    struct strbuf *out;
    int lines;  /* begun */
    int column; /* of the line */
};

enum style { PLAIN, BOLD, DIM, RED, YELLOW, GREEN, REVERSE };

static void style(struct screen *screen, enum style what)
{
    static const char *const codes[] = {"0", "1", "2", "1;31", "33", "32", "7"};
    if (screen->view->color)
        strbuf_addf(screen->out, "\033[%sm", codes[what]);
}

/* Text in `width` columns (0: as it is), cut at the terminal's edge. Control characters, and bytes that are no UTF-8,
 * become '?'. */
static void put(struct screen *screen, const char *text, int width, bool right)
{
    int len = 0, room = screen->view->width - screen->column;
    for (const char *at = text; *at; at += str_utf8_len(at) > 0 ? str_utf8_len(at) : 1)
        len++;
    if (width == 0)
        width = len;
    if (width > room)
        width = room;
    for (int i = len; right && i < width; i++)
        strbuf_add(screen->out, " ");
    bool cut = len > width;
    for (int i = 0; *text && i < width; i++) {
        size_t bytes = str_utf8_len(text);
        if (cut && i == width - 1)
            strbuf_add(screen->out, screen->view->utf8 ? "…" : ">");
        else if (!str_is_printable(text) || (bytes > 1 && !screen->view->utf8))
            strbuf_add(screen->out, "?");
        else
            strbuf_addn(screen->out, text, bytes);
        text += bytes > 0 ? bytes : 1;
    }
    for (int i = len; !right && i < width; i++)
        strbuf_add(screen->out, " ");
    screen->column += width > 0 ? width : 0;
}

static void put_styled(struct screen *screen, enum style what, const char *text, int width, bool right)
{
    style(screen, what);
    put(screen, text, width, right);
    style(screen, PLAIN);
}

static void put_count(struct screen *screen, int64_t n, int width, enum style when_some)
{
    char text[32];
    show_count(n, text);
    put_styled(screen, n > 0 ? when_some : DIM, text, width, true);
}

/* false: the screen is full. */
static bool next_line(struct screen *screen)
{
    if (screen->lines >= screen->view->height) {
        screen->column = screen->view->width; /* what was to stand on the next one must not follow on the last one */
        return false;
    }
    strbuf_add(screen->out, screen->lines > 0 ? "\033[K\r\n" : "");
    screen->lines++;
    screen->column = 0;
    return true;
}

static bool heading(struct screen *screen, const char *text)
{
    if (screen->lines + 2 > screen->view->height || !next_line(screen))
        return false;
    put_styled(screen, BOLD, text, 0, false);
    return true;
}

/* --- figures of time --- */

struct rates {
    bool known;
    double in, out;
};

static struct rates rates_of(const struct view *view)
{
    struct rates rates = {0};
    if (view->looks < 2)
        return rates;
    const struct look *now = &view->history[(view->looks - 1) % HISTORY], *then = now;
    for (int64_t i = view->looks - 2; i >= 0 && view->looks - i < HISTORY && now->at_ms - then->at_ms < RATE_MS; i--)
        then = &view->history[i % HISTORY];
    double seconds = (double)(now->at_ms - then->at_ms) / 1e3;
    if (seconds <= 0)
        return rates;
    int64_t in = now->inserted - then->inserted;
    int64_t marked = view->delete_sent ? now->deleted - then->deleted : now->updated - then->updated;
    int64_t out = now->capped || then->capped ? marked : in - (now->pending - then->pending);
    return (struct rates){
        .known = true, .in = in > 0 ? (double)in / seconds : 0, .out = out > 0 ? (double)out / seconds : 0};
}

static void time_to_empty(const struct view *view, const struct rates *rates, char ret[64])
{
    double gain = rates->out - rates->in;
    char age[32];
    if (view->figures.pending == 0) {
        snprintf(ret, 64, "empty");
    } else if (!rates->known) {
        snprintf(ret, 64, "…");
    } else if (rates->out < 0.1) {
        snprintf(ret, 64, "nothing goes out");
    } else if (gain <= rates->in * STEADY) {
        snprintf(ret, 64, gain < -rates->in * STEADY ? "never, it grows" : "steady");
    } else {
        format_age((double)view->figures.pending / gain, age);
        snprintf(ret, 64, "empty in %s%s", age, view->figures.capped ? " or more" : "");
    }
}

static void put_rate(struct screen *screen, const char *name, bool known, double rate)
{
    char number[32], text[48];
    show_count((int64_t)(rate + 0.5), number);
    snprintf(text, sizeof text, "%s/s", known ? number : "-");
    put(screen, name, 0, false);
    put_styled(screen, BOLD, text, 12, true);
}

/* The backlog over time, the latest at the right edge. */
static void sparkline(struct screen *screen)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    const struct view *view = screen->view;
    int64_t columns = view->width - 12, most = 1;
    int64_t n = view->looks < HISTORY ? view->looks : HISTORY;
    if (!view->utf8 || columns < 10)
        return;
    if (n > columns)
        n = columns;
    for (int64_t i = view->looks - n; i < view->looks; i++)
        if (view->history[i % HISTORY].pending > most)
            most = view->history[i % HISTORY].pending;
    put_styled(screen, DIM, " backlog  ", 0, false);
    for (int64_t i = view->looks - n; i < view->looks; i++)
        put(screen, view->history[i % HISTORY].pending == 0 ? " " : bars[view->history[i % HISTORY].pending * 7 / most],
            1, false);
}

/* --- sections --- */

static void draw_top(struct screen *screen)
{
    const struct view *view = screen->view;
    char clock[32];
    time_t now = (time_t)(clock_wall_ms() / 1000);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(clock, sizeof clock, "%H:%M:%S UTC ", &tm);
    next_line(screen);
    style(screen, REVERSE);
    put(screen, " ", 1, false);
    put(screen, view->title, view->width - 14 > 0 ? view->width - 14 : 0, false);
    put(screen, clock, 13, true);
    style(screen, PLAIN);
}

static void draw_numbers(struct screen *screen)
{
    const struct view *view = screen->view;
    const struct figures *figures = &view->figures;
    const struct rates rates = rates_of(view);
    char text[64], age[32];
    bool narrow = view->width < 72;

    next_line(screen);
    next_line(screen);
    put(screen, " pending ", 0, false);
    put_count(screen, figures->pending, 12, BOLD);
    put(screen, figures->capped ? "+" : " ", 1, false);
    if (narrow)
        next_line(screen);
    put_rate(screen, narrow ? " in" : "   in", rates.known, rates.in);
    put_rate(screen, "   out", rates.known, rates.out);
    if (narrow)
        next_line(screen);
    time_to_empty(view, &rates, text);
    put(screen, narrow ? " " : "   ", 0, false);
    put_styled(screen, figures->pending == 0 ? GREEN : PLAIN, text, 0, false);

    next_line(screen);
    format_age(figures->oldest_pending_s, age);
    put(screen, " oldest  ", 0, false);
    put_styled(screen, figures->oldest_pending_s > 60 ? YELLOW : PLAIN, figures->pending > 0 ? age : "-", 12, true);
    if (narrow)
        next_line(screen);
    put(screen, narrow ? " failed " : "    failed ", 0, false);
    put_count(screen, figures->failed, narrow ? 6 : 9, YELLOW);
    put(screen, "  held ", 0, false);
    put_count(screen, figures->held, narrow ? 6 : 10, YELLOW);
    put(screen, "  dead ", 0, false);
    put_count(screen, figures->dead, narrow ? 6 : 9, RED);
    if (view->height >= 16 && next_line(screen))
        sparkline(screen);
}

static void draw_parked(struct screen *screen, size_t most)
{
    const struct figures *figures = &screen->view->figures;
    if (figures->n_parked == 0 || !heading(screen, " PARKED TOPICS"))
        return;
    for (size_t i = 0; i < figures->n_parked && i < most && next_line(screen); i++) {
        const struct parked_figure *topic = &figures->parked[i];
        int name = screen->view->width * 3 / 10 < TOPIC_COLUMNS ? screen->view->width * 3 / 10 : TOPIC_COLUMNS;
        put(screen, " ", 1, false);
        put_styled(screen, str_eq(topic->state, "parked") ? RED : YELLOW, topic->topic, name, false);
        put_count(screen, topic->held, 11, PLAIN);
        put(screen, " held  ", 0, false);
        put(screen, str_eq(topic->state, "parked") ? "" : "draining: ", 0, false);
        put(screen, topic->reason, 0, false);
    }
    if (figures->n_parked > most && next_line(screen)) {
        char text[48];
        snprintf(text, sizeof text, " … and %zu more", figures->n_parked - most);
        put_styled(screen, DIM, text, 0, false);
    }
}

static void draw_topics(struct screen *screen, int most)
{
    static const char *const titles[] = {"pending", "failed", "held", "dead", "oldest"};
    const struct details *details = &screen->view->details;
    int column = screen->view->width >= 120 ? 14 : screen->view->width >= 72 ? 10 : 7;
    int name = screen->view->width - 5 * column - 2;
    if (name > TOPIC_COLUMNS)
        name = TOPIC_COLUMNS; /* figures far away from their names are hard to read */
    if (details->n_topics == 0 || name < 8 || !heading(screen, " "))
        return;
    put_styled(screen, BOLD, "TOPICS", name, false);
    for (int i = 0; i < 5; i++)
        put_styled(screen, DIM, titles[i], column, true);
    for (size_t i = 0; i < details->n_topics && (int)i < most && next_line(screen); i++) {
        const struct topic_figure *topic = &details->topics[i];
        char age[32];
        format_age(topic->oldest_s, age);
        put(screen, " ", 1, false);
        put(screen, topic->topic, name, false);
        put_count(screen, topic->pending, column, PLAIN);
        put_count(screen, topic->failed, column, YELLOW);
        put_count(screen, topic->held, column, YELLOW);
        put_count(screen, topic->dead, column, RED);
        put_styled(screen, PLAIN, topic->pending > 0 ? age : "-", column, true);
    }
    if ((int)details->n_topics > most && next_line(screen)) {
        char text[64];
        size_t more = details->n_topics - (size_t)most, dead = 0;
        for (size_t i = (size_t)most; i < details->n_topics; i++)
            dead += details->topics[i].dead > 0;
        int len = snprintf(text, sizeof text, " … and %zu more", more);
        if (dead > 0)
            snprintf(text + len, sizeof text - (size_t)len, ", %zu of them with dead events", dead);
        put_styled(screen, dead > 0 ? RED : DIM, text, 0, false);
    }
}

static void draw_errors(struct screen *screen, int most)
{
    const struct details *details = &screen->view->details;
    if (details->n_errors == 0 || !heading(screen, " LAST ERRORS"))
        return;
    for (size_t i = 0; i < details->n_errors && (int)i < most && next_line(screen); i++) {
        const struct error_figure *error = &details->errors[i];
        int name = screen->view->width / 5;
        put(screen, " ", 1, false);
        put_styled(screen, error->dead ? RED : YELLOW, error->dead ? "dead  " : "failed", 7, false);
        put_count(screen, error->events, 6, PLAIN);
        put(screen, "  ", 2, false);
        put(screen, error->topic, name, false);
        put(screen, "  ", 2, false);
        put(screen, error->reason, 0, false);
    }
}

static void draw_bottom(struct screen *screen)
{
    const struct view *view = screen->view;
    while (screen->lines < view->height - 1)
        next_line(screen);
    if (!next_line(screen))
        return;
    if (*view->trouble) {
        put_styled(screen, RED, " not up to date: ", 0, false);
        put(screen, view->trouble, 0, false);
        return;
    }
    /* The two looks are not of the same moment: only a clear difference counts. */
    bool sampled = view->details.seen * 10 < (view->figures.pending + view->figures.dead) * 8;
    char text[128];
    snprintf(text, sizeof text, " q ends; a look every %.0f s%s%s", (double)view->every_ms / 1e3,
             view->figures.capped ? "; + is at least" : "", sampled ? "; topics by a sample" : "");
    put_styled(screen, DIM, text, 0, false);
}

void watch_draw(const struct view *view, struct strbuf *out)
{
    struct screen screen = {.view = view, .out = out};
    strbuf_add(out, "\033[H");
    draw_top(&screen);
    draw_numbers(&screen);

    /* What is left, without the last line: parked topics and errors have a share, topics get the rest. */
    int room = view->height - screen.lines - 1;
    int errors = (int)view->details.n_errors < room / 4 ? (int)view->details.n_errors : room / 4;
    size_t parked = view->figures.n_parked < (size_t)(room > 0 ? room / 4 : 0) ? view->figures.n_parked
                                                                               : (size_t)(room > 0 ? room / 4 : 0);
    int parked_lines = parked > 0 ? (int)parked + 2 + (view->figures.n_parked > parked) : 0;
    int topics = room - parked_lines - (errors > 0 ? errors + 2 : 0) - 2;
    if (parked > 0 && next_line(&screen))
        draw_parked(&screen, parked);
    if ((int)view->details.n_topics > topics)
        topics--; /* for the line that says so */
    if (topics > 0 && view->details.n_topics > 0 && next_line(&screen))
        draw_topics(&screen, topics);
    if (errors > 0 && next_line(&screen))
        draw_errors(&screen, errors);
    draw_bottom(&screen);
    strbuf_add(out, "\033[K\033[J");
}
