#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "headers.h"
#include "str.h"

static struct event sample(const char *headers, const char *metadata)
{
    return (struct event){
        .id = SLICE("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        .topic = SLICE("orders"),
        .event_type = SLICE("order.placed"),
        .aggregate_type = SLICE("order"),
        .aggregate_id = SLICE("o-1"),
        .tenant_id = SLICE("default"),
        .schema_version = 3,
        .occurred_at = SLICE("2026-01-01T10:00:00.000000Z"),
        .payload = SLICE("{}"),
        .headers = {headers, headers ? strlen(headers) : 0},
        .metadata = {metadata, metadata ? strlen(metadata) : 0},
    };
}

/* The list as "name=value;" text; a null header is "name;". */
static char *show(const struct header_list *list)
{
    struct strbuf out = {0};

    strbuf_add(&out, "");
    for (size_t i = 0; i < list->n; i++) {
        const struct header *header = &list->items[i];
        strbuf_addn(&out, header->name, header->name_len);
        if (header->value) {
            strbuf_add(&out, "=");
            strbuf_addn(&out, header->value, header->value_len);
        }
        strbuf_add(&out, ";");
    }
    return out.data;
}

static void check(const struct event *event, enum header_format format, const char *expected)
{
    struct header_list list = {0};
    struct error err = {0};

    assert_int_equal(headers_build(&list, event, format, "/shop", &err), OK);
    char *text = show(&list);
    assert_string_equal(text, expected);
    free(text);
    headers_done(&list);
}

#define PLAIN                                                                                      \
    "id=01ARZ3NDEKTSV4RRFFQ69G5FAV;event_type=order.placed;aggregate_type=order;aggregate_id=o-1;" \
    "tenant_id=default;schema_version=3;occurred_at=2026-01-01T10:00:00.000000Z;"
#define DEBEZIUM "id=01ARZ3NDEKTSV4RRFFQ69G5FAV;eventType=order.placed;"
#define CLOUDEVENTS                                                                             \
    "ce_specversion=1.0;ce_id=01ARZ3NDEKTSV4RRFFQ69G5FAV;ce_source=/shop;ce_type=order.placed;" \
    "ce_subject=o-1;ce_time=2026-01-01T10:00:00.000000Z;content-type="

static void three_formats(void **state)
{
    struct event event = sample("{}", "{}");

    (void)state;
    check(&event, HEADERS_PLAIN, PLAIN);
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM);
    check(&event, HEADERS_CLOUDEVENTS, CLOUDEVENTS "application/json;");
    event = sample(NULL, NULL);
    check(&event, HEADERS_PLAIN, PLAIN);
}

static void event_type_defaults_to_topic(void **state)
{
    struct event event = sample("{}", "{}");

    (void)state;
    event.event_type = (struct slice){NULL, 0};
    check(&event, HEADERS_DEBEZIUM, "id=01ARZ3NDEKTSV4RRFFQ69G5FAV;eventType=orders;");
}

static void schema_versions(void **state)
{
    static const int versions[] = {0, 1, -1, 9, 10, 32767, -32768, INT32_MAX, INT32_MIN};
    struct header_list list = {0};
    char expected[16];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
        struct event event = sample("{}", "{}");
        event.schema_version = versions[i];
        assert_int_equal(headers_build(&list, &event, HEADERS_PLAIN, "", NULL), OK);
        snprintf(expected, sizeof(expected), "%d", versions[i]);
        assert_int_equal(list.items[5].value_len, strlen(expected));
        assert_memory_equal(list.items[5].value, expected, strlen(expected));
    }
    headers_done(&list);
}

static void content_types(void **state)
{
    struct event event = sample("{}", "{}");

    (void)state;
    event.payload_bytes = SLICE("\1");
    check(&event, HEADERS_CLOUDEVENTS, CLOUDEVENTS "application/octet-stream;");
    event = sample("{\"content-type\": \"text/evil\"}", "{\"content_type\": \"application/avro\"}");
    check(&event, HEADERS_CLOUDEVENTS, CLOUDEVENTS "application/json;");
    event.payload_bytes = SLICE("\1");
    check(&event, HEADERS_CLOUDEVENTS, CLOUDEVENTS "application/avro;");
    event = sample("{}", "{\"content_type\": 5}");
    event.payload_bytes = SLICE("");
    check(&event, HEADERS_CLOUDEVENTS, CLOUDEVENTS "application/octet-stream;");
}

static void own_headers(void **state)
{
    struct event event = sample("{\"a\": \"x\", \"b\": null, \"c\": true, \"d\": 1.10, \"e\": 99999999999999999999999, "
                                "\"f\": {\"k\": [1, 2, \"a b\"], \"s\": \"\\\" }\"}, \"g\": [], \"h\": \"\"}",
                                "{}");
    (void)state;
    check(&event, HEADERS_DEBEZIUM,
          DEBEZIUM "a=x;b;c=true;d=1.10;e=99999999999999999999999;f={\"k\":[1,2,\"a b\"],\"s\":\"\\\" }\"};g=[];h=;");
    event = sample(" {\n\"a\" :\t\"x\" } ", "{}");
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM "a=x;");
    event = sample("{ }", "{}");
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM);
}

static void ours_cannot_be_overridden(void **state)
{
    struct event event = sample("{\"id\": \"evil\", \"tenant_id\": null, \"\\u0069d\": \"evil\", \"ID\": \"mine\", "
                                "\"ce_id\": \"x\", \"eventType\": \"y\"}",
                                "{}");
    (void)state;
    check(&event, HEADERS_PLAIN, PLAIN "ID=mine;ce_id=x;eventType=y;");
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM "tenant_id;ID=mine;ce_id=x;");
    check(&event, HEADERS_CLOUDEVENTS, CLOUDEVENTS "application/json;id=evil;tenant_id;id=evil;ID=mine;eventType=y;");
}

static void escapes(void **state)
{
    struct event event = sample("{\"q\\\"uote\": \"a\\\\b\\n\\t\\/\\u00e4\\u20ac\\ud83d\\ude00\"}", "{}");

    (void)state;
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM "q\"uote=a\\b\n\t/\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80;");
}

static void trace(void **state)
{
    struct event event =
        sample("{}", "{\"x\": {\"traceparent\": \"no\"}, \"traceparent\": \"00-m\", \"tracestate\": \"s=m\"}");

    (void)state;
    check(&event, HEADERS_PLAIN, PLAIN "traceparent=00-m;tracestate=s=m;");
    check(&event, HEADERS_CLOUDEVENTS, CLOUDEVENTS "application/json;traceparent=00-m;tracestate=s=m;");
    event = sample("{\"traceparent\": \"00-h\"}", "{\"traceparent\": \"00-m\", \"tracestate\": \"s=m\"}");
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM "traceparent=00-h;");
    event = sample("{\"tracestate\": \"s=h\"}", "{\"traceparent\": \"00-m\", \"tracestate\": \"s=m\"}");
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM "tracestate=s=h;traceparent=00-m;");
    event = sample("{}", "{\"traceparent\": 5}");
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM);
    event = sample("{}", "[\"traceparent\"]");
    check(&event, HEADERS_DEBEZIUM, DEBEZIUM);
}

/* The bytes stand in memory of their own size, so that a sanitizer sees every step outside. */
static enum result build_exact(const char *text, struct error *err)
{
    size_t len = strlen(text);
    char *exact = malloc(len ? len : 1);
    struct header_list list = {0};
    struct event event = sample("", "{}");

    memcpy(exact, text, len);
    event.headers = (struct slice){exact, len};
    event.metadata = event.headers;
    enum result result = headers_build(&list, &event, HEADERS_PLAIN, "", err);
    headers_done(&list);
    free(exact);
    return result;
}

static void not_an_object(void **state)
{
    static const char *const bad[] = {
        "[]",
        "null",
        "1",
        "\"{}\"",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\": }",
        "{\"a\": 1",
        "{\"a\": 1,}",
        "{,}",
        "{\"a\" 1}",
        "{\"a\": \"x",
        "{\"a\": \"x\\",
        "{\"a\": [1}",
        "{\"a\": nul}",
        "{a: 1}",
        "{\"a\": 1} x",
        "{\"a\": tru",
        "{\"a\": \"\\q\"}",
        "{\"a\": \"\\u12\"}",
        "{\"a\": \"\\ud800\"}",
        "{\"a\": \"\\ud800\\u0041\"}",
        "{\"a\": \"\\udc00\"}",
        "{\"a\": +}",
        "{\"\\u00\": 1}",
        "{\"a\": 1 \"b\": 2}",
        "{\"a\": [\"]\"",
        " ",
    };
    struct error err;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        error_clear(&err);
        if (build_exact(bad[i], &err) != REJECT)
            fail_msg("taken: %s", bad[i]);
        assert_string_equal(err.message, "headers are not a JSON object");
    }
}

/* Every prefix of a rich document, and every byte of it replaced: never a step outside, never a hang. */
static void hostile(void **state)
{
    static const char rich[] =
        "{\"a\": \"x\\u00e4\\ud83d\\ude00\", \"b\": [1, {\"c\": \"]}\"}], \"traceparent\": null, \"n\": -1e5}";
    static const char bytes[] = "{}[]\",:\\ untf0-\xff";
    char text[sizeof(rich)];
    struct error err;

    (void)state;
    for (size_t i = 0; i < sizeof(rich); i++) {
        memcpy(text, rich, sizeof(rich));
        text[i] = '\0';
        assert_int_equal(build_exact(text, &err), i == 0 || i == sizeof(rich) - 1 ? OK : REJECT);
        for (size_t j = 0; i < sizeof(rich) - 1 && j < sizeof(bytes) - 1; j++) {
            memcpy(text, rich, sizeof(rich));
            text[i] = bytes[j];
            (void)!build_exact(text, &err);
        }
    }
}

static void list_is_reused(void **state)
{
    struct header_list list = {0};
    struct event many = sample("{}", "{}"), few = sample("{}", "{}");
    struct strbuf json = {0};
    struct error err;

    (void)state;
    strbuf_add(&json, "{");
    for (int i = 0; i < 500; i++)
        strbuf_addf(&json, "%s\"h\\u0030%d\": [%d, 2]", i ? ", " : "", i, i);
    strbuf_add(&json, "}");
    many.headers = (struct slice){json.data, json.len};
    assert_int_equal(headers_build(&list, &many, HEADERS_PLAIN, "", &err), OK);
    assert_int_equal(list.n, 507);
    assert_memory_equal(list.items[7].name, "h00", 3);
    assert_memory_equal(list.items[506].value, "[499,2]", 7);
    const void *items = list.items, *arena = list.arena;
    assert_int_equal(headers_build(&list, &few, HEADERS_PLAIN, "", &err), OK);
    assert_int_equal(list.n, 7);
    headers_set(&list, "outbox_error", "old");
    headers_set(&list, "nothing", NULL);
    assert_int_equal(list.n, 9);
    assert_null(list.items[8].value);
    headers_set(&list, "outbox_error", "why");
    assert_int_equal(list.n, 9);
    assert_memory_equal(list.items[7].value, "why", 3);
    assert_ptr_equal(list.items, items);
    assert_ptr_equal(list.arena, arena);
    headers_done(&list);
    strbuf_done(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_formats),   cmocka_unit_test(event_type_defaults_to_topic),
        cmocka_unit_test(schema_versions), cmocka_unit_test(content_types),
        cmocka_unit_test(own_headers),     cmocka_unit_test(ours_cannot_be_overridden),
        cmocka_unit_test(escapes),         cmocka_unit_test(trace),
        cmocka_unit_test(not_an_object),   cmocka_unit_test(hostile),
        cmocka_unit_test(list_is_reused),
    };
    return RUN_TESTS(tests);
}
