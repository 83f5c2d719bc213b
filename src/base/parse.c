#include "parse.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "str.h"

struct unit {
    const char *name;
    int64_t factor;
};

/* Greatest first: formatting takes the first one that divides. */
static const struct unit durations[] = {
    {"d", 24 * 60 * 60 * 1000}, {"h", 60 * 60 * 1000}, {"m", 60 * 1000}, {"s", 1000}, {"ms", 1},
};

static const struct unit sizes[] = {
    {"GiB", (int64_t)1 << 30},
    {"MiB", 1 << 20},
    {"KiB", 1 << 10},
};

/* Reads digits, with one sign at most; returns where they end, NULL when there are none or too many. */
static const char *scan_int(const char *text, int64_t *ret)
{
    bool negative = *text == '-';
    const char *at = text + negative;
    int64_t value = 0;

    if (*at < '0' || *at > '9')
        return NULL;
    for (; *at >= '0' && *at <= '9'; at++) {
        int digit = *at - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, negative ? -digit : digit, &value))
            return NULL;
    }
    *ret = value;
    return at;
}

/* `bare`: a number without a unit is a value; else only 0 is. */
static bool parse_units(const char *text, const struct unit *units, size_t n, bool bare, int64_t *ret)
{
    int64_t value;
    const char *unit = scan_int(text, &value);

    if (!unit || value < 0)
        return false;
    if (*unit == '\0') {
        if (!bare && value != 0)
            return false;
        *ret = value;
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        if (!str_eq(unit, units[i].name))
            continue;
        if (__builtin_mul_overflow(value, units[i].factor, &value))
            return false;
        *ret = value;
        return true;
    }
    return false;
}

static void format_units(int64_t value, const struct unit *units, size_t n, char ret[32])
{
    for (size_t i = 0; value != 0 && i < n; i++) {
        if (value % units[i].factor == 0) {
            snprintf(ret, 32, "%lld%s", (long long)(value / units[i].factor), units[i].name);
            return;
        }
    }
    snprintf(ret, 32, "%lld", (long long)value);
}

bool parse_int(const char *text, int64_t *ret)
{
    int64_t value;
    const char *end = scan_int(text, &value);

    if (!end || *end != '\0')
        return false;
    *ret = value;
    return true;
}

bool parse_duration(const char *text, int64_t *ret_ms)
{
    return parse_units(text, durations, ARRAY_LEN(durations), false, ret_ms);
}

bool parse_size(const char *text, int64_t *ret_bytes)
{
    return parse_units(text, sizes, ARRAY_LEN(sizes), true, ret_bytes);
}

bool parse_bool(const char *text, bool *ret)
{
    if (!str_eq(text, "on") && !str_eq(text, "off"))
        return false;
    *ret = str_eq(text, "on");
    return true;
}

void format_duration(int64_t ms, char ret[32])
{
    format_units(ms, durations, ARRAY_LEN(durations), ret);
}

void format_size(int64_t bytes, char ret[32])
{
    format_units(bytes, sizes, ARRAY_LEN(sizes), ret);
}

void format_age(double seconds, char ret[32])
{
    int64_t s = (int64_t)seconds;
    if (seconds < 10)
        snprintf(ret, 32, "%.1f s", seconds);
    else if (s < 60)
        snprintf(ret, 32, "%" PRId64 " s", s);
    else if (s < 3600)
        snprintf(ret, 32, "%" PRId64 " m %" PRId64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(ret, 32, "%" PRId64 " h %" PRId64 " m", s / 3600, s / 60 % 60);
    else
        snprintf(ret, 32, "%" PRId64 " d %" PRId64 " h", s / 86400, s / 3600 % 24);
}
