"""Records that a topic does not take: the culprits pay, their neighbours do not notice."""

import json

import pytest
from rig import judge as judges
from rig import writer
from rig.faults import fault
from rig.process import wait_until

RETRIES = 3
SETTINGS = {"OUTBOX_KAFKA_MESSAGE_MAX_BYTES": 1000000, "OUTBOX_MAX_RETRIES": RETRIES, "OUTBOX_RETRY_BASE": "50ms",
            "OUTBOX_RETRY_MAX": "100ms"}
EVENTS, KEYS, CULPRITS = 1000, 20, (3, 117, 512, 513, 994)


def write_poisoned(db, topic):
    """1,000 events of 1 kB over 20 keys, five culprits of 200 kB among them; returns the culprits' ids, in order."""
    rows = db.execute("""
        INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload)
        SELECT %s, 'order', 'order-' || n %% %s,
               jsonb_build_object('n', n, 'fill', repeat('x', CASE WHEN n = ANY (%s) THEN 200000 ELSE 1000 END))
          FROM generate_series(0, %s) n RETURNING id, payload->>'n'""", topic, KEYS, list(CULPRITS), EVENTS - 1)
    return [id for id, n in rows if int(n) in CULPRITS]


def check_culprits(db, culprits):
    rows = db.execute("SELECT id, status, retry_count, last_error FROM outbox_events WHERE id = ANY (%s)", culprits)
    assert len(rows) == len(culprits)
    for _, status, retry_count, last_error in rows:
        assert (status, retry_count) == (9, RETRIES) and "max.message.bytes" in last_error
    assert db.value("SELECT max(retry_count) FROM outbox_events WHERE NOT id = ANY (%s)", culprits) == 0


@fault("poison among innocents", how="max.message.bytes=50000, 1,000 events of 1 kB over 20 keys, five of 200 kB among them",
       promise="innocents delivered in order with no attempt counted; culprits DEAD with the cause after exactly max_retries")
def test_poison_hurts_only_itself(db, new_topic, start, judge, seen):
    topic, dead_topic = new_topic(max_message_bytes=50000), new_topic(max_message_bytes=1000000)
    culprits = write_poisoned(db, topic)
    own = {"outbox_error": "my own", "outbox_topic": "my own"}  # written from a copy in a dead topic, say
    db.execute("UPDATE outbox_events SET headers = %s WHERE id = ANY (%s)", json.dumps(own), culprits)
    daemon = start(db, OUTBOX_DEAD_TOPIC=dead_topic, **SETTINGS)
    db.wait_settled(None, daemon)
    check_culprits(db, culprits)
    verdict = judge(topic, without=culprits).check()
    assert verdict.messages == EVENTS - len(culprits)
    copies = [message for messages in judges.read_topics(judge.kafka.internal, [dead_topic]) for message in messages]
    headers = [dict(message.headers()) for message in copies]
    assert all(len(message.headers()) == len(one) for message, one in zip(copies, headers, strict=True))
    assert sorted(one["id"].decode() for one in headers) == sorted(culprits)
    assert all(one["outbox_topic"].decode() == topic and b"max.message.bytes" in one["outbox_error"] for one in headers)
    assert all(len(message.value()) > 200000 for message in copies)
    seen(verdict, f"{len(culprits)} culprits DEAD after {RETRIES} refusals each, {len(copies)} copies in the dead topic")


@fault("JSON that explodes", how="one event each with ten thousand numbers of 131,072 digits in payload, headers or metadata: 160 kB in "
       "the table, 1.3 GB as text, which PostgreSQL cannot hand out in a row; 3,000 others",
       promise="DEAD with the cause; everything else is delivered in order, and no attempt is counted")
def test_json_that_explodes(db, topic, start, judge, seen):
    bomb = f'{{"x": [{",".join(["1e131071"] * 10000)}]}}'
    bombs = []
    for n, column in enumerate(("payload", "headers", "metadata")):
        writer.bulk(db.conn, topic, 1000, keys=20, start=n * 1000)
        bombs.append(writer.publish(db.conn, topic, "order-3", **{column: bomb}))
    daemon = start(db)
    db.wait_settled(None, daemon)
    rows = db.execute("SELECT status, retry_count, last_error FROM outbox_events WHERE id = ANY (%s)", bombs)
    assert len(rows) == 3 and all(row[:2] == (9, 0) and "larger than a message may be" in row[2] for row in rows)
    assert db.value("SELECT max(retry_count) FROM outbox_events") == 0
    seen(judge(topic, where="id <> ALL (ARRAY['" + "','".join(bombs) + "'])").check(), "three DEAD, 3,000 delivered")


@fault("poison, OUTBOX_ON_DEAD=block", how="the same; the dead rows are deleted by SQL later",
       promise="the culprits' streams wait behind them, the others flow; one sweep after the deletion frees them")
def test_block_holds_the_streams_of_the_dead(db, new_topic, start, judge, seen):
    topic = new_topic(max_message_bytes=50000)
    culprits = write_poisoned(db, topic)
    heads = {n % KEYS: n for n in CULPRITS}
    assert len(heads) == len(CULPRITS), "each in a stream of its own"
    waiting = sum(1 for n in range(EVENTS) if n % KEYS in heads and n > heads[n % KEYS])
    daemon = start(db, OUTBOX_ON_DEAD="block", **SETTINGS)

    def counts():
        return dict(db.execute("SELECT status, count(*) FROM outbox_events GROUP BY status"))

    wait_until(lambda: counts() == {1: EVENTS - waiting - len(culprits), 2: waiting, 9: len(culprits)}, lambda: str(counts()))
    held = db.execute("SELECT count(*), max(retry_count), bool_and(retry_after = 'infinity') FROM outbox_events WHERE status = 2")
    assert held == [(waiting, 0, True)]
    check_culprits(db, culprits)

    # Dealt with. A daemon sweeps when it starts and once a minute from then on: here a second one does, beside the first.
    wait_until(lambda: db.value("SELECT bool_and(swept_at > 'epoch') FROM outbox_lanes"), "the first daemon's sweep is over")
    db.execute("DELETE FROM outbox_events WHERE status = 9")
    sweeper = start(db, OUTBOX_ON_DEAD="block", **SETTINGS)
    db.wait_settled(None, daemon, sweeper)
    assert "held events of lane" in sweeper.text() and "held events of lane" not in daemon.text()
    verdict = judge(topic, without=culprits).check()
    assert verdict.messages == EVENTS - len(culprits)
    assert db.value("SELECT max(retry_count) FROM outbox_events") == 0
    seen(f"{waiting} followers held while their heads were dead, freed by one sweep", verdict)


@fault("a topic too small for record batches", how="max.message.bytes=5000, 1,000 events of 1 kB in 3 streams",
       promise="all delivered in strict order, nobody DEAD, no attempt counted")
@pytest.mark.parametrize("user", ["curious", "relay"])
def test_small_topic(user, db, guarded, new_topic, start, judge, seen):
    """`curious` asks for the topic's limit; `relay` may not, and learns it from refusals."""
    topic = new_topic(guarded, max_message_bytes=5000)
    writer.bulk(db.conn, topic, 1000, keys=3, size=1000)
    daemon = start(db, kafka=guarded, OUTBOX_MAX_RETRIES=0, **guarded.sasl(user))
    db.wait_settled(None, daemon)
    assert db.value("SELECT count(*) FROM outbox_events WHERE status <> 1 OR retry_count > 0 OR last_error IS NOT NULL") == 0
    verdict = judge(topic, kafka=guarded).check()
    assert verdict.messages == 1000
    seen(verdict)


@fault("records larger than a segment", how="segment.bytes=1048576, max.message.bytes=8 MiB, one event of 1.5 MB a stream",
       promise="refused while alone: FAILED with backoff, DEAD at the event's own max_retries, 0 of them: at the first; "
       "its neighbours do not notice")
def test_larger_than_a_segment(db, new_topic, start, judge, seen):
    topic = new_topic(segment_bytes=1048576, max_message_bytes=8 << 20)
    big = '{"fill": "' + "x" * 1500000 + '"}'
    culprits = [writer.publish(db.conn, topic, f"k{n}", big) for n in range(3)]
    db.execute("UPDATE outbox_events SET max_retries = right(aggregate_id, 1)::int")
    writer.bulk(db.conn, topic, 300, keys=10)
    for n in range(3):
        writer.publish(db.conn, topic, f"k{n}")  # behind the culprits
    daemon = start(db, OUTBOX_KAFKA_MESSAGE_MAX_BYTES=4000000, OUTBOX_RETRY_BASE="100ms")
    db.wait_settled(None, daemon)
    rows = db.execute("SELECT aggregate_id, status, retry_count, last_error FROM outbox_events WHERE id = ANY (%s) ORDER BY 1", culprits)
    assert [row[:3] for row in rows] == [("k0", 9, 1), ("k1", 9, 1), ("k2", 9, 2)], rows
    assert all("segment.bytes" in row[3] for row in rows), rows
    assert db.value("SELECT count(*) FROM outbox_events WHERE NOT id = ANY (%s) AND (status <> 1 OR retry_count > 0)", culprits) == 0
    seen(judge(topic, without=culprits).check())


def test_the_backoff_grows_to_its_cap(db, new_topic, start):
    """Each pause lies between half and all of base × 2^n, at most the cap, and is counted from the mark."""
    topic = new_topic(max_message_bytes=50000)
    db.execute("""CREATE TABLE pauses (n int, ms float);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO pauses VALUES (NEW.retry_count, 1e3 * extract(epoch FROM NEW.retry_after - clock_timestamp()));
            RETURN NULL; END $$;
        CREATE TRIGGER note AFTER UPDATE ON outbox_events FOR EACH ROW
            WHEN (NEW.status = 2 AND NEW.retry_count > OLD.retry_count) EXECUTE FUNCTION note()""")
    writer.publish(db.conn, topic, "k", '{"fill": "' + "x" * 200000 + '"}')
    daemon = start(db, OUTBOX_KAFKA_MESSAGE_MAX_BYTES=1000000, OUTBOX_MAX_RETRIES=5, OUTBOX_RETRY_BASE="400ms", OUTBOX_RETRY_MAX="1s")
    db.wait_settled(None, daemon)
    pauses = db.execute("SELECT n, ms FROM pauses ORDER BY n")
    assert [n for n, _ in pauses] == [1, 2, 3, 4]
    for (_, ms), full in zip(pauses, (400, 800, 1000, 1000)):
        assert full / 2 - 100 < ms <= full, pauses  # the trigger's clock is a little later
