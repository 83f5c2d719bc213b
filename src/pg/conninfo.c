#include "conninfo.h"

#include <string.h>

#include "parse.h"
#include "str.h"

bool conninfo_ports_valid(const char *ports)
{
    for (const char *port = ports;; port++) {
        size_t len = strcspn(port, ",");
        _cleanup_(str_free) char *text = str_dupn(port, len);
        int64_t number = 0;
        if (len > 0 && (!parse_int(text, &number) || number < 1 || number > 65535))
            return false;
        port += len;
        if (*port == '\0')
            return true;
    }
}

int conninfo_count(const char *list)
{
    int n = 1;
    for (; list != NULL && *list; list++)
        n += *list == ',';
    return n;
}

char *conninfo_item(const char *list, int i)
{
    if (list == NULL)
        return NULL;
    if (conninfo_count(list) == 1)
        return str_dup(list);
    for (; i > 0; i--) {
        list += strcspn(list, ",");
        if (*list == '\0')
            return NULL;
        list++;
    }
    return str_dupn(list, strcspn(list, ","));
}

static void cut_out(char *message, const char *secret, size_t len)
{
    if (len < 3)
        return;
    for (char *at = message; (at = memmem(at, strlen(at), secret, len)) != NULL; at += 3) {
        memmove(at + 3, at + len, strlen(at + len) + 1);
        memcpy(at, "***", 3);
    }
}

/* libpq may take a part of a password with '@' or '/' in it for a host name and repeat it: cut out every piece of
 * what stands between the user name and the last '@' of the connection string, and the password it parsed. */
void conninfo_scrub(const char *url, const char *password, char *message)
{
    if (password != NULL)
        cut_out(message, password, strlen(password));
    const char *start = url ? strstr(url, "://") : NULL;
    const char *colon = start ? strchr(start + 3, ':') : NULL;
    const char *end = url ? strrchr(url, '@') : NULL;
    if (colon == NULL || end == NULL || end < colon)
        return;
    cut_out(message, colon + 1, (size_t)(end - colon - 1));
    for (const char *piece = colon + 1; piece < end;) {
        size_t len = strcspn(piece, "@/:?#");
        if (piece + len > end)
            len = (size_t)(end - piece);
        cut_out(message, piece, len);
        piece += len + 1;
    }
}
