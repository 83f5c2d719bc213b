#include "str.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *p)
{
    if (!p) {
        fputs("outboxd: out of memory\n", stderr);
        abort();
    }
    return p;
}

void *mem_alloc(size_t size)
{
    return must(calloc(1, size ? size : 1));
}

void *mem_grow(void *old, size_t n, size_t size)
{
    return must(reallocarray(old, n ? n : 1, size ? size : 1));
}

void *mem_dup(const void *bytes, size_t n)
{
    char *copy = must(malloc(n + 1));
    if (n > 0)
        memcpy(copy, bytes, n);
    copy[n] = '\0';
    return copy;
}

char *str_dup(const char *s)
{
    return must(strdup(s));
}

char *str_dupn(const char *s, size_t n)
{
    return must(strndup(s, n));
}

char *str_format(const char *format, ...)
{
    va_list args;
    char *s = NULL;

    va_start(args, format);
    int n = vasprintf(&s, format, args);
    va_end(args);
    return must(n < 0 ? NULL : s);
}

void str_free(char **s)
{
    free(*s);
    *s = NULL;
}

bool str_eq(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

bool str_has_prefix(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

size_t str_distance(const char *a, const char *b)
{
    size_t n = strlen(b), *row = mem_alloc((n + 1) * sizeof(*row));

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (; *a; a++) {
        size_t diagonal = row[0]++;
        for (size_t j = 1; j <= n; j++) {
            size_t change = diagonal + (*a != b[j - 1]);
            size_t shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < shift ? change : shift;
        }
    }
    size_t distance = row[n];
    free(row);
    return distance;
}

void strbuf_reserve(struct strbuf *buf, size_t extra)
{
    size_t need = buf->len + extra + 1;

    if (need <= buf->cap)
        return;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need)
        cap *= 2;
    buf->data = mem_grow(buf->data, cap, 1);
    buf->cap = cap;
}

void strbuf_addn(struct strbuf *buf, const void *s, size_t n)
{
    strbuf_reserve(buf, n);
    if (n)
        memcpy(buf->data + buf->len, s, n);
    buf->len += n;
    buf->data[buf->len] = '\0';
}

void strbuf_add(struct strbuf *buf, const char *s)
{
    strbuf_addn(buf, s, strlen(s));
}

char *str_digits(char *out, uint64_t number, int width)
{
    int n = 1;

    for (uint64_t limit = 10; n < 20 && number >= limit; limit *= 10)
        n++;
    if (n < width)
        n = width;
    for (int i = n; i > 0; number /= 10)
        out[--i] = (char)('0' + number % 10);
    return out + n;
}

void strbuf_add_int(struct strbuf *buf, int64_t number)
{
    char text[24], *at = text;

    if (number < 0)
        *at++ = '-';
    at = str_digits(at, number < 0 ? 0 - (uint64_t)number : (uint64_t)number, 1);
    strbuf_addn(buf, text, (size_t)(at - text));
}

void strbuf_addv(struct strbuf *buf, const char *format, va_list args)
{
    va_list again;

    va_copy(again, args);
    strbuf_reserve(buf, 64);
    int n = vsnprintf(buf->data + buf->len, buf->cap - buf->len, format, args);
    if (n > 0 && (size_t)n >= buf->cap - buf->len) {
        strbuf_reserve(buf, (size_t)n);
        vsnprintf(buf->data + buf->len, buf->cap - buf->len, format, again);
    }
    if (n > 0)
        buf->len += (size_t)n;
    va_end(again);
}

void strbuf_addf(struct strbuf *buf, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    strbuf_addv(buf, format, args);
    va_end(args);
}

char *str_clean(const char *text, size_t max)
{
    struct strbuf clean = {0};

    strbuf_add(&clean, "");
    for (; *text && max > 0; max--) {
        size_t n = str_utf8_len(text);
        strbuf_addn(&clean, n ? text : "?", n ? n : 1);
        text += n ? n : 1;
    }
    return clean.data;
}

/* Bytes that are not UTF-8 become U+FFFD: a JSON reader must be able to take the line whatever a server sent
 * us. */
void strbuf_add_json(struct strbuf *buf, const char *s)
{
    strbuf_add(buf, "\"");
    while (*s) {
        unsigned char c = (unsigned char)*s;
        size_t n = str_utf8_len(s);
        if (n == 0) {
            strbuf_add(buf, "\\ufffd");
            n = 1;
        } else if (c == '"' || c == '\\') {
            strbuf_addf(buf, "\\%c", c);
        } else if (c == '\n') {
            strbuf_add(buf, "\\n");
        } else if (c < 0x20 || c == 0x7f) {
            strbuf_addf(buf, "\\u%04x", c);
        } else {
            strbuf_addn(buf, s, n);
        }
        s += n;
    }
    strbuf_add(buf, "\"");
}

size_t str_utf8_len(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t n = u[0] < 0x80                   ? 1
               : u[0] >= 0xc2 && u[0] < 0xe0 ? 2
               : (u[0] & 0xf0) == 0xe0       ? 3
               : u[0] >= 0xf0 && u[0] < 0xf5 ? 4
                                             : 0;

    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    if (n == 3 && ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f)))
        return 0; /* overlong, surrogate */
    if (n == 4 && ((u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] > 0x8f)))
        return 0; /* overlong, beyond U+10FFFF */
    return n;
}

bool str_is_printable(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    bool c1 = u[0] == 0xc2 && u[1] < 0xa0; /* U+0080 to U+009F: for many terminals the same as ESC and a letter */

    return str_utf8_len(s) > 0 && u[0] >= 0x20 && u[0] != 0x7f && !c1;
}

void strbuf_clear(struct strbuf *buf)
{
    buf->len = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

void strbuf_done(struct strbuf *buf)
{
    free(buf->data);
    *buf = (struct strbuf){0};
}
