#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "hand.h"
#include "str.h"

#define ROOM (1 << 20)

/* Letters without a message behind them: the hand never looks into one. Their ids are the keys and offsets: "a0", "b1". */
struct scene {
    struct hand hand;
    struct partition *partition[2];
    struct arrival *batch[64];
    size_t n;
    int64_t offset[2], now;
};

static int open_scene(void **state)
{
    struct scene *scene = mem_alloc(sizeof *scene);
    hand_init(&scene->hand);
    for (int i = 0; i < 2; i++) {
        scene->partition[i] = hand_partition(&scene->hand, "t", i);
        hand_assign(&scene->hand, scene->partition[i]);
    }
    *state = scene;
    return 0;
}

static int close_scene(void **state)
{
    struct scene *scene = *state;
    hand_done(&scene->hand);
    free(scene);
    return 0;
}

/* A letter for each character of `keys`; '-' is one without a key. */
static void arrive(struct scene *scene, int partition, const char *keys)
{
    for (; *keys; keys++) {
        int64_t offset = scene->offset[partition]++;
        struct letter letter = {.topic = "t",
                                .partition = partition,
                                .offset = offset,
                                .key = {*keys == '-' ? NULL : keys, *keys == '-' ? 0 : 1}};
        assert_true(hand_admit(&scene->hand, &letter, str_format("%c%d", *keys, (int)offset)));
    }
}

static void takes(struct scene *scene, size_t max, const char *ids)
{
    char text[512] = "";
    scene->n = hand_take(&scene->hand, scene->batch, max, ROOM, scene->now);
    for (size_t i = 0; i < scene->n; i++) {
        scene->batch[i]->outcome = OUTCOME_HANDLED;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", scene->batch[i]->id);
    }
    assert_string_equal(text, ids);
}

static void becomes(struct scene *scene, const char *id, enum outcome outcome)
{
    for (size_t i = 0; i < scene->n; i++)
        if (str_eq(scene->batch[i]->id, id)) {
            scene->batch[i]->outcome = outcome;
            return;
        }
    fail_msg("%s is not in the batch", id);
}

static int64_t in_ten(void *arg, const struct arrival *arrival)
{
    (void)arrival;
    return ((struct scene *)arg)->now + 10;
}

static void settle(struct scene *scene)
{
    hand_settle(&scene->hand, scene->batch, scene->n, in_ten, scene);
    scene->n = 0;
}

static void nothing_waits(const struct scene *scene)
{
    assert_int_equal(scene->hand.waiting, 0);
    assert_int_equal(scene->hand.waiting_bytes, 0);
    assert_int_equal(scene->hand.n_streams, 0);
    assert_int_equal(scene->hand.settled, 0);
}

static void followers_wait_and_others_flow(void **state)
{
    struct scene *scene = *state;
    arrive(scene, 0, "aabba-");
    takes(scene, 4, "a0 a1 b2 b3");
    becomes(scene, "a0", OUTCOME_FAILED);
    becomes(scene, "a1", OUTCOME_HELD);
    settle(scene);
    assert_int_equal(scene->partition[0]->position, 0);
    assert_int_equal(scene->hand.settled, 2);
    takes(scene, 4, "-5");
    settle(scene);
    takes(scene, 4, "");
    assert_int_equal(hand_next_due(&scene->hand), 10);
    scene->now = 10;
    takes(scene, 4, "a0");
    settle(scene);
    takes(scene, 4, "a1 a4");
    settle(scene);
    assert_int_equal(scene->partition[0]->position, 6);
    nothing_waits(scene);
}

static void released_followers_take_turns(void **state)
{
    struct scene *scene = *state;
    arrive(scene, 0, "aaaaaa");
    takes(scene, 6, "a0 a1 a2 a3 a4 a5");
    becomes(scene, "a0", OUTCOME_FAILED);
    for (size_t i = 1; i < 6; i++)
        scene->batch[i]->outcome = OUTCOME_HELD;
    settle(scene);
    arrive(scene, 1, "bcdefa");
    scene->now = 10;
    takes(scene, 1, "b0"); /* a batch of one: turn by turn, too */
    settle(scene);
    takes(scene, 1, "a0");
    settle(scene);
    takes(scene, 3, "a1 c1 d2");
    settle(scene);
    takes(scene, 2, "a2 e3");
    becomes(scene, "a2", OUTCOME_NONE);
    settle(scene);
    takes(scene, 4, "a2 a3 f4 a4"); /* a of the other partition came last, and stands behind them */
    settle(scene);
    takes(scene, 4, "a5 a5");
    settle(scene);
    nothing_waits(scene);
}

static void a_follower_that_fails_heads_the_rest(void **state)
{
    struct scene *scene = *state;
    arrive(scene, 0, "aaaa");
    takes(scene, 2, "a0 a1");
    becomes(scene, "a0", OUTCOME_FAILED);
    becomes(scene, "a1", OUTCOME_HELD);
    settle(scene);
    takes(scene, 4, "");
    scene->now = 10;
    takes(scene, 4, "a0");
    settle(scene);
    takes(scene, 4, "a1 a2 a3");
    becomes(scene, "a1", OUTCOME_FAILED);
    becomes(scene, "a2", OUTCOME_HELD);
    becomes(scene, "a3", OUTCOME_NONE);
    settle(scene);
    takes(scene, 4, "");
    scene->now = 20;
    takes(scene, 4, "a1");
    becomes(scene, "a1", OUTCOME_DEAD);
    settle(scene);
    takes(scene, 4, "a2 a3");
    settle(scene);
    nothing_waits(scene);
}

static void who_must_be_alone_is_a_batch_of_its_own(void **state)
{
    struct scene *scene = *state;
    arrive(scene, 0, "abcdefg");
    takes(scene, 3, "a0 b1 c2");
    becomes(scene, "a0", OUTCOME_ALONE);
    becomes(scene, "b1", OUTCOME_ALONE);
    scene->batch[0]->alone = scene->batch[1]->alone = true;
    settle(scene);
    scene->now = 10;
    takes(scene, 3, "d3 e4 f5");
    settle(scene);
    takes(scene, 3, "a0");
    assert_int_equal(scene->batch[0]->attempts, 0);
    settle(scene);
    takes(scene, 3, "g6");
    settle(scene);
    takes(scene, 3, "b1");
    settle(scene);
    nothing_waits(scene);
}

static void held_ones_whose_head_was_dropped_stay_in_order(void **state)
{
    struct scene *scene = *state;
    arrive(scene, 1, "a");
    arrive(scene, 0, "aa");
    arrive(scene, 0, "a");
    takes(scene, 3, "a0 a0 a1");
    scene->batch[0]->outcome = OUTCOME_FAILED;
    scene->batch[1]->outcome = scene->batch[2]->outcome = OUTCOME_HELD;
    hand_revoke(&scene->hand, scene->partition[1]);
    settle(scene);
    takes(scene, 3, "a0 a1 a2");
    settle(scene);
    nothing_waits(scene);
}

static void a_partition_goes_while_its_events_wait(void **state)
{
    struct scene *scene = *state;
    arrive(scene, 0, "aaaab");
    takes(scene, 3, "a0 a1 a2");
    becomes(scene, "a0", OUTCOME_FAILED);
    becomes(scene, "a1", OUTCOME_HELD);
    becomes(scene, "a2", OUTCOME_HELD);
    settle(scene);
    takes(scene, 1, "b4");
    settle(scene);
    scene->now = 10;
    takes(scene, 1, "a0");
    settle(scene);
    takes(scene, 1, "a1");
    hand_revoke(&scene->hand, scene->partition[0]);
    settle(scene);
    nothing_waits(scene);
    takes(scene, 3, "");
    hand_assign(&scene->hand, scene->partition[0]);
    scene->offset[0] = 1;
    arrive(scene, 0, "aa");
    takes(scene, 3, "a1 a2");
    settle(scene);
    assert_int_equal(scene->partition[0]->position, 3);
}

static void who_steps_aside_lets_the_others_go_on(void **state)
{
    struct scene *scene = *state;
    arrive(scene, 0, "aab");
    takes(scene, 3, "a0 a1 b2");
    struct arrival *aside = scene->batch[0];
    aside->alone = true;
    becomes(scene, "a0", OUTCOME_ASIDE);
    becomes(scene, "a1", OUTCOME_NONE);
    becomes(scene, "b2", OUTCOME_NONE);
    settle(scene);
    assert_int_equal(aside->attempts, 0);
    assert_int_equal(aside->unlucky, 1);
    takes(scene, 3, "b2");
    settle(scene);
    takes(scene, 3, "");
    scene->now = 10;
    takes(scene, 3, "a0");
    settle(scene);
    takes(scene, 3, "a1");
    settle(scene);
    nothing_waits(scene);
}

static void keys_are_bytes(void **state)
{
    static const char *const keys[] = {"\0\0\1x", "\0\0\1y"};
    struct scene *scene = *state;
    for (int i = 0; i < 6; i++) {
        struct letter letter = {.topic = "t", .offset = i, .key = {keys[i % 2], 4}};
        assert_true(hand_admit(&scene->hand, &letter, str_format("e%d", i)));
    }
    takes(scene, 2, "e0 e1");
    becomes(scene, "e0", OUTCOME_FAILED);
    settle(scene);
    takes(scene, 6, "e3 e5");
    settle(scene);
    scene->now = 10;
    takes(scene, 6, "e0");
    settle(scene);
    takes(scene, 6, "e2 e4");
    settle(scene);
    nothing_waits(scene);
}

int main(void)
{
#define SCENE(function) cmocka_unit_test_setup_teardown(function, open_scene, close_scene)
    const struct CMUnitTest tests[] = {
        SCENE(followers_wait_and_others_flow),
        SCENE(released_followers_take_turns),
        SCENE(a_follower_that_fails_heads_the_rest),
        SCENE(who_must_be_alone_is_a_batch_of_its_own),
        SCENE(held_ones_whose_head_was_dropped_stay_in_order),
        SCENE(a_partition_goes_while_its_events_wait),
        SCENE(who_steps_aside_lets_the_others_go_on),
        SCENE(keys_are_bytes),
    };
    return RUN_TESTS(tests);
}
