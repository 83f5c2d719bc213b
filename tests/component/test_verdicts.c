/* Every error code of the librdkafka in use has a decision, and the decisions are the ones that the promises need. */
#include "unit.h"

#include <librdkafka/rdkafka.h>

#include "verdicts.h"

static void test_every_code_is_decided(void **state)
{
    const struct rd_kafka_err_desc *descs;
    size_t n, undecided = 0;

    (void)state;
    rd_kafka_get_err_descs(&descs, &n);
    for (size_t i = 0; i < n; i++) {
        if (!descs[i].desc || ruling_listed(descs[i].code))
            continue;
        print_error("no ruling for %s (%d): %s\n", descs[i].name, (int)descs[i].code, descs[i].desc);
        undecided++;
    }
    assert_int_equal(undecided, 0);
}

static void test_no_code_is_decided_twice(void **state)
{
    static const int codes[] = {
#define RULING(code, fault, why) code,
#include "verdicts.def"
#undef RULING
    };
    size_t n = sizeof(codes) / sizeof(codes[0]);

    (void)state;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            if (codes[i] == codes[j])
                fail_msg("code %d has two rulings", codes[i]);
}

static void assert_verdict(int code, enum verdict in_group, enum verdict alone)
{
    assert_string_equal(verdict_name(ruling_verdict(ruling_state(code, false), code)), verdict_name(in_group));
    assert_string_equal(verdict_name(ruling_verdict(ruling_state(code, true), code)), verdict_name(alone));
}

/* Tried again in a group, an attempt counted when alone. */
static void assert_suspects(int code)
{
    assert_int_equal(ruling_state(code, false), MESSAGE_SUSPECT);
    assert_verdict(code, VERDICT_LEFT, VERDICT_REFUSED);
}

static void test_decisions(void **state)
{
    (void)state;
    assert_verdict(0, VERDICT_SENT, VERDICT_SENT);
    assert_suspects(RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
    assert_suspects(RD_KAFKA_RESP_ERR_INVALID_RECORD);
    assert_verdict(RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP, VERDICT_PARK, VERDICT_PARK); /* our clock, not the event */
    assert_suspects(RD_KAFKA_RESP_ERR_POLICY_VIOLATION);
    assert_verdict(RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, VERDICT_PARK, VERDICT_PARK);
    assert_verdict(RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, VERDICT_PARK, VERDICT_PARK);
    assert_verdict(RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__PURGE_QUEUE, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__PURGE_INFLIGHT, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__MSG_TIMED_OUT, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__TRANSPORT, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__AUTHENTICATION, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__FATAL, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR__QUEUE_FULL, VERDICT_LEFT, VERDICT_LEFT);
    assert_verdict(RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, VERDICT_PARK, VERDICT_PARK);
    assert_verdict(RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, VERDICT_PARK, VERDICT_PARK);
}

static bool is_one_of(int code, const int *codes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (codes[i] == code)
            return true;
    return false;
}

/* Every code of a fault, and no other one: an event pays for these, a topic is parked for those; for the rest nobody pays. */
static void assert_codes_of(enum fault fault, const int *codes, size_t n)
{
    const struct rd_kafka_err_desc *descs;
    size_t count;

    rd_kafka_get_err_descs(&descs, &count);
    for (size_t i = 0; i < count; i++)
        if (descs[i].desc && (ruling_of(descs[i].code)->fault == fault) != is_one_of(descs[i].code, codes, n))
            fail_msg("%s (%d) is%s listed here", descs[i].name, (int)descs[i].code,
                     is_one_of(descs[i].code, codes, n) ? "" : " not");
}

static void test_who_pays(void **state)
{
    static const int events[] = {
        RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
        RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE,
        RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE,
        RD_KAFKA_RESP_ERR_INVALID_MSG,
        RD_KAFKA_RESP_ERR_INVALID_RECORD,
        RD_KAFKA_RESP_ERR_POLICY_VIOLATION,
        -138, /* _INVALID_DIFFERENT_RECORD */
    };
    static const int topics[] = {
        RD_KAFKA_RESP_ERR_UNKNOWN,
        RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC,
        RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION,
        RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_PREFERRED_LEADER_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_ELIGIBLE_LEADERS_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH,
        RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH,
        RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION,
        RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        RD_KAFKA_RESP_ERR__ISR_INSUFF,
        RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        RD_KAFKA_RESP_ERR_LOG_DIR_NOT_FOUND,
        RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT,
        RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE,
        RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP,
        100, /* UNKNOWN_TOPIC_ID */
        103, /* INCONSISTENT_TOPIC_ID */
    };

    (void)state;
    assert_codes_of(FAULT_EVENT, events, sizeof(events) / sizeof(events[0]));
    assert_codes_of(FAULT_TOPIC, topics, sizeof(topics) / sizeof(topics[0]));
}

/* Only codes of FAULT_EVENT may cost an attempt. */
static void test_unlisted_code_is_safe(void **state)
{
    (void)state;
    assert_false(ruling_listed(31999));
    assert_verdict(31999, VERDICT_LEFT, VERDICT_LEFT);
    assert_int_equal(ruling_of(31999)->fault, FAULT_WORLD);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_is_decided),
        cmocka_unit_test(test_no_code_is_decided_twice),
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_who_pays),
        cmocka_unit_test(test_unlisted_code_is_safe),
    };
    return RUN_TESTS(tests);
}
