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

void show_plain(FILE *out, const char *text)
{
    for (; *text; text++)
        fputc((unsigned char)*text < 0x20 || *text == 0x7f ? ' ' : *text, out);
}
