#include "app.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inspect.h"
#include "log.h"
#include "metrics.h"
#include "pg.h"
#include "str.h"
#include "table.h"

static bool is_daemon;

void app_is_daemon(void)
{
    const char *format = getenv("OUTBOX_LOG_FORMAT");
    bool json = format && str_eq(format, "json");

    is_daemon = json || !isatty(STDERR_FILENO);
    log_setup(LOG_LEVEL_INFO, json); /* until the settings are known: they may be what is wrong */
}

/* One occurrence is one line: a list of problems goes on it, too. */
static void log_complaint(const struct error *err)
{
    struct strbuf text = {0};

    for (const char *at = err->message; *at; at += strcspn(at, "\n"), at += strspn(at, "\n "))
        strbuf_addf(&text, "%s%.*s",
                    text.len == 0                    ? ""
                    : text.data[text.len - 1] == ':' ? " "
                                                     : "; ",
                    (int)strcspn(at, "\n"), at);
    log_write(LOG_LEVEL_ERROR, (const struct log_field[]){{err->hint[0] ? "hint" : NULL, err->hint}, {NULL, NULL}},
              "%s", text.data);
    strbuf_done(&text);
}

/* A server's text may hold what others wrote: its lines are kept, and no terminal is to obey it. */
static void complain(const char *label, const char *text)
{
    fputs(label, stderr);
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') {
        _cleanup_(str_free) char *line = str_dupn(text, strcspn(text, "\n"));
        table_text(line, stderr);
        fputc('\n', stderr);
    }
}

void app_complain(const struct error *err)
{
    if (is_daemon) {
        log_complaint(err);
        return;
    }
    complain("outboxd: ", err->message);
    if (err->hint[0])
        complain("hint: ", err->hint);
}

int app_fail(enum result result, const struct error *err)
{
    static const char *const unreadable[] = {"22007", "22008", "22009", "22021"};

    app_complain(err);
    for (size_t i = 0; i < ARRAY_LEN(unreadable); i++)
        if (str_eq(err->sqlstate, unreadable[i]))
            return EXIT_USAGE;
    return result == FATAL || pg_login_refused(err) || pg_error_is_permanent(err) ? EXIT_CONFIG : EXIT_FAILED;
}

/* brokers: Kafka's address must be there, without it a daemon would wait for ever. */
static int load_config(struct config *config, bool brokers)
{
    const struct config_demands demands = {.brokers = brokers, .property_fault = inspect_property};
    struct error err = {0};

    if (config_load(config, environ, &demands, &err) != OK) {
        app_complain(&err);
        return EXIT_CONFIG;
    }
    log_setup((enum log_level)config->log_level, config->log_format == LOG_JSON);
    return EXIT_OK;
}

int app_load_config(struct config *config)
{
    return load_config(config, false);
}

/* Tells the log, and returns the exit code. */
static int end_daemon(enum ended ended, const struct error *err)
{
    if (ended == ENDED_REFUSED)
        app_complain(err);
    else if (ended == ENDED_STOPPED)
        log_info("stopped");
    log_flush_repeats();
    if (ended == ENDED_ABANDONED)
        _exit(EXIT_OK); /* threads still run: nothing may be freed under them */
    metrics_free_all();
    return ended == ENDED_REFUSED ? EXIT_CONFIG : EXIT_OK;
}

int app_daemon(const char *command, int argc, enum ended (*run)(const struct config *config, struct error *err))
{
    struct config config;
    struct error err = {0};

    if (argc > 1)
        return app_usage(command, "takes no arguments: settings are environment variables");
    app_is_daemon();
    int code = load_config(&config, true);
    if (code != EXIT_OK)
        return code;
    enum ended ended = run(&config, &err);
    code = end_daemon(ended, &err);
    config_done(&config);
    return code;
}

int app_finish(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "outboxd: cannot write the answer: %s\n", errno ? strerror(errno) : "nobody takes it");
    return code == EXIT_OK ? EXIT_FAILED : code;
}
