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
