#include "unit.h"

#include <stdlib.h>

#include "error.h"
#include "str.h"

static void buffers_grow(void **state)
{
    struct strbuf buf = {0};

    (void)state;
    for (int i = 0; i < 1000; i++)
        strbuf_addf(&buf, "%d,", i);
    assert_int_equal(buf.len, strlen(buf.data));
    assert_int_equal(buf.len, 10 * 2 + 90 * 3 + 900 * 4);
    strbuf_clear(&buf);
    assert_string_equal(buf.data, "");
    char *big = str_format("%5000d", 7);
    strbuf_addf(&buf, "%s", big);
    assert_int_equal(buf.len, 5000);
    free(big);
    strbuf_done(&buf);
}

static void json_strings(void **state)
{
    struct strbuf buf = {0};

    (void)state;
    strbuf_add_json(&buf, "a\"b\\c\nd\x01\xc3\xa4\xff\xed\xa0\x80");
    assert_string_equal(buf.data, "\"a\\\"b\\\\c\\nd\\u0001\xc3\xa4\\ufffd\\ufffd\\ufffd\\ufffd\"");
    strbuf_done(&buf);
}

static void utf8(void **state)
{
    (void)state;
    assert_int_equal(str_utf8_len("a"), 1);
    assert_int_equal(str_utf8_len("\xc3\xa4"), 2);
    assert_int_equal(str_utf8_len("\xe2\x82\xac"), 3);
    assert_int_equal(str_utf8_len("\xf0\x9f\x98\x80"), 4);
    assert_int_equal(str_utf8_len("\xc0\x80"), 0);         /* overlong */
    assert_int_equal(str_utf8_len("\xe0\x80\x80"), 0);     /* overlong */
    assert_int_equal(str_utf8_len("\xed\xa0\x80"), 0);     /* surrogate */
    assert_int_equal(str_utf8_len("\xf4\x90\x80\x80"), 0); /* beyond the last */
    assert_int_equal(str_utf8_len("\xc3"), 0);             /* cut off */
    assert_int_equal(str_utf8_len("\x80"), 0);
}

static void clean(void **state)
{
    static const char *const cases[][2] = {{"abc", "ab"},
                                           {"\xc3\xa4\xc3\xa4\xc3", "\xc3\xa4\xc3\xa4"},
                                           {"\xff\xe2\x82\xac", "?\xe2\x82\xac"},
                                           {"\xe2\x82", "??"},
                                           {"", ""}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_(str_free) char *text = str_clean(cases[i][0], 2);
        assert_string_equal(text, cases[i][1]);
    }
}

static void printable(void **state)
{
    static const char *const shown[] = {" ", "~", "ä", "\xc2\xa0", "…", "\xf0\x9f\x90\x98"};
    static const char *const obeyed[] = {"", "\x1b[2J", "\n", "\x7f", "\xc2\x9bJ", "\xc2\x80", "\x9b", "\xff", "\xc2"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shown); i++)
        assert_true(str_is_printable(shown[i]));
    for (size_t i = 0; i < ARRAY_LEN(obeyed); i++)
        assert_false(str_is_printable(obeyed[i]));
}

static void numbers(void **state)
{
    static const struct {
        int64_t number;
        const char *text;
    } cases[] = {{0, "0"},
                 {7, "7"},
                 {-1, "-1"},
                 {1234567890123, "1234567890123"},
                 {INT64_MAX, "9223372036854775807"},
                 {INT64_MIN, "-9223372036854775808"}};
    char text[24];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf buf = {0};
        strbuf_add_int(&buf, cases[i].number);
        assert_string_equal(buf.data, cases[i].text);
        strbuf_done(&buf);
    }
    *str_digits(text, 42, 6) = '\0';
    assert_string_equal(text, "000042");
    *str_digits(text, 0, 2) = '\0';
    assert_string_equal(text, "00");
    *str_digits(text, UINT64_MAX, 1) = '\0';
    assert_string_equal(text, "18446744073709551615");
}

static void distances(void **state)
{
    (void)state;
    assert_int_equal(str_distance("", ""), 0);
    assert_int_equal(str_distance("abc", ""), 3);
    assert_int_equal(str_distance("", "abc"), 3);
    assert_int_equal(str_distance("kitten", "sitting"), 3);
    assert_int_equal(str_distance("migrate", "migrat"), 1);
}

static void errors(void **state)
{
    struct error err = {0};

    (void)state;
    assert_int_equal(error_retry(&err, "connection lost"), RETRY);
    error_hint(&err, "wait");
    assert_int_equal(error_fatal(&err, "claim: %s", err.message), FATAL);
    assert_string_equal(err.message, "claim: connection lost");
    assert_string_equal(err.hint, "");
    assert_int_equal(error_reject(NULL, "nobody listens"), REJECT);
    error_clear(&err);
    assert_string_equal(err.message, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_grow), cmocka_unit_test(json_strings), cmocka_unit_test(utf8),
        cmocka_unit_test(clean),        cmocka_unit_test(numbers),      cmocka_unit_test(distances),
        cmocka_unit_test(errors),       cmocka_unit_test(printable),
    };
    return RUN_TESTS(tests);
}
