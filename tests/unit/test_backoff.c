#include "unit.h"

#include "backoff.h"
#include "clock.h"

static void between_half_and_all(void **state)
{
    (void)state;
    for (unsigned tries = 0; tries < 40; tries++) {
        int64_t full = tries < 20 ? (int64_t)100 << tries : INT64_MAX;
        if (full > 5000)
            full = 5000;
        for (int i = 0; i < 200; i++) {
            int64_t delay = backoff_delay(100, 5000, tries);
            assert_in_range(delay, full / 2, full);
        }
    }
}

static void differs(void **state)
{
    int64_t first = backoff_delay(1000000, 1000000, 0);
    int same = 0;

    (void)state;
    for (int i = 0; i < 100; i++)
        same += backoff_delay(1000000, 1000000, 0) == first;
    assert_true(same < 10);
}

static void edges(void **state)
{
    (void)state;
    assert_int_equal(backoff_delay(0, 0, 3), 0);
    assert_int_equal(backoff_delay(1, 1, 3), 1);
    assert_in_range(backoff_delay(1000, 10, 0), 5, 10);
    assert_true(backoff_delay(1, INT64_MAX, 1000) > INT64_MAX / 4);
    assert_true(backoff_delay(1000, 300000, UINT32_MAX) <= 300000);
}

static void counts_and_resets(void **state)
{
    struct backoff backoff = {.base_ms = 100, .cap_ms = 5000};

    (void)state;
    assert_in_range(backoff_next(&backoff), 50, 100);
    assert_in_range(backoff_next(&backoff), 100, 200);
    assert_int_equal(backoff.tries, 2);
    backoff_reset(&backoff);
    assert_in_range(backoff_next(&backoff), 50, 100);
}

static void deadlines(void **state)
{
    (void)state;
    assert_int_equal(clock_left_ms(clock_ms() - 5), 0);
    assert_int_equal(clock_left_ms(INT64_MIN), 0);
    assert_in_range(clock_left_ms(clock_ms() + 5000), 4000, 5000);
    assert_int_equal(clock_left_ms(MS_FOREVER), INT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(between_half_and_all), cmocka_unit_test(differs),   cmocka_unit_test(edges),
        cmocka_unit_test(counts_and_resets),    cmocka_unit_test(deadlines),
    };
    return RUN_TESTS(tests);
}
