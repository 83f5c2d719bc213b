#include "jsonfit.h"

#include <string.h>

#define DEPTH_MAX  500   /* the server's bound is its stack: thousands */
#define DIGITS_MAX 10000 /* digits and exponent together; numeric takes 131072 before and 16383 behind the point */

struct reader {
    const char *at, *end;
};

static void skip_blanks(struct reader *reader)
{
    while (reader->at < reader->end &&
           (*reader->at == ' ' || *reader->at == '\t' || *reader->at == '\n' || *reader->at == '\r'))
        reader->at++;
}

static bool take(struct reader *reader, char c)
{
    if (reader->at == reader->end || *reader->at != c)
        return false;
    reader->at++;
    return true;
}

static bool take_word(struct reader *reader, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(reader->end - reader->at) < len || memcmp(reader->at, word, len) != 0)
        return false;
    reader->at += len;
    return true;
}

static size_t take_digits(struct reader *reader)
{
    const char *start = reader->at;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9')
        reader->at++;
    return (size_t)(reader->at - start);
}

static bool take_number(struct reader *reader)
{
    size_t digits = 1, exponent = 0;

    take(reader, '-');
    if (!take(reader, '0') && (digits = take_digits(reader)) == 0)
        return false;
    if (take(reader, '.')) {
        size_t more = take_digits(reader);
        if (more == 0)
            return false;
        digits += more;
    }
    if (take(reader, 'e') || take(reader, 'E')) {
        if (!take(reader, '+'))
            take(reader, '-');
        const char *start = reader->at;
        if (take_digits(reader) == 0)
            return false;
        for (; start < reader->at && exponent <= DIGITS_MAX; start++)
            exponent = exponent * 10 + (size_t)(*start - '0');
    }
    return digits + exponent <= DIGITS_MAX;
}

/* Behind "\u"; -1: not four hex digits. */
static int take_hex(struct reader *reader)
{
    int value = 0;
    for (int i = 0; i < 4; i++, reader->at++) {
        if (reader->at == reader->end)
            return -1;
        char c = *reader->at;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static bool take_escape(struct reader *reader)
{
    if (reader->at == reader->end)
        return false;
    char c = *reader->at++;
    if (c != 'u')
        return c != '\0' && strchr("\"\\/bfnrt", c) != NULL;
    int unit = take_hex(reader);
    if (unit <= 0 || (unit >= 0xdc00 && unit <= 0xdfff))
        return false;
    if (unit < 0xd800 || unit > 0xdbff)
        return true;
    int low = take(reader, '\\') && take(reader, 'u') ? take_hex(reader) : -1;
    return low >= 0xdc00 && low <= 0xdfff;
}

/* Bytes of the valid UTF-8 character at `at`, 0: none. Never looks beyond `end`. */
static size_t character(const char *at, const char *end)
{
    char padded[5] = {0};
    size_t left = (size_t)(end - at);
    if (left >= 4)
        return str_utf8_len(at);
    memcpy(padded, at, left);
    size_t n = str_utf8_len(padded);
    return n <= left ? n : 0;
}

static bool take_string(struct reader *reader)
{
    if (!take(reader, '"'))
        return false;
    while (reader->at < reader->end) {
        unsigned char c = (unsigned char)*reader->at;
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            reader->at++;
        } else if (c == '"') {
            reader->at++;
            return true;
        } else if (c == '\\') {
            reader->at++;
            if (!take_escape(reader))
                return false;
        } else {
            size_t n = c < 0x20 ? 0 : character(reader->at, reader->end);
            if (n == 0)
                return false;
            reader->at += n;
        }
    }
    return false;
}

static bool take_scalar(struct reader *reader)
{
    if (reader->at == reader->end)
        return false;
    switch (*reader->at) {
    case '"':
        return take_string(reader);
    case 't':
        return take_word(reader, "true");
    case 'f':
        return take_word(reader, "false");
    case 'n':
        return take_word(reader, "null");
    default:
        return take_number(reader);
    }
}

static bool take_name(struct reader *reader)
{
    skip_blanks(reader);
    if (!take_string(reader))
        return false;
    skip_blanks(reader);
    return take(reader, ':');
}

/* No recursion: what is open stands in `closers`. */
bool json_fits(const char *text, size_t len)
{
    struct reader reader = {text, text + len};
    char closers[DEPTH_MAX];
    size_t depth = 0;

    for (;;) {
        skip_blanks(&reader);
        bool object = take(&reader, '{');
        if (object || take(&reader, '[')) {
            if (depth == DEPTH_MAX)
                return false;
            closers[depth++] = object ? '}' : ']';
            skip_blanks(&reader);
            if (!take(&reader, closers[depth - 1])) {
                if (object && !take_name(&reader))
                    return false;
                continue;
            }
            depth--;
        } else if (!take_scalar(&reader)) {
            return false;
        }
        /* A value has ended: so may what it stands in. */
        for (;; depth--) {
            skip_blanks(&reader);
            if (depth == 0)
                return reader.at == reader.end;
            if (take(&reader, ',')) {
                if (closers[depth - 1] == '}' && !take_name(&reader))
                    return false;
                break;
            }
            if (!take(&reader, closers[depth - 1]))
                return false;
        }
    }
}

bool utf8_fits(const char *text, size_t len)
{
    const char *end = text + len;
    while (text < end) {
        size_t n = *text == '\0' ? 0 : character(text, end);
        if (n == 0)
            return false;
        text += n;
    }
    return true;
}

static void add_base64(struct strbuf *buf, const unsigned char *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < len; i += 3) {
        unsigned group = (unsigned)bytes[i] << 16;
        if (i + 1 < len)
            group |= (unsigned)bytes[i + 1] << 8;
        if (i + 2 < len)
            group |= bytes[i + 2];
        const char four[4] = {digits[group >> 18], digits[group >> 12 & 63],
                              i + 1 < len ? digits[group >> 6 & 63] : '=', i + 2 < len ? digits[group & 63] : '='};
        strbuf_addn(buf, four, 4);
    }
}

void json_fit_string(struct strbuf *buf, const char *text, size_t len)
{
    if (!utf8_fits(text, len)) {
        strbuf_add(buf, "{\"base64\":\"");
        add_base64(buf, (const unsigned char *)text, len);
        strbuf_add(buf, "\"}");
        return;
    }
    strbuf_add(buf, "\"");
    for (const char *end = text + len; text < end;) {
        const char *plain = text;
        while (text < end && (unsigned char)*text >= 0x20 && *text != '"' && *text != '\\')
            text++;
        strbuf_addn(buf, plain, (size_t)(text - plain));
        if (text < end)
            strbuf_addf(buf, "\\u%04x", (unsigned char)*text++);
    }
    strbuf_add(buf, "\"");
}

void json_fit(struct strbuf *buf, const char *text, size_t len)
{
    if (json_fits(text, len))
        strbuf_addn(buf, text, len);
    else
        json_fit_string(buf, text, len);
}
