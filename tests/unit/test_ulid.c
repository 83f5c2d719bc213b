#include "unit.h"

#include "clock.h"
#include "ulid.h"

static void encodes(void **state)
{
    unsigned char bytes[16];
    char text[27];

    (void)state;
    memset(bytes, 0, sizeof(bytes));
    ulid_encode(text, bytes);
    assert_string_equal(text, "00000000000000000000000000");
    memset(bytes, 0xff, sizeof(bytes));
    ulid_encode(text, bytes);
    assert_string_equal(text, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ");
    /* The time of the specification's example: 1469918176385 is 01ARYZ6S41. */
    const unsigned char example[16] = {0x01, 0x56, 0x3d, 0xf3, 0x64, 0x81};
    ulid_encode(text, example);
    assert_string_equal(text, "01ARYZ6S410000000000000000");
}

static void decodes(void **state)
{
    unsigned char bytes[16], again[16];
    char text[27];

    (void)state;
    assert_int_equal(ulid_decode(bytes, "01ARZ3NDEKTSV4RRFFQ69G5FAV"), 0);
    ulid_encode(text, bytes);
    assert_string_equal(text, "01ARZ3NDEKTSV4RRFFQ69G5FAV");
    assert_int_equal(ulid_decode(again, "01arz3ndektsv4rrffq69g5fav"), 0);
    assert_memory_equal(bytes, again, 16);
    assert_int_equal(ulid_decode(bytes, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), 0);
    for (int i = 0; i < 16; i++)
        assert_int_equal(bytes[i], 0xff);
}

static void refuses(void **state)
{
    static const char *const bad[] = {
        "",
        "0",
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "80000000000000000000000000",
        "ZZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "01ARZ3NDEKTSV4RRFFQ69G5FA",
        "01ARZ3NDEKTSV4RRFFQ69G5FAVX",
        "01ARZ3NDEKTSV4RRFFQ69G5FAI",
        "01ARZ3NDEKTSV4RRFFQ69G5FAL",
        "01ARZ3NDEKTSV4RRFFQ69G5FAO",
        "01ARZ3NDEKTSV4RRFFQ69G5FAU",
        "01ARZ3NDEK-SV4RRFFQ69G5FAV",
        " 1ARZ3NDEKTSV4RRFFQ69G5FAV",
        "01ARZ3NDEKTSV4RRFFQ69G5FA\xff",
    };
    unsigned char bytes[16];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(ulid_decode(bytes, bad[i]), -1);
}

static void monotonic_in_a_millisecond(void **state)
{
    struct ulid_generator g;
    char last[27], id[27];

    (void)state;
    assert_int_equal(ulid_generator_init(&g, 0), 0);
    ulid_generate_at(&g, 1469918176385ULL, last);
    assert_memory_equal(last, "01ARYZ6S41", 10);
    for (int i = 0; i < 10000; i++) {
        ulid_generate_at(&g, 1469918176385ULL, id);
        assert_true(strcmp(id, last) > 0);
        memcpy(last, id, sizeof(last));
    }
}

static void clock_going_back(void **state)
{
    struct ulid_generator g;
    char first[27], second[27];

    (void)state;
    assert_int_equal(ulid_generator_init(&g, 0), 0);
    ulid_generate_at(&g, 2000, first);
    ulid_generate_at(&g, 1000, second);
    assert_true(strcmp(second, first) > 0);
}

static void random_part_used_up(void **state)
{
    struct ulid_generator g;
    char first[27], second[27];

    (void)state;
    assert_int_equal(ulid_generator_init(&g, 0), 0);
    ulid_generate_at(&g, 5000, first);
    memset(g.last + 6, 0xff, 10);
    ulid_encode(first, g.last);
    ulid_generate_at(&g, 5000, second);
    assert_true(strcmp(second, first) > 0);
    assert_int_equal(g.last_ms, 5001);
    ulid_generate_at(&g, 5000, first); /* still after the borrowed millisecond */
    assert_true(strcmp(first, second) > 0);
}

static void flags(void **state)
{
    struct ulid_generator g;
    char id[27];

    (void)state;
    assert_int_equal(ulid_generator_init(&g, ULID_PARANOID | ULID_SECURE), 0);
    for (unsigned long long ms = 1; ms < 200; ms++) {
        ulid_generate_at(&g, ms, id);
        assert_true(g.last[6] < 0x80);
    }
    assert_int_equal(ulid_generator_init(&g, ULID_RELAXED), 0);
    int lower = 0;
    char last[27];
    ulid_generate_at(&g, 7, last);
    for (int i = 0; i < 100; i++) {
        ulid_generate_at(&g, 7, id);
        lower += strcmp(id, last) < 0;
        memcpy(last, id, sizeof(last));
    }
    assert_true(lower > 0);
}

static void time_of_now(void **state)
{
    struct ulid_generator g;
    char id[27];

    (void)state;
    assert_int_equal(ulid_generator_init(&g, 0), 0);
    int64_t before = clock_wall_ms();
    ulid_generate(&g, id);
    assert_in_range(g.last_ms, before, clock_wall_ms());
    ulid_generate_at(&g, ~0ULL, id);
    assert_memory_equal(id, "7ZZZZZZZZZ", 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes),
        cmocka_unit_test(decodes),
        cmocka_unit_test(refuses),
        cmocka_unit_test(monotonic_in_a_millisecond),
        cmocka_unit_test(clock_going_back),
        cmocka_unit_test(random_part_used_up),
        cmocka_unit_test(flags),
        cmocka_unit_test(time_of_now),
    };
    return RUN_TESTS(tests);
}
