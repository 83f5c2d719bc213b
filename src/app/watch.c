#include "watch.h"

#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "app.h"
#include "clock.h"
#include "pg.h"
#include "schema.h"

#define CONNECT_TIMEOUT_MS 10000
#define LOOK_MS            1000
#define LOOK_SHARE         10 /* the looks take at most this part of the time */
#define FIGURES_BOUND      1000000
#define DETAILS_BOUND      20000

struct watching {
    const struct config *config;
    struct pg *pg;
    struct error err;
    struct view view;
    struct termios before;
    int signal_fd;
    int stop_fd; /* only the signals that end it */
};

/* --- the terminal --- */

static void say(const char *text, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = write(STDOUT_FILENO, text + done, len - done);
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

#define SAY(literal) say(literal, sizeof(literal) - 1)

/* The other screen, no cursor, and keys as they come; signals come through a descriptor, so that nothing ends us half-way. */
static bool enter(struct watching *watching)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < 6; i++)
        sigaddset(&set, (const int[]){SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    watching->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    sigdelset(&set, SIGTSTP);
    sigdelset(&set, SIGWINCH);
    watching->stop_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (watching->signal_fd < 0 || watching->stop_fd < 0 || tcgetattr(STDIN_FILENO, &watching->before) != 0)
        return false;
    struct termios keys = watching->before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    SAY("\033[?1049h\033[?25l\033[H\033[2J");
    return true;
}

static void leave(const struct watching *watching)
{
    SAY("\033[?25h\033[?1049l");
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &watching->before);
}

static void measure(struct view *view)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    view->width = known ? size.ws_col : 80;
    view->height = known ? size.ws_row : 24;
}

/* Waits for the next look; false: the person, or a signal, wants to end. A new size is drawn at once. */
static bool wait_for_next(struct watching *watching, int64_t until, bool *ret_resized)
{
    struct pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {watching->signal_fd, POLLIN, 0}};
    *ret_resized = false;
    if (poll(fds, 2, clock_left_ms(until)) <= 0)
        return true;
    if (fds[0].revents) {
        char key;
        ssize_t n = read(STDIN_FILENO, &key, 1);
        if (n <= 0 || key == 'q' || key == 'Q')
            return false;
    }
    struct signalfd_siginfo info;
    while (read(watching->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGWINCH)
            *ret_resized = true;
        else if (info.ssi_signo != SIGTSTP)
            return false;
    }
    return true;
}

/* --- looking --- */

static enum result look(struct watching *watching)
{
    struct view *view = &watching->view;
    struct figures figures = {0};
    struct details details = {0};
    struct schema_state state = {0};
    const struct pg_options options = {.url = watching->config->database_url,
                                       .schema = watching->config->schema,
                                       .connect_timeout_ms = CONNECT_TIMEOUT_MS,
                                       .stop_fd = watching->stop_fd};
    enum result result = watching->pg != NULL ? OK : pg_open(&options, &watching->pg, &watching->err);
    if (result == OK)
        pg_stop_on(watching->pg, watching->stop_fd);
    if (result == OK && view->looks == 0)
        result = schema_current(watching->pg, &state, &watching->err);
    if (result == FATAL && state.version > 0) /* older, in the midst of an upgrade */
        result = OK;
    if (result == OK)
        result = figures_read(watching->pg, FIGURES_BOUND, &figures, &watching->err);
    if (result == OK)
        result = details_read(watching->pg, DETAILS_BOUND, &details, &watching->err);
    if (result != OK) {
        figures_done(&figures);
        pg_close(TAKE(watching->pg));
        view->trouble = watching->err.message;
        return result == RETRY && pg_error_is_permanent(&watching->err) ? FATAL : result;
    }
    view->trouble = "";
    view->history[view->looks++ % HISTORY] = (struct look){.at_ms = clock_ms(),
                                                           .pending = figures.pending,
                                                           .dead = figures.dead,
                                                           .inserted = figures.inserted,
                                                           .updated = figures.updated,
                                                           .deleted = figures.deleted,
                                                           .capped = figures.capped};
    figures_done(&view->figures);
    details_done(&view->details);
    view->figures = figures;
    view->details = details;
    return OK;
}

static void draw(struct watching *watching)
{
    struct strbuf screen = {0};
    measure(&watching->view);
    watch_draw(&watching->view, &screen);
    say(screen.data, screen.len);
    strbuf_done(&screen);
}

static enum result watch_on(struct watching *watching)
{
    for (;;) {
        int64_t start = clock_ms();
        enum result result = look(watching);
        if (result == FATAL)
            return FATAL;
        int64_t pause = (clock_ms() - start) * LOOK_SHARE;
        watching->view.every_ms = pause > LOOK_MS ? pause : LOOK_MS;
        int64_t until = clock_ms() + watching->view.every_ms;
        draw(watching);
        while (clock_left_ms(until) > 0) {
            bool resized;
            if (!wait_for_next(watching, until, &resized))
                return OK;
            if (resized)
                draw(watching);
        }
    }
}

int watch(const struct config *config)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
        return app_usage("status", "--watch needs a terminal");
    if (term != NULL && str_eq(term, "dumb"))
        return app_usage("status", "--watch needs a terminal that can redraw its screen: TERM is dumb");
    setlocale(LC_CTYPE, "");
    _cleanup_(str_free) char *title = str_format("outboxd, schema %s", config->schema);
    struct watching watching = {.config = config,
                                .signal_fd = -1,
                                .stop_fd = -1,
                                .view = {.title = title,
                                         .color = (no_color == NULL || *no_color == '\0') && term != NULL,
                                         .utf8 = str_eq(nl_langinfo(CODESET), "UTF-8"),
                                         .delete_sent = config->on_sent == ON_SENT_DELETE,
                                         .trouble = ""}};
    enum result result = look(&watching); /* a wrong password is better told on the usual screen */
    if (result == OK && enter(&watching)) {
        result = watch_on(&watching);
        leave(&watching);
    }
    int code = result == OK ? EXIT_OK : app_fail(result, &watching.err);
    pg_close(watching.pg);
    figures_done(&watching.view.figures);
    details_done(&watching.view.details);
    return code;
}
