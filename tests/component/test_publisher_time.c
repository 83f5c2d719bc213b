/* How long a batch may take, and who waits for whom: the publisher against librdkafka's in-memory cluster. */
#include "kafka_rig.h"

/* Every produce request is answered with this until rig_heal. */
static void rig_break(struct rig *rig, rd_kafka_resp_err_t error)
{
    rd_kafka_resp_err_t errors[400];

    for (size_t i = 0; i < ARRAY_LEN(errors); i++)
        errors[i] = error;
    rd_kafka_mock_push_request_errors_array(rig->cluster, PRODUCE, ARRAY_LEN(errors), errors);
}

static void rig_heal(struct rig *rig)
{
    rd_kafka_mock_clear_request_errors(rig->cluster, PRODUCE);
}

/* NOT_ENOUGH_REPLICAS gives no report: librdkafka tries on and on. */
static void test_a_silent_probe_holds_nobody_up(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rig_break(rig, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
    rig_add(rig, "orders", "k", "2")->probe = true;
    int64_t start = clock_ms();
    assert_int_equal(rig_publish(rig, 30000), SETTLED);
    assert_in_range(clock_ms() - start, 1900, 5000);
    assert_verdict_of(&rig->batch.events[0], VERDICT_PARK);
    assert_string_equal(rig->batch.events[0].blame, "orders");
    assert_non_null(strstr(rig->batch.events[0].reason, "no acknowledgement in time"));

    rig_heal(rig);
    rig_clear(rig);
    rig_add(rig, "orders", "k", "2")->probe = true;
    rig_add(rig, "orders", "k", "3");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_int_equal(count_verdict(rig, VERDICT_SENT), 2);
    assert_log(rig, "orders", "1 2 3 ");
}

static void test_an_ordinary_batch_gets_all_its_time(void **state)
{
    struct rig *rig = *state;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rig_break(rig, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
    rig_add(rig, "orders", "k", "2");
    int64_t start = clock_ms();
    assert_int_equal(rig_publish(rig, 4000), SETTLED);
    assert_in_range(clock_ms() - start, 4000, 8000);
    assert_verdict_of(&rig->batch.events[0], VERDICT_PARK);
}

/* Not fatal to librdkafka, but its ids are of no more use: the same handle would get this answer again and again. */
static void test_a_report_that_is_the_producers_fault_replaces_it(void **state)
{
    struct rig *rig = *state;
    struct metrics *metrics = metrics_new();

    publisher_free(rig->publisher);
    assert_int_equal(publisher_new(&rig->config, metrics, &rig->publisher, &rig->err), OK);
    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rig_clear(rig);
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_INVALID_TXN_STATE);
    rig_add(rig, "orders", "k", "2");
    assert_int_equal(rig_publish(rig, 10000), SETTLED_WORLD); /* nothing came through: do not spin */
    assert_verdict_of(&rig->batch.events[0], VERDICT_LEFT);
    assert_non_null(strstr(rig->err.message, "producer failed"));
    assert_int_equal((int)metrics_sum(M_PRODUCER_REBUILDS), 1);
    rig_clear(rig);
    rig_add(rig, "orders", "k", "2");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    assert_log(rig, "orders", "1 2 ");
    publisher_free(rig->publisher);
    rig->publisher = NULL;
    metrics_free_all();
}

/* An answer that comes late is not asked for again and again with as little time. */
static void test_slow_metadata_is_waited_for(void **state)
{
    struct rig *rig = *state;

    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 800);
    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_SENT);
    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 0);
}

/* Each of forty topics is asked for, and each answer takes a while: no outage, and what is ready goes. */
static void test_many_slow_topics_go_in_parts(void **state)
{
    struct rig *rig = *state;
    static char names[40][16];
    size_t sent = 0;

    rig_add(rig, "orders", "k", "1");
    assert_int_equal(rig_publish(rig, 10000), SETTLED);
    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 200);
    for (int batch = 0; batch < 5 && sent < ARRAY_LEN(names); batch++) {
        rig_clear(rig);
        for (size_t i = sent; i < ARRAY_LEN(names); i++) {
            snprintf(names[i], sizeof(names[i]), "topic-%zu", i);
            rig_add(rig, names[i], "k", names[i]);
        }
        assert_int_equal(rig_publish(rig, 6000), SETTLED);
        size_t n = count_verdict(rig, VERDICT_SENT);
        assert_true(n > 0);
        assert_int_equal(n + count_verdict(rig, VERDICT_LEFT), rig->batch.n);
        for (size_t i = 0; i < n; i++) /* the first ones */
            assert_verdict_of(&rig->batch.events[i], VERDICT_SENT);
        sent += n;
    }
    assert_int_equal(sent, ARRAY_LEN(names));
    rd_kafka_mock_broker_set_rtt(rig->cluster, -1, 0);
}

#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        RIG_TEST(test_a_silent_probe_holds_nobody_up),
        RIG_TEST(test_an_ordinary_batch_gets_all_its_time),
        RIG_TEST(test_slow_metadata_is_waited_for),
        RIG_TEST(test_many_slow_topics_go_in_parts),
        RIG_TEST(test_a_report_that_is_the_producers_fault_replaces_it),
    };
    return RUN_TESTS(tests);
}
