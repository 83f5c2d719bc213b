/* The publisher against librdkafka's in-memory cluster: rows good and bad, routes, and topics that are away. */
#include "kafka_rig.h"

static void test_acknowledged_is_sent(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 5; i++)
        rig_add(rig, "orders", "k", (const char *[]){"1", "2", "3", "4", "5"}[i]);
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 5);
    assert_log(rig, "orders", "1 2 3 4 5 ");
}

static void test_only_undecided_events_are_sent(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1")->verdict = VERDICT_HELD;
    rig_add(rig, "orders", "l", "2");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_HELD);
    assert_log(rig, "orders", "2 ");
}

static void test_bad_rows_die_and_their_neighbours_do_not_notice(void **state)
{
    struct rig *rig = *state;
    static char large[2000000];

    memset(large, 'x', sizeof(large) - 1);
    rig_add(rig, "orders", "k", "1");
    rig_add(rig, "or ders", "k", "2");
    rig_add(rig, "orders", "k", "3")->headers = text_slice("[1]");
    rig_add(rig, "orders", "k", "4")->payload = text_slice(large);
    struct event *nowhere = rig_add(rig, "orders", "k", "5");
    nowhere->routing_key = text_slice(" , ");
    event_prepare(nowhere);
    struct event *half = rig_add(rig, "orders", "k", "6");
    half->routing_key = text_slice("orders,no/good");
    event_prepare(half);
    struct event *everywhere = rig_add(rig, "orders", "k", "7");
    struct strbuf topics = {0};
    for (int i = 0; i <= ROUTE_MAX; i++)
        strbuf_addf(&topics, "orders-%d,", i);
    everywhere->routing_key = text_slice(topics.data);
    event_prepare(everywhere);
    rig_add(rig, "orders", "k", "8");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_SENT);
    for (int i = 1; i < 7; i++) {
        assert_verdict_of(&rig->batch.events[i], VERDICT_DEAD);
        assert_non_null(rig->batch.events[i].reason);
    }
    assert_verdict_of(&rig->batch.events[7], VERDICT_SENT);
    assert_log(rig, "orders", "1 8 ");
    strbuf_done(&topics);
}

static void test_dead_blocks_its_stream_on_request(void **state)
{
    struct rig *rig = *state;

    rig_config(rig, (const char *const[]){"OUTBOX_ON_DEAD=block", NULL});
    rig_publisher(rig);
    rig_add(rig, "orders", "k", "1")->headers = text_slice("[1]");
    rig_add(rig, "orders", "k", "2");
    rig_add(rig, "orders", "l", "3");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_DEAD);
    assert_verdict_of(&rig->batch.events[1], VERDICT_LEFT);
    assert_verdict_of(&rig->batch.events[2], VERDICT_SENT);
    assert_log(rig, "orders", "3 ");
}

static void test_missing_topic_parks_only_itself(void **state)
{
    struct rig *rig = *state;

    rd_kafka_mock_topic_set_error(rig->cluster, "missing", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    rig_add(rig, "missing", "k", "1");
    rig_add(rig, "orders", "k", "2");
    rig_add(rig, "missing", "k", "3");
    struct event *both = rig_add(rig, "orders", "m", "4");
    both->routing_key = text_slice("orders,missing");
    event_prepare(both);
    rig_add(rig, "orders", "m", "5"); /* behind `both` in the stream of orders */
    rig_add(rig, "orders", "l", "6");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_PARK);
    assert_string_equal(rig->batch.events[0].blame, "missing");
    assert_non_null(strstr(rig->batch.events[0].reason, "does not exist"));
    assert_verdict_of(&rig->batch.events[1], VERDICT_SENT);
    assert_verdict_of(&rig->batch.events[3], VERDICT_PARK);
    assert_string_equal(rig->batch.events[3].blame, "missing");
    assert_verdict_of(&rig->batch.events[4], VERDICT_LEFT);
    assert_verdict_of(&rig->batch.events[5], VERDICT_SENT);

    rd_kafka_mock_topic_set_error(rig->cluster, "missing", 0);
    rig_clear(rig);
    rig_add(rig, "missing", "k", "1")->probe = true;
    rig_add(rig, "missing", "k", "3");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 2);
    assert_log(rig, "missing", "1 3 ");
}

static void test_leaderless_topic_is_parked(void **state)
{
    struct rig *rig = *state;

    rd_kafka_mock_topic_create(rig->cluster, "headless", 4, 1);
    rd_kafka_mock_partition_set_leader(rig->cluster, "headless", 2, -1);
    rig_add(rig, "headless", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_PARK);
    assert_non_null(strstr(rig->batch.events[0].reason, "no leader"));
}

static void test_forbidden_at_delivery_parks(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    rig_add(rig, "orders", "k", "2");
    rig_add(rig, "orders", "k", "3");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_PARK);
    assert_string_equal(rig->batch.events[0].blame, "orders");
    assert_true(rig->batch.events[1].verdict == VERDICT_PARK || rig->batch.events[1].verdict == VERDICT_LEFT);
    assert_log(rig, "orders", "1 ");
}

static void test_routed_event_needs_all_topics(void **state)
{
    struct rig *rig = *state;

    struct event *event = rig_add(rig, "-", "k", "1");
    event->routing_key = text_slice("a, b,a");
    event_prepare(event);
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_SENT);
    assert_log(rig, "a", "1 ");
    assert_log(rig, "b", "1 ");

    /* One request a topic, and they go out in no promised order: one of them is refused, twice when alone. */
    rig_clear(rig);
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 3, RD_KAFKA_RESP_ERR_INVALID_RECORD,
                                      RD_KAFKA_RESP_ERR_INVALID_RECORD, RD_KAFKA_RESP_ERR_INVALID_RECORD);
    event = rig_add(rig, "-", "k", "2");
    event->routing_key = text_slice("a,b");
    event_prepare(event);
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_true(rig->batch.events[0].verdict == VERDICT_REFUSED || rig->batch.events[0].verdict == VERDICT_LEFT);
}

static void test_copies_for_the_dead_topic(void **state)
{
    struct rig *rig = *state;

    rig_config(rig, (const char *const[]){"OUTBOX_DEAD_TOPIC=graves", NULL});
    rig_publisher(rig);
    rig_add(rig, "orders", "k", "1")->headers = text_slice("[1]");
    rig_add(rig, "or ders", "k", "2");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    struct event *dead[] = {&rig->batch.events[0], &rig->batch.events[1]};
    assert_int_equal(publisher_bury(rig->publisher, dead, 2, clock_ms() + 10000), 0);
    assert_log(rig, "graves", "1 2 ");
    assert_verdict_of(dead[0], VERDICT_DEAD);

    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    assert_int_equal(publisher_bury(rig->publisher, dead, 1, clock_ms() + 10000), 1);
}

static void test_unknown_property_is_named(void **state)
{
    struct rig *rig = *state;
    struct publisher *publisher = NULL;

    rig_config(rig, (const char *const[]){"OUTBOX_KAFKA_NO_SUCH_THING=1", NULL});
    assert_int_equal(publisher_new(&rig->config, NULL, &publisher, &rig->err), FATAL);
    assert_non_null(strstr(rig->err.message, "OUTBOX_KAFKA_NO_SUCH_THING"));
    rig_config(rig, (const char *const[]){"OUTBOX_KAFKA_AUTO_OFFSET_RESET=earliest", NULL});
    assert_int_equal(publisher_new(&rig->config, NULL, &publisher, &rig->err), OK);
    publisher_free(publisher);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        RIG_TEST(test_acknowledged_is_sent),
        RIG_TEST(test_only_undecided_events_are_sent),
        RIG_TEST(test_bad_rows_die_and_their_neighbours_do_not_notice),
        RIG_TEST(test_dead_blocks_its_stream_on_request),
        RIG_TEST(test_missing_topic_parks_only_itself),
        RIG_TEST(test_leaderless_topic_is_parked),
        RIG_TEST(test_forbidden_at_delivery_parks),
        RIG_TEST(test_routed_event_needs_all_topics),
        RIG_TEST(test_copies_for_the_dead_topic),
        RIG_TEST(test_unknown_property_is_named),
    };
    return RUN_TESTS(tests);
}
