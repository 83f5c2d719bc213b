#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static void set_message(struct error *err, const char *format, va_list args) PRINTF_LIKE(2, 0);
static void set_message(struct error *err, const char *format, va_list args)
{
    if (!err)
        return;
    /* Formatted aside: a caller may wrap the error's own text ("claim: %s", err->message). */
    char message[sizeof(err->message)];
    vsnprintf(message, sizeof(message), format, args);
    snprintf(err->message, sizeof(err->message), "%s", message);
    err->hint[0] = '\0';
}

#define DEFINE_ERROR(name, outcome)                              \
    enum result name(struct error *err, const char *format, ...) \
    {                                                            \
        va_list args;                                            \
        va_start(args, format);                                  \
        set_message(err, format, args);                          \
        va_end(args);                                            \
        return outcome;                                          \
    }

DEFINE_ERROR(error_retry, RETRY)
DEFINE_ERROR(error_reject, REJECT)
DEFINE_ERROR(error_fatal, FATAL)

void error_hint(struct error *err, const char *format, ...)
{
    va_list args;

    if (!err)
        return;
    va_start(args, format);
    vsnprintf(err->hint, sizeof(err->hint), format, args);
    va_end(args);
}

void error_clear(struct error *err)
{
    err->message[0] = '\0';
    err->hint[0] = '\0';
    err->sqlstate[0] = '\0';
}
