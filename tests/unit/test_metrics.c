#include "unit.h"

#include <pthread.h>

#include "metrics.h"

static void assert_has(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("no \"%s\" in:\n%s", line, text);
}

static void sums_over_writers(void **state)
{
    struct metrics *a = metrics_new(), *b = metrics_new();
    struct strbuf out = {0};

    (void)state;
    metrics_add(a, M_EVENTS_SENT, 5);
    metrics_add(b, M_EVENTS_SENT, 7);
    metrics_set(a, M_LANES_HELD, 8);
    metrics_set(b, M_LANES_HELD, 3);
    metrics_set(b, M_LANES_HELD, 2);
    metrics_set(a, M_OLDEST_PENDING, 0.125);
    assert_true(metrics_sum(M_EVENTS_SENT) == 12);
    assert_true(metrics_sum(M_LANES_HELD) == 10);
    metrics_print(&out);
    assert_has(out.data, "\noutboxd_events_total{result=\"sent\"} 12\n");
    assert_has(out.data, "\noutboxd_events_total{result=\"dead\"} 0\n");
    assert_has(out.data, "\noutboxd_lanes_held 10\n");
    assert_has(out.data, "\noutboxd_oldest_pending_seconds 0.125\n");
    assert_has(out.data, "\noutboxd_build_info{version=\"" OUTBOXD_VERSION "\"} 1\n");
    strbuf_done(&out);
    metrics_free_all();
    assert_true(metrics_sum(M_EVENTS_SENT) == 0);
}

static void histograms(void **state)
{
    struct metrics *metrics = metrics_new();
    struct strbuf out = {0};

    (void)state;
    metrics_observe(metrics, M_BATCH_EVENTS, 1);
    metrics_observe(metrics, M_BATCH_EVENTS, 2000);
    metrics_observe(metrics, M_BATCH_EVENTS, 1e9);
    metrics_observe(metrics, M_BATCH_CLAIM, 0.0004);
    metrics_observe(metrics, M_BATCH_CLAIM, 0.3);
    metrics_print(&out);
    assert_has(out.data, "outboxd_batch_events_bucket{le=\"1\"} 1\n");
    assert_has(out.data, "outboxd_batch_events_bucket{le=\"1000\"} 1\n");
    assert_has(out.data, "outboxd_batch_events_bucket{le=\"2000\"} 2\n");
    assert_has(out.data, "outboxd_batch_events_bucket{le=\"20000\"} 2\n");
    assert_has(out.data, "outboxd_batch_events_bucket{le=\"+Inf\"} 3\n");
    assert_has(out.data, "outboxd_batch_events_sum 1000002001\n");
    assert_has(out.data, "outboxd_batch_events_count 3\n");
    assert_has(out.data, "outboxd_batch_seconds_bucket{step=\"claim\",le=\"0.0005\"} 1\n");
    assert_has(out.data, "outboxd_batch_seconds_sum{step=\"claim\"} 0.3004\n");
    assert_true(metrics_sum(M_BATCH_CLAIM) == 2);
    strbuf_done(&out);
    metrics_free_all();
}

/* Each name once with HELP and TYPE, in front of its series. */
static void help_and_type(void **state)
{
    struct strbuf out = {0};
    size_t helps = 0, types = 0;

    (void)state;
    metrics_print(&out);
    for (const char *at = out.data; (at = strstr(at, "# HELP ")); at++) {
        helps++;
        const char *name = at + 7;
        size_t len = strcspn(name, " ");
        const char *type = strchr(name, '\n') + 1;
        assert_true(str_has_prefix(type, "# TYPE "));
        assert_memory_equal(type + 7, name, len);
        assert_true(strcspn(name + len + 1, "\n") > 10); /* it says something */
    }
    for (const char *at = out.data; (at = strstr(at, "# TYPE ")); at++)
        types++;
    assert_int_equal(helps, types);
    assert_int_equal(helps, 24);
    strbuf_done(&out);
}

static void *count_up(void *arg)
{
    struct metrics *metrics = metrics_new();

    (void)arg;
    for (int i = 0; i < 100000; i++)
        metrics_add(metrics, M_EVENTS_SENT, 1);
    return NULL;
}

static void writers_in_threads(void **state)
{
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, count_up, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(metrics_sum(M_EVENTS_SENT) == 400000);
    metrics_free_all();
}

static void reference(void **state)
{
    struct strbuf out = {0};

    (void)state;
    metrics_print_markdown(&out);
    assert_has(out.data,
               "| `outboxd_events_total` | counter | `result=\"sent\"`, `result=\"failed\"`, `result=\"dead\"` |");
    assert_has(out.data, "| `outboxd_build_info` | gauge | `version` |");
    assert_null(strstr(out.data, OUTBOXD_VERSION));
    strbuf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_writers),  cmocka_unit_test(histograms), cmocka_unit_test(help_and_type),
        cmocka_unit_test(writers_in_threads), cmocka_unit_test(reference),
    };
    return RUN_TESTS(tests);
}
