"""The account of a chaos run explains a repeat only by what can have made it."""

from rig.account import AFTER, AFTER_CUT, Incident, covered, deaf_until, explain

LANES = {"a": 3, "b": 4}
KILL = Incident("daemon killed", 10_000, 10_050, {3: 9_900.0}, 1)
CRASH = Incident("PostgreSQL crashed", 20_000, 21_000, None, 2)


def check(before, again, id="a", incidents=(KILL, CRASH), excused=()):
    causes, unexplained = explain([(id, "t", before, again)], incidents, LANES, excused)
    return next(iter(causes), None if unexplained else "?")


def test_a_cut_explains_what_was_published_in_the_transaction_that_it_cut():
    assert check(9_950, 12_000) == "daemon killed"
    assert check(9_950, 900_000) == "daemon killed", "however late it comes again"
    assert check(9_950, 12_000, id="b") is None, "another lane"
    assert check(9_800, 12_000) is None, "published before that transaction began"
    assert check(10_051 + AFTER_CUT, 12_000) is None


def test_messages_carry_whole_milliseconds():
    """A small batch is handed over in the millisecond in which its transaction began."""
    assert check(9_900, 12_000, incidents=[KILL._replace(lanes={3: 9_900.4})]) == "daemon killed"
    assert check(9_899, 12_000, incidents=[KILL._replace(lanes={3: 9_900.4})]) is None


def test_what_acts_on_all_lanes_explains_what_was_published_meanwhile():
    assert check(20_500, 30_000, id="b") == "PostgreSQL crashed"
    assert check(19_999, 20_500) is None, "delivered, and marked, before"
    assert check(21_001 + AFTER, 30_000) is None


def test_a_worker_hears_of_its_end_when_its_line_moves_again():
    assert deaf_until(10_050, []) == 10_050
    assert deaf_until(10_050, [(9_000, 12_000)]) == 12_000
    assert deaf_until(10_050, [(12_100, 13_000), (10_200, 12_000)]) == 13_000, "one silence after the other"
    assert deaf_until(10_050, [(10_051 + AFTER_CUT, 20_000)]) == 10_050, "it has heard by then"
    assert deaf_until(10_050, [(8_000, 9_000)]) == 10_050


def test_an_incident_repeats_no_more_than_was_in_flight():
    repeats = [(id, "t", 20_500, 30_000) for id in "aab"] + [("a", "u", 20_500, 30_000)]
    assert explain(repeats, [CRASH], LANES) == ({"PostgreSQL crashed": 4}, [])
    causes, unexplained = explain(repeats, [CRASH._replace(most=1)], LANES)
    assert causes == {"PostgreSQL crashed": 3} and [repeat[0] for repeat in unexplained] == ["b"]


def test_lists_of_topics_need_no_incident():
    assert check(1, 2, excused={"a"}) == "several topics"
    assert check(1, 2, excused={"b"}) is None


def test_the_share_of_time_with_an_excuse():
    assert covered([], 0, 100_000) == 0
    assert covered([CRASH, CRASH], 0, 100_000) == (1000 + AFTER) / 100_000
    assert abs(covered([KILL], 0, 100_000) - (150 + AFTER_CUT) / 16 / 100_000) < 1e-9
