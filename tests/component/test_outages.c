/* The publisher when the world goes away: brokers of librdkafka's in-memory cluster are down, hang, forbid or do not answer. */
#include "kafka_rig.h"

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

static bool always_gone(void *arg)
{
    *(int *)arg += 1;
    return true;
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
    assert_true(publisher_send(rig->publisher, &rig->batch, deadline, NULL));
    assert_int_equal(publisher_settle(rig->publisher, &rig->batch, deadline, &watch, &rig->err), SETTLED_GONE);
    assert_true(clock_ms() - start < 3000);
    assert_int_equal(asked, 1);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 0);
    close(fds[0]);
    close(fds[1]);
}

/* Who has lost the lanes begins nothing: neither a batch nor its next round. */
static void test_gone_before_a_round(void **state)
{
    struct rig *rig = *state;
    int fds[2], asked = 0;

    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    struct publisher_watch watch = {.fd = fds[0], .gone = always_gone, .arg = &asked};
    int64_t deadline = clock_ms() + 10000;
    rig_add(rig, "orders", "k", "1");
    rig_add(rig, "orders", "k", "2")->retry_count = 1; /* goes alone, after the first */
    assert_false(publisher_send(rig->publisher, &rig->batch, deadline, &watch));
    assert_log(rig, "orders", "");
    rig_clear(rig);
    rig_add(rig, "orders", "k", "1");
    rig_add(rig, "orders", "k", "2")->retry_count = 1;
    assert_true(publisher_send(rig->publisher, &rig->batch, deadline, NULL));
    assert_int_equal(publisher_settle(rig->publisher, &rig->batch, deadline, &watch, &rig->err), SETTLED_GONE);
    assert_log(rig, "orders", "1 ");
    close(fds[0]);
    close(fds[1]);
}

/* The world ends the batch, and what was acknowledged before is marked all the same. */
static void test_what_was_acknowledged_before_the_world_went_is_sent(void **state)
{
    struct rig *rig = *state;

    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 2, RD_KAFKA_RESP_ERR_NO_ERROR,
                                      RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED);
    rig_add(rig, "orders", "k", "1");
    rig_add(rig, "orders", "k", "2")->retry_count = 1; /* goes alone, after the first */
    rig_add(rig, "orders", "k", "3");
    assert_int_equal(rig_publish(rig, 10000), SETTLED_WORLD);
    assert_verdict_of(&rig->batch.events[0], VERDICT_SENT);
    assert_verdict_of(&rig->batch.events[1], VERDICT_LEFT);
    assert_verdict_of(&rig->batch.events[2], VERDICT_LEFT);
    assert_log(rig, "orders", "1 ");
}

/* Called while a round is out: as soon as the first message had its time to be acknowledged, the cluster falls silent. */
static bool goes_silent(void *arg)
{
    struct rig *rig = arg;

    if (clock_ms() >= rig->silent_at)
        rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 20000);
    return false;
}

/* Another topic of the batch was acknowledged, so it is not the world, also when no broker answers the question. */
static void test_no_acknowledgement_in_time_parks_when_another_topic_has_one(void **state)
{
    struct rig *rig = *state;
    rd_kafka_resp_err_t errors[200];
    int fds[2];

    rig_add(rig, "orders", "k", "1");
    rig_add(rig, "other", "k", "2");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    errors[0] = RD_KAFKA_RESP_ERR_NO_ERROR; /* one of the two requests; which is not promised */
    for (size_t i = 1; i < ARRAY_LEN(errors); i++)
        errors[i] = RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    rd_kafka_mock_push_request_errors_array(rig->cluster, PRODUCE, ARRAY_LEN(errors), errors);
    rig_add(rig, "orders", "k", "3");
    rig_add(rig, "other", "k", "4");
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    rig->silent_at = clock_ms() + 1000;
    struct publisher_watch watch = {.fd = fds[0], .gone = goes_silent, .arg = rig};
    int64_t deadline = clock_ms() + 2000;
    assert_true(publisher_send(rig->publisher, &rig->batch, deadline, NULL));
    assert_int_equal(publisher_settle(rig->publisher, &rig->batch, deadline, &watch, &rig->err), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 1);
    assert_int_equal(count_verdict(rig, VERDICT_PARK), 1);
    close(fds[0]);
    close(fds[1]);
    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        RIG_TEST(test_fatal_error_costs_nothing_and_the_next_batch_flows),
        RIG_TEST(test_world_away_at_start),
        RIG_TEST(test_forbidden_producer_is_the_world),
        RIG_TEST(test_world_goes_away_under_way),
        RIG_TEST(test_no_acknowledgement_in_time_parks_when_the_cluster_answers),
        RIG_TEST(test_a_broker_that_hangs_is_the_world),
        RIG_TEST(test_what_was_acknowledged_before_the_world_went_is_sent),
        RIG_TEST(test_no_acknowledgement_in_time_parks_when_another_topic_has_one),
        RIG_TEST(test_gone_stops_publishing),
        RIG_TEST(test_gone_before_a_round),
    };
    return RUN_TESTS(tests);
}
