/* One line an occurrence, on stderr: text, text with <N> syslog prefixes under journald, or JSON.
 * Safe on any thread. A line that repeats (same format, worker, fields and text; numbers and ids in the text do not
 * count) within ten seconds is counted, and the count appears with the next one as repeated=N, or after these seconds
 * by itself, with the last one's time. Never a payload, never a secret. */
#ifndef OUTBOXD_LOG_H
#define OUTBOXD_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

struct log_field { /* fields of one line: a NULL name ends the list */
    const char *name, *value;
};

void log_setup(enum log_level level, bool json); /* once, before threads; syslog prefixes when stderr is journald's */
void log_worker(int worker);                     /* this thread's lines carry worker=N; -1: none */
bool log_enabled(enum log_level level);          /* is it worth preparing such a line? */
void log_flush_old_repeats(void);                /* every second or so: say what was suppressed ten seconds ago */
void log_flush_repeats(void);                    /* at exit: say what was suppressed */

void log_write(enum log_level level, const struct log_field *fields, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(...)   log_write(LOG_LEVEL_ERROR, NULL, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, NULL, __VA_ARGS__)
#define log_info(...)    log_write(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_debug(...)   log_write(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__)

/* log_topic(LOG_LEVEL_WARNING, topic, "parked: %s", reason): one line with the field topic=... */
#define log_topic(level, topic_name, ...) \
    log_write(level, (const struct log_field[]){{"topic", topic_name}, {NULL, NULL}}, __VA_ARGS__)

#endif
