"""`outboxd inbox`: what a consumer gave up, looked at, tried again, discarded."""

import json

import pytest
from rig import daemon as daemons
from rig.messages import NOTES

SIGNATURE = "(event_id text, topic text, key text, payload jsonb, headers jsonb)"


@pytest.fixture
def inbox(db):
    """Dead events of two groups; the handler takes a payload only when it says so."""
    db.execute(NOTES + "CREATE FUNCTION careful" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        IF payload->>'good' IS NULL THEN RAISE EXCEPTION 'still bad: %', event_id; END IF;
        PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    for n, (group, key, payload) in enumerate([("g", "k1", {"good": 1}), ("g", "k2", {}), ("g", "k2", {"good": 1}), ("g", None, {"good": 1}),
                                               ("h", "k1", {"good": 1})]):
        db.execute("""INSERT INTO inbox_dead (consumer_group, event_id, topic, partition, "offset", key, payload, headers, error, attempts)
                      VALUES (%s, %s, %s, 0, %s, %s, %s, '{"h": "x"}', 'boom', 5)""",
                   group, f"e{n}", "orders" if n < 3 else "other", n, key, json.dumps(payload))
        db.execute("INSERT INTO processed_events (consumer_group, event_id) VALUES (%s, %s)", group, f"e{n}")
    return db


def call(db, *args, code=0, **settings):
    done = daemons.call("inbox", *args, **{**db.settings, "OUTBOX_CONSUMER_GROUP": "g", "OUTBOX_CONSUMER_HANDLER": "careful", **settings})
    assert done.returncode == code, (args, done.stdout, done.stderr)
    return done


def left(db):
    return [row[0] for row in db.execute("SELECT event_id FROM inbox_dead ORDER BY event_id")]


@pytest.mark.short
def test_list_and_show(inbox):
    table = call(inbox).stdout
    assert table.splitlines()[0].split() == ["ID", "GROUP", "AGE", "TOPIC", "KEY", "TRIES", "ERROR"] and table.count("boom") == 5
    rows = json.loads(call(inbox, "list", "--json").stdout)
    assert [row["event_id"] for row in rows] == ["e0", "e1", "e2", "e3", "e4"]
    assert set(rows[0]) == {"consumer_group", "event_id", "topic", "partition", "offset", "key", "payload", "headers", "error", "attempts",
                            "died_at"}
    for options, ids in ((("--group", "h"), ["e4"]), (("--topic", "orders", "--key", "k2"), ["e1", "e2"]), (("--id", "e3"), ["e3"]),
                         (("--since", "1h", "--limit", "2"), ["e0", "e1"]), (("--since", "2099-01-01T00:00:00Z"), [])):
        assert [row["event_id"] for row in json.loads(call(inbox, "list", "--json", *options).stdout)] == ids, options
    text = call(inbox, "show", "e1").stdout
    assert "boom" in text and "orders" in text and "k2" in text
    assert json.loads(call(inbox, "show", "e0", "--json").stdout)["payload"] == {"good": 1}
    assert "no dead event nothing" in call(inbox, "show", "nothing", code=1).stderr


def test_usage(inbox):
    for args in (("retry",), ("discard",), ("retry", "--limit", "1"), ("dance",), ("show",), ("list", "--dry-run"), ("list", "x"),
                 ("discard", "--since", "yesterday"), ("list", "--limit", "0"), ("list", "--nothing")):
        assert "usage: outboxd inbox" in call(inbox, *args, code=64).stderr, args
    assert "OUTBOX_CONSUMER_HANDLER" in call(inbox, "retry", "--all", code=78, OUTBOX_CONSUMER_HANDLER="").stderr
    assert "its handler is not known here" in call(inbox, "retry", "--group", "h", code=78).stderr
    assert "no function nowhere" in call(inbox, "retry", "--all", code=78, OUTBOX_CONSUMER_HANDLER="nowhere").stderr
    assert left(inbox) == ["e0", "e1", "e2", "e3", "e4"]


def test_retry(inbox):
    assert "would retry 4 events" in call(inbox, "retry", "--all", "--dry-run").stdout
    done = call(inbox, "retry", "--all", code=1)
    assert "handled 2 of 4 events; 1 failed again, 1 wait behind those" in done.stdout and "still bad: e1" in done.stderr
    assert left(inbox) == ["e1", "e2", "e4"]
    assert [row[0] for row in inbox.execute("SELECT event_id FROM notes ORDER BY n")] == ["e0", "e3"]
    assert inbox.execute("SELECT attempts, error FROM inbox_dead WHERE event_id = 'e1'") == [(6, "still bad: e1 (SQLSTATE P0001)")]
    inbox.execute("UPDATE inbox_dead SET payload = '{\"good\": 2}' WHERE event_id = 'e1'")
    assert json.loads(call(inbox, "retry", "--key", "k2", "--json").stdout) == {
        "action": "retry", "dry_run": False, "matched": 2, "changed": 2, "failed": 0}
    assert [row[0] for row in inbox.execute("SELECT event_id FROM notes ORDER BY n")] == ["e0", "e3", "e1", "e2"]
    assert inbox.value("SELECT count(*) FROM processed_events") == 5


def test_discard(inbox):
    assert json.loads(call(inbox, "discard", "--topic", "orders", "--dry-run", "--json").stdout)["matched"] == 3
    done = call(inbox, "discard", "--topic", "orders", "--limit", "2")
    assert "discarded 2 events" in done.stdout and "inbox discard" in done.stderr  # logged
    assert left(inbox) == ["e2", "e3", "e4"]
    call(inbox, "discard", "--all")
    assert left(inbox) == [] and inbox.value("SELECT count(*) FROM notes") == 0
    assert inbox.value("SELECT count(*) FROM processed_events") == 5, "the marks stay: a later delivery has no effect"


def test_retry_with_an_error_that_is_cut(inbox):
    inbox.execute("CREATE FUNCTION wordy" + SIGNATURE + " RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%', repeat('ä', 700); END $$")
    assert "handled 0 of 4 events; 3 failed again, 1 wait" in call(inbox, "retry", "--all", code=1, OUTBOX_CONSUMER_HANDLER="wordy").stdout
    assert inbox.value("SELECT count(*) FROM inbox_dead WHERE attempts = 6 AND error ~ '^ä+ .SQLSTATE P0001.$'") == 3


def test_retry_tries_deadlocks_again_and_then_goes_on(inbox):
    inbox.execute("CREATE SEQUENCE calls; CREATE FUNCTION racy" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        IF event_id = 'e0' OR (event_id = 'e1' AND nextval('calls') <= 3) THEN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END IF;
        PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    done = call(inbox, "retry", "--all", code=1, OUTBOX_CONSUMER_HANDLER="racy")
    assert "handled 3 of 4 events; 1 failed again" in done.stdout and "SQLSTATE 40P01" in done.stderr
    assert left(inbox) == ["e0", "e4"] and inbox.value("SELECT attempts FROM inbox_dead WHERE event_id = 'e0'") == 6
    assert inbox.value("SELECT count(*) FROM notes") == 3


def test_retry_of_many_does_not_load_their_payloads(inbox):
    inbox.execute("""INSERT INTO inbox_dead (consumer_group, event_id, topic, partition, "offset", key, payload, error, attempts)
                     SELECT 'g', 'm' || n, 'many', 0, n, n::text, to_jsonb(repeat('x', 200000)), 'x', 1 FROM generate_series(1, 600) n""")
    done = call(inbox, "retry", "--topic", "many", code=1)
    assert "handled 0 of 600 events; 600 failed again" in done.stdout
