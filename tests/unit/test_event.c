#include "unit.h"

#include "event.h"

static void value_choice(void **state)
{
    struct event event = {.payload = SLICE("{\"a\": 1}")};

    (void)state;
    assert_string_equal(event_value(&event).data, "{\"a\": 1}");
    event.payload = SLICE("null");
    assert_null(event_value(&event).data);
    event.payload = SLICE("\"null\"");
    assert_int_equal(event_value(&event).len, 6);
    event.payload = SLICE("null");
    event.payload_bytes = SLICE("\0\1");
    assert_int_equal(event_value(&event).len, 2);
    event.payload_bytes = SLICE(""); /* empty but not NULL: an empty value, no tombstone */
    assert_non_null(event_value(&event).data);
}

static void prepare(void **state)
{
    struct event event = {.topic = SLICE("t"), .aggregate_id = SLICE("agg")};

    (void)state;
    event_prepare(&event);
    assert_string_equal(event.key.data, "agg");
    assert_string_equal(route_topic(&event.route, 0), "t");
    event.partition_key = SLICE("");
    event.routing_key = SLICE("u, v");
    event_prepare(&event);
    assert_int_equal(event.key.len, 0);
    assert_int_equal(event.route.n, 2);
    event_done(&event);
}

static void worse_verdict_wins(void **state)
{
    struct event event = {0};

    (void)state;
    event_judge(&event, VERDICT_SENT, "acknowledged");
    assert_null(event.reason);
    event_judge(&event, VERDICT_REFUSED, "refused: %s", "too large");
    assert_string_equal(event.reason, "refused: too large");
    event_judge(&event, VERDICT_REFUSED, "again");
    event_judge(&event, VERDICT_SENT, "no");
    assert_int_equal(event.verdict, VERDICT_REFUSED);
    assert_string_equal(event.reason, "refused: too large");
    event_judge(&event, VERDICT_DEAD, "gone");
    assert_string_equal(event.reason, "gone");
    event_done(&event);
}

static void reason_is_cut_and_clean(void **state)
{
    struct event event = {0};
    char text[2500];

    (void)state;
    for (size_t i = 0; i + 2 < sizeof(text); i += 2)
        memcpy(text + i, "\xc3\xa4", 2);
    text[sizeof(text) - 2] = '\0';
    event_judge(&event, VERDICT_DEAD, "%s", text);
    assert_int_equal(strlen(event.reason), 2000);
    event_done(&event);

    event = (struct event){0};
    event_judge(&event, VERDICT_DEAD, "bad \xff byte, cut \xc3");
    assert_string_equal(event.reason, "bad ? byte, cut ?");
    event_done(&event);
}

static void last_refusal_kills(void **state)
{
    struct event event = {.verdict = VERDICT_REFUSED, .retry_count = 3, .max_retries = 5};

    (void)state;
    assert_false(event_dies(&event));
    event.retry_count = 4;
    assert_true(event_dies(&event));
    event = (struct event){.verdict = VERDICT_REFUSED, .max_retries = 0};
    assert_true(event_dies(&event));
    event.verdict = VERDICT_SENT;
    assert_false(event_dies(&event));
}

static void names(void **state)
{
    (void)state;
    for (int v = VERDICT_NONE; v <= VERDICT_DEAD; v++)
        assert_non_null(verdict_name((enum verdict)v));
    assert_string_equal(verdict_name(VERDICT_REFUSED), "refused");
    assert_string_equal(verdict_name((enum verdict)99), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_choice),       cmocka_unit_test(prepare),
        cmocka_unit_test(worse_verdict_wins), cmocka_unit_test(reason_is_cut_and_clean),
        cmocka_unit_test(last_refusal_kills), cmocka_unit_test(names),
    };
    return RUN_TESTS(tests);
}
