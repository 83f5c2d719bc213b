"""Topics that change under the daemon's feet: they get more partitions, or are made again with fewer."""

import json
import time

from confluent_kafka.admin import NewPartitions
from rig import judge as judges
from rig import writer
from rig.faults import fault
from rig.process import wait_until

# librdkafka's own setting says how often a topic's partitions are asked for.
SETTINGS = {"OUTBOX_WORKERS": 1, "OUTBOX_MAX_RETRIES": 2, "OUTBOX_RETRY_BASE": "200ms", "OUTBOX_RETRY_MAX": "200ms",
            "OUTBOX_KAFKA_TOPIC_METADATA_REFRESH_INTERVAL_MS": 1000}
REFRESHED = 3  # seconds after which it was asked for again


def partition(key, partitions):
    return judges.java_partition(key.encode(), partitions)


def meeting_keys():
    """Two keys that live apart in four partitions, and together in one of the new ones of six."""
    keys = [f"key-{n}" for n in range(200)]
    return next((a, b) for a in keys for b in keys
                if partition(a, 4) != partition(b, 4) and partition(a, 6) == partition(b, 6) >= 4)


def grow(kafka, topic, partitions):
    for future in kafka.admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result(30)
    time.sleep(REFRESHED)  # nothing tells when the daemon's librdkafka has learned it


def messages_of(kafka, topic):
    return [message for messages in judges.read_topics(kafka.internal, [topic]) for message in messages]


def test_a_parked_topic_is_told_once(db, kafka, new_topic, start):
    """However often it is probed."""
    topic = new_topic(partitions=1) + "-gone"
    writer.publish(db.conn, topic, "k")
    daemon = start(db)
    wait_until(lambda: (db.value("SELECT max(probes) FROM outbox_parked_topics") or 0) >= 4, "it is probed")
    told = [line for level, line, _ in daemon.lines() if level == "warning" and "parked" in line]
    assert told == [f"parked: topic {topic}: the topic does not exist"], told
    kafka.create_topic(topic, partitions=1)
    db.wait_settled(None, daemon)
    wait_until(lambda: not db.value("SELECT count(*) FROM outbox_parked_topics"), "it is not parked any more")


@fault("a topic gets more partitions, poison in it", how="from four to six; then a culprit and an innocent whose keys now share one",
       promise="the new partitions are found; the culprit is DEAD, no attempt of the innocent is counted")
def test_grown_topic_isolates(db, kafka, new_topic, start, seen):
    topic = new_topic(max_message_bytes=50000)
    daemon = start(db, **SETTINGS)
    writer.bulk(db.conn, topic, 20, keys=20)
    db.wait_settled(None, daemon)
    grow(kafka, topic, 6)
    guilty, innocent = meeting_keys()
    with db.conn.transaction():
        writer.publish(db.conn, topic, guilty, json.dumps({"fill": "x" * 200000}))
        writer.publish(db.conn, topic, innocent)
    db.wait_settled(60, daemon)
    rows = dict(db.execute("SELECT aggregate_id, status || '/' || retry_count FROM outbox_events WHERE aggregate_id LIKE 'key-%'"))
    assert rows == {guilty: "9/2", innocent: "1/0"}
    [place] = [m.partition() for m in messages_of(kafka, topic) if m.key().decode() == innocent]
    assert place == partition(innocent, 6)
    seen(f"culprit DEAD after 2 refusals, innocent sent at once to partition {place}")


@fault("a topic gets more partitions, large batches", how="from four to six; then two keys that now share one, 1.2 MB in one batch for a topic of 700 kB",
       promise="rounds stay one record batch a partition: order is kept, no attempt is counted")
def test_grown_topic_keeps_order(db, kafka, new_topic, start, seen):
    topic = new_topic(max_message_bytes=700000)
    daemon = start(db, **SETTINGS)
    writer.bulk(db.conn, topic, 20, keys=20)
    db.wait_settled(None, daemon)
    grow(kafka, topic, 6)
    pair = meeting_keys()
    with db.conn.transaction():
        for n in range(60):
            for key in pair:
                writer.publish(db.conn, topic, key, json.dumps({"n": n, "fill": "x" * 9900}))
    db.wait_settled(60, daemon)
    assert db.execute("SELECT status, max(retry_count) FROM outbox_events GROUP BY 1") == [(1, 0)]
    numbers = {key: [] for key in pair}
    for message in messages_of(kafka, topic):
        if message.key().decode() in numbers:
            numbers[message.key().decode()].append(json.loads(message.value())["n"])
    assert numbers == {key: list(range(60)) for key in pair}
    seen("120 events of 10 kB in order, each once")


@fault("a topic is made again with fewer partitions", how="deleted and made again, six partitions before, two after",
       promise="parked until its new partitions are known, then delivered; nothing lost, nothing counted")
def test_topic_made_again_smaller(db, kafka, new_topic, start, seen):
    topic = new_topic(partitions=6)
    daemon = start(db, **SETTINGS | {"OUTBOX_KAFKA_TOPIC_METADATA_REFRESH_INTERVAL_MS": 300000})
    writer.bulk(db.conn, topic, 100, keys=50)
    db.wait_settled(None, daemon)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=2)
    writer.bulk(db.conn, topic, 100, keys=50, start=100)
    db.wait_settled(60, daemon)
    assert db.execute("SELECT status, max(retry_count) FROM outbox_events GROUP BY 1") == [(1, 0)]
    found = {json.loads(m.value())["n"]: (m.partition(), m.key().decode()) for m in messages_of(kafka, topic)}
    assert sorted(found) == list(range(100, 200))
    assert all(place == partition(key, 2) for place, key in found.values())
    seen("100 events in the partitions of the new topic")


@fault("an empty key", how="events whose aggregate_id is the empty text", promise="they go where Java clients put an empty key")
def test_empty_key(db, topic, start, judge, seen):
    for n in range(3):
        writer.publish(db.conn, topic, "", json.dumps({"n": n}))
    daemon = start(db, **SETTINGS)
    db.wait_settled(None, daemon)
    seen(judge(topic).check())
