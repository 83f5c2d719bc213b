/* The Kafka headers of an event in the three formats (plain, debezium, cloudevents). */
#ifndef OUTBOXD_HEADERS_H
#define OUTBOXD_HEADERS_H

#include <stddef.h>

#include "error.h"
#include "event.h"

enum header_format { HEADERS_PLAIN, HEADERS_DEBEZIUM, HEADERS_CLOUDEVENTS };

struct header {
    const char *name;
    size_t name_len;
    const void *value; /* NULL: a null header */
    size_t value_len;
};

/* Reused from event to event: headers_build empties it. Values point into the event or into memory of the list. */
struct header_list {
    struct header *items;
    size_t n, cap;
    void *arena; /* what was made for these headers; headers.c knows what it is */
};

/* REJECT: the row's headers are not an object (err says so): the event is DEAD. `source` is OUTBOX_SOURCE. */
enum result headers_build(struct header_list *list, const struct event *event, enum header_format format,
                          const char *source, struct error *err) CHECK_RESULT;
/* In the place of one of that name, else behind all others. Both texts must outlive the use. */
void headers_set(struct header_list *list, const char *name, const char *value);
void headers_done(struct header_list *list);

#endif
