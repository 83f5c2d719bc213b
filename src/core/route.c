#include "route.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "str.h"

#define TOPIC_MAX  249
#define SHORT_LIST 16

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The pointers and, behind them, a copy of the text in one allocation. */
static char *alloc_topics(struct route *route, size_t n_max, const char *text, size_t len)
{
    route->topics = mem_alloc(n_max * sizeof(char *) + len + 1);
    char *copy = (char *)(route->topics + n_max);
    memcpy(copy, text, len);
    return copy;
}

static bool contains(const struct route *route, const char *topic)
{
    for (size_t i = 0; i < route->n; i++)
        if (str_eq(route_topic(route, i), topic))
            return true;
    return false;
}

/* The names of a long list: looking through the list for each would take a worker minutes when somebody writes
 * 100,000 of them. Open addressing, slots for twice as many. */
struct names {
    const char **slots;
    size_t cap; /* a power of two; 0: the list is short, look through it */
};

static void names_init(struct names *names, size_t n_max)
{
    *names = (struct names){0};
    if (n_max <= SHORT_LIST)
        return;
    for (names->cap = SHORT_LIST; names->cap < n_max * 2;)
        names->cap *= 2;
    names->slots = mem_alloc(names->cap * sizeof(*names->slots));
}

/* False: it was there. */
static bool names_add(struct names *names, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    size_t i = (size_t)(hash ^ hash >> 32) & (names->cap - 1);
    for (; names->slots[i]; i = (i + 1) & (names->cap - 1))
        if (str_eq(names->slots[i], name))
            return false;
    names->slots[i] = name;
    return true;
}

static void split_list(struct route *route, const char *list)
{
    struct names names;
    size_t n_max = 1;

    for (const char *c = list; *c && n_max <= ROUTE_MAX; c++)
        n_max += *c == ',';
    char *at = alloc_topics(route, n_max, list, strlen(list));
    names_init(&names, n_max);
    while (at && route->n <= ROUTE_MAX) {
        char *name = at, *end = at;
        while (*end && *end != ',')
            end++;
        at = *end ? end + 1 : NULL;
        while (is_blank(*name))
            name++;
        while (end > name && is_blank(end[-1]))
            end--;
        *end = '\0';
        if (*name && (names.cap ? names_add(&names, name) : !contains(route, name)))
            route->topics[route->n++] = name;
    }
    free(names.slots);
}

void route_init(struct route *route, const char *topic, const char *routing_key)
{
    *route = (struct route){0};
    if (routing_key) {
        split_list(route, routing_key);
    } else {
        route->single = topic;
        route->n = 1;
    }
}

void route_done(struct route *route)
{
    free(route->topics);
    *route = (struct route){0};
}

bool route_overlaps(const struct route *a, const struct route *b)
{
    for (size_t i = 0; i < a->n; i++)
        if (contains(b, route_topic(a, i)))
            return true;
    return false;
}

const char *route_topic_fault(const char *topic)
{
    size_t len = strlen(topic);

    if (len == 0)
        return "the topic name is empty";
    if (str_eq(topic, ".") || str_eq(topic, ".."))
        return "a topic cannot be named \".\" or \"..\"";
    if (len > TOPIC_MAX)
        return "the topic name is longer than 249 characters";
    for (const char *c = topic; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.' ||
              *c == '_' || *c == '-'))
            return "the topic name has a character other than a-z A-Z 0-9 . _ -";
    return NULL;
}
