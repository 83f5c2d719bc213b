"""`outboxd consume` keeps its place in the group, stays within its memory, and lets nobody starve."""

import json
import time

import pytest
from rig import daemon as daemons
from rig import http, process
from rig.judge import read_topics
from rig.messages import NOTES, SIGNATURE, Sender, check_notes, committed, make_picky, numbered, send, wait_notes
from rig.process import wait_until


@pytest.fixture
def inbox(db):
    """The test's database with the handler that notes every call."""
    db.execute(NOTES)
    return db


SHORT_PATIENCE = {"OUTBOX_KAFKA_MAX_POLL_INTERVAL_MS": 8000, "OUTBOX_KAFKA_SESSION_TIMEOUT_MS": 6000}


def make_slow(db, handler="handler"):
    """A handler with a pace that the test sets."""
    db.execute("CREATE TABLE pace (s float); INSERT INTO pace VALUES (0);"
               "CREATE FUNCTION slow" + SIGNATURE + f""" RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                   PERFORM pg_sleep((SELECT s FROM pace)); PERFORM {handler}(event_id, topic, key, payload, headers); END $$""")


def count(db, pattern):
    return db.value("SELECT count(*) FROM notes WHERE event_id LIKE %s", pattern)


def test_released_followers_of_a_slow_handler(inbox, kafka, new_topic, consume):
    """While they are worked on, others flow, the place in the group is kept, and a second consumer gets its share at once."""
    topic = new_topic(partitions=2)
    make_picky(inbox, {"bad": 2})
    make_slow(inbox, "picky")
    sender = Sender(kafka, topic)
    sender.send("bad", "k", "1", partition=0)
    for n in range(400):
        sender.send(f"b{n}", "k", "1", partition=0)
    sender.flush()
    settings = {**SHORT_PATIENCE, "OUTBOX_CONSUMER_HANDLER": "slow", "OUTBOX_RETRY_BASE": "6s"}
    daemon = consume(inbox, topic, **settings)
    daemon.wait_log("failed with event bad")
    inbox.execute("UPDATE pace SET s = 0.2")
    for n in range(5):  # these make the batches small
        sender.send(f"c{n}", f"c{n}", "1", partition=1)
        sender.flush()
        wait_until(lambda: count(inbox, "c%") == n + 1, "they flow")
    wait_until(lambda: count(inbox, "b%") > 3, "the followers are released")
    for n in range(20):
        sender.send(f"x{n}", f"x{n}", "1", partition=1)
    sender.flush()
    wait_until(lambda: count(inbox, "x%") == 20, "others take turns with them")
    assert count(inbox, "b%") < 200
    second = consume(inbox, topic, **settings)
    second.wait_log("got partition", timeout=20)
    assert count(inbox, "b%") < 300 and "lost partition" not in daemon.text()
    inbox.execute("UPDATE pace SET s = 0")
    wait_notes(inbox, 426, daemon, second)
    rows = [row[0] for row in inbox.execute("SELECT event_id FROM notes WHERE key = 'k' ORDER BY n")]
    assert rows == ["bad"] + [f"b{n}" for n in range(400)]


def test_a_database_outage_with_full_hands(new_cluster, new_db, kafka, new_topic, consume):
    topic = new_topic(partitions=2)
    cluster = new_cluster()
    db = new_db(cluster).prepare()
    db.execute(NOTES)
    make_slow(db)
    db.execute("UPDATE pace SET s = 0.004")
    sender = Sender(kafka, topic)
    for n in range(3000):
        sender.send(f"e{n}", f"k{n}", json.dumps("x" * 10000))
    sender.flush()
    daemon = consume(db, topic, OUTBOX_CONSUMER_HANDLER="slow", OUTBOX_BATCH_BYTES="1MiB", **SHORT_PATIENCE)
    wait_notes(db, 300, daemon)
    db.conn.close()
    cluster.stop("immediate")
    time.sleep(2)
    before = daemon.cpu_seconds()
    time.sleep(13)
    assert daemon.cpu_seconds() - before < 1
    cluster.start()
    db.execute("UPDATE pace SET s = 0")
    wait_notes(db, 3000, daemon)
    assert "lost partition" not in daemon.text() and "max.poll" not in daemon.text()


@pytest.mark.parametrize("what", ["too small", "compacted"])
def test_a_dead_topic_that_refuses(inbox, kafka, new_topic, consume, what):
    """The event goes into inbox_dead instead, and everything else goes on."""
    topic = new_topic(partitions=1)
    dead = new_topic(partitions=1, **({"max_message_bytes": 2000} if what == "too small" else {"cleanup_policy": "compact"}))
    make_picky(inbox, {"e1": 10**9})
    sender = Sender(kafka, topic)
    for n in range(4):
        sender.send(f"e{n}", None if n == 1 and what == "compacted" else "k", json.dumps("x" * 3000))
    sender.flush()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_CONSUMER_DEAD_TOPIC=dead, OUTBOX_CONSUMER_MAX_RETRIES=2)
    wait_notes(inbox, 3, daemon)
    wait_until(lambda: inbox.value("SELECT count(*) FROM inbox_dead WHERE event_id = 'e1' AND attempts = 2") == 1, "it is dead")
    wait_until(lambda: committed(kafka, topic)[0] == 4, "the offset moves on")
    assert "is in inbox_dead instead" in daemon.text()


def test_while_only_the_burial_is_outstanding_the_handler_is_not_called(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    make_picky(inbox, {"e000001": 10**9})
    send(kafka, topic, numbered(4, keys=4))
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_CONSUMER_DEAD_TOPIC=topic + "-dead",
                     OUTBOX_CONSUMER_MAX_RETRIES=2, OUTBOX_RETRY_MAX="200ms")
    wait_notes(inbox, 3, daemon)
    daemon.wait_log("dead topic")
    calls = inbox.value("SELECT last_value FROM tries_e000001")
    time.sleep(12)
    assert inbox.value("SELECT last_value FROM tries_e000001") == calls
    kafka.create_topic(topic + "-dead", partitions=1)
    wait_until(lambda: committed(kafka, topic)[0] == 4, "it is settled")
    [messages] = read_topics(kafka.internal, [topic + "-dead"])
    assert dict(messages[0].headers())["outbox_attempts"] == b"2"


def test_a_dead_topic_that_is_missing_keeps_nobody_waiting(inbox, kafka, new_topic, consume):
    """With seconds for each event that it does not take, 60 of them would be longer than the test's patience."""
    topic = new_topic(partitions=1)
    bad = [f"bad{n}" for n in range(60)]
    make_picky(inbox, dict.fromkeys(bad, 10**9))
    send(kafka, topic, [(id, id, "1") for id in bad])
    consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_CONSUMER_DEAD_TOPIC=topic + "-dead",
            OUTBOX_CONSUMER_MAX_RETRIES=1).wait_log("the topic does not exist")
    tries = " UNION ALL ".join(f"SELECT last_value FROM tries_{id}" for id in bad)  # beside others, then alone: together, then apart
    wait_until(lambda: inbox.value(f"SELECT min(last_value) FROM ({tries}) t") >= 3, "all have been given up")


def test_copies_do_not_keep_a_transaction_open(inbox, new_kafka, new_proxy, consume):
    """Many are to be copied at once, and the dead topic is slow: the server would end the session, and all would be sent again."""
    line = new_proxy(0)
    kafka = new_kafka(advertise={1: line.port})
    line.target_port = kafka.brokers[0].client_port
    topic, bad = kafka.create_topic("t", partitions=1), [f"bad{n}" for n in range(20)]
    make_picky(inbox, dict.fromkeys(bad, 10**9))
    send(kafka, topic, [(id, id, "1") for id in bad])
    daemon = consume(inbox, topic, kafka=kafka, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_CONSUMER_DEAD_TOPIC="dead",
                     OUTBOX_CONSUMER_MAX_RETRIES=1, OUTBOX_RETRY_MAX="200ms")
    tries = " UNION ALL ".join(f"SELECT last_value FROM tries_{id}" for id in bad)
    wait_until(lambda: inbox.value(f"SELECT min(last_value) FROM ({tries}) t") >= 3, "all have been given up")
    kafka.create_topic("dead", partitions=1)
    line.delay(0.2)
    wait_until(lambda: inbox.value("SELECT count(*) FROM processed_events") == 20, lambda: f"all are copied; {daemon.tail()}")
    assert inbox.value("SELECT max(c) FROM (SELECT count(*) c FROM processed_events GROUP BY xmin::text) x") < 10
    line.heal()


def test_a_dead_letter_is_copied_once(inbox, kafka, new_topic, consume):
    topic, dead = new_topic(partitions=1), new_topic(partitions=1)
    inbox.execute("CREATE FUNCTION poison" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM pg_sleep(0.02); RAISE EXCEPTION 'poison'; END $$""")
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="poison", OUTBOX_CONSUMER_DEAD_TOPIC=dead, OUTBOX_CONSUMER_MAX_RETRIES=2,
                     OUTBOX_RETRY_BASE="500ms")
    for n in range(60):  # so that new ones fail beside those that die
        send(kafka, topic, [(f"p{n}", f"k{n}", "1")])
        time.sleep(0.1)
    wait_until(lambda: inbox.value("SELECT count(*) FROM processed_events") == 60, lambda: f"all are dead; {daemon.tail()}")
    [messages] = read_topics(kafka.internal, [dead])
    assert len(messages) == len({dict(message.headers())["id"] for message in messages}) == 60


def test_what_waits_does_not_keep_what_does_not(inbox, kafka, new_topic, consume):
    """One in 25 waits behind an event that failed; the 240 MB that came with them are given back."""
    topic = new_topic(partitions=1)
    make_picky(inbox, {"bad": 10**9})
    sender = Sender(kafka, topic)
    sender.send("bad", "k", "1")
    for n in range(12000):
        sender.send(f"e{n}", "k" if n % 25 == 0 else f"f{n}", json.dumps("x" * 20000))
    sender.flush()
    inbox.execute("CREATE FUNCTION tiny" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM picky(event_id, topic, key, '1', '{}'); END $$""")
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="tiny", OUTBOX_RETRY_BASE="1m", OUTBOX_CONSUMER_MAX_RETRIES=100)
    wait_notes(inbox, 11520, daemon)
    assert daemon.peak_rss() < 220 * 2**20, daemon.peak_rss() / 2**20


def test_headers_count_like_payloads(inbox, kafka, new_topic, consume):
    """Batches are bounded by all their bytes: with headers that nobody counts one grows beyond what a statement may hold."""
    topic = new_topic(partitions=1)
    sender = Sender(kafka, topic)
    for n in range(200):
        sender.send(f"e{n}", f"k{n}", "1", [("large", "x" * 400_000)])
    sender.flush()
    inbox.execute("CREATE FUNCTION tiny" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM handler(event_id, topic, key, payload, '{}'); END $$""")
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="tiny", OUTBOX_BATCH_BYTES="1MiB",
                     OUTBOX_KAFKA_FETCH_MESSAGE_MAX_BYTES=32 * 2**20)
    wait_notes(inbox, 200, daemon)
    assert inbox.value("SELECT max(c) FROM (SELECT count(*) c FROM notes GROUP BY xmin::text) x") <= 2


def test_many_partitions_do_not_flap(inbox, kafka, new_topic, consume):
    """A thousand healthy partitions, a few hundred messages in hand of some: none is paused for that."""
    topic = new_topic(partitions=1000)
    make_picky(inbox, {"bad": 1})
    make_slow(inbox, "picky")
    inbox.execute("UPDATE pace SET s = 0.004")
    sender = Sender(kafka, topic)
    for partition in range(5):
        for n in range(400):
            sender.send("bad" if partition == n == 0 else f"p{partition}-{n}", f"k{n}", "1", partition=partition)
    sender.flush()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="slow")
    wait_notes(inbox, 2000, daemon)
    assert "is paused" not in daemon.text()


def test_a_topic_that_was_made_again(inbox, kafka, new_topic, consume):
    """Its offsets start at 0: what is committed goes back with them."""
    if (2, 4) <= daemons.librdkafka() < (2, 10):
        pytest.skip("librdkafka 2.4 to 2.9 crashes by itself when a topic is made again (#4778)")
    topic = new_topic(partitions=1)
    send(kafka, topic, [(f"old{n}", f"k{n}", "1") for n in range(500)])
    settings = {"OUTBOX_KAFKA_TOPIC_METADATA_REFRESH_INTERVAL_MS": 300000, "OUTBOX_KAFKA_SESSION_TIMEOUT_MS": 6000}
    daemon = consume(inbox, topic, **settings)
    wait_notes(inbox, 500, daemon)
    wait_until(lambda: committed(kafka, topic)[0] == 500, "it is committed")
    daemon.freeze()
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=1)
    send(kafka, topic, [(f"new{n}", f"k{n}", "1") for n in range(300)])
    daemon.thaw()
    wait_notes(inbox, 800, daemon)
    wait_until(lambda: committed(kafka, topic)[0] == 300, lambda: f"300 is committed; {committed(kafka, topic)}")
    assert daemon.stop() == 0
    send(kafka, topic, [(f"newer{n}", f"k{n}", "1") for n in range(400)])
    wait_notes(inbox, 1200, consume(inbox, topic, **settings))


def said(daemon, text):
    """How often, with the repetitions that the log only counts. The daemon has ended."""
    lines = [json.loads(line) for _, message, line in daemon.lines() if text in message]
    return sum(line.get("repeated", 1) for line in lines)


def test_a_rebalance_takes_nothing_that_need_not_move(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=4)
    ports = [process.free_port() for _ in range(2)]
    first = consume(inbox, topic, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{ports[0]}")
    window = http.Window(ports[0])
    window.wait("/readyz", 200)
    window.wait_metric("outboxd_consumer_partitions", 4)
    second = consume(inbox, topic, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{ports[1]}")
    http.Window(ports[1]).wait("/readyz", 200)
    http.Window(ports[1]).wait_metric("outboxd_consumer_partitions", 2)
    window.wait_metric("outboxd_consumer_partitions", 2)
    assert second.stop() == 0
    window.wait_metric("outboxd_consumer_partitions", 4)
    assert first.stop() == 0
    assert said(first, "gave back partition") == 2 and said(first, "got partition") == 6, first.text()
    assert said(second, "gave back partition") == 0 and "lost partition" not in first.text() + second.text()
