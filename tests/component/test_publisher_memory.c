/* What a publisher holds and hands on: bytes that are not there, long lists, copies. */
#include "kafka_rig.h"

static void test_no_copy_of_a_row_that_was_not_fetched(void **state)
{
    struct rig *rig = *state;

    rig_config(rig, (const char *const[]){"OUTBOX_DEAD_TOPIC=graves", NULL});
    rig_publisher(rig);
    rig_add(rig, "orders", "k", "1")->payload = (struct slice){NULL, 0};
    rig_add(rig, "orders", "k", "2");
    for (int i = 0; i < 2; i++)
        event_judge(&rig->batch.events[i], VERDICT_DEAD, "larger than a message may be");
    struct event *dead[] = {&rig->batch.events[0], &rig->batch.events[1]};
    assert_int_equal(publisher_bury(rig->publisher, dead, 2, clock_ms() + 10000), 1);
    assert_log(rig, "graves", "2 ");
}

#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        RIG_TEST(test_no_copy_of_a_row_that_was_not_fetched),
    };
    return RUN_TESTS(tests);
}
