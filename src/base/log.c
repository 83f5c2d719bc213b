#include "log.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "str.h"

#define REPEAT_WINDOW_MS 10000
#define REPEAT_SLOTS     64 /* different lines remembered at a time; the oldest makes room */
#define REPEAT_ALIKE     8  /* of one format, worker and fields: what differs more often is a flood all the same */

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
    uint64_t about, hash; /* of the fields; of the text */
    int64_t written_ms;
    unsigned long suppressed;
    int64_t last_ms;     /* wall clock of the last one suppressed */
    char *fields, *text; /* and what it said */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `repeats` and the order of lines */
static struct repeat repeats[REPEAT_SLOTS];

/* The variable is inherited by whatever a service starts, a shell for example: only the descriptor tells whose stderr it is. */
static bool is_journal(int fd)
{
    const char *journal = getenv("JOURNAL_STREAM");
    struct stat at;

    if (journal == NULL || fstat(fd, &at) != 0)
        return false;
    _cleanup_(str_free) char *stream = str_format("%ju:%ju", (uintmax_t)at.st_dev, (uintmax_t)at.st_ino);
    return str_eq(journal, stream);
}

void log_setup(enum log_level level, bool json)
{
    max_level = level;
    as_json = json;
    under_journald = is_journal(STDERR_FILENO);
}

void log_worker(int worker)
{
    this_worker = worker;
}

bool log_enabled(enum log_level level)
{
    return level <= max_level;
}

static void add_time(struct strbuf *line, int64_t wall_ms)
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm tm;
    char text[32];

    gmtime_r(&seconds, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    strbuf_addf(line, "%s.%03dZ", text, (int)(wall_ms % 1000));
}

/* One occurrence is one line, and no terminal obeys what a server put into its error text. */
static void add_plain(struct strbuf *line, const char *s)
{
    while (*s) {
        size_t n = str_is_printable(s) ? str_utf8_len(s) : 1;
        if (*s == '\n')
            strbuf_add(line, "\\n");
        else if (*s == '\t')
            strbuf_add(line, "\\t");
        else if (!str_is_printable(s))
            strbuf_addf(line, "\\x%02x", (unsigned char)*s);
        else
            strbuf_addn(line, s, n);
        s += n;
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

/* As they stand in a line. Owned; NULL: none. */
static char *render(const struct log_field *fields)
{
    struct strbuf text = {0};

    for (; fields && fields->name; fields++)
        (as_json ? add_json_field : add_plain_field)(&text, fields->name, fields->value ? fields->value : "");
    return text.data;
}

/* Caller holds the lock. One write(2) a line, so that lines of two processes on one pipe do not mix. `last_ms`: when the last
 * of the suppressed ones came, when that is not now. */
static void emit(enum log_level level, int worker, const char *fields, unsigned long suppressed, int64_t last_ms,
                 const char *text)
{
    struct strbuf line = {0};

    if (as_json) {
        strbuf_add(&line, "{\"time\":\"");
        add_time(&line, clock_wall_ms());
        strbuf_addf(&line, "\",\"level\":\"%s\"", level_names[level]);
        if (worker >= 0)
            strbuf_addf(&line, ",\"worker\":%d", worker);
        strbuf_add(&line, fields ? fields : "");
        if (suppressed)
            strbuf_addf(&line, ",\"repeated\":%lu", suppressed);
        if (last_ms) {
            strbuf_add(&line, ",\"last\":\"");
            add_time(&line, last_ms);
            strbuf_add(&line, "\"");
        }
        add_json_field(&line, "message", text);
        strbuf_add(&line, "}\n");
    } else {
        if (under_journald)
            strbuf_addf(&line, "<%d>", syslog_levels[level]);
        else
            add_time(&line, clock_wall_ms());
        strbuf_addf(&line, "%s%s", under_journald ? "" : " ", level_names[level]);
        if (worker >= 0)
            strbuf_addf(&line, " worker=%d", worker);
        strbuf_add(&line, fields ? fields : "");
        if (suppressed)
            strbuf_addf(&line, " repeated=%lu", suppressed);
        if (last_ms) {
            strbuf_add(&line, " last=");
            add_time(&line, last_ms);
        }
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

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

#define HASH_START 0xcbf29ce484222325u

static uint64_t hash_byte(uint64_t hash, char c)
{
    return (hash ^ (unsigned char)c) * 0x100000001b3u;
}

static uint64_t hash_fields(const char *rendered)
{
    uint64_t hash = HASH_START;

    for (; rendered && *rendered; rendered++)
        hash = hash_byte(hash, *rendered);
    return hash;
}

/* A word with a digit in it (a number, an id) is like any other such word. */
static uint64_t hash_text(const char *s)
{
    uint64_t hash = HASH_START;

    while (*s) {
        size_t len = 0;
        bool digit = false;
        for (; is_word(s[len]); len++)
            digit |= isdigit((unsigned char)s[len]) != 0;
        if (len == 0)
            len = 1;
        for (size_t i = 0; i < (digit ? 1 : len); i++)
            hash = hash_byte(hash, digit ? '0' : s[i]);
        s += len;
    }
    return hash;
}

static void forget(struct repeat *repeat)
{
    str_free(&repeat->fields);
    str_free(&repeat->text);
    *repeat = (struct repeat){0};
}

static void say_suppressed(struct repeat *repeat)
{
    if (repeat->suppressed)
        emit(repeat->level, repeat->worker, repeat->fields, repeat->suppressed, repeat->last_ms, repeat->text);
    forget(repeat);
}

/* The slot of this line, or the one that it takes over: a free one, else the oldest. */
static struct repeat *find_slot(const struct repeat *line)
{
    struct repeat *slot = &repeats[0], *alike = NULL;
    int n_alike = 0;

    for (size_t i = 0; i < REPEAT_SLOTS; i++) {
        struct repeat *repeat = &repeats[i];
        if (repeat->format == line->format && repeat->level == line->level && repeat->worker == line->worker &&
            repeat->about == line->about) {
            if (repeat->hash == line->hash)
                return repeat;
            n_alike++;
            if (!alike || repeat->written_ms < alike->written_ms)
                alike = repeat;
        }
        if (slot->format && (!repeat->format || repeat->written_ms < slot->written_ms))
            slot = repeat;
    }
    if (n_alike >= REPEAT_ALIKE)
        return alike;
    say_suppressed(slot);
    return slot;
}

static void flush(int64_t older_than)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < REPEAT_SLOTS; i++)
        if (repeats[i].format && repeats[i].written_ms <= older_than)
            say_suppressed(&repeats[i]);
    pthread_mutex_unlock(&lock);
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

    char *rendered = render(fields);
    const struct repeat line = {.format = format,
                                .worker = this_worker,
                                .level = level,
                                .about = hash_fields(rendered),
                                .hash = hash_text(text.data),
                                .written_ms = clock_ms()};
    pthread_mutex_lock(&lock);
    struct repeat *slot = find_slot(&line);
    if (slot->format && line.written_ms - slot->written_ms < REPEAT_WINDOW_MS) {
        slot->suppressed++;
        slot->last_ms = clock_wall_ms();
        str_free(&slot->fields);
        slot->fields = TAKE(rendered);
        str_free(&slot->text);
        slot->text = TAKE(text.data);
    } else {
        emit(level, this_worker, rendered, slot->suppressed, 0, text.data);
        forget(slot);
        *slot = line;
    }
    pthread_mutex_unlock(&lock);
    str_free(&rendered);
    strbuf_done(&text);
}

void log_flush_old_repeats(void)
{
    flush(clock_ms() - REPEAT_WINDOW_MS);
}

void log_flush_repeats(void)
{
    flush(INT64_MAX);
}
