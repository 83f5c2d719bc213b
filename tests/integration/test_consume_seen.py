"""What `outboxd consume` shows of itself: metrics, readiness with the reason, signs of life."""

import contextlib
import socket
import time

import pytest
from rig import http, process
from rig.messages import NOTES, SIGNATURE, numbered, send, wait_notes
from rig.process import wait_until


@pytest.fixture
def inbox(db):
    """The test's database with the handler that notes every call."""
    db.execute(NOTES)
    return db


def make_window():
    port = process.free_port()
    one = http.Window(port)
    one.settings = {"OUTBOX_HTTP_LISTEN": f"127.0.0.1:{port}"}
    return one


@pytest.fixture
def window():
    """A port for the consumer's page: settings, and what they show."""
    return make_window()


@pytest.fixture
def windows():
    return [make_window() for _ in range(3)]


def test_metrics_of_a_scripted_run(inbox, kafka, topic, consume, window):
    """100 events, each twice; one raises for ever, one once."""
    events = numbered(100, keys=100)
    inbox.execute("CREATE TABLE bad AS SELECT unnest(ARRAY['e000007', 'e000009']) AS id; CREATE FUNCTION choosy" + SIGNATURE +
                  """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      IF EXISTS (SELECT FROM bad b WHERE b.id = event_id) THEN RAISE EXCEPTION 'bad'; END IF;
                      PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    start = time.monotonic()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="choosy", OUTBOX_CONSUMER_MAX_RETRIES=2, OUTBOX_RETRY_BASE="4s", **window.settings)
    window.wait("/readyz", 200)
    window.wait_metric("outboxd_consumer_partitions", 4)
    send(kafka, topic, events)
    window.wait_metric("outboxd_consumer_waiting", 2)
    seen = window.metrics()
    assert seen['outboxd_consumed_total{result="handled"}'] == 98 and seen['outboxd_consumed_total{result="failed"}'] == 2
    window.wait_metric("outboxd_consumer_lag", lambda lag: lag > 0)  # the offsets stand before the two
    inbox.execute("DELETE FROM bad WHERE id = 'e000009'")
    wait_notes(inbox, 99, daemon)
    window.wait_metric('outboxd_consumed_total{result="dead"}', 1)
    send(kafka, topic, events)
    window.wait_metric('outboxd_consumed_total{result="duplicate"}', 100)
    window.wait_metric("outboxd_consumer_lag", 0)
    window.wait_metric("outboxd_consumer_waiting", 0)
    seen = window.metrics()
    assert {result: seen[f'outboxd_consumed_total{{result="{result}"}}'] for result in ("handled", "duplicate", "failed", "dead")} == {
        "handled": 99, "duplicate": 100, "failed": 2, "dead": 1}
    assert seen["outboxd_consumer_paused_partitions"] == 0 and seen["outboxd_consumer_partitions"] == 4
    batches = [seen[f'outboxd_consume_seconds_count{{part="{part}"}}'] for part in ("handler", "outside")]
    spent = [seen[f'outboxd_consume_seconds_sum{{part="{part}"}}'] for part in ("handler", "outside")]
    assert batches[0] == batches[1] >= 4 and min(spent) > 0 and sum(spent) < time.monotonic() - start


def test_ready_says_when_postgresql_is_away(new_cluster, new_db, kafka, topic, consume, window):
    cluster = new_cluster()
    db = new_db(cluster).prepare()
    db.execute(NOTES)
    daemon = consume(db, topic, **window.settings)
    window.wait("/readyz", 200)
    db.conn.close()
    cluster.stop("fast")
    assert "PostgreSQL" in window.wait("/readyz", 503)
    window.wait_metric("outboxd_breaker_open", 1)  # its lag cannot grow while it takes nothing in, so this is what alerts
    cluster.start()
    window.wait("/readyz", 200)
    window.wait_metric("outboxd_breaker_open", 0)
    send(kafka, topic, numbered(10, keys=2))
    wait_notes(db, 10, daemon)


def test_ready_says_when_kafka_is_away(inbox, new_kafka, consume, window):
    kafka = new_kafka()
    topic = kafka.create_topic("t")
    daemon = consume(inbox, topic, kafka=kafka, **window.settings)
    window.wait("/readyz", 200)
    window.wait_metric("outboxd_consumer_partitions", lambda n: n > 0)
    kafka.brokers[0].kill()
    assert "Kafka is away" in window.wait("/readyz", 503)
    kafka.brokers[0].start()
    kafka.wait_ready()
    window.wait("/readyz", 200)
    send(kafka, topic, numbered(10, keys=2))
    wait_notes(inbox, 10, daemon)


def test_ready_says_when_nothing_can_be_handled(inbox, kafka, topic, consume, window):
    """Also between two tries, while PostgreSQL itself is there."""
    inbox.execute("CREATE TABLE full_disk (x int); INSERT INTO full_disk VALUES (1);"
                  "CREATE FUNCTION full_up" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1);
                      IF EXISTS (SELECT FROM full_disk) THEN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END IF; END $$""")
    consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="full_up", **window.settings)
    window.wait("/readyz", 200)
    send(kafka, topic, numbered(10, keys=2))
    window.wait("/readyz", 503)
    seen = [window.get("/readyz") for _ in range(1000)]
    assert {code for code, _ in seen} == {503} and all("full" in text for _, text in seen)
    inbox.execute("DELETE FROM full_disk")
    window.wait("/readyz", 200)


def test_ready_says_when_kafka_gives_no_partitions(inbox, kafka, guarded, topic, consume, windows):
    """A topic that is missing, or a group that is not allowed. A member that there is no partition for is ready all the same."""
    first, second, third = windows
    for window in (first, second):
        consume(inbox, topic + "-later", OUTBOX_KAFKA_TOPIC_METADATA_REFRESH_INTERVAL_MS=1000, **window.settings)
    consume(inbox, topic, kafka=guarded, **guarded.sasl("guest"), **third.settings)
    for window in (first, second):
        wait_until(lambda: "Unknown topic" in window.wait("/readyz", 503), "it says so")
    wait_until(lambda: "authorization failed" in third.wait("/readyz", 503), "it says so")
    kafka.create_topic(topic + "-later", partitions=1)
    for window in (first, second):
        window.wait("/readyz", 200)


class Manager:
    """The other end of sd_notify."""

    def __init__(self, folder):
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)
        self.told = []

    def listen(self):
        """Everything since the last call."""
        told = []
        with contextlib.suppress(BlockingIOError):
            while True:
                told.append(self.socket.recv(4096).decode())
        self.told += told
        return told


@pytest.fixture
def manager(tmp_path):
    one = Manager(tmp_path)
    yield one
    one.socket.close()


def test_signs_of_life(inbox, kafka, topic, consume, manager):
    """While it works, also while a handler takes long; and what it does."""
    inbox.execute("CREATE FUNCTION slow" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM pg_sleep(3); PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    send(kafka, topic, numbered(3, keys=3))
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="slow", NOTIFY_SOCKET=manager.path, WATCHDOG_USEC=1500000)
    wait_notes(inbox, 1, daemon)
    manager.listen()
    time.sleep(5)
    assert sum("WATCHDOG=1" in message for message in manager.listen()) >= 8
    wait_notes(inbox, 3, daemon)
    wait_until(lambda: any("STATUS=consuming; 4 partitions, 3 handled, 0 dead" in message for message in manager.listen()), "it says so")
    assert daemon.stop() == 0
    manager.listen()
    assert manager.told[0].startswith("READY=1") or any(message == "READY=1" for message in manager.told)
    assert any(message.startswith("STOPPING=1") for message in manager.told)


def test_a_consumer_that_hangs_gives_no_sign_of_life(inbox, kafka, topic, consume, seams, manager):
    send(kafka, topic, numbered(3, keys=3))
    daemon = consume(inbox, topic, build=seams, OUTBOXD_SEAM="accepted:1:sleep600000", NOTIFY_SOCKET=manager.path, WATCHDOG_USEC=3000000)
    wait_until(lambda: any("WATCHDOG=1" in message for message in manager.listen()), "it lives")

    def silent():
        manager.listen()
        time.sleep(4)
        told = manager.listen()
        assert daemon.alive and told, "the main thread lives on"
        return not any("WATCHDOG" in message for message in told)

    wait_until(silent, "the watchdog hears nothing", timeout=120)
    daemon.kill()
