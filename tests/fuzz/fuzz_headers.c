/* headers and metadata of a row, whatever they hold, in the three formats.
 *
 * Input: a byte of flags, the text of headers, NUL, the text of metadata. */
#include <jansson.h>
#include <malloc.h>

#include "fuzz.h"
#include "headers.h"

#define SOURCE "/shop"

enum {
    NO_HEADERS = 1 << 0, /* SQL NULL */
    NO_METADATA = 1 << 1,
    BYTES = 1 << 2,      /* payload_bytes is there */
    NO_OPTIONAL = 1 << 3 /* the columns that may be NULL are */
};

struct ours { /* a header that is ours, and what it must say */
    const char *name, *value;
};

#define ID          "01ARZ3NDEKTSV4RRFFQ69G5FAV"
#define OCCURRED_AT "2026-01-01T10:00:00.000000Z"
#define TEXT(text)  ((struct slice){text, sizeof(text) - 1})

static const struct ours plain[] = {{"id", ID},
                                    {"event_type", NULL},
                                    {"aggregate_type", "order"},
                                    {"aggregate_id", "o-1"},
                                    {"tenant_id", NULL},
                                    {"schema_version", "-2147483648"},
                                    {"occurred_at", OCCURRED_AT}};
static const struct ours debezium[] = {{"id", ID}, {"eventType", NULL}};
static const struct ours cloudevents[] = {
    {"ce_specversion", "1.0"}, {"ce_id", ID},          {"ce_source", SOURCE}, {"ce_type", NULL}, {"ce_subject", "o-1"},
    {"ce_time", OCCURRED_AT},  {"content-type", NULL},
};

static const struct {
    const struct ours *headers;
    size_t n;
} formats[] = {
    [HEADERS_PLAIN] = {plain, 7}, [HEADERS_DEBEZIUM] = {debezium, 2}, [HEADERS_CLOUDEVENTS] = {cloudevents, 7}};

static bool inside(const void *at, size_t len, const void *start, size_t size)
{
    uintptr_t a = (uintptr_t)at, s = (uintptr_t)start;
    return start && a >= s && a + len <= s + size;
}

static bool is(const char *data, size_t len, const char *text)
{
    return len == strlen(text) && memcmp(data, text, len) == 0;
}

/* Names and values of a row's own headers lie in the row or in the memory of the list, and can be read. */
static void check_place(const struct header_list *list, const struct event *event, const void *at, size_t len)
{
    static volatile char sink;

    REQUIRE(inside(at, len, event->headers.data, event->headers.len) ||
            inside(at, len, event->metadata.data, event->metadata.len) ||
            inside(at, len, list->arena, malloc_usable_size(list->arena)));
    for (size_t i = 0; i < len; i++)
        sink = ((const char *)at)[i];
    (void)sink;
}

static void check_list(const struct header_list *list, const struct event *event, enum header_format format)
{
    const struct ours *ours = formats[format].headers;
    size_t n_ours = formats[format].n;

    REQUIRE(list->n >= n_ours);
    for (size_t i = 0; i < n_ours; i++) {
        const struct header *header = &list->items[i];
        REQUIRE(is(header->name, header->name_len, ours[i].name));
        REQUIRE(!ours[i].value || is(header->value, header->value_len, ours[i].value));
    }
    for (size_t i = n_ours; i < list->n; i++) {
        const struct header *header = &list->items[i];
        for (size_t k = 0; k < n_ours; k++)
            REQUIRE(!is(header->name, header->name_len, ours[k].name));
        if (!is(header->name, header->name_len, "traceparent") && !is(header->name, header->name_len, "tracestate"))
            check_place(list, event, header->name, header->name_len);
        REQUIRE(header->value || header->value_len == 0);
        if (header->value)
            check_place(list, event, header->value, header->value_len);
    }
}

static const struct header *find(const struct header_list *list, size_t from, const char *name, size_t len)
{
    for (size_t i = from; i < list->n; i++)
        if (list->items[i].name_len == len && memcmp(list->items[i].name, name, len) == 0)
            return &list->items[i];
    return NULL;
}

static bool is_ours(const char *name, enum header_format format)
{
    for (size_t i = 0; i < formats[format].n; i++)
        if (strcmp(name, formats[format].headers[i].name) == 0)
            return true;
    return false;
}

/* What a real parser takes for an object, the walk takes, too, and finds the same in it. */
static void compare(const struct header_list *list, enum result result, json_t *object, enum header_format format)
{
    const char *name;
    json_t *value;

    REQUIRE(result == OK);
    json_object_foreach(object, name, value)
    {
        const struct header *header = find(list, formats[format].n, name, strlen(name));
        if (is_ours(name, format))
            continue;
        REQUIRE(header);
        REQUIRE(!header->value == json_is_null(value));
        if (json_is_string(value)) {
            REQUIRE(header->value_len == json_string_length(value));
            REQUIRE(memcmp(header->value, json_string_value(value), header->value_len) == 0);
        } else if (json_is_boolean(value)) {
            REQUIRE(is(header->value, header->value_len, json_is_true(value) ? "true" : "false"));
        } else if (!json_is_null(value)) {
            json_t *again =
                json_loadb(header->value, header->value_len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
            REQUIRE(json_equal(again, value));
            json_decref(again);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {(const char *)data, size};
    uint8_t flags = take_byte(&input);
    struct input headers = take_field(&input), metadata = input;
    char *headers_text = copy_exactly(headers, false), *metadata_text = copy_exactly(metadata, false);
    struct event event = {
        .id = TEXT(ID),
        .topic = TEXT("orders"),
        .aggregate_type = TEXT("order"),
        .aggregate_id = TEXT("o-1"),
        .schema_version = INT32_MIN,
        .occurred_at = TEXT(OCCURRED_AT),
        .payload = TEXT("{}"),
    };
    json_t *object = NULL;
    struct header_list list = {0}; /* one for all, as in the publisher */
    struct error err = {0};

    if (!(flags & NO_HEADERS)) {
        event.headers = (struct slice){headers_text, headers.left};
        object = json_loadb(headers_text, headers.left, JSON_REJECT_DUPLICATES, NULL);
    }
    if (!(flags & NO_METADATA))
        event.metadata = (struct slice){metadata_text, metadata.left};
    if (flags & BYTES)
        event.payload_bytes = TEXT("\x01");
    if (!(flags & NO_OPTIONAL)) {
        event.event_type = TEXT("order.placed");
        event.tenant_id = TEXT("default");
    }
    for (int format = HEADERS_PLAIN; format <= HEADERS_CLOUDEVENTS; format++) {
        enum result result = headers_build(&list, &event, (enum header_format)format, SOURCE, &err);
        REQUIRE(result == OK || (result == REJECT && err.message[0]));
        if (result == OK)
            check_list(&list, &event, (enum header_format)format);
        if (json_is_object(object))
            compare(&list, result, object, (enum header_format)format);
    }
    headers_done(&list);
    json_decref(object);
    free(headers_text);
    free(metadata_text);
    return 0;
}
