#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "str.h"

#define REPEAT_WINDOW_MS 10000
#define REPEAT_SLOTS     64 /* different lines remembered at a time; the oldest makes room */

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const int syslog_levels[] = {3, 4, 6, 7};

static enum log_level max_level = LOG_LEVEL_INFO;
static bool as_json, under_journald;
static _Thread_local int this_worker = -1;

/* A line that was written lately, and how often it came again since. */
struct repeat {
    const char *format; /* NULL: free */
    int worker;
    enum log_level level;
    uint64_t hash; /* of what else makes two lines the same */
    int64_t written_ms;
    unsigned long suppressed;
    char *text; /* of the last one suppressed */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `repeats` and the order of lines */
static struct repeat repeats[REPEAT_SLOTS];

void log_setup(enum log_level level, bool json)
{
    const char *journal = getenv("JOURNAL_STREAM");

    max_level = level;
    as_json = json;
    under_journald = journal && *journal;
}

void log_worker(int worker)
{
    this_worker = worker;
}

bool log_enabled(enum log_level level)
{
    return level <= max_level;
}

static void add_time(struct strbuf *line)
{
    int64_t now_ms = clock_wall_ms();
    time_t seconds = (time_t)(now_ms / 1000);
    struct tm tm;
    char text[32];

    gmtime_r(&seconds, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    strbuf_addf(line, "%s.%03dZ", text, (int)(now_ms % 1000));
}

/* One occurrence is one line, and no terminal obeys what a server put into its error text. */
static void add_plain(struct strbuf *line, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\n')
            strbuf_add(line, "\\n");
        else if (c == '\t')
            strbuf_add(line, "\\t");
        else if (c < 0x20 || c == 0x7f)
            strbuf_addf(line, "\\x%02x", c);
        else
            strbuf_addn(line, s, 1);
    }
}

static void add_plain_field(struct strbuf *line, const char *name, const char *value)
{
    strbuf_addf(line, " %s=", name);
    if (*value == '\0' || strpbrk(value, " =\""))
        strbuf_add_json(line, value);
    else
        add_plain(line, value);
}

static void add_json_field(struct strbuf *line, const char *name, const char *value)
{
    strbuf_add(line, ",");
    strbuf_add_json(line, name);
    strbuf_add(line, ":");
    strbuf_add_json(line, value);
}

/* Caller holds the lock. One write(2) a line, so that lines of two processes on one pipe do not mix. */
static void emit(enum log_level level, int worker, const struct log_field *fields, unsigned long suppressed,
                 const char *text)
{
    struct strbuf line = {0};

    if (as_json) {
        strbuf_add(&line, "{\"time\":\"");
        add_time(&line);
        strbuf_addf(&line, "\",\"level\":\"%s\"", level_names[level]);
        if (worker >= 0)
            strbuf_addf(&line, ",\"worker\":%d", worker);
        for (; fields && fields->name; fields++)
            add_json_field(&line, fields->name, fields->value ? fields->value : "");
        if (suppressed)
            strbuf_addf(&line, ",\"repeated\":%lu", suppressed);
        add_json_field(&line, "message", text);
        strbuf_add(&line, "}\n");
    } else {
        if (under_journald)
            strbuf_addf(&line, "<%d>", syslog_levels[level]);
        else
            add_time(&line);
        strbuf_addf(&line, "%s%s", under_journald ? "" : " ", level_names[level]);
        if (worker >= 0)
            strbuf_addf(&line, " worker=%d", worker);
        for (; fields && fields->name; fields++)
            add_plain_field(&line, fields->name, fields->value ? fields->value : "");
        if (suppressed)
            strbuf_addf(&line, " repeated=%lu", suppressed);
        strbuf_add(&line, " ");
        add_plain(&line, text);
        strbuf_add(&line, "\n");
    }
    for (size_t done = 0; done < line.len;) {
        ssize_t n = write(STDERR_FILENO, line.data + done, line.len - done);
        if (n <= 0)
            break; /* nobody reads us: going on matters more */
        done += (size_t)n;
    }
    strbuf_done(&line);
}

static uint64_t hash_text(uint64_t hash, const char *s)
{
    for (; *s; s++)
        hash = (hash ^ (unsigned char)*s) * 0x100000001b3u;
    return hash * 31;
}

/* Two lines are the same when format and worker are; but not for different topics, and a bare "%s" says
 * nothing. */
static uint64_t identity(const struct log_field *fields, const char *format, const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; fields && fields->name; fields++)
        hash = hash_text(hash_text(hash, fields->name), fields->value ? fields->value : "");
    return str_eq(format, "%s") ? hash_text(hash, text) : hash;
}

static void say_suppressed(struct repeat *repeat)
{
    if (repeat->suppressed)
        emit(repeat->level, repeat->worker, NULL, repeat->suppressed, repeat->text);
    str_free(&repeat->text);
    *repeat = (struct repeat){0};
}

/* The slot of this line, or the one that it takes over: a free one, else the oldest. */
static struct repeat *find_slot(const char *format, int worker, uint64_t hash)
{
    struct repeat *slot = &repeats[0];

    for (size_t i = 0; i < REPEAT_SLOTS; i++) {
        struct repeat *repeat = &repeats[i];
        if (repeat->format == format && repeat->worker == worker && repeat->hash == hash)
            return repeat;
        if (slot->format && (!repeat->format || repeat->written_ms < slot->written_ms))
            slot = repeat;
    }
    say_suppressed(slot);
    return slot;
}

void log_write(enum log_level level, const struct log_field *fields, const char *format, ...)
{
    struct strbuf text = {0};
    va_list args;

    if (level > max_level)
        return;
    va_start(args, format);
    strbuf_addv(&text, format, args);
    va_end(args);

    uint64_t hash = identity(fields, format, text.data);
    int64_t now = clock_ms();
    pthread_mutex_lock(&lock);
    struct repeat *slot = find_slot(format, this_worker, hash);
    if (slot->format && now - slot->written_ms < REPEAT_WINDOW_MS) {
        slot->suppressed++;
        str_free(&slot->text);
        slot->text = TAKE(text.data);
    } else {
        emit(level, this_worker, fields, slot->suppressed, text.data);
        str_free(&slot->text);
        *slot =
            (struct repeat){.format = format, .worker = this_worker, .level = level, .hash = hash, .written_ms = now};
    }
    pthread_mutex_unlock(&lock);
    strbuf_done(&text);
}

void log_flush_repeats(void)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < REPEAT_SLOTS; i++)
        if (repeats[i].format)
            say_suppressed(&repeats[i]);
    pthread_mutex_unlock(&lock);
}
