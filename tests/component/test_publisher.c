/* The publisher against librdkafka's in-memory cluster, with errors put into its answers. */
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

/* The broker refuses each record batch that has the culprit in it. The mock cannot look into a batch, so the errors are
 * laid out for the halving of eight: 8 no, 4 no, 2 yes, 2 no, 1 yes, 1 no. The culprit is number four. */
static void test_isolation_finds_the_culprit(void **state)
{
    struct rig *rig = *state;
    static const char *const ids[] = {"1", "2", "3", "4", "5", "6", "7", "8"};
    static const rd_kafka_resp_err_t bad = RD_KAFKA_RESP_ERR_INVALID_RECORD;

    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 6, bad, bad, 0, bad, 0, bad);
    for (int i = 0; i < 8; i++)
        rig_add(rig, "orders", "k0", ids[i]);
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
    for (int i = 0; i < 8; i++)
        assert_verdict_of(&rig->batch.events[i], i < 3    ? VERDICT_SENT
                                                 : i == 3 ? VERDICT_REFUSED
                                                          : VERDICT_LEFT); /* one stream: behind the culprit */
    assert_log(rig, "orders", "1 2 3 ");
}

/* Nobody tells the limit here (the mock knows no DescribeConfigs), so it is learned: half of what was refused. */
static void test_too_large_a_batch_goes_in_parts(void **state)
{
    struct rig *rig = *state;
    static const rd_kafka_resp_err_t large = RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    static const char *const ids[] = {"1", "2", "3", "4", "5", "6", "7", "8"};

    char *padding = str_format("{\"padding\": \"%04000d\"}", 0);
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 2, large, large);
    for (int i = 0; i < 8; i++)
        rig_add(rig, "orders", "k", ids[i])->headers = text_slice(padding);
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 8);
    assert_log(rig, "orders", "1 2 3 4 5 6 7 8 ");
    free(padding);
}

/* What one partition refuses is nothing to the others. */
static void test_a_refusal_stays_in_its_partition(void **state)
{
    struct rig *rig = *state;
    static const char *const keys[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_INVALID_RECORD);
    for (int i = 0; i < 8; i++)
        rig_add(rig, "orders", keys[i], keys[i]);
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
    size_t refused = count_verdict(rig, VERDICT_REFUSED); /* 1 if the first request had one message only */
    assert_true(refused <= 1);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 8 - refused);
}

static void test_a_full_queue_ends_the_round(void **state)
{
    struct rig *rig = *state;
    static char ids[50][4];

    rig_config(rig, (const char *const[]){"OUTBOX_KAFKA_QUEUE_BUFFERING_MAX_MESSAGES=7", NULL});
    rig_publisher(rig);
    for (int i = 0; i < 50; i++) {
        snprintf(ids[i], sizeof(ids[i]), "%d", i);
        rig_add(rig, "orders", "k", ids[i]);
    }
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 50);
    char *log = rig_log(rig, "orders");
    for (char *at = log, *end; *at; at = end + 1) {
        static long last = -1;
        long n = strtol(at, &end, 10);
        assert_int_equal(n, last + 1);
        last = n;
    }
    free(log);
}

static void test_a_refusal_that_kills_lets_followers_pass(void **state)
{
    struct rig *rig = *state;
    static const rd_kafka_resp_err_t bad = RD_KAFKA_RESP_ERR_INVALID_RECORD;

    rig_add(rig, "orders", "k0", "1")->max_retries = 0;
    rig_add(rig, "orders", "k0", "2");
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 2, bad, bad);
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_REFUSED);
    assert_verdict_of(&rig->batch.events[1], VERDICT_SENT);
    assert_log(rig, "orders", "2 ");
}

static void test_retry_goes_alone_and_its_followers_wait_for_it(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1");
    rig_add(rig, "orders", "k", "2")->retry_count = 1;
    rig_add(rig, "orders", "k", "3");
    rig_add(rig, "orders", "k", "4");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 4);
    assert_log(rig, "orders", "1 2 3 4 ");

    rig_clear(rig);
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_POLICY_VIOLATION);
    rig_add(rig, "orders", "k", "5")->retry_count = 1;
    rig_add(rig, "orders", "k", "6");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_REFUSED);
    assert_verdict_of(&rig->batch.events[1], VERDICT_LEFT);
    assert_log(rig, "orders", "1 2 3 4 ");
}

static void test_fatal_error_costs_nothing_and_the_next_batch_flows(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER);
    rig_add(rig, "orders", "k", "2");
    rig_add(rig, "orders", "k", "3");
    assert_int_equal(rig_publish(rig, 10000), SETTLED_WORLD); /* nothing came through: do not spin */
    assert_verdict_of(&rig->batch.events[0], VERDICT_LEFT);
    assert_verdict_of(&rig->batch.events[1], VERDICT_LEFT);
    rig_clear(rig);
    rig_add(rig, "orders", "k", "2");
    rig_add(rig, "orders", "k", "3");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 2);
    assert_log(rig, "orders", "1 2 3 ");
}

static void test_world_away_at_start(void **state)
{
    struct rig *rig = *state;

    rd_kafka_mock_broker_set_down(rig->cluster, -1);
    rig_add(rig, "orders", "k", "1");
    int64_t start = clock_ms();
    assert_int_equal(rig_publish(rig, 30000), SETTLED_WORLD);
    assert_true(clock_ms() - start < 10000);
    assert_verdict_of(&rig->batch.events[0], VERDICT_LEFT);
    assert_true(rig->err.message[0]);
    assert_non_null(publisher_away(rig->publisher));
    assert_int_equal(publisher_ping(rig->publisher, 500, &rig->err), RETRY);

    rd_kafka_mock_broker_set_up(rig->cluster, -1);
    enum result result = RETRY;
    for (int i = 0; i < 20 && result != OK; i++)
        result = publisher_ping(rig->publisher, 500, &rig->err);
    assert_int_equal(result, OK);
    assert_null(publisher_away(rig->publisher));
    rig_clear(rig);
    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 1);
}

/* No Write right anywhere: the broker gives no producer id, which is fatal to the handle at once. Pings must not call
 * that well, although metadata is answered. */
static void test_forbidden_producer_is_the_world(void **state)
{
    struct rig *rig = *state;
    rd_kafka_resp_err_t errors[100];
    enum result result = RETRY;

    for (size_t i = 0; i < ARRAY_LEN(errors); i++)
        errors[i] = RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    rd_kafka_mock_push_request_errors_array(rig->cluster, INIT_PRODUCER_ID, ARRAY_LEN(errors), errors);
    rig_publisher(rig);
    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED_WORLD);
    assert_verdict_of(&rig->batch.events[0], VERDICT_LEFT);
    assert_non_null(strstr(rig->err.message, "not allowed"));
    for (int64_t until = clock_ms() + 2000; clock_ms() < until; usleep(50000))
        assert_int_equal(publisher_ping(rig->publisher, 1000, &rig->err), RETRY);

    rd_kafka_mock_clear_request_errors(rig->cluster, INIT_PRODUCER_ID);
    for (int64_t until = clock_ms() + 15000; clock_ms() < until && result != OK; usleep(50000))
        result = publisher_ping(rig->publisher, 1000, &rig->err);
    assert_int_equal(result, OK);
    rig_clear(rig);
    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 1);
}

static void test_world_goes_away_under_way(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rd_kafka_mock_broker_set_down(rig->cluster, -1);
    rig_add(rig, "orders", "k", "2");
    int64_t start = clock_ms();
    assert_int_equal(rig_publish(rig, 30000), SETTLED_WORLD);
    assert_true(clock_ms() - start < 10000);
    assert_verdict_of(&rig->batch.events[0], VERDICT_LEFT);
}

static void test_no_acknowledgement_in_time_parks_when_the_cluster_answers(void **state)
{
    struct rig *rig = *state;
    rd_kafka_resp_err_t errors[200];

    rig_add(rig, "orders", "k", "1");
    rig_add(rig, "other", "k", "2");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    for (size_t i = 0; i < ARRAY_LEN(errors); i++)
        errors[i] = RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    rd_kafka_mock_push_request_errors_array(rig->cluster, PRODUCE, ARRAY_LEN(errors), errors);
    rig_add(rig, "orders", "k", "3");
    int64_t start = clock_ms();
    assert_int_equal(rig_publish(rig, 1500), SETTLED);
    assert_true(clock_ms() - start < 6000);
    assert_verdict_of(&rig->batch.events[0], VERDICT_PARK);
    assert_non_null(strstr(rig->batch.events[0].reason, "in time"));

    rd_kafka_mock_clear_request_errors(rig->cluster, PRODUCE);
    rig_clear(rig);
    rig_add(rig, "orders", "k", "3")->probe = true;
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_log(rig, "orders", "1 3 ");
}

static bool always_gone(void *arg)
{
    *(int *)arg += 1;
    return true;
}

/* A broker that hangs closes no connection, so nobody says that it is away: only the silence after the deadline does. */
static void test_a_broker_that_hangs_is_the_world(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 20000);
    rig_add(rig, "orders", "k", "2");
    assert_int_equal(rig_publish(rig, 1000), SETTLED_WORLD);
    assert_verdict_of(&rig->batch.events[0], VERDICT_LEFT);
    assert_non_null(strstr(rig->err.message, "no broker answers"));
    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 0);
}

static void test_gone_stops_publishing(void **state)
{
    struct rig *rig = *state;
    int fds[2], asked = 0;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 3000);
    rig_add(rig, "orders", "k", "2");
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    struct publisher_watch watch = {.fd = fds[0], .gone = always_gone, .arg = &asked};
    int64_t start = clock_ms(), deadline = start + 20000;
    publisher_send(rig->publisher, &rig->batch, deadline);
    assert_int_equal(publisher_settle(rig->publisher, &rig->batch, deadline, &watch, &rig->err), SETTLED_GONE);
    assert_true(clock_ms() - start < 3000);
    assert_int_equal(asked, 1);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 0);
    close(fds[0]);
    close(fds[1]);
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

#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

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
        RIG_TEST(test_isolation_finds_the_culprit),
        RIG_TEST(test_too_large_a_batch_goes_in_parts),
        RIG_TEST(test_a_refusal_stays_in_its_partition),
        RIG_TEST(test_a_full_queue_ends_the_round),
        RIG_TEST(test_a_refusal_that_kills_lets_followers_pass),
        RIG_TEST(test_retry_goes_alone_and_its_followers_wait_for_it),
        RIG_TEST(test_fatal_error_costs_nothing_and_the_next_batch_flows),
        RIG_TEST(test_world_away_at_start),
        RIG_TEST(test_forbidden_producer_is_the_world),
        RIG_TEST(test_world_goes_away_under_way),
        RIG_TEST(test_no_acknowledgement_in_time_parks_when_the_cluster_answers),
        RIG_TEST(test_a_broker_that_hangs_is_the_world),
        RIG_TEST(test_gone_stops_publishing),
        RIG_TEST(test_routed_event_needs_all_topics),
        RIG_TEST(test_copies_for_the_dead_topic),
        RIG_TEST(test_unknown_property_is_named),
    };
    return RUN_TESTS(tests);
}
