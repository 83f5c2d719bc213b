"""Rows that wait: for a topic that is not there, for an earlier row of their stream, for an operator."""

import time
import uuid

import pytest
from rig import clock, writer
from rig.faults import fault
from rig.judge import judge as judge_all
from rig.process import wait_until

SETTINGS = {"OUTBOX_BATCH_SIZE": 500, "OUTBOX_WORKERS": 2}


@pytest.fixture
def missing(kafka):
    """Names of topics that do not exist yet; missing.create(name) makes one."""
    def new(count=1):
        return [f"absent-{uuid.uuid4().hex[:12]}" for _ in range(count)]

    new.create = kafka.create_topic
    return new


def held(db):
    return db.value("SELECT count(*) FROM outbox_events WHERE status = 2 AND retry_after = 'infinity'")


def parked(db):
    return dict(db.execute("SELECT topic, state FROM outbox_parked_topics"))


def sent(db):
    return db.value("SELECT count(*) FROM outbox_events WHERE status = 1")


def innocent(db):
    """Nobody was counted, nobody died."""
    return db.value("SELECT count(*) FROM outbox_events WHERE status = 9 OR retry_count > 0") == 0


def updates(db):
    """Rows of outbox_events written by UPDATE so far. Sessions report when they end, so only after the daemons stopped."""
    def gone():
        return not db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                            "AND application_name = 'outboxd'")

    wait_until(gone, "the daemons' sessions have ended")
    db.execute("SELECT pg_stat_force_next_flush()")
    return db.value("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox_events'")


@fault("topics are missing", how="10,000 events for three topics that do not exist, and as many for one that does; two daemons",
       promise="the one that exists flows; the others' events wait at one write each (≤ 1.05), and when their topics appear they "
               "flow in order at one write more (≤ 2.1); nothing is counted, nobody dies")
def test_missing_topics_park_and_drain(db, new_topic, missing, kafka, start, seen):
    there, (one, two, three) = new_topic(), missing(3)
    for round in range(10):
        for topic in (one, two, three, there):
            writer.bulk(db.conn, topic, 1000 if topic == there else 333, keys=20, start=round * 1000)
    total = 10 * (1000 + 3 * 333)
    daemons = [start(db, **SETTINGS) for _ in range(2)]
    wait_until(lambda: sent(db) == 10_000 and held(db) == total - 10_000, lambda: f"{sent(db)} sent, {held(db)} held")
    assert parked(db) == dict.fromkeys((one, two, three), "parked")
    probes = "SELECT min(probes) FROM outbox_parked_topics"
    wait_until(lambda: db.value(probes) >= 2, "each topic is probed again and again")
    for daemon in daemons:
        daemon.stop()
    waiting = (updates(db) - sent(db)) / held(db)
    assert waiting <= 1.05, "writes a row while they wait"

    daemons = [start(db, **SETTINGS) for _ in range(2)]
    for topic in (one, two, three):
        missing.create(topic)
        writer.bulk(db.conn, topic, 100, keys=20, start=10_000)
    total += 300
    db.wait_settled(None, *daemons)
    wait_until(lambda: parked(db) == {}, lambda: f"nothing is parked any more: {parked(db)}")
    assert innocent(db)
    for daemon in daemons:
        daemon.stop()
    in_all = (updates(db) - 10_000) / (total - 10_000)
    assert in_all <= 2.1, "writes a row in all"
    seen(f"{waiting:.2f} writes a row while waiting, {in_all:.2f} in all")
    seen(judge_all(kafka, db.conn, [there, one, two, three]).check())


def test_a_probe_that_fails_writes_no_row(db, missing, start):
    """A waiting row is written once, also the one that is tried again and again."""
    (absent,) = missing()
    writer.bulk(db.conn, absent, 3, keys=1)
    start(db, **SETTINGS)
    wait_until(lambda: held(db) == 3 and parked(db), "they wait")
    places = db.execute("SELECT seq, ctid FROM outbox_events ORDER BY seq")
    probes = "SELECT probes FROM outbox_parked_topics"
    wait_until(lambda: db.value(probes) >= 2, lambda: f"it is probed: {db.value(probes)}")
    assert db.execute("SELECT seq, ctid FROM outbox_events ORDER BY seq") == places


@fault("one topic of a routing list is missing", how="events for a list of two topics, one of which does not exist, among "
       "plain events of both", promise="the list waits as a whole and in its place in both streams; other keys flow; order is "
                                       "kept when the topic appears")
def test_routing_list_with_a_missing_topic(db, new_topic, missing, kafka, start, seen):
    there, (absent,) = new_topic(), missing()
    for n in range(30):
        for key in ("a", "b"):
            writer.publish(db.conn, there, key, f'{{"n": {n}}}')
        writer.publish(db.conn, there, "a", f'{{"n": {n}}}', routing_key=f"{there}, {absent}")
        writer.publish(db.conn, absent, "b", f'{{"n": {n}}}')
    daemon = start(db, **SETTINGS)
    wait_until(lambda: sent(db) + held(db) == 120, lambda: f"{sent(db)} sent, {held(db)} held")
    assert parked(db) == {absent: "parked"}
    assert sent(db) == 31, "key b of the topic that is there, and what stands before the first list of key a"
    missing.create(absent)
    db.wait_settled(None, daemon)
    wait_until(lambda: parked(db) == {}, "nothing is parked any more")
    assert innocent(db)
    # The lists' first try reached the topic that is there: the same events come once more.
    seen(judge_all(kafka, db.conn, [there, absent]).check(duplicates=30))


def test_lists_of_a_parked_topic_drain_by_the_batch(db, missing, serve):
    """Events of one key that name their topic in a list stand behind each other in the queue: one a claim would take for ever."""
    (absent,) = missing()
    daemon, window = serve(db, **SETTINGS)
    for n in range(600):
        writer.publish(db.conn, "unused", "a", f'{{"n": {n}}}', routing_key=absent)
    wait_until(lambda: held(db) == 600 and parked(db), lambda: f"{held(db)} wait")
    before = window.metrics()["outboxd_batch_events_count"]
    missing.create(absent)
    db.wait_settled(None, daemon)
    assert innocent(db)
    assert window.metrics()["outboxd_batch_events_count"] - before < 60, "one or two of them a batch"


@fault("lists among the plain events of a missing topic", how="8,000 events of 9 keys: for a topic that exists, for one that does "
       "not, and a tenth for both", promise="when the topic appears all flow in order, each released by the one before it: the "
                                            "sweep finds nothing that was left")
def test_lists_among_plain_events_drain(db, new_topic, missing, kafka, start, seen):
    there, (absent,) = new_topic(), missing()
    db.execute("""
        INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, routing_key)
        SELECT CASE WHEN x < 50 THEN %s ELSE %s END, 'order', 'order-' || n %% 9, jsonb_build_object('n', n),
               CASE WHEN x < 10 THEN %s || ',' || %s END
        FROM (SELECT n, hashint8(n)::bigint + 2147483648 AS h FROM generate_series(1, 8000) n) r
        CROSS JOIN LATERAL (SELECT h %% 100 AS x) x""", there, absent, there, absent)
    daemon = start(db, **{**SETTINGS, "OUTBOX_BATCH_SIZE": 50})
    wait_until(lambda: sent(db) + held(db) == 8000, lambda: f"{sent(db)} sent, {held(db)} held")
    missing.create(absent)
    db.wait_settled(None, daemon)
    wait_until(lambda: parked(db) == {}, "nothing is parked any more")
    assert innocent(db)
    assert "released" not in daemon.text(), "something waited for the sweep"
    lists = db.value("SELECT count(*) FROM outbox_events WHERE routing_key IS NOT NULL")
    seen(judge_all(kafka, db.conn, [there, absent]).check(duplicates=lists))


@fault("a parked topic is emptied by hand", how="DELETE of every row that waits for it",
       promise="the topic leaves outbox_parked_topics by itself")
def test_parked_topic_emptied_by_hand(db, missing, start, seen):
    (absent,) = missing()
    writer.bulk(db.conn, absent, 200, keys=10)
    start(db, **SETTINGS)
    wait_until(lambda: held(db) == 200 and parked(db), "they wait")
    db.execute("DELETE FROM outbox_events")
    wait_until(lambda: parked(db) == {}, "the topic is forgotten")


@fault("the probe row of a parked topic is deleted by hand", how="DELETE of every waiting row in the lane of the probe",
       promise="another row becomes the probe, and the rest flows when the topic appears")
def test_probe_row_deleted_by_hand(db, missing, kafka, start, seen):
    (absent,) = missing()
    writer.bulk(db.conn, absent, 500, keys=50)
    daemon = start(db, **SETTINGS)
    wait_until(lambda: held(db) == 500 and parked(db), "they wait")
    gone = [row[0] for row in db.execute(
        "DELETE FROM outbox_events WHERE lane = (SELECT probe_lane FROM outbox_parked_topics) RETURNING id")]
    assert 0 < len(gone) < 500
    missing.create(absent)
    db.wait_settled(None, daemon)
    wait_until(lambda: parked(db) == {}, "nothing is parked any more")
    seen(judge_all(kafka, db.conn, [absent], without=gone).check())


@fault("a topic vanishes while its events flow", how="the topic is deleted and made again while two daemons work; the "
       "judge reads what the second one holds", promise="what was not acknowledged before waits and goes to the new topic")
def test_topic_comes_and_goes(db, missing, kafka, start, seen):
    (name,) = missing()
    missing.create(name)
    daemons = [start(db, **SETTINGS) for _ in range(2)]
    writer.bulk(db.conn, name, 1000, keys=20)
    db.wait_settled(None, *daemons)
    kafka.delete_topic(name)
    writer.bulk(db.conn, name, 2000, keys=20, start=1000)
    wait_until(lambda: parked(db), "the topic is parked")
    missing.create(name)
    db.wait_settled(None, *daemons)
    assert innocent(db)
    # While a topic goes, its brokers still acknowledge: such events went with it.
    acknowledged = db.value("SELECT count(*) FROM outbox_events WHERE status = 1") - 1000
    verdict = judge_all(kafka, db.conn, [name], where="seq > 1000")
    assert verdict.disorder == 0 and acknowledged == 2000
    seen(verdict)


def test_rows_behind_a_dead_one_do_not_starve_a_draining_topic(db, missing, kafka, start):
    """More rows than a batch wait behind a DEAD row that blocks, the probe's first choice among them: the other stream of the
    lane is tried and drains, and the topic is parked no longer."""
    count, (absent,) = 1200, missing()
    blocked, free = [row[0] for row in db.execute("SELECT 'key-' || n FROM generate_series(1, 1000) n "
                                                  "WHERE outbox_lane('key-' || n) = 3 ORDER BY n LIMIT 2")]
    writer.publish(db.conn, absent, blocked)
    db.execute("UPDATE outbox_events SET status = 9")
    for key, number in ((blocked, count), (free, 50)):
        db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload) "
                   "SELECT %s, 'order', %s, '{}' FROM generate_series(1, %s)", absent, key, number)
    daemon = start(db, OUTBOX_ON_DEAD="block", **SETTINGS)
    wait_until(lambda: held(db) == count + 50, lambda: f"{held(db)} wait")
    missing.create(absent)
    wait_until(lambda: sent(db) == 50, lambda: f"the free stream drains: {sent(db)} of 50")
    wait_until(lambda: parked(db) == {}, "what is left waits for the DEAD row and not for the topic")
    assert held(db) == count and daemon.alive
    dead = db.value("DELETE FROM outbox_events WHERE status = 9 RETURNING id")
    daemon.stop()
    daemon = start(db, OUTBOX_ON_DEAD="block", **SETTINGS)
    db.wait_settled(None, daemon)
    judge_all(kafka, db.conn, [absent], without=[dead]).check()


def keys_of_one_lane(db, count):
    return [row[0] for row in db.execute("SELECT 'key-' || n FROM generate_series(1, 2000) n "
                                         "WHERE outbox_lane('key-' || n) = 5 ORDER BY n LIMIT %s", count)]


def test_a_probe_does_not_pass_a_row_that_another_session_holds(db, missing, kafka, start):
    """The head of a parked topic's stream is locked by a foreign session: its follower is no probe, and neither the other
    streams of the lane nor the topic wait for that lock."""
    (absent,) = missing()
    blocked, free = keys_of_one_lane(db, 2)
    head = writer.publish(db.conn, absent, blocked, '{"n": 1}')
    writer.publish(db.conn, absent, blocked, '{"n": 2}')
    writer.publish(db.conn, absent, free, '{"n": 3}')
    with db.connect() as foreign, foreign.transaction():
        foreign.execute("SELECT FROM outbox_events WHERE id = %s FOR UPDATE", (head,))
        daemon = start(db, **SETTINGS)
        wait_until(lambda: held(db) == 2 and parked(db), "the followers wait")
        missing.create(absent)
        wait_until(lambda: sent(db) == 1, "the free stream flows")
        assert db.value("SELECT aggregate_id FROM outbox_events WHERE status = 1") == free
    db.wait_settled(None, daemon)
    judge_all(kafka, db.conn, [absent]).check()


def test_a_drain_cut_by_bytes_keeps_the_order_of_routed_rows(db, missing, kafka, start):
    """A plain row is locked but not fetched for its bytes; the routed row behind it, of the other topic's queue, waits."""
    one, two = missing(2)
    for topic in (one, two):
        writer.publish(db.conn, topic, "k")
    daemon = start(db, OUTBOX_BATCH_BYTES="1KiB", OUTBOX_WORKERS=1)
    wait_until(lambda: set(parked(db)) == {one, two}, "both are parked")
    writer.publish(db.conn, two, "k", '{"fill": "%s"}' % ("x" * 900))
    writer.publish(db.conn, "unused", "k", '{"fill": "%s"}' % ("x" * 900), routing_key=f"{one},{two}")
    wait_until(lambda: held(db) == 4, "all wait")
    for topic in (one, two):
        missing.create(topic)
    db.wait_settled(None, daemon)
    judge_all(kafka, db.conn, [one, two]).check()


def test_a_topic_does_not_wait_for_the_other_topic_of_its_probe(db, missing, kafka, start):
    """The only row in the probe's lane goes to a second topic that stays away: the first one drains all the same."""
    back, away = missing(2)
    writer.publish(db.conn, "unused", "k", routing_key=f"{back},{away}")
    daemon = start(db, **SETTINGS)
    wait_until(lambda: back in parked(db), "the first is parked")
    for n in range(6):
        writer.publish(db.conn, back, f"plain-{n}")
    writer.publish(db.conn, away, "q")
    wait_until(lambda: held(db) == 8 and away in parked(db), "all wait")
    missing.create(back)
    wait_until(lambda: sent(db) == 6, lambda: f"{sent(db)} of 6 plain events flow")
    missing.create(away)
    db.wait_settled(None, daemon)
    judge_all(kafka, db.conn, [back, away]).check()


@fault("heads of streams are deleted by hand", how="DELETE of refused events that wait for their next try, each with held ones "
       "behind it, plain and routed; nothing else goes on, and the daemon is not restarted: its monotonic clock jumps by a minute",
       promise="the running daemon's own sweep, once a minute and lane, frees what waited, and it flows in order")
def test_the_sweep_of_a_running_daemon(root, db, new_topic, kafka, start, seen):
    topic, second, keys = new_topic(), new_topic(), [f"order-{n}" for n in range(40)]
    heads = [writer.publish(db.conn, topic, key) for key in keys]
    db.execute("UPDATE outbox_events SET status = 2, retry_count = 1, retry_after = now() + interval '1 hour'")
    jumping, before = clock.Jumping(root, db.name), db.value("SELECT clock_timestamp()")
    daemon = start(db, **SETTINGS, **jumping)
    for n in range(3):
        for key in keys:
            writer.publish(db.conn, topic, key, f'{{"n": {n}}}', **({"routing_key": f"{second}, {topic}"} if n == 1 else {}))
    wait_until(lambda: held(db) == 120, lambda: f"{held(db)} of 120 wait behind their heads")
    wait_until(lambda: db.value("SELECT min(swept_at) > %s FROM outbox_lanes", before), "the sweep at start is over")
    db.execute("DELETE FROM outbox_events WHERE id = ANY(%s)", heads)
    time.sleep(2)
    assert held(db) == 120, "nothing but the sweep looks at them"
    db.execute("UPDATE outbox_lanes SET swept_at = swept_at - interval '1 minute'")
    time.sleep(2)
    assert held(db) == 120, "the daemon's minute has not passed"
    jumping.pass_time(60)
    begin = time.monotonic()
    db.wait_settled(20, daemon)
    took = time.monotonic() - begin
    assert innocent(db)
    seen(f"120 held events of 40 streams flow {took:.1f} s after the minute has passed")
    seen(judge_all(kafka, db.conn, [topic, second], without=heads).check())


@fault("a row that is larger than any message", how="40 MB of JSON between small events of the same lane",
       promise="it is DEAD with the cause and is never fetched; its neighbours do not notice")
def test_a_row_larger_than_any_message(db, new_topic, kafka, start, seen):
    topic = new_topic()
    giant, small = keys_of_one_lane(db, 2)
    dead = db.value("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload) "
                    "SELECT %s, 'order', %s, jsonb_build_object('fill', repeat('x', 40000000)) RETURNING id", topic, giant)
    for key in (giant, small):
        writer.publish(db.conn, topic, key)
    daemon = start(db, **SETTINGS)
    wait_until(lambda: sent(db) == 2, lambda: f"{sent(db)} of 2 small events are sent")
    [(status, error)] = db.execute("SELECT status, last_error FROM outbox_events WHERE id = %s", dead)
    assert status == 9 and "OUTBOX_KAFKA_MESSAGE_MAX_BYTES" in error
    assert daemon.peak_rss() < 40_000_000
    seen(judge_all(kafka, db.conn, [topic], without=[dead]).check())
