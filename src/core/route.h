/* The topics of an event: its topic, or the comma-separated list in routing_key that replaces it. Blanks are
 * trimmed, repeated names count once; a list with no topic in it has n = 0. What a route takes is bounded: a list is read
 * only until it has named one topic more than ROUTE_MAX. */
#ifndef OUTBOXD_ROUTE_H
#define OUTBOXD_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

#define ROUTE_MAX 1000 /* topics of one event; one that names more is not sent to any */

struct route {
    const char *single; /* borrowed: the topic of an event without a list */
    char **topics;      /* owned, with the texts in one allocation: those of a list */
    size_t n;
};

static inline const char *route_topic(const struct route *route, size_t i)
{
    return route->topics ? route->topics[i] : route->single;
}

/* `topic` must live as long as the route. */
void route_init(struct route *route, const char *topic, const char *routing_key);
void route_done(struct route *route);
bool route_overlaps(const struct route *a, const struct route *b);

/* NULL, or why Kafka would not take the name (empty, "." or "..", longer than 249, a character outside [a-zA-Z0-9._-]). */
const char *route_topic_fault(const char *topic);

#endif
