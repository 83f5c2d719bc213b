#include "unit.h"

#include <stdio.h>

#include "batch.h"

/* A batch in letters: one event a row, "topics key verdict", verdicts as below. */
struct row {
    const char *topics, *key;
    char before, after; /* n none, s sent, l left, h held, p park, r refused, f final refusal, d dead,
                           w must wait, x not taken (both: verdict none) */
};

static enum verdict verdict_of(char letter)
{
    switch (letter) {
    case 's':
        return VERDICT_SENT;
    case 'l':
        return VERDICT_LEFT;
    case 'h':
        return VERDICT_HELD;
    case 'p':
        return VERDICT_PARK;
    case 'r':
    case 'f':
        return VERDICT_REFUSED;
    case 'd':
        return VERDICT_DEAD;
    default:
        return VERDICT_NONE;
    }
}

static void add_row(struct batch *batch, const struct row *row)
{
    struct event *event = batch_add(batch);

    event->seq = (int64_t)batch->n;
    event->topic = SLICE("unused");
    event->routing_key = (struct slice){row->topics, strlen(row->topics)};
    event->aggregate_id = (struct slice){row->key, strlen(row->key)};
    event->max_retries = 5;
    event->retry_count = row->before == 'f' ? 4 : 0;
    event->taken = row->before != 'x';
    event->must_wait = row->before == 'w';
    event_prepare(event);
    if (verdict_of(row->before) != VERDICT_NONE)
        event_judge(event, verdict_of(row->before), "reason");
    if (row->before == 'p')
        event->blame = route_topic(&event->route, 0);
}

static void check_rows(const struct row *rows, size_t n, bool ordered, bool dead_blocks)
{
    struct batch batch;

    batch_init(&batch);
    for (size_t i = 0; i < n; i++)
        add_row(&batch, &rows[i]);
    batch_hold_followers(&batch, ordered, dead_blocks);
    batch_hold_followers(&batch, ordered, dead_blocks); /* a second time changes nothing */
    for (size_t i = 0; i < n; i++) {
        const struct event *event = &batch.events[i];
        if (event->verdict != verdict_of(rows[i].after))
            fail_msg("row %zu: %s, expected %s", i, verdict_name(event->verdict),
                     verdict_name(verdict_of(rows[i].after)));
        if (event->verdict == VERDICT_HELD)
            assert_non_null(event->reason);
        if (event->verdict == VERDICT_LEFT)
            assert_null(event->reason);
        if (event->verdict != VERDICT_PARK)
            assert_null(event->blame);
    }
    batch_done(&batch);
}

#define CHECK(ordered, dead_blocks, ...)                                                                          \
    check_rows((const struct row[]){__VA_ARGS__}, sizeof((const struct row[]){__VA_ARGS__}) / sizeof(struct row), \
               ordered, dead_blocks)

static void nothing_blocks(void **state)
{
    (void)state;
    CHECK(true, false, {"t", "a", 'n', 'n'}, {"t", "a", 'n', 'n'});
    CHECK(true, false, {"t", "a", 's', 's'}, {"t", "a", 's', 's'});
    check_rows(NULL, 0, true, false);
}

static void before_publishing(void **state)
{
    (void)state;
    CHECK(true, false, {"t", "a", 'w', 'h'}, {"t", "a", 'n', 'h'}, {"t", "b", 'n', 'n'}, {"u", "a", 'n', 'n'});
    CHECK(true, false, {"t", "a", 'x', 'l'}, {"t", "a", 'n', 'h'}, {"t", "b", 'n', 'n'});
    /* What stands in front of the blocker is free. */
    CHECK(true, false, {"t", "a", 'n', 'n'}, {"t", "a", 'w', 'h'}, {"t", "a", 'n', 'h'});
}

static void after_settle(void **state)
{
    (void)state;
    CHECK(true, false, {"t", "a", 'r', 'r'}, {"t", "a", 'l', 'h'}, {"t", "b", 's', 's'});
    CHECK(true, false, {"t", "a", 'p', 'p'}, {"t", "a", 'p', 'h'}, {"t", "b", 'p', 'p'});
    CHECK(true, false, {"t", "a", 'l', 'l'}, {"t", "a", 'r', 'l'}, {"t", "a", 'd', 'l'});
    /* What was acknowledged stays so, and does not free those behind it. */
    CHECK(true, false, {"t", "a", 'r', 'r'}, {"t", "a", 's', 's'}, {"t", "a", 'l', 'h'});
}

static void dead_blocks_only_on_request(void **state)
{
    (void)state;
    CHECK(true, false, {"t", "a", 'd', 'd'}, {"t", "a", 'l', 'l'}, {"t", "a", 's', 's'});
    CHECK(true, true, {"t", "a", 'd', 'd'}, {"t", "a", 'l', 'h'});
    CHECK(true, false, {"t", "a", 'f', 'r'}, {"t", "a", 'n', 'n'});
    CHECK(true, true, {"t", "a", 'f', 'r'}, {"t", "a", 'n', 'h'});
}

static void several_topics_are_transitive(void **state)
{
    (void)state;
    CHECK(true, false, {"t", "a", 'w', 'h'}, {"t,u", "a", 'n', 'h'}, {"u", "a", 'n', 'h'}, {"u,v", "a", 'n', 'h'},
          {"v", "a", 'n', 'h'}, {"w", "a", 'n', 'n'}, {"v", "b", 'n', 'n'});
    /* Written down is stronger than left, whichever comes first. */
    CHECK(true, false, {"t", "a", 'x', 'l'}, {"u", "a", 'w', 'h'}, {"t,u", "a", 'n', 'h'}, {"t", "a", 'n', 'h'});
    CHECK(true, false, {"u", "a", 'w', 'h'}, {"t", "a", 'x', 'l'}, {"t,u", "a", 'n', 'h'});
}

static void no_topic_no_stream(void **state)
{
    (void)state;
    CHECK(true, true, {",", "a", 'd', 'd'}, {"t", "a", 'n', 'n'}, {",", "a", 'd', 'd'});
}

static void keys_are_bytes(void **state)
{
    (void)state;
    CHECK(true, false, {"t", "", 'w', 'h'}, {"t", "", 'n', 'h'}, {"t", "x", 'n', 'n'});
    CHECK(true, false, {"ab", "c", 'w', 'h'}, {"a", "bc", 'n', 'n'});
}

static void unordered_holds_nobody(void **state)
{
    (void)state;
    CHECK(false, true, {"t", "a", 'x', 'l'}, {"t", "a", 'w', 'n'}, {"t", "a", 'r', 'r'}, {"t", "a", 'n', 'n'});
}

static unsigned pick(size_t n)
{
    static unsigned seed = 7;

    seed = seed * 1103515245u + 12345u;
    return (seed >> 16) % (unsigned)n;
}

/* Against the plain rule, written without a hash set, on many random batches. */
static void agrees_with_the_rule(void **state)
{
    static const char *const routes[] = {"t", "u", "t,u", "u,v", "v", ","};
    static const char *const keys[] = {"a", "b", "c"};
    static const char letters[] = "nnnnnssswxlrpdfh";

    (void)state;
    for (int round = 0; round < 300; round++) {
        struct batch batch;
        bool dead_blocks = pick(2);
        batch_init(&batch);
        size_t n = 1 + pick(200);
        for (size_t i = 0; i < n; i++) {
            struct row row = {routes[pick(6)], keys[pick(3)], letters[pick(sizeof(letters) - 1)], 0};
            add_row(&batch, &row);
        }
        enum verdict *before = test_malloc(n * sizeof(*before));
        for (size_t i = 0; i < n; i++)
            before[i] = batch.events[i].verdict;
        batch_hold_followers(&batch, true, dead_blocks);
        for (size_t i = 0; i < n; i++) {
            const struct event *event = &batch.events[i];
            enum verdict expected = before[i];
            bool held = false, left = false;
            for (size_t j = 0; j < i; j++) {
                const struct event *earlier = &batch.events[j];
                if (strcmp(earlier->key.data, event->key.data) != 0 || !route_overlaps(&earlier->route, &event->route))
                    continue;
                held |= earlier->verdict == VERDICT_HELD || earlier->verdict == VERDICT_PARK ||
                        (earlier->verdict >= VERDICT_REFUSED && (dead_blocks || !event_dies(earlier)));
                held |= !earlier->taken;
                left |= earlier->verdict == VERDICT_LEFT;
            }
            if (!event->taken)
                expected = VERDICT_LEFT;
            else if (expected == VERDICT_HELD || event->must_wait)
                expected = VERDICT_HELD;
            else if (expected != VERDICT_SENT && (held || left))
                expected = held ? VERDICT_HELD : VERDICT_LEFT;
            assert_int_equal(event->verdict, expected);
        }
        test_free(before);
        batch_done(&batch);
    }
}

static void sorts_by_lane_and_seq(void **state)
{
    static const int64_t seqs[] = {9, 2, 5, 1, 7, 3};
    struct batch batch;

    (void)state;
    batch_init(&batch);
    for (size_t i = 0; i < 6; i++) {
        struct event *event = batch_add(&batch);
        event->seq = seqs[i];
        event->lane = (int)(i % 2);
    }
    batch_sort(&batch);
    for (size_t i = 1; i < batch.n; i++) {
        assert_true(batch.events[i - 1].lane <= batch.events[i].lane);
        if (batch.events[i - 1].lane == batch.events[i].lane)
            assert_true(batch.events[i - 1].seq < batch.events[i].seq);
    }
    batch_done(&batch);
}

static void free_owner(void *owner)
{
    ++*(int *)owner;
}

static void owner_goes_with_the_batch(void **state)
{
    struct batch batch;
    int freed = 0;

    (void)state;
    batch_init(&batch);
    for (int i = 0; i < 1000; i++)
        add_row(&batch, &(struct row){"t", "a", 'r', 'r'});
    batch_own(&batch, &freed, free_owner);
    batch.full = true;
    batch_clear(&batch);
    assert_int_equal(freed, 1);
    assert_int_equal(batch.n, 0);
    assert_false(batch.full);
    batch_clear(&batch);
    batch_done(&batch);
    assert_int_equal(freed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_blocks),
        cmocka_unit_test(before_publishing),
        cmocka_unit_test(after_settle),
        cmocka_unit_test(dead_blocks_only_on_request),
        cmocka_unit_test(several_topics_are_transitive),
        cmocka_unit_test(no_topic_no_stream),
        cmocka_unit_test(keys_are_bytes),
        cmocka_unit_test(unordered_holds_nobody),
        cmocka_unit_test(agrees_with_the_rule),
        cmocka_unit_test(sorts_by_lane_and_seq),
        cmocka_unit_test(owner_goes_with_the_batch),
    };
    return RUN_TESTS(tests);
}
