#include "unit.h"

#include <stdio.h>

#include "route.h"
#include "str.h"

static void check_list(const char *list, size_t n, const char *const *expected)
{
    struct route route;

    route_init(&route, "topic", list);
    assert_int_equal(route.n, n);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(route_topic(&route, i), expected[i]);
    route_done(&route);
}

static void topic_alone(void **state)
{
    (void)state;
    check_list(NULL, 1, (const char *const[]){"topic"});
}

static void list_replaces_topic(void **state)
{
    (void)state;
    check_list("a,b", 2, (const char *const[]){"a", "b"});
    check_list("  a ,\tb\n", 2, (const char *const[]){"a", "b"});
    check_list("a,b, a,b ,c", 3, (const char *const[]){"a", "b", "c"});
    check_list(",,a,,", 1, (const char *const[]){"a"});
    check_list("with blank,b", 2, (const char *const[]){"with blank", "b"});
}

static void list_without_topic(void **state)
{
    (void)state;
    check_list("", 0, NULL);
    check_list(" , ,, ", 0, NULL);
}

/* Takes no time; comparing each with each would take a while. */
static void long_list(void **state)
{
    enum { N = ROUTE_MAX };
    struct strbuf list = {0};
    struct route route;
    char name[16];

    (void)state;
    for (int i = 0; i < 2 * N; i++)
        strbuf_addf(&list, "t%d, ", i % N);
    route_init(&route, "", list.data);
    assert_int_equal(route.n, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        assert_string_equal(route_topic(&route, i), name);
    }
    route_done(&route);
    strbuf_done(&list);
}

/* One that names too many is not split further, one that repeats itself is read to its end. */
static void too_long_list(void **state)
{
    struct strbuf list = {0};
    struct route route;

    (void)state;
    for (int i = 0; i < 200000; i++)
        strbuf_addf(&list, "t%d,", i);
    route_init(&route, "", list.data);
    assert_int_equal(route.n, ROUTE_MAX + 1);
    route_done(&route);
    strbuf_clear(&list);
    for (int i = 0; i < 200000; i++)
        strbuf_addf(&list, "t%d,", i % 2);
    strbuf_add(&list, "last");
    route_init(&route, "", list.data);
    assert_int_equal(route.n, 3);
    assert_string_equal(route_topic(&route, 2), "last");
    route_done(&route);
    strbuf_done(&list);
}

static void overlap(void **state)
{
    struct route a, b, none;

    (void)state;
    route_init(&a, "x", NULL);
    route_init(&b, "", "y,x");
    route_init(&none, "", ",");
    assert_true(route_overlaps(&a, &b));
    assert_true(route_overlaps(&b, &a));
    assert_false(route_overlaps(&a, &none));
    assert_false(route_overlaps(&none, &none));
    route_done(&a);
    route_done(&b);
    route_done(&none);
}

static void topic_names(void **state)
{
    char long_name[251];

    (void)state;
    assert_null(route_topic_fault("orders.v1_x-Y9"));
    assert_null(route_topic_fault("..."));
    assert_non_null(route_topic_fault(""));
    assert_non_null(route_topic_fault("."));
    assert_non_null(route_topic_fault(".."));
    assert_non_null(route_topic_fault("a b"));
    assert_non_null(route_topic_fault("a/b"));
    assert_non_null(route_topic_fault("\xc3\xa4"));
    memset(long_name, 'a', sizeof(long_name));
    long_name[249] = '\0';
    assert_null(route_topic_fault(long_name));
    long_name[249] = 'a';
    long_name[250] = '\0';
    assert_non_null(route_topic_fault(long_name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topic_alone), cmocka_unit_test(list_replaces_topic), cmocka_unit_test(list_without_topic),
        cmocka_unit_test(long_list),   cmocka_unit_test(too_long_list),       cmocka_unit_test(overlap),
        cmocka_unit_test(topic_names),
    };
    return RUN_TESTS(tests);
}
