/* The publisher when record batches are refused: errors are put into the answers of librdkafka's in-memory cluster. */
#include "kafka_rig.h"

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

/* Until the death is committed the row may be tried again, and be taken then. */
static void test_a_refusal_that_kills_lets_followers_pass_in_the_next_batch(void **state)
{
    struct rig *rig = *state;
    static const rd_kafka_resp_err_t bad = RD_KAFKA_RESP_ERR_INVALID_RECORD;

    rig_add(rig, "orders", "k0", "1")->max_retries = 0;
    rig_add(rig, "orders", "k0", "2");
    rd_kafka_mock_push_request_errors(rig->cluster, PRODUCE, 2, bad, bad);
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
    assert_verdict_of(&rig->batch.events[0], VERDICT_REFUSED);
    assert_true(event_dies(&rig->batch.events[0]));
    assert_verdict_of(&rig->batch.events[1], VERDICT_LEFT);
    rig_clear(rig);
    rig_add(rig, "orders", "k0", "2");
    assert_int_equal(rig_publish(rig, 20000), SETTLED);
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

int main(void)
{
    static const struct CMUnitTest tests[] = {
        RIG_TEST(test_isolation_finds_the_culprit),
        RIG_TEST(test_too_large_a_batch_goes_in_parts),
        RIG_TEST(test_a_refusal_stays_in_its_partition),
        RIG_TEST(test_a_full_queue_ends_the_round),
        RIG_TEST(test_a_refusal_that_kills_lets_followers_pass_in_the_next_batch),
        RIG_TEST(test_retry_goes_alone_and_its_followers_wait_for_it),
    };
    return RUN_TESTS(tests);
}
