"""Consumers are killed, cut off and frozen: every effect once, order kept, nothing lost."""

import os
import threading
import time

import pytest
from rig.faults import fault
from rig.messages import NOTES, check_notes, numbered, send, wait_notes
from rig.process import wait_until

LONG = 30 if os.environ.get("RIG_LONG") == "1" else 0  # seconds of an outage, as in rig.faults.length
ONCE = "every effect exactly once, order kept within each key"


@pytest.fixture
def inbox(db):
    db.execute(NOTES)
    return db


class Feeder(threading.Thread):
    """Sends every event at least twice while the test does something else: batch after batch, then the batch before it once more."""

    def __init__(self, kafka, topic, events, batch=1000, pause=0.0):
        super().__init__(daemon=True)
        self.kafka, self.topic, self.events, self.batch, self.pause = kafka, topic, events, batch, pause
        self.failure = None

    def run(self):
        try:
            for at in range(0, len(self.events), self.batch):
                send(self.kafka, self.topic, self.events[at:at + self.batch])
                send(self.kafka, self.topic, self.events[max(0, at - self.batch):at])
                time.sleep(self.pause)
            send(self.kafka, self.topic, self.events[-self.batch:])
        except Exception as failure:  # handed to the test by finish
            self.failure = failure

    def finish(self):
        self.join(300)
        assert not self.is_alive() and self.failure is None, self.failure


@fault("consumers killed and rebalanced", how="three consumers of one group, 20 times kill -9 of one that works and a new one in its "
       "place, 100,000 events each sent twice or more", promise=ONCE)
def test_kill_and_rebalance(inbox, new_kafka, consume, chance, seen):
    kafka = new_kafka(properties={"group.min.session.timeout.ms": 1000})  # a dead consumer's partitions move after two seconds
    topic = kafka.create_topic("t", partitions=8)
    inbox.execute("""CREATE FUNCTION dawdle(event_id text, topic text, key text, payload jsonb, headers jsonb) RETURNS void
                     LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.0002), handler(event_id, topic, key, payload, headers); END $$""")
    events, batch = numbered(100_000, keys=500), 5000
    settings = {"OUTBOX_BATCH_SIZE": 500, "OUTBOX_CONSUMER_HANDLER": "dawdle", "OUTBOX_KAFKA_SESSION_TIMEOUT_MS": 2000,
                "OUTBOX_KAFKA_HEARTBEAT_INTERVAL_MS": 300, "kafka": kafka}
    daemons = [consume(inbox, topic, **settings) for _ in range(3)]
    for kill in range(20):
        at = kill * batch
        working = wait_until(lambda: [n for n in range(3) if has_partitions(daemons[n])], "somebody has partitions")
        send(kafka, topic, events[at:at + batch])
        send(kafka, topic, events[max(0, at - batch):at])
        wait_notes(inbox, at + 500)
        victim = chance.choice(working)
        time.sleep(chance.uniform(0, 0.3))
        daemons[victim].kill()
        daemons[victim] = consume(inbox, topic, **settings)
    send(kafka, topic, events[-batch:])
    wait_notes(inbox, 100_000, *daemons)
    wait_until(lambda: all(has_partitions(one) for one in daemons), "all three have partitions")
    time.sleep(2)  # whatever comes now is once too much
    check_notes(inbox, events)
    sessions = inbox.value("SELECT count(DISTINCT pid) FROM notes")
    assert sessions >= 10
    seen(f"100,000 effects of 100,000 events by {sessions} processes: each once, none out of order")


def has_partitions(daemon):
    """Has, or has had: repeated lines of a log are only counted."""
    return "got partition" in daemon.text()


@pytest.mark.parametrize("seam", ["accepted", "handled", "taken"])
@fault("a consumer dies at a named point", how="kill -9 behind the marks, before COMMIT, between COMMIT and the offsets", promise=ONCE)
def test_kill_at_seam(seam, inbox, kafka, topic, consume, seams, seen):
    events = numbered(3000, keys=20)
    send(kafka, topic, events)
    settings = {"OUTBOX_BATCH_SIZE": 100, "OUTBOX_KAFKA_SESSION_TIMEOUT_MS": 6000, "build": seams}
    for nth in (1, 4):
        daemon = consume(inbox, topic, OUTBOXD_SEAM=f"{seam}:{nth}:kill", **settings)
        assert daemon.wait() == -9, daemon.tail()
    daemon = consume(inbox, topic, **settings)
    wait_notes(inbox, 3000, daemon)
    check_notes(inbox, events)
    seen("3,000 effects of 3,000 events")


@fault("broker away from a consumer", how="the only broker killed while events flow, and started again", promise=ONCE + "; it goes on by itself")
def test_broker_outage(inbox, new_kafka, consume, seen):
    kafka = new_kafka()
    topic = kafka.create_topic("t")
    events = numbered(20_000, keys=100)
    send(kafka, topic, events[:10_000])
    daemon = consume(inbox, topic, kafka=kafka, OUTBOX_BATCH_SIZE=200)
    wait_notes(inbox, 3000, daemon)
    kafka.brokers[0].kill()
    daemon.wait_log("Kafka is away")
    time.sleep(LONG or 5)
    assert daemon.alive
    kafka.brokers[0].start()
    kafka.wait_ready()
    send(kafka, topic, events)  # the first half comes twice
    wait_notes(inbox, 20_000, daemon)
    time.sleep(1)
    check_notes(inbox, events)
    assert daemon.stop() == 0
    seen("20,000 effects of 20,000 events")


@fault("database away from a consumer", how="PostgreSQL stopped (fast, then immediate) while events flow, and started again",
       promise=ONCE + "; it keeps its partitions and no event loses an attempt")
def test_database_outage(new_cluster, new_db, kafka, topic, consume, seen):
    cluster = new_cluster()
    db = new_db(cluster).prepare()
    db.execute(NOTES)
    events = numbered(20_000, keys=100)
    feeder = Feeder(kafka, topic, events, batch=1000, pause=0.3)
    feeder.start()
    daemon = consume(db, topic, OUTBOX_BATCH_SIZE=200, OUTBOX_CONSUMER_MAX_RETRIES=1)
    for mode in ("fast", "immediate"):
        before = db.value("SELECT count(*) FROM notes")
        wait_notes(db, before + 1000, daemon)
        db.conn.close()
        cluster.stop(mode)
        time.sleep(LONG or 8)
        assert daemon.alive
        cluster.start()
    feeder.finish()
    wait_notes(db, 20_000, daemon)
    time.sleep(1)
    check_notes(db, events)
    assert db.value("SELECT count(*) FROM inbox_dead") == 0
    assert "lost partition" not in daemon.text()
    seen("20,000 effects of 20,000 events, none dead")


@fault("a consumer hangs", how="SIGSTOP until its partitions and its transaction are another's, then SIGCONT", promise=ONCE)
def test_frozen_consumer(inbox, kafka, topic, consume, seen):
    events = numbered(20_000, keys=100)
    send(kafka, topic, events)
    settings = {"OUTBOX_BATCH_SIZE": 200, "OUTBOX_KAFKA_SESSION_TIMEOUT_MS": 6000}
    frozen = consume(inbox, topic, **settings)
    wait_notes(inbox, 1000, frozen)
    frozen.freeze()
    other = consume(inbox, topic, **settings)
    # The frozen one may hold a transaction with marks: it ends when PostgreSQL ends it, after a minute.
    wait_notes(inbox, 20_000, other, timeout=400)
    frozen.thaw()
    time.sleep(3)
    send(kafka, topic, numbered(1000, keys=100, start=20_000))
    wait_notes(inbox, 21_000, other, frozen)
    check_notes(inbox, numbered(21_000, keys=100))
    seen("21,000 effects of 21,000 events")
