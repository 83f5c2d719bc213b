#include "config_check.h"

#include <string.h>

#include "jsonfit.h"
#include "parse.h"
#include "route.h"
#include "str.h"

#define IDENTIFIER_MAX 63 /* bytes: PostgreSQL would cut the rest off silently */

static bool has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

const char *check_identifier(const char *text)
{
    if (strlen(text) > IDENTIFIER_MAX)
        return "a name in PostgreSQL has at most 63 bytes";
    if (has_control(text))
        return "it holds a control character";
    if (str_has_prefix(text, "pg_"))
        return "names that start with pg_ belong to PostgreSQL";
    if (strstr(text, "@."))
        return "\"@.\" stands for the schema in outboxd's own SQL";
    return NULL;
}

/* The handler's name goes into SQL as quoted identifiers; one dot separates the schema. */
const char *check_function(const char *text)
{
    const char *dot = strchr(text, '.');

    if (dot && (dot == text || dot[1] == '\0' || strchr(dot + 1, '.')))
        return "expected name or schema.name";
    if (strpbrk(text, "() \t\""))
        return "expected the bare name of a function, without quotes, blanks or arguments";
    if (has_control(text))
        return "it holds a control character";
    if (!utf8_fits(text, strlen(text)))
        return "it is not UTF-8";
    return strlen(dot ? dot + 1 : text) > IDENTIFIER_MAX || (dot && dot - text > IDENTIFIER_MAX)
               ? "a name in PostgreSQL has at most 63 bytes"
               : NULL;
}

const char *check_topic(const char *text)
{
    return route_topic_fault(text);
}

const char *check_topics(const char *text)
{
    struct route route;
    const char *fault = NULL;

    route_init(&route, "", text);
    if (route.n == 0)
        fault = "the list names no topic";
    if (route.n > ROUTE_MAX)
        fault = "the list names more than 1000 topics";
    for (size_t i = 0; !fault && i < route.n; i++)
        fault = route_topic_fault(route_topic(&route, i));
    route_done(&route);
    return fault;
}

const char *check_group(const char *text)
{
    if (strlen(text) > 100)
        return "it is longer than 100 characters";
    if (!utf8_fits(text, strlen(text)))
        return "it is not UTF-8";
    return has_control(text) ? "it holds a control character" : NULL;
}

const char *check_source(const char *text)
{
    return has_control(text) || strchr(text, ' ') ? "a URI reference has no blanks and no control characters" : NULL;
}

const char *check_listen(const char *text)
{
    const char *colon = strrchr(text, ':');
    int64_t port;

    if (str_eq(text, "off"))
        return NULL;
    if (!colon || colon == text || !parse_int(colon + 1, &port) || colon[1] == '-')
        return "expected address:port, [address]:port or off";
    if (port < 0 || port > 65535)
        return "a port is a number up to 65535 (0: any that is free)";
    /* An IPv6 address needs its brackets: otherwise ::1:9464 could be read in two ways. */
    if ((text[0] == '[') != (colon[-1] == ']') || (text[0] != '[' && memchr(text, ':', (size_t)(colon - text))))
        return "expected address:port, [address]:port or off";
    return NULL;
}

const char *check_token(const char *text)
{
    if (*text == '\0')
        return "it is empty, and everybody could read what it is to guard; leave it out if that is meant";
    for (; *text; text++)
        if (*text <= 0x20 || *text >= 0x7f)
            return "a token is made of printable ASCII characters without blanks";
    return NULL;
}
