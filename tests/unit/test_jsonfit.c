#include "unit.h"

#include <string.h>

#include "jsonfit.h"

static bool fits(const char *text)
{
    return json_fits(text, strlen(text));
}

static void test_takes_json(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}",
        "[]",
        "null",
        "true",
        " false ",
        "0",
        "-0",
        "12.5e-3",
        "1E+5",
        "\"\"",
        "\"a\\n\\u00e4\\ud83d\\ude00\"",
        "{\"a\":[1,{\"b\":null},[]],\"c\":\"\\\\u0000\"}",
        "[1 , 2\n]",
        "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"",
        "{\"a\" : {\"b\" : {} } , \"c\" : [ [ ] ]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (!fits(good[i]))
            fail_msg("refused: %s", good[i]);
}

static void test_refuses_what_jsonb_refuses(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "-",
        "nul",
        "nulls",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"a\nb\"",
        "1 2",
        "[1}",
        "{\"a\":1]",
        "NaN",
        "'a'",
        "[1 2]",
        "{\"a\":1 \"b\":2}",
        "\"\\u0000\"",
        "{\"a\":\"x\\u0000y\"}",
        "{\"\\u0000\":1}",
        "\"\\ud800\"",
        "\"\\ud800x\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\xc3\"",
        "\"\xff\"",
        "\"\xed\xa0\x80\"",
        "\"\xc0\x80\"",
        "1e1000000",
        "1e99999999999999999999",
        "\xef\xbb\xbf{}",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (fits(bad[i]))
            fail_msg("taken: %s", bad[i]);
    assert_false(json_fits("\"a\0b\"", 5));
    assert_false(json_fits("{}\0", 3));
    assert_false(json_fits("\"\xe2\x82\xac\"", 3)); /* cut inside a character */
}

static void test_depth_is_bounded(void **state)
{
    (void)state;
    struct strbuf text = {0};
    for (int i = 0; i < 100000; i++)
        strbuf_add(&text, "[");
    assert_false(json_fits(text.data, text.len));
    strbuf_clear(&text);
    for (int i = 0; i < 400; i++)
        strbuf_add(&text, "[");
    for (int i = 0; i < 400; i++)
        strbuf_add(&text, "]");
    assert_true(json_fits(text.data, text.len));
    strbuf_done(&text);
}

static void check_fit(const char *text, size_t len, const char *expected)
{
    struct strbuf buf = {0};
    json_fit(&buf, text, len);
    assert_string_equal(buf.data, expected);
    strbuf_done(&buf);
}

static void test_stands_in(void **state)
{
    (void)state;
    check_fit("{\"a\": 1}", 8, "{\"a\": 1}");
    check_fit("hello \"you\"\n", 12, "\"hello \\u0022you\\u0022\\u000a\"");
    check_fit("\"\\u0000\"", 8, "\"\\u0022\\u005cu0000\\u0022\"");
    check_fit("", 0, "\"\"");
    check_fit("\x00\x01", 2, "{\"base64\":\"AAE=\"}");
    check_fit("\xff", 1, "{\"base64\":\"/w==\"}");
    check_fit("\xff\xfe\xfd", 3, "{\"base64\":\"//79\"}");
    assert_true(utf8_fits("\xe2\x82\xac", 3));
    assert_false(utf8_fits("\xe2\x82\xac", 2));
    assert_false(utf8_fits("a\0", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_json),
        cmocka_unit_test(test_refuses_what_jsonb_refuses),
        cmocka_unit_test(test_depth_is_bounded),
        cmocka_unit_test(test_stands_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
