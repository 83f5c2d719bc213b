"""The judge finds every kind of fault, and nothing where there is none."""

import pytest
from rig.judge import Expected, Judge, java_partition, plain_headers, same_headers, topics_of

KEY = b"order-1"
ROW = ("created", "order", "order-1", "default", "1", "2026-01-02T03:04:05.600000Z",
       '{"n": 1, "id": "forged", "none": null}', '{"traceparent": "00-ab-cd-01", "note": "internal"}')
HEADERS = plain_headers("A", *ROW)


def event(seq, id, topics=("orders",), key=KEY, value=b'{"a": 1}', headers=None):
    return Expected(seq, id, topics, key, value, headers)


EVENTS = {e.id: e for e in (event(1, "A"), event(2, "B"), event(3, "C", ("orders", "audit")), event(4, "D", key=b"k2"))}


def rule(messages, events=EVENTS, **options):
    """messages: (topic, id, key, value), each at the partition of its key unless a fifth field says otherwise."""
    referee = Judge(events, {"orders": 8, "audit": 8}, **options)
    for offset, (topic, id, key, value, *rest) in enumerate(messages):
        partition = rest[0] if rest else java_partition(key, 8)
        referee.look(topic, partition, offset, key, value, [("id", id.encode())])
    return referee.close()


GOOD = [("orders", "A", KEY, b'{"a":1}'), ("orders", "B", KEY, b'{"a": 1}'), ("orders", "C", KEY, b'{"a": 1}'),
        ("audit", "C", KEY, b'{"a": 1}'), ("orders", "D", b"k2", b'{"a": 1}')]


def test_good_run():
    verdict = rule(GOOD).check()
    assert (verdict.committed, verdict.messages) == (4, 5)


@pytest.mark.parametrize("messages, fault, count", [
    (GOOD[1:], "missing", 1),
    (GOOD[:3] + GOOD[4:], "missing", 1),  # one topic of a route
    ([], "missing", 5),
    (GOOD + [("orders", "Z", KEY, b"{}")], "phantom", 1),
    (GOOD + [("audit", "A", KEY, b'{"a": 1}')], "phantom", 1),  # a topic that is not its own
    ([GOOD[1], GOOD[0], *GOOD[2:]], "disorder", 1),
    (GOOD + [("orders", "A", KEY, b'{"a": 2}')], "altered", 1),
    ([("orders", "A", b"k2", b'{"a": 1}'), *GOOD[1:]], "altered", 1),
    ([("orders", "A", KEY, None), *GOOD[1:]], "altered", 1),
    ([(*GOOD[0], (java_partition(KEY, 8) + 1) % 8), *GOOD[1:]], "misplaced", 1),
])
def test_each_fault_is_found(messages, fault, count):
    verdict = rule(messages)
    assert verdict.counts[fault] == count, str(verdict)
    assert not verdict.good(duplicates=100)
    assert fault in str(verdict)


def test_duplicates_are_counted_and_do_not_break_order():
    verdict = rule(GOOD + GOOD[:2])
    assert verdict.duplicate == 2 and verdict.disorder == 0
    assert verdict.good(duplicates=2) and not verdict.good(duplicates=1)


def test_a_late_first_delivery_behind_a_duplicate_is_disorder():
    verdict = rule([GOOD[2], GOOD[2], GOOD[0], *GOOD[1:2], *GOOD[3:]])
    assert verdict.disorder == 2


def test_order_may_be_left_out():
    rule([GOOD[1], GOOD[0], *GOOD[2:]], ordered=False).check()


def test_headers():
    found = [(name, value) for name, value in HEADERS.items()]
    assert dict(found)["id"] == b"A" and dict(found)["n"] == b"1" and dict(found)["none"] is None
    assert "note" not in dict(found) and dict(found)["traceparent"] == b"00-ab-cd-01"
    assert same_headers(HEADERS, found)
    shorter = [(n, b"2026-01-02T03:04:05.6Z" if n == "occurred_at" else v) for n, v in found]
    assert same_headers(HEADERS, shorter)
    assert not same_headers(HEADERS, found[1:])
    assert not same_headers(HEADERS, [*found, ("extra", b"x")])
    assert not same_headers(HEADERS, [(n, b"B" if n == "id" else v) for n, v in found])
    assert not same_headers(HEADERS, [(n, b"" if n == "none" else v) for n, v in found])


def test_altered_headers_are_found():
    events = {"A": event(1, "A", headers=ROW)}
    referee = Judge(events)
    referee.look("orders", 0, 0, KEY, b'{"a": 1}', [("id", b"A")])
    assert referee.close().altered == 1


def test_routes():
    assert topics_of("a", None) == ("a",)
    assert topics_of("a", " b, c ,b,,") == ("b", "c")
    assert topics_of("a", " , ") == ()


@pytest.mark.parametrize("key, hash", [
    # Known values of org.apache.kafka.common.utils.Utils.murmur2.
    ("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536),
    ("a-little-bit-longer-string", -1486304829), ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ("abc", 479470107),
])
def test_partitions_are_those_of_the_java_client(key, hash):
    assert java_partition(key.encode(), 1000) == (hash & 0x7FFFFFFF) % 1000
