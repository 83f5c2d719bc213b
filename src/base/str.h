/* Memory and strings that cannot fail silently: out of memory ends the process with a message (a relay loses
 * nothing by dying; half a result it might). */
#ifndef OUTBOXD_STR_H
#define OUTBOXD_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRINTF_ARGS(at, va) __attribute__((format(printf, at, va)))
#define ARRAY_LEN(a)        (sizeof(a) / sizeof((a)[0]))

/* _cleanup_(fn) calls fn(&var) at the end of scope; TAKE(var) hands the value on and leaves NULL behind. */
#define _cleanup_(fn) __attribute__((cleanup(fn)))
#define TAKE(var)                   \
    ({                              \
        __typeof__(var) t_ = (var); \
        (var) = NULL;               \
        t_;                         \
    })

void *mem_alloc(size_t size);                     /* zeroed */
void *mem_grow(void *old, size_t n, size_t size); /* reallocarray */
void *mem_dup(const void *bytes, size_t n);       /* a copy with a NUL behind it */
char *str_dup(const char *s);
char *str_dupn(const char *s, size_t n);
char *str_clean(const char *text, size_t max); /* at most `max` characters; "?" for bytes that are not UTF-8 */
char *str_format(const char *format, ...) PRINTF_ARGS(1, 2);
void str_free(char **s); /* for _cleanup_ */
bool str_eq(const char *a, const char *b);
bool str_has_prefix(const char *s, const char *prefix);
size_t str_distance(const char *a, const char *b);       /* edits that turn a into b: "did you mean" */
char *str_digits(char *out, uint64_t number, int width); /* at least `width` digits, not terminated; the end of them */
size_t str_utf8_len(const char *s); /* bytes of the valid UTF-8 character at s, 0: none; the final NUL counts as one */
bool str_is_printable(const char *s); /* a valid character that a terminal shows; one that it would obey is not */

/* A growing text buffer; always terminated. Zero-initialise; strbuf_done frees. */
struct strbuf {
    char *data;
    size_t len, cap;
};

void strbuf_reserve(struct strbuf *buf, size_t extra); /* room for so many bytes more, in one step */
void strbuf_add(struct strbuf *buf, const char *s);
void strbuf_addn(struct strbuf *buf, const void *s, size_t n);
void strbuf_add_int(struct strbuf *buf, int64_t number); /* where printf would be what costs most */
void strbuf_addf(struct strbuf *buf, const char *format, ...) PRINTF_ARGS(2, 3);
void strbuf_addv(struct strbuf *buf, const char *format, va_list args) PRINTF_ARGS(2, 0);
void strbuf_add_json(struct strbuf *buf, const char *s); /* as a JSON string, quoted and escaped */
void strbuf_clear(struct strbuf *buf);                   /* keeps the memory */
void strbuf_done(struct strbuf *buf);

#endif
