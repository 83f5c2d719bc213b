#include "show.h"

#include <inttypes.h>
#include <string.h>

void show_count(int64_t n, char ret[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRId64, n < 0 ? -n : n), at = 0;
    if (n < 0)
        ret[at++] = '-';
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            ret[at++] = ',';
        ret[at++] = digits[i];
    }
    ret[at] = '\0';
}

void show_age(double seconds, char ret[32])
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

void show_plain(FILE *out, const char *text)
{
    for (; *text; text++)
        fputc((unsigned char)*text < 0x20 || *text == 0x7f ? ' ' : *text, out);
}
