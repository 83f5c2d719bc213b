#include "headers.h"

#include <stdlib.h>
#include <string.h>

#include "jsontext.h"
#include "str.h"

#define NUMBER_SIZE 12 /* of schema_version as text */

/* Texts that are not in the row as they are sent: numbers, unescaped strings, compacted JSON. One buffer,
 * sized before the first text goes in, so that nothing moves while headers point into it. */
struct arena {
    size_t used, cap;
    char data[];
};

static void arena_reset(struct header_list *list, size_t need)
{
    struct arena *arena = list->arena;

    if (!arena || arena->cap < need) {
        size_t cap = need < 1024 ? 1024 : need * 2;
        arena = mem_grow(arena, 1, sizeof(*arena) + cap);
        arena->cap = cap;
        list->arena = arena;
    }
    arena->used = 0;
}

static char *arena_room(const struct header_list *list)
{
    struct arena *arena = list->arena;
    return arena->data + arena->used;
}

static void arena_use(struct header_list *list, size_t n)
{
    struct arena *arena = list->arena;
    arena->used += n;
}

static void add(struct header_list *list, const char *name, size_t name_len, const void *value, size_t value_len)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 32;
        list->items = mem_grow(list->items, list->cap, sizeof(*list->items));
    }
    list->items[list->n++] = (struct header){name, name_len, value, value_len};
}

#define ADD_SLICE(list, name, slice)  add(list, name, sizeof(name) - 1, (slice).data, (slice).len)
#define ADD_STATIC(list, name, value) add(list, name, sizeof(name) - 1, value, sizeof(value) - 1)

void headers_set(struct header_list *list, const char *name, const char *value)
{
    const struct header header = {name, strlen(name), value, value ? strlen(value) : 0};

    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].name_len == header.name_len && memcmp(list->items[i].name, name, header.name_len) == 0) {
            list->items[i] = header;
            return;
        }
    add(list, header.name, header.name_len, header.value, header.value_len);
}

void headers_done(struct header_list *list)
{
    free(list->items);
    free(list->arena);
    *list = (struct header_list){0};
}

static bool is_empty(struct slice json)
{
    return !json.data || json.len == 0 || (json.len == 2 && json.data[0] == '{' && json.data[1] == '}');
}

static struct slice number_text(struct header_list *list, int number)
{
    char *out = arena_room(list), *at = out;

    if (number < 0)
        *at++ = '-';
    at = str_digits(at, number < 0 ? 0u - (unsigned)number : (unsigned)number, 1);
    size_t len = (size_t)(at - out);
    arena_use(list, len);
    return (struct slice){out, len};
}

static struct slice event_type(const struct event *event)
{
    return event->event_type.data ? event->event_type : event->topic;
}

static void add_plain(struct header_list *list, const struct event *event)
{
    ADD_SLICE(list, "id", event->id);
    ADD_SLICE(list, "event_type", event_type(event));
    ADD_SLICE(list, "aggregate_type", event->aggregate_type);
    ADD_SLICE(list, "aggregate_id", event->aggregate_id);
    ADD_SLICE(list, "tenant_id", event->tenant_id);
    ADD_SLICE(list, "schema_version", number_text(list, event->schema_version));
    ADD_SLICE(list, "occurred_at", event->occurred_at);
}

static void add_debezium(struct header_list *list, const struct event *event)
{
    ADD_SLICE(list, "id", event->id);
    ADD_SLICE(list, "eventType", event_type(event));
}

static void add_cloudevents(struct header_list *list, const struct event *event, const char *source,
                            struct slice content_type)
{
    ADD_STATIC(list, "ce_specversion", "1.0");
    ADD_SLICE(list, "ce_id", event->id);
    add(list, "ce_source", 9, source, strlen(source));
    ADD_SLICE(list, "ce_type", event_type(event));
    ADD_SLICE(list, "ce_subject", event->aggregate_id);
    ADD_SLICE(list, "ce_time", event->occurred_at);
    if (!event->payload_bytes.data)
        ADD_STATIC(list, "content-type", "application/json");
    else if (content_type.data)
        ADD_SLICE(list, "content-type", content_type);
    else
        ADD_STATIC(list, "content-type", "application/octet-stream");
}

/* A string of the walk without its quotes, unescaped into the arena when it must be; data NULL: a bad escape. */
static struct slice plain_text(struct header_list *list, const char *text, size_t len, bool escaped)
{
    if (!escaped)
        return (struct slice){text, len};
    char *out = arena_room(list);
    long n = json_unescape(out, text, len);
    if (n < 0)
        return (struct slice){NULL, 0};
    arena_use(list, (size_t)n);
    return (struct slice){out, (size_t)n};
}

static struct slice member_name(struct header_list *list, const struct json_member *member)
{
    return plain_text(list, member->name, member->name_len, member->name_escaped);
}

static bool is_string(const struct json_member *member)
{
    return member->value[0] == '"';
}

static struct slice string_value(struct header_list *list, const struct json_member *member)
{
    return plain_text(list, member->value + 1, member->value_len - 2, member->value_escaped);
}

/* The value of a header; false: malformed. A null header has data NULL. */
static bool member_value(struct header_list *list, const struct json_member *member, struct slice *ret)
{
    if (is_string(member)) {
        *ret = string_value(list, member);
        return ret->data != NULL;
    }
    if (member->value[0] == 'n') {
        *ret = (struct slice){NULL, 0};
    } else if (!member->value_blanks) {
        *ret = (struct slice){member->value, member->value_len};
    } else {
        char *out = arena_room(list);
        size_t n = json_compact(out, member->value, member->value_len);
        arena_use(list, n);
        *ret = (struct slice){out, n};
    }
    return true;
}

static bool slice_is(struct slice slice, const char *text, size_t len)
{
    return slice.len == len && memcmp(slice.data, text, len) == 0;
}

#define SLICE_IS(slice, literal) slice_is(slice, literal, sizeof(literal) - 1)

/* What outboxd itself reads of headers and metadata. */
struct internals {
    struct slice traceparent, tracestate, content_type;
    bool has_traceparent, has_tracestate; /* the row's own headers carry it */
};

static void read_metadata(struct header_list *list, struct slice json, struct internals *internals)
{
    struct json_walk walk;
    struct json_member member;

    if (is_empty(json) || !json_walk_init(&walk, json.data, json.len))
        return;
    while (json_walk_next(&walk, &member) > 0) {
        if (!is_string(&member))
            continue;
        struct slice name = member_name(list, &member);
        if (!name.data)
            continue;
        if (SLICE_IS(name, "traceparent"))
            internals->traceparent = string_value(list, &member);
        else if (SLICE_IS(name, "tracestate"))
            internals->tracestate = string_value(list, &member);
        else if (SLICE_IS(name, "content_type"))
            internals->content_type = string_value(list, &member);
    }
}

/* The first `n_ours` headers are ours: a row cannot override them, because consumers deduplicate and route on
 * them. */
static bool add_own(struct header_list *list, struct slice json, size_t n_ours, struct internals *internals)
{
    struct json_walk walk;
    struct json_member member;
    int more;

    if (!json_walk_init(&walk, json.data, json.len))
        return false;
    while ((more = json_walk_next(&walk, &member)) > 0) {
        struct slice name = member_name(list, &member), value;
        if (!name.data || !member_value(list, &member, &value))
            return false;
        bool ours = false;
        for (size_t i = 0; i < n_ours && !ours; i++)
            ours = slice_is(name, list->items[i].name, list->items[i].name_len);
        if (ours)
            continue;
        if (SLICE_IS(name, "traceparent"))
            internals->has_traceparent = true;
        else if (SLICE_IS(name, "tracestate"))
            internals->has_tracestate = true;
        add(list, name.data, name.len, value.data, value.len);
    }
    return more == 0;
}

enum result headers_build(struct header_list *list, const struct event *event, enum header_format format,
                          const char *source, struct error *err)
{
    struct internals internals = {0};

    list->n = 0;
    /* Nothing that is unescaped or compacted grows, so this is enough for all of it. */
    arena_reset(list, NUMBER_SIZE + event->headers.len + event->metadata.len);
    read_metadata(list, event->metadata, &internals);
    switch (format) {
    case HEADERS_PLAIN:
        add_plain(list, event);
        break;
    case HEADERS_DEBEZIUM:
        add_debezium(list, event);
        break;
    case HEADERS_CLOUDEVENTS:
        add_cloudevents(list, event, source, internals.content_type);
        break;
    }
    if (!is_empty(event->headers) && !add_own(list, event->headers, list->n, &internals))
        return error_reject(err, "headers are not a JSON object");
    /* A tracestate belongs to its traceparent: metadata's does not mix with that of the headers. */
    if (internals.has_traceparent)
        return OK;
    if (internals.traceparent.data)
        ADD_SLICE(list, "traceparent", internals.traceparent);
    if (internals.tracestate.data && !internals.has_tracestate)
        ADD_SLICE(list, "tracestate", internals.tracestate);
    return OK;
}
