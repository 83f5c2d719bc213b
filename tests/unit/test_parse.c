#include "unit.h"

#include "parse.h"

#define UNTOUCHED (-77)

static void check(bool (*parse)(const char *, int64_t *), const char *text, int64_t expected)
{
    int64_t value = UNTOUCHED;
    assert_true(parse(text, &value));
    assert_int_equal(value, expected);
}

static void check_bad(bool (*parse)(const char *, int64_t *), const char *text)
{
    int64_t value = UNTOUCHED;
    if (parse(text, &value))
        fail_msg("\"%s\" was taken as %lld", text, (long long)value);
    assert_int_equal(value, UNTOUCHED);
}

static void ints(void **state)
{
    static const char *const bad[] = {
        "",    " 1", "1 ", "+1", "--1", "1.0", "0x10", "1e3", "9223372036854775808", "-9223372036854775809",
        "1\n", "-",  "٣"};
    (void)state;
    check(parse_int, "0", 0);
    check(parse_int, "-5", -5);
    check(parse_int, "007", 7);
    check(parse_int, "9223372036854775807", INT64_MAX);
    check(parse_int, "-9223372036854775808", INT64_MIN);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        check_bad(parse_int, bad[i]);
}

static void durations(void **state)
{
    static const char *const bad[] = {
        "",    "5", "5 s", "s", "-1s", "1.5s", "5min", "5S", "1h30m", "106751991168d", "9999999999999999999ms",
        "5s ", "ms"};
    (void)state;
    check(parse_duration, "0", 0);
    check(parse_duration, "0s", 0);
    check(parse_duration, "500ms", 500);
    check(parse_duration, "10s", 10000);
    check(parse_duration, "5m", 300000);
    check(parse_duration, "24h", 86400000);
    check(parse_duration, "7d", 604800000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        check_bad(parse_duration, bad[i]);
}

static void sizes(void **state)
{
    static const char *const bad[] = {"", "8MB", "8M", "8mib", "-1", "1.5MiB", "8589934592GiB", "8 MiB", "MiB"};

    (void)state;
    check(parse_size, "123", 123);
    check(parse_size, "8KiB", 8192);
    check(parse_size, "8MiB", 8388608);
    check(parse_size, "1GiB", 1073741824);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        check_bad(parse_size, bad[i]);
}

static void switches(void **state)
{
    bool value = false;

    (void)state;
    assert_true(parse_bool("on", &value) && value);
    assert_true(parse_bool("off", &value) && !value);
    assert_false(parse_bool("ON", &value) || parse_bool("true", &value) || parse_bool("1", &value) ||
                 parse_bool("", &value));
}

static void formats_read_back(void **state)
{
    static const int64_t values[] = {0, 1, 999, 1000, 90000, 300000, 3600000, 86400000, 604800000, 1024, 1536, 8388608};
    char text[32];
    int64_t back;

    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        format_duration(values[i], text);
        assert_true(parse_duration(text, &back));
        assert_int_equal(back, values[i]);
        format_size(values[i], text);
        assert_true(parse_size(text, &back));
        assert_int_equal(back, values[i]);
    }
    format_duration(90000, text);
    assert_string_equal(text, "90s");
    format_duration(300000, text);
    assert_string_equal(text, "5m");
    format_size(8388608, text);
    assert_string_equal(text, "8MiB");
    format_size(1000, text);
    assert_string_equal(text, "1000");
}

static void ages(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } known[] = {{0, "0.0 s"},        {9.94, "9.9 s"},      {59, "59 s"},       {61, "1 m 1 s"},
                 {3599, "59 m 59 s"}, {86399, "23 h 59 m"}, {90000, "1 d 1 h"}, {864000, "10 d 0 h"}};
    char text[32];

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        format_age(known[i].seconds, text);
        assert_string_equal(text, known[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ints),     cmocka_unit_test(durations),         cmocka_unit_test(sizes),
        cmocka_unit_test(switches), cmocka_unit_test(formats_read_back), cmocka_unit_test(ages),
    };
    return RUN_TESTS(tests);
}
