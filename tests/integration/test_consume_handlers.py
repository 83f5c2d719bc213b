"""`outboxd consume` with handlers and events that nobody wants: whatever they do, only they suffer, and nothing stops for ever."""

import os
import signal

import pytest
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
