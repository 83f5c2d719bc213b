#include "jsontext.h"

#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_blanks(struct json_walk *walk)
{
    while (walk->at < walk->end && is_blank(*walk->at))
        walk->at++;
}

static bool skip_char(struct json_walk *walk, char c)
{
    skip_blanks(walk);
    if (walk->at == walk->end || *walk->at != c)
        return false;
    walk->at++;
    return true;
}

/* From the opening quote to behind the closing one. */
static bool skip_string(struct json_walk *walk, bool *escaped)
{
    if (!skip_char(walk, '"'))
        return false;
    for (; walk->at < walk->end; walk->at++) {
        if (*walk->at == '"') {
            walk->at++;
            return true;
        }
        if (*walk->at == '\\') {
            *escaped = true;
            walk->at++; /* whatever follows is not the end */
        }
    }
    walk->at = walk->end;
    return false;
}

/* An array or object: counts brackets outside strings. */
static bool skip_nested(struct json_walk *walk, bool *blanks)
{
    size_t depth = 0;
    bool escaped;

    while (walk->at < walk->end) {
        char c = *walk->at;
        if (c == '"') {
            if (!skip_string(walk, &escaped))
                return false;
            continue;
        }
        walk->at++;
        if (is_blank(c))
            *blanks = true;
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            return true;
    }
    return false;
}

static bool skip_scalar(struct json_walk *walk)
{
    static const char *const words[] = {"null", "true", "false"};
    const char *start = walk->at;
    size_t left = (size_t)(walk->end - walk->at);

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t n = strlen(words[i]);
        if (left >= n && memcmp(start, words[i], n) == 0) {
            walk->at += n;
            return true;
        }
    }
    while (walk->at < walk->end && *walk->at && strchr("+-.0123456789eE", *walk->at))
        walk->at++;
    return walk->at > start && (*start == '-' || (*start >= '0' && *start <= '9'));
}

bool json_walk_init(struct json_walk *walk, const char *text, size_t len)
{
    *walk = (struct json_walk){.at = text, .end = text + len, .first = true};
    return skip_char(walk, '{');
}

int json_walk_next(struct json_walk *walk, struct json_member *ret)
{
    *ret = (struct json_member){0};
    if (skip_char(walk, '}')) {
        skip_blanks(walk);
        return walk->at == walk->end ? 0 : -1;
    }
    if (!walk->first && !skip_char(walk, ','))
        return -1;
    walk->first = false;

    skip_blanks(walk);
    const char *start = walk->at;
    if (!skip_string(walk, &ret->name_escaped))
        return -1;
    ret->name = start + 1;
    ret->name_len = (size_t)(walk->at - start) - 2;

    if (!skip_char(walk, ':'))
        return -1;
    skip_blanks(walk);
    start = walk->at;
    bool good = start < walk->end && (*start == '"'                    ? skip_string(walk, &ret->value_escaped)
                                      : *start == '{' || *start == '[' ? skip_nested(walk, &ret->value_blanks)
                                                                       : skip_scalar(walk));
    if (!good)
        return -1;
    ret->value = start;
    ret->value_len = (size_t)(walk->at - start);
    return 1;
}

/* Four hex digits at `at`, or -1. */
static long hex4(const char *at, const char *end)
{
    long value = 0;

    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

static char *put_utf8(char *out, long code)
{
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xc0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *out++ = (char)(0xe0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    } else {
        *out++ = (char)(0xf0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 0x3f));
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    }
    return out;
}

/* Behind "\u": the character, and past its digits; -1 for half a surrogate pair. */
static long take_unicode(const char **at, const char *end)
{
    long code = hex4(*at, end);

    if (code < 0 || (code >= 0xdc00 && code < 0xe000))
        return -1;
    *at += 4;
    if (code < 0xd800 || code >= 0xdc00)
        return code;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u')
        return -1;
    long low = hex4(*at + 2, end);
    if (low < 0xdc00 || low >= 0xe000)
        return -1;
    *at += 6;
    return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

long json_unescape(char *ret, const char *text, size_t len)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *end = text + len;
    char *out = ret;

    while (text < end) {
        if (*text != '\\') {
            *out++ = *text++;
            continue;
        }
        if (++text == end)
            return -1;
        char c = *text++;
        const char *at = c ? strchr(from, c) : NULL;
        if (at) {
            *out++ = to[at - from];
            continue;
        }
        long code = c == 'u' ? take_unicode(&text, end) : -1;
        if (code < 0)
            return -1;
        out = put_utf8(out, code);
    }
    return out - ret;
}

size_t json_compact(char *ret, const char *text, size_t len)
{
    bool in_string = false;
    char *out = ret;

    for (const char *end = text + len; text < end; text++) {
        if (!in_string && is_blank(*text))
            continue;
        *out++ = *text;
        if (in_string && *text == '\\' && text + 1 < end)
            *out++ = *++text;
        else if (*text == '"')
            in_string = !in_string;
    }
    return (size_t)(out - ret);
}
