/* What a failing function leaves for the one who decides.
 *
 * A function that can fail returns what its caller should do next (enum result) and puts the reason into the
 * caller's struct error. Lower layers do not log; the one who decides logs, once.
 * Messages: lower case, what failed and on what, then why; a hint where a remedy is known. */
#ifndef OUTBOXD_ERROR_H
#define OUTBOXD_ERROR_H

enum result {
    OK = 0, /* done */
    RETRY,  /* the world's fault: wait and do it again */
    REJECT, /* the input's fault: this one thing will never work */
    FATAL,  /* configuration or schema: give up and tell a person */
};

struct error {
    char message[4096]; /* room for every problem of a configuration at once */
    char hint[512];
    char sqlstate[6]; /* "" unless PostgreSQL said it */
};

#define CHECK_RESULT        __attribute__((warn_unused_result))
#define PRINTF_LIKE(at, va) __attribute__((format(printf, at, va)))

/* Each returns its result, so that `return error_retry(err, "...")` reads as what it does. They clear the hint. */
enum result error_retry(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);
enum result error_reject(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);
enum result error_fatal(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);
void error_hint(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);
void error_clear(struct error *err);

#endif
