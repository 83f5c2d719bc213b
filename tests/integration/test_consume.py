"""`outboxd consume`: one effect an event, in order, whatever comes."""

import json
import time

import pytest
from rig import daemon as daemons
from rig.judge import read_topics
from rig.messages import NOTES, SIGNATURE, Sender, check_notes, committed, make_picky, numbered, send, wait_notes
from rig.process import wait_until


@pytest.fixture
def inbox(db):
    """The test's database with the handler that notes every call."""
    db.execute(NOTES)
    return db


@pytest.mark.short
def test_every_event_once_and_in_order(inbox, kafka, topic, consume):
    events = numbered(5000, keys=50)
    send(kafka, topic, events)
    send(kafka, topic, events)  # each delivered twice
    daemon = consume(inbox, topic)
    wait_notes(inbox, 5000, daemon)
    more = numbered(1000, keys=50, start=5000)
    send(kafka, topic, more)
    wait_notes(inbox, 6000, daemon)
    assert daemon.stop() == 0, daemon.tail()
    check_notes(inbox, events + more)
    assert inbox.value("SELECT count(*) FROM processed_events WHERE consumer_group = 'g'") == 6000
    assert sum(committed(kafka, topic).values()) == 11000


def test_order_within_a_batch(inbox, kafka, new_topic, consume):
    """The handlers of a batch are called in one statement: in the order of the offsets, also across keys."""
    topic = new_topic(partitions=1)
    events = numbered(6000, keys=700)
    send(kafka, topic, events)
    daemon = consume(inbox, topic, OUTBOX_BATCH_SIZE=3000)
    wait_notes(inbox, 6000, daemon)
    assert [row[0] for row in inbox.execute("SELECT event_id FROM notes ORDER BY n")] == [id for id, _, _ in events]
    most = inbox.value("SELECT max(c) FROM (SELECT count(*) c FROM notes GROUP BY xmin::text) x")
    assert most > 100, "no batch was larger than this"


def test_two_groups_get_all(inbox, kafka, topic, consume):
    inbox.execute("CREATE TABLE others (event_id text); CREATE FUNCTION other" + SIGNATURE +
                  " RETURNS text LANGUAGE sql AS $$ INSERT INTO others VALUES ($1) RETURNING 'a value that nobody wants' $$")
    events = numbered(1000, keys=10)
    send(kafka, topic, events)
    consume(inbox, topic)
    consume(inbox, topic, OUTBOX_CONSUMER_GROUP="h", OUTBOX_CONSUMER_HANDLER="public.other")
    wait_notes(inbox, 1000)
    wait_until(lambda: inbox.value("SELECT count(DISTINCT event_id) = 1000 AND count(*) = 1000 FROM others"), "the other group")
    check_notes(inbox, events)


def test_what_the_handler_gets(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    sender = Sender(kafka, topic)
    deep, huge = "[" * 3000 + "]" * 3000, "1e999999"
    values = {  # id → (value, what the handler gets)
        "object": ('{"a": [1, "ä", null]}', {"a": [1, "ä", None]}), "number": ("12.50", 12.5), "null": ("null", "JSON null"),
        "text": ("just text\n\"quoted\"", "just text\n\"quoted\""), "empty": ("", ""), "tombstone": (None, None),
        "bytes": (b"\x00\xff\x01", {"base64": "AP8B"}), "half": ('{"a": ', '{"a": '),
        "nul": ('{"a": "x\\u0000y"}', '{"a": "x\\u0000y"}'), "nul byte": (b"a\x00b", {"base64": "YQBi"}),
        "surrogate": ('"\\ud800"', '"\\ud800"'), "deep": (deep, deep), "huge": (huge, huge),
        "quotes": ('{"a": "\\"\\\\{},NULL"}', {"a": "\"\\{},NULL"}),
    }
    for id, (value, _) in values.items():
        sender.send(id, "k", value)
    sender.send("no key", None, "1")
    sender.send("empty key", "", "1")
    sender.send("bytes key", b"\xff\x00", "1")
    sender.send("quoted key", 'a"\\{},', "1")
    sender.send("headers", "k", "1", [("text", "ä\"\\"), ("json", '{"x": 1}'), ("bytes", b"\xff"), ("nothing", None), ("empty", ""),
                                      ("twice", "1"), ("twice", "2")])
    sender.send(None, "k", "1", [("ce_id", "cloud event")])
    sender.send(None, "k", "1", [("ce_id", "worse"), ("id", "better")])
    sender.send("x" * 300, "k", "1")
    sender.send("", "k", "1")
    sender.send("x" * 301, "k", "1")
    sender.send(None, "k", "1", [("id", b"\xff")])
    sender.flush()
    daemon = consume(inbox, topic)
    count = len(values) + 11
    wait_notes(inbox, count, daemon)
    notes = {row[0]: row[1:] for row in inbox.execute("SELECT event_id, key, payload, headers, topic FROM notes")}
    null = inbox.value("SELECT payload = 'null' FROM notes WHERE event_id = 'null'")
    for id, (_, expected) in values.items():
        assert notes[id][1] == expected or (id == "null" and null), id
    assert inbox.value("SELECT payload IS NULL FROM notes WHERE event_id = 'tombstone'")
    assert [notes[f"{kind} key"][0] for kind in ("no", "empty", "bytes", "quoted")] == [None, "", "\\xff00", 'a"\\{},']
    assert notes["headers"][2] == {"id": "headers", "text": "ä\"\\", "json": '{"x": 1}', "bytes": {"base64": "/w=="}, "nothing": None,
                                   "empty": "", "twice": "2"}
    assert {note[3] for note in notes.values()} == {topic}
    assert "cloud event" in notes and "better" in notes and "worse" not in notes and "x" * 300 in notes
    assert {f"{topic}/0/{count - n}" for n in (3, 2, 1)} <= set(notes)
    assert not inbox.value("SELECT count(*) FROM inbox_dead")


# --- handlers that fail ---

def test_poison(inbox, kafka, topic, consume):
    """5 of 10,000 raise for ever and 50 raise twice: the rest does not wait for them, but their keys do."""
    events = numbered(10000, keys=1000)
    ids = [id for id, _, _ in events]
    poison, moody = ids[110:5000:1001], ids[3:5003:100]
    assert len(poison) == 5 and len(moody) == 50
    make_picky(inbox, {**dict.fromkeys(poison, 10**9), **dict.fromkeys(moody, 2)})
    keys = {key for id, key, _ in events if id in poison or id in moody}
    others = [id for id, key, _ in events if key not in keys]
    send(kafka, topic, events)
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_BATCH_SIZE=500, OUTBOX_RETRY_BASE="1500ms")

    def others_are_done():
        return inbox.value("SELECT count(*) FROM notes WHERE event_id = ANY (%s)", others) == len(others)

    wait_until(others_are_done, lambda: f"{len(others)} others; {daemon.tail()}")
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0, "the others waited until the poisoned ones were dead"
    wait_notes(inbox, 9995, daemon)
    wait_until(lambda: inbox.value("SELECT count(*) FROM inbox_dead") == 5, "the five are dead")
    dead = inbox.execute("SELECT event_id, consumer_group, topic, attempts, error, payload, key FROM inbox_dead ORDER BY event_id")
    assert [row[0] for row in dead] == poison
    for id, group, where, attempts, error, payload, key in dead:
        assert (group, where, attempts, payload["n"]) == ("g", topic, 5, int(id[1:])) and key == f"k{int(id[1:]) % 1000}"
        assert error == f"do not like {id} (SQLSTATE P0042)"
    check_notes(inbox, [event for event in events if event[0] not in poison])  # followers waited for their predecessors
    assert inbox.value("SELECT count(*) FROM processed_events") == 10000
    assert daemon.stop() == 0
    assert sum(committed(kafka, topic).values()) == 10000


def test_dead_topic(inbox, kafka, new_topic, consume):
    topic, dead = new_topic(partitions=1), new_topic(partitions=1)
    make_picky(inbox, {"e000001": 10**9})
    sender = Sender(kafka, topic)
    for id, key, value in numbered(4, keys=1):  # replayed from a dead topic
        sender.send(id, key, value.ljust(2000),
                    headers=[("outbox_error", "old"), ("outbox_topic", "old"), ("outbox_attempts", "9")])
    sender.flush()
    # The last two are the relay's: a linger longer than a copy may take, a queue smaller than this one.
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_CONSUMER_DEAD_TOPIC=dead, OUTBOX_CONSUMER_MAX_RETRIES=2,
                     OUTBOX_KAFKA_LINGER_MS=100000, OUTBOX_KAFKA_QUEUE_BUFFERING_MAX_KBYTES=1)
    wait_notes(inbox, 3, daemon)
    [[message]] = read_topics(kafka.internal, [dead])
    headers = {name: value.decode() for name, value in message.headers()}
    assert len(message.headers()) == len(headers)
    assert headers.pop("outbox_error").startswith("do not like e000001")
    assert headers == {"id": "e000001", "outbox_topic": topic, "outbox_partition": "0", "outbox_offset": "1", "outbox_attempts": "2"}
    assert (message.key(), json.loads(message.value())) == (b"k0", {"n": 1})
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0
    assert inbox.value("SELECT count(*) FROM processed_events") == 4


def test_dead_topic_that_is_missing_loses_nothing(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=1)
    make_picky(inbox, {"e000001": 10**9})
    send(kafka, topic, numbered(4, keys=2))
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_CONSUMER_DEAD_TOPIC=topic + "-dead",
                     OUTBOX_CONSUMER_MAX_RETRIES=1, OUTBOX_RETRY_MAX="200ms")
    daemon.wait_log("dead topic")
    wait_notes(inbox, 2, daemon)
    assert not inbox.value("SELECT count(*) FROM processed_events WHERE event_id = 'e000001'")
    kafka.create_topic(topic + "-dead", partitions=1)
    wait_notes(inbox, 3, daemon)  # its follower
    assert len([m for messages in read_topics(kafka.internal, [topic + "-dead"]) for m in messages]) >= 1


def test_kill_while_keys_wait(inbox, kafka, new_topic, consume):
    """No effect and no dead letter is lost when the consumer dies while keys wait behind a failing event."""
    topic = new_topic(partitions=1)
    events = numbered(2000, keys=20)
    make_picky(inbox, {"e000005": 10**9, "e000021": 3})
    send(kafka, topic, events)
    settings = {"OUTBOX_CONSUMER_HANDLER": "picky", "OUTBOX_BATCH_SIZE": 100, "OUTBOX_RETRY_BASE": "1s",
                "OUTBOX_CONSUMER_MAX_RETRIES": 4, "OUTBOX_KAFKA_SESSION_TIMEOUT_MS": 6000}
    for _ in range(3):
        daemon = consume(inbox, topic, **settings)
        wait_notes(inbox, 1800, daemon)
        daemon.wait_log("the handler failed with event e000005")
        assert committed(kafka, topic)[0] <= 5, "an offset was committed past an event that is not settled"
        daemon.kill()
    daemon = consume(inbox, topic, **settings)
    wait_notes(inbox, 1999, daemon)
    wait_until(lambda: inbox.value("SELECT array_agg(event_id) FROM inbox_dead") == ["e000005"], "the dead letter")
    check_notes(inbox, [event for event in events if event[0] != "e000005"])
    wait_until(lambda: committed(kafka, topic)[0] == 2000, "the offset moves on")


def test_what_waits_is_bounded(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=2)
    make_picky(inbox, {"bad": 10**9})
    sender = Sender(kafka, topic)
    sender.send("bad", "k", "1", partition=0)
    for n in range(3000):
        sender.send(f"behind{n}", "k", "1", partition=0)
        sender.send(f"free{n}", f"f{n}", "1", partition=1)
    sender.flush()
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="picky", OUTBOX_BATCH_SIZE=50, OUTBOX_RETRY_BASE="2s",
                     OUTBOX_CONSUMER_MAX_RETRIES=3)
    daemon.wait_log("partition 0 is paused")
    wait_until(lambda: inbox.value("SELECT count(*) FROM notes WHERE event_id LIKE 'free%%'") == 3000, "the other partition flows")
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0
    wait_notes(inbox, 6000, daemon)
    daemon.wait_log("partition 0 goes on")
    behind = [row[0] for row in inbox.execute("SELECT event_id FROM notes WHERE key = 'k' ORDER BY n")]
    assert behind == [f"behind{n}" for n in range(3000)]


def test_deferred_constraints_are_the_fault_of_their_event(inbox, kafka, topic, consume):
    """They fail at COMMIT, which fails the whole batch: only the event that broke them may suffer."""
    inbox.execute("CREATE TABLE parents (id int PRIMARY KEY);"
                  "CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED);"
                  "CREATE FUNCTION family" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      INSERT INTO children VALUES ((payload->>'n')::int);
                      IF payload->>'n' <> '7' THEN INSERT INTO parents VALUES ((payload->>'n')::int); END IF;
                      PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    events = numbered(100, keys=100)
    send(kafka, topic, events)
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="family", OUTBOX_CONSUMER_MAX_RETRIES=2)
    wait_notes(inbox, 99, daemon)
    wait_until(lambda: inbox.value("SELECT array_agg(event_id) FROM inbox_dead") == ["e000007"], "the guilty one is dead")
    check_notes(inbox, [event for event in events if event[0] != "e000007"])


def test_a_slow_event_is_a_failed_attempt(inbox, kafka, topic, consume):
    inbox.execute("CREATE FUNCTION slow" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      IF event_id = 'e000003' THEN PERFORM pg_sleep(30); END IF;
                      PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    events = numbered(20, keys=20)
    send(kafka, topic, events)
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="slow", OUTBOX_CONSUMER_TIMEOUT="1s", OUTBOX_CONSUMER_MAX_RETRIES=2)
    wait_notes(inbox, 19, daemon)
    wait_until(lambda: inbox.value("SELECT count(*) FROM inbox_dead WHERE error ~ 'timeout'") == 1, "it is dead")


def test_a_slow_handler_keeps_its_place_in_the_group(inbox, kafka, topic, consume):
    inbox.execute("CREATE FUNCTION slow" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM pg_sleep(14); PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    send(kafka, topic, [("e1", "k", "1")])
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="slow", OUTBOX_KAFKA_MAX_POLL_INTERVAL_MS=6000,
                     OUTBOX_KAFKA_SESSION_TIMEOUT_MS=6000)
    wait_notes(inbox, 1, daemon)
    send(kafka, topic, [("e2", "k", "1")])
    wait_notes(inbox, 2, daemon)
    assert "lost partition" not in daemon.text() and "max.poll" not in daemon.text()
    assert daemon.stop() == 0
    assert sum(offset for offset in committed(kafka, topic).values() if offset > 0) == 2


def test_handler_that_goes_away_costs_no_event_an_attempt(inbox, kafka, topic, consume):
    send(kafka, topic, numbered(10, keys=5))
    daemon = consume(inbox, topic, OUTBOX_CONSUMER_MAX_RETRIES=1)
    wait_notes(inbox, 10, daemon)
    inbox.execute("ALTER FUNCTION handler RENAME TO elsewhere")
    send(kafka, topic, numbered(10, keys=5, start=10))
    daemon.wait_log("there is no function handler")
    inbox.execute("ALTER FUNCTION elsewhere RENAME TO handler")
    wait_notes(inbox, 20, daemon)
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0


# --- several consumers ---

def test_opposite_orders_do_not_deadlock(inbox, kafka, new_topic, consume):
    """Two consumers get the same ids on two partitions in opposite order."""
    topic = new_topic(partitions=2)
    inbox.execute("CREATE FUNCTION dawdle" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM pg_sleep(0.001); PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    daemons = [consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="dawdle", OUTBOX_BATCH_SIZE=200) for _ in range(2)]
    for one in daemons:
        one.wait_log("got partition")
    ids = [f"e{n:04}" for n in range(3000)]
    sender = Sender(kafka, topic)
    for up, down in zip(ids, reversed(ids)):
        sender.send(up, None, "1", partition=0)
        sender.send(down, None, "1", partition=1)
    sender.flush()
    wait_notes(inbox, 3000, *daemons)
    wait_until(lambda: sum(committed(kafka, topic).values()) == 6000, "both partitions are done")
    check_notes(inbox, [(id, None, None) for id in ids])
    assert inbox.value("SELECT count(DISTINCT pid) FROM notes") == 2, "both did some of it"
    assert inbox.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


def test_handlers_that_deadlock_are_nobodys_fault(inbox, kafka, new_topic, consume):
    topic = new_topic(partitions=2)
    inbox.execute("CREATE TABLE stock (item int PRIMARY KEY, n int DEFAULT 0); INSERT INTO stock SELECT generate_series(0, 9);"
                  "CREATE FUNCTION sell" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      UPDATE stock SET n = n + 1 WHERE item = (payload->>'item')::int; PERFORM pg_sleep(0.002);
                      PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    daemons = [consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="sell", OUTBOX_BATCH_SIZE=20, OUTBOX_CONSUMER_MAX_RETRIES=1)
               for _ in range(2)]
    for one in daemons:
        one.wait_log("got partition")
    sender = Sender(kafka, topic)
    for n in range(400):
        sender.send(f"up{n}", None, json.dumps({"item": n % 10}), partition=0)
        sender.send(f"down{n}", None, json.dumps({"item": 9 - n % 10}), partition=1)
    sender.flush()
    wait_notes(inbox, 800, *daemons)
    assert inbox.value("SELECT sum(n) FROM stock") == 800
    assert inbox.value("SELECT count(*) FROM inbox_dead") == 0
    assert any("SQLSTATE 40P01" in one.text() for one in daemons), "there was no deadlock to speak of"


# --- start and stop ---

def refused(db, kafka, **settings):
    done = daemons.call("consume", **{**db.settings, "OUTBOX_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap, "OUTBOX_CONSUMER_GROUP": "g",
                                      "OUTBOX_CONSUMER_TOPICS": "t", "OUTBOX_CONSUMER_HANDLER": "handler",
                                      "OUTBOX_HTTP_LISTEN": "off", **settings})
    assert done.returncode == 78, done.stderr
    return done.stderr


@pytest.mark.short
def test_bad_starts_are_refused_with_the_remedy(inbox, kafka):
    inbox.execute("CREATE FUNCTION two(text, jsonb) RETURNS void LANGUAGE sql AS 'SELECT';"
                  "CREATE FUNCTION many" + SIGNATURE + " RETURNS SETOF int LANGUAGE sql AS 'SELECT 1';"
                  "CREATE PROCEDURE proc" + SIGNATURE + " LANGUAGE sql AS 'SELECT 1';"
                  "DO $$ BEGIN CREATE ROLE eater LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
                  "GRANT SELECT ON outbox_schema_version TO eater; GRANT USAGE ON SCHEMA public TO eater")
    for handler, text in (("missing", "there is no function missing"), ("two", "there is two(text,jsonb)"),
                          ("nowhere.handler", "there is no function nowhere.handler"), ("many", "not a plain function"),
                          ("proc", "not a plain function")):
        text_seen = refused(inbox, kafka, OUTBOX_CONSUMER_HANDLER=handler)
        assert text in text_seen and "hint=" in text_seen, text_seen
    for setting in ("GROUP", "TOPICS", "HANDLER"):
        assert f"needs OUTBOX_CONSUMER_{setting}" in refused(inbox, kafka, **{f"OUTBOX_CONSUMER_{setting}": ""})
    eater = {"OUTBOX_DATABASE_URL": inbox.cluster.url(inbox.name, "eater")}
    text = refused(inbox, kafka, **eater)
    assert "lacks a privilege" in text and "GRANT outbox_relay TO eater" in text
    inbox.execute("GRANT ALL ON processed_events, inbox_dead TO eater; REVOKE EXECUTE ON FUNCTION handler FROM PUBLIC")
    text = refused(inbox, kafka, **eater)
    assert "may not execute handler" in text and "GRANT EXECUTE ON FUNCTION handler" in text
    assert "outboxd migrate up" in refused(inbox, kafka, OUTBOX_SCHEMA="empty")
    assert "OUTBOX_KAFKA_NO_SUCH" in refused(inbox, kafka, OUTBOX_KAFKA_NO_SUCH="1")


def test_sigterm_finishes_the_batch(inbox, kafka, topic, consume):
    inbox.execute("CREATE FUNCTION dawdle" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM pg_sleep(0.002); PERFORM handler(event_id, topic, key, payload, headers); END $$""")
    events = numbered(3000, keys=30)
    send(kafka, topic, events)
    for _ in range(4):
        before = inbox.value("SELECT count(*) FROM notes")
        daemon = consume(inbox, topic, OUTBOX_CONSUMER_HANDLER="dawdle", OUTBOX_BATCH_SIZE=200)
        wait_notes(inbox, before + 1, daemon)
        assert daemon.stop() == 0, daemon.tail()
        done = sum(max(0, offset) for offset in committed(kafka, topic).values())
        assert done == inbox.value("SELECT count(*) FROM notes"), "what was done is committed, and nothing else"
    daemon = consume(inbox, topic)
    wait_notes(inbox, 3000, daemon)
    check_notes(inbox, events)


def test_retention_shorter_than_the_topics(inbox, kafka, new_topic, consume):
    long, short = new_topic(partitions=1, retention_ms=7 * 86400000), new_topic(partitions=1, retention_ms=3600000)
    forever = new_topic(partitions=1, cleanup_policy="compact")
    daemon = consume(inbox, f"{long},{short},{forever}")
    daemon.wait_log("got partition")
    warned = [line for level, message, line in daemon.lines() if "OUTBOX_INBOX_RETENTION (7d)" in message]
    assert len(warned) == 2 and any(long in line and "events (7d)" in line for line in warned)
    assert any(forever in line and "for ever" in line for line in warned)


def test_topic_that_does_not_exist_yet(inbox, kafka, topic, consume):
    daemon = consume(inbox, f"{topic},{topic}-later", OUTBOX_KAFKA_TOPIC_METADATA_REFRESH_INTERVAL_MS=1000)
    daemon.wait_log("(?i)unknown topic")
    kafka.create_topic(f"{topic}-later", partitions=1)
    send(kafka, f"{topic}-later", numbered(10, keys=1))
    send(kafka, topic, numbered(10, keys=1, start=10))
    wait_notes(inbox, 20, daemon)


def test_behind_pgbouncer(inbox, cluster, kafka, topic, consume, new_pgbouncer):
    bouncer = new_pgbouncer(cluster)
    events = numbered(2000, keys=20)
    send(kafka, topic, events)
    daemon = consume(inbox, topic, OUTBOX_DATABASE_URL=cluster.url(inbox.name, port=bouncer.port), OUTBOX_BATCH_SIZE=100)
    wait_notes(inbox, 2000, daemon)
    check_notes(inbox, events)


def test_in_a_schema_of_its_own(new_db, kafka, topic, consume):
    db = new_db(schema='in "box"').prepare()
    db.execute(NOTES)
    events = numbered(100, keys=5)
    send(kafka, topic, events)
    daemon = consume(db, topic)
    wait_notes(db, 100, daemon)
    check_notes(db, events)
    assert db.value('SELECT count(*) FROM "in ""box""".processed_events') == 100


def test_expiry_follows_the_setting(inbox, kafka, topic, consume):
    send(kafka, topic, numbered(3, keys=1))
    wait_notes(inbox, 3, consume(inbox, topic, OUTBOX_INBOX_RETENTION="2h"))
    low, high = inbox.execute("SELECT min(expires_at - now()), max(expires_at - now()) FROM processed_events")[0]
    assert 7000 < low.total_seconds() <= high.total_seconds() < 7300
