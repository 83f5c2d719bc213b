"""`outboxd consume` with handlers and events that nobody wants: whatever they do, only they suffer, and nothing stops for ever."""

import os
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


def make_handler(db, name, body):
    """A plpgsql handler: `body`, then the note."""
    db.execute(f"CREATE FUNCTION {name}{SIGNATURE} RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body} "
               "PERFORM handler(event_id, topic, key, payload, headers); END $$")


def wait_dead(db, *ids):
    wait_until(lambda: {row[0] for row in db.execute("SELECT event_id FROM inbox_dead")} == set(ids), lambda: f"only {ids} are dead")


@pytest.mark.parametrize("key", [b"\x00\x00\x00\x00\x01key", b"\x00", b"k\x00" + b"y" * 5000])
def test_keys_are_bytes(inbox, kafka, new_topic, consume, key):
    """As a schema registry frames them: with zeros in front."""
    topic = new_topic(partitions=1)
    make_picky(inbox, {"e0": 3})
    sender = Sender(kafka, topic)
    for n in range(10):
        sender.send(f"e{n}", key, "1")
        sender.send(f"f{n}", key[:-1] + b"z", "1")
    sender.flush()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_RETRY_BASE="1s")
    wait_notes(inbox, 20, daemon)
    order = [row[0] for row in inbox.execute("SELECT event_id FROM notes ORDER BY n")]
    assert [id for id in order if id[0] == "e"] == [f"e{n}" for n in range(10)], "an event overtook its predecessor"
    assert order[:10] == [f"f{n}" for n in range(10)], "the other key did not flow"


def test_texts_are_utf8_whatever_the_connection_says(inbox, kafka, new_topic, consume, start):
    topic, out = new_topic(partitions=1), new_topic(partitions=1)
    url = inbox.settings["OUTBOX_DATABASE_URL"]
    latin = {"OUTBOX_DATABASE_URL": f"{url}{'&' if '?' in url else '?'}client_encoding=LATIN1"}
    send(kafka, topic, [("e1", "kä", '{"a": "ä€"}')])
    wait_notes(inbox, 1, consume(inbox, topic, **latin))
    assert inbox.execute("SELECT key, payload FROM notes") == [("kä", {"a": "ä€"})]
    inbox.execute("""SELECT outbox_publish(%s, 'a', 'i', '{"a": "ä€"}')""", out)
    start(inbox, **latin)
    wait_until(lambda: inbox.value("SELECT count(*) FROM outbox_events WHERE status = 1") == 1, "it is sent")
    [[message]] = read_topics(kafka.internal, [out])
    assert message.value().decode() == '{"a": "ä€"}'


@pytest.mark.parametrize("text", ["ä" * 400, "x" + "ä" * 400, "xx" + "€" * 800, "\U0001f600" * 600])
def test_long_errors_are_cut_between_characters(inbox, kafka, new_topic, consume, text):
    topic = new_topic(partitions=1)
    make_handler(inbox, "wordy", f"IF event_id = 'bad' THEN RAISE EXCEPTION '{text}'; END IF;")
    send(kafka, topic, [("bad", "k", "1"), *numbered(50, keys=50)])
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="wordy", OUTBOX_CONSUMER_MAX_RETRIES=1)
    wait_notes(inbox, 50, daemon)
    wait_dead(inbox, "bad")
    error = inbox.value("SELECT error FROM inbox_dead")
    assert error.endswith(" (SQLSTATE P0001)") and text.startswith(error.removesuffix(" (SQLSTATE P0001)")) and len(error) > 400


def test_what_cannot_be_kept_is_buried_without_its_payload(inbox, kafka, new_topic, consume):
    """jsonb has limits that no message of a test reaches: the constraint stands for them."""
    topic = new_topic(partitions=1)
    inbox.execute("ALTER TABLE inbox_dead ADD CHECK (length(payload::text) < 1000)")
    make_handler(inbox, "wary", "IF event_id LIKE 'bad%' THEN RAISE EXCEPTION 'not this'; END IF;")
    sender = Sender(kafka, topic)
    sender.send("bad", "k", '"' + "x" * 2000 + '"', [("a", "b")])
    sender.send("bad too", "k", "1")
    for id, key, value in numbered(20, keys=20):
        sender.send(id, key, value)
    sender.flush()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="wary", OUTBOX_CONSUMER_MAX_RETRIES=1)
    wait_notes(inbox, 20, daemon)
    wait_dead(inbox, "bad", "bad too")
    [(payload, headers, error, place)] = inbox.execute("""SELECT payload, headers, error, "offset" FROM inbox_dead WHERE event_id = 'bad'""")
    assert payload == {"too_large": 2002} and headers == {} and place == 0
    assert error.startswith("not this (SQLSTATE P0001); its payload and headers cannot be kept: ")
    wait_until(lambda: committed(kafka, topic)[0] == 22, "the offset moves on")
    settings = {**inbox.settings, "OUTBOX_CONSUMER_GROUP": "g", "OUTBOX_CONSUMER_HANDLER": "handler"}
    done = daemons.call("inbox", "retry", "--all", **settings)
    assert done.returncode == 1 and "event bad failed again: its payload is not here, but in Kafka" in done.stderr
    assert "handled 0 of 2 events; 1 failed again, 1 wait behind those" in done.stdout
    assert inbox.value("SELECT count(*) FROM notes WHERE event_id LIKE 'bad%%'") == 0, "the handler took the stand-in for the event"
    assert daemons.call("inbox", "discard", "--id", "bad", **settings).returncode == 0
    assert "handled 1 of 1 events" in daemons.call("inbox", "retry", "--all", **settings).stdout


@pytest.mark.parametrize("where", ["server", "handler"])
def test_effects_survive_a_crash_of_a_server_that_does_not_wait_for_its_disk(new_cluster, new_db, kafka, new_topic, consume, where):
    """Offsets are committed right behind the effects, so these must be on disk."""
    topic = new_topic(partitions=1)
    cluster = new_cluster(settings={"wal_writer_delay": "'10s'", "fsync": "on",
                                    "synchronous_commit": "off" if where == "server" else "on"})
    db = new_db(cluster).prepare()
    db.execute(NOTES)
    make_handler(db, "hasty", "SET LOCAL synchronous_commit = off;" if where == "handler" else "")
    db.execute("CHECKPOINT")
    send(kafka, topic, numbered(100, keys=10))
    daemon = consume(db, topic, OUTBOX_CONSUMER_HANDLER="hasty")
    wait_notes(db, 100, daemon)
    wait_until(lambda: committed(kafka, topic)[0] == 100, "the offset is committed")
    db.conn.close()
    cluster.stop("immediate")  # what was only in memory is gone
    cluster.start()
    wait_notes(db, 100, daemon, timeout=20)
    check_notes(db, numbered(100, keys=10))


@pytest.mark.parametrize("state", ["40001", "40P01", "53200", "58030", "08006"])
def test_one_event_cannot_pass_for_the_trouble_of_the_world(inbox, kafka, new_topic, consume, state):
    topic = new_topic(partitions=2)
    make_handler(inbox, "strange", f"IF event_id = 'bad' THEN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END IF;")
    sender = Sender(kafka, topic)
    sender.send("bad", "k", "1", partition=0)
    for id, _, value in numbered(50, keys=50):
        sender.send(id, id, value, partition=1)
    sender.send("behind", "k", "1", partition=0)
    sender.flush()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="strange", OUTBOX_CONSUMER_MAX_RETRIES=2, OUTBOX_RETRY_MAX="200ms",
                     OUTBOX_KAFKA_MAX_POLL_INTERVAL_MS=7000, OUTBOX_KAFKA_SESSION_TIMEOUT_MS=6000)
    wait_notes(inbox, 50, daemon)
    sender.send("late", "late", "1", partition=1)  # somebody has to come along
    sender.flush()
    wait_notes(inbox, 51, daemon)
    if not state.startswith("40"):
        def company():
            sender.send(os.urandom(8).hex(), "late", "1", partition=1)
            sender.flush()
            return inbox.value("SELECT count(*) FROM inbox_dead")
        wait_until(company, "it counts", pause=0.3)
    wait_dead(inbox, "bad")
    assert inbox.value("SELECT attempts FROM inbox_dead") == 2
    wait_until(lambda: inbox.value("SELECT count(*) FROM notes WHERE event_id = 'behind'") == 1, "its follower goes on")
    assert "lost partition" not in daemon.text()


def test_an_event_that_ends_its_server_process_stops_nobody_else(inbox, kafka, new_topic, consume):
    """As a handler does that crashes, or that the kernel kills for its memory."""
    topic = new_topic(partitions=2)
    make_handler(inbox, "lethal", "IF event_id = 'bad' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF;")
    sender = Sender(kafka, topic)
    for id, _, value in numbered(25, keys=25):
        sender.send(id, id, value, partition=0)
    sender.send("bad", "k", "1", partition=0)
    sender.send("behind", "k", "1", partition=0)
    for id, _, value in numbered(25, keys=25, start=25):
        sender.send(id, id, value, partition=int(id[1:]) % 2)
    sender.flush()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="lethal", OUTBOX_CONSUMER_MAX_RETRIES=2, OUTBOX_RETRY_BASE="300ms",
                     OUTBOX_RETRY_MAX="300ms")
    wait_notes(inbox, 50, daemon)
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0
    wait_dead(inbox, "bad")
    [(attempts, error)] = inbox.execute("SELECT attempts, error FROM inbox_dead")
    assert attempts == 2 and error.startswith("the connection ended with the call")
    wait_until(lambda: inbox.value("SELECT count(*) FROM notes WHERE event_id = 'behind'") == 1, "its follower goes on")
    check_notes(inbox, numbered(50, keys=50) + [("behind", "k", "1")], ordered=False)


def test_a_lone_event_that_raises_class_40_is_seen(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    make_handler(inbox, "strange", "RAISE EXCEPTION 'x' USING ERRCODE = '40001';")
    port = process.free_port()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="strange", OUTBOX_CONSUMER_MAX_RETRIES=1,
                     OUTBOX_HTTP_LISTEN=f"127.0.0.1:{port}")
    http.Window(port).wait("/readyz", 200)
    send(kafka, topic, [("bad", "k", "1")])
    assert "statement failed: x" in http.Window(port).wait("/readyz", 503)
    wait_dead(inbox, "bad")
    http.Window(port).wait("/readyz", 200)
    assert daemon.alive


TROUBLE = "RAISE EXCEPTION 'full' USING ERRCODE = '53100';"


def test_trouble_of_the_world_costs_nobody_an_attempt(inbox, kafka, topic, consume):
    inbox.execute("CREATE TABLE full_disk (x int); INSERT INTO full_disk VALUES (1)")
    make_handler(inbox, "full", f"IF EXISTS (SELECT FROM full_disk) THEN {TROUBLE} END IF;")
    events = numbered(200, keys=20)
    send(kafka, topic, events)
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="full", OUTBOX_CONSUMER_MAX_RETRIES=1)
    daemon.wait_log("statement failed: full")
    time.sleep(int(os.environ.get("RIG_LONG", "0")) or 20)
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0
    inbox.execute("DELETE FROM full_disk")
    wait_notes(inbox, 200, daemon)
    check_notes(inbox, events)


@pytest.mark.parametrize("retries", [1, 3])
def test_what_a_handler_leaves_in_its_transaction_kills_no_innocents(inbox, kafka, new_topic, consume, retries):
    """The second call in one transaction stumbles over the table of the first."""
    topic = new_topic(partitions=1)
    make_handler(inbox, "messy", "CREATE TEMP TABLE scratch (x int) ON COMMIT DROP;")
    events = numbered(100, keys=100)
    send(kafka, topic, events)
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="messy", OUTBOX_CONSUMER_MAX_RETRIES=retries)
    wait_notes(inbox, 100, daemon)
    check_notes(inbox, events)
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0


def test_constraints_that_were_deferred_for_others_kill_no_innocents(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    inbox.execute("CREATE TABLE uniq (k text UNIQUE DEFERRABLE INITIALLY IMMEDIATE)")
    make_handler(inbox, "careful", """
        IF event_id = 'e000000' THEN RAISE EXCEPTION 'poison'; END IF;
        BEGIN INSERT INTO uniq VALUES ('same'); EXCEPTION WHEN unique_violation THEN NULL; END;""")
    send(kafka, topic, numbered(20, keys=20))
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="careful", OUTBOX_CONSUMER_MAX_RETRIES=3)
    wait_notes(inbox, 19, daemon)
    wait_dead(inbox, "e000000")


def test_a_role_that_a_handler_leaves_behind(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    inbox.execute("DO $$ BEGIN CREATE ROLE weak; EXCEPTION WHEN duplicate_object THEN NULL; END $$; GRANT INSERT, SELECT ON notes TO weak")
    make_handler(inbox, "roly", "IF event_id = 'e000001' THEN PERFORM set_config('role', 'weak', false); END IF;")
    send(kafka, topic, numbered(2, keys=20))
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="roly")
    wait_notes(inbox, 2, daemon)
    send(kafka, topic, numbered(20, keys=20, start=2))
    wait_notes(inbox, 22, daemon)


def test_a_slow_handler_gets_batches_that_it_can_do_in_time(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    make_handler(inbox, "slow", "PERFORM pg_sleep(0.02);")
    send(kafka, topic, numbered(900, keys=900))
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="slow", OUTBOX_CONSUMER_TIMEOUT="5s", OUTBOX_LOG_LEVEL="debug")
    start = time.monotonic()
    wait_notes(inbox, 900, daemon)
    assert time.monotonic() - start < 40  # 18 s of it in the handler
    assert daemon.text().count("one by one") <= 2


def test_one_slow_event_does_not_make_batches_small(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    make_handler(inbox, "slow", "IF event_id = 'bad' THEN PERFORM pg_sleep(1.5); RAISE EXCEPTION 'no'; END IF;")
    send(kafka, topic, [("bad", "k", "1")])
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="slow", OUTBOX_CONSUMER_MAX_RETRIES=50, OUTBOX_RETRY_MAX="100ms")
    daemon.wait_log("failed with event bad")
    events = numbered(4000, keys=50)
    send(kafka, topic, events)
    wait_notes(inbox, 4000, daemon, timeout=25)
    check_notes(inbox, events)
