"""`outboxd events`: what an operator sees, what a change does, and above all what it leaves alone."""

import json
import os
import pty
import re
import signal
import subprocess
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from rig import daemon, process
from rig.database import PASSWORD
from rig.writer import bulk, publish

SMALL = 10000  # a topic's max.message.bytes
BIG = 20000    # bytes of a payload that such a topic refuses


def events(db, *args, code=0, **settings):
    done = daemon.call("events", *args, **{**db.settings, **settings})
    assert done.returncode == code, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    assert PASSWORD not in done.stdout + done.stderr
    return done


def listed(db, *args):
    return json.loads(events(db, "list", "--json", *args).stdout)


def changed(db, *args):
    return json.loads(events(db, *args, "--json").stdout)


def set_row(db, id, status, retry_after=None, retry_count=0, error="it broke"):
    db.execute("UPDATE outbox_events SET status = %s, retry_after = %s, retry_count = %s, last_error = %s WHERE id = %s",
               status, retry_after, retry_count, error, id)


@pytest.fixture
def five(db):
    """One row of each kind, of one stream: no daemon runs."""
    ids = {name: publish(db.conn, "orders", "k", f'{{"n": "{name}"}}') for name in ("sent", "dead", "failed", "held", "new")}
    set_row(db, ids["sent"], 1, error=None)
    db.execute("UPDATE outbox_events SET published_at = now() WHERE status = 1")
    set_row(db, ids["dead"], 9, retry_count=5)
    set_row(db, ids["failed"], 2, "2099-01-01", 3)
    set_row(db, ids["held"], 2, "infinity")
    return ids


def statuses(db):
    return dict(db.execute("SELECT payload->>'n', status FROM outbox_events"))


@pytest.mark.short
def test_list_json_has_the_columns(db, five):
    rows = listed(db)
    names = [name for (name,) in db.execute("""SELECT attname::text FROM pg_attribute
        WHERE attrelid = 'outbox_events'::regclass AND attnum > 0 AND NOT attisdropped""")]
    assert {frozenset(row) for row in rows} == {frozenset(names)}
    assert [row["payload"]["n"] for row in rows] == ["dead", "failed", "held", "new", "sent"]
    assert [row["status"] for row in rows] == ["DEAD", "FAILED", "FAILED", "NEW", "SENT"]


@pytest.mark.parametrize("status, found", [
    ("new", ["new"]), ("SENT", ["sent"]), ("Failed", ["failed"]), ("dead", ["dead"]), ("held", ["held"]),
    ("failed,dead", ["dead", "failed"])])
def test_list_by_status(db, five, status, found):
    assert [row["payload"]["n"] for row in listed(db, "--status", status)] == found


def test_list_filters(db, five):
    other = publish(db.conn, "payments", "other", tenant_id="acme")
    routed = publish(db.conn, "x", "r", routing_key="orders, audit")
    old = publish(db.conn, "orders", "old")
    db.execute("UPDATE outbox_events SET created_at = now() - interval '3 hours' WHERE id = %s", old)

    def ids(*args):
        return [row["id"] for row in listed(db, *args)]

    assert ids("--topic", "payments") == ids("--tenant", "acme") == ids("--key", "other") == ids("--id", other) == [other]
    assert ids("--topic", "audit") == [routed]
    assert set(ids("--topic", "orders")) == {*five.values(), routed, old}
    assert old not in ids("--since", "2h") and old in ids("--since", "4h")
    assert ids("--since", "2099-01-01T00:00:00Z") == []
    assert len(ids("--since", "2001-01-01T00:00:00+02:00")) == 8
    assert len(ids("--limit", "2")) == 2 and ids("--id", "nobody") == []
    assert ids("--id", five["sent"], "--status", "new") == []
    for kind in five:  # every filter with every part of the table
        for args in (["--topic", "orders"], ["--key", "k"], ["--tenant", "default"], ["--since", "1h"]):
            assert five[kind] in ids("--status", kind, *args), (kind, args)


def test_list_for_people_fits_the_terminal(db, five):
    publish(db.conn, "t" * 200, "k" * 200)
    set_row(db, five["dead"], 9, error="a reason\x1b[31m that is far too long to be shown in one line of a terminal")
    for columns in (80, 120, 200):
        text = events(db, "list", COLUMNS=columns).stdout
        assert max(map(len, text.splitlines())) <= columns
        assert five["dead"] in text and "\x1b" not in text and "held" in text
    assert len(events(db, "list", COLUMNS=200).stdout) > len(events(db, "list", COLUMNS=80).stdout)


def test_a_list_tells_the_whole_reason(db, five):
    """In 80 columns on a line of its own, once for neighbours that share it; uncut where there is no terminal."""
    reason = "topic orders: larger than the topic takes (max.message.bytes)"
    set_row(db, five["dead"], 9, error=reason)
    set_row(db, five["failed"], 2, "2099-01-01", error=reason)
    lines = events(db, "list", COLUMNS=80).stdout.splitlines()
    assert lines[2].strip() == reason and lines[3].startswith(five["failed"]) and lines[4].startswith(five["held"])
    publish(db.conn, "t" * 30, "last")
    set_row(db, five["dead"], 9, error=reason * 10)
    lines = events(db, "list").stdout.splitlines()
    assert lines[1].endswith(reason * 10) and len(lines) == 1 + 6 and any("t" * 30 in line for line in lines)


def test_show_tells_what_it_waits_for(db, five):
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "VALUES ('orders', 'nobody may write', now() + interval '1 hour', 1, 1)")
    text = events(db, "show", five["held"]).stdout
    assert five["failed"] in text and "parked" in text and "nobody may write" in text and '"n": "held"' in text
    one = json.loads(events(db, "show", five["held"], "--json").stdout)
    assert one["waits_for"]["id"] == five["failed"] and one["parked"][0]["topic"] == "orders" and one["status"] == "FAILED"
    one = json.loads(events(db, "show", five["held"], "--json", OUTBOX_ON_DEAD="block").stdout)
    assert one["waits_for"]["id"] == five["dead"]
    assert json.loads(events(db, "show", five["failed"], "--json").stdout)["waits_for"] is None
    assert "no event" in events(db, "show", "nobody", code=1).stderr


@pytest.mark.parametrize("action", ["retry", "discard"])
def test_a_change_asks_for_a_filter(db, five, action):
    before = db.execute("SELECT e::text FROM outbox_events e ORDER BY seq")
    assert "--all" in events(db, action, code=64).stderr
    events(db, action, "--limit", "5", code=64)
    events(db, action, "--status", "new", code=64)
    events(db, action, "--status", "sent", code=64)
    text = events(db, action, "--all", "--dry-run").stdout
    assert five["dead"] in text and five["failed"] in text and "would" in text and "2 events" in text
    dry = changed(db, action, "--all", "--dry-run")
    assert dry["matched"] == 2 and dry["changed"] == 0 and {row["id"] for row in dry["events"]} == {five["dead"], five["failed"]}
    assert db.execute("SELECT e::text FROM outbox_events e ORDER BY seq") == before


@pytest.mark.parametrize("args", [("nonsense",), ("show",), ("list", "x"), ("list", "--limit", "0"), ("list", "--since", "soon"),
                                  ("list", "--status", "lost"), ("list", "--no-such"), ("list", "--topic"),
                                  ("list", "--json", "--json"), ("list", "--dry-run")])
def test_usage(args):
    done = daemon.call("events", *args)
    assert done.returncode == 64 and "usage: outboxd events" in done.stderr


def test_retry_is_due_now_and_logged(db, five):
    done = events(db, "retry", "--topic", "orders", OUTBOX_LOG_FORMAT="json")
    log = json.loads(done.stderr)
    assert "by postgres" in log["message"] and "--topic orders" in log["message"] and "2 changed" in log["message"]
    assert statuses(db) == {"sent": 1, "dead": 2, "failed": 2, "held": 2, "new": 0}
    due = db.execute("SELECT payload->>'n', retry_count FROM outbox_events WHERE status = 2 AND retry_after IS NULL ORDER BY seq")
    assert due == [("dead", 0), ("failed", 0)]
    assert changed(db, "retry", "--all")["changed"] == 0  # what is due is left alone


def test_it_tells_why_a_named_event_is_left_alone(db, five):
    for name, word in (("sent", "SENT"), ("new", "NEW"), ("held", "--status held")):
        for args in (["retry"], ["discard"], ["retry", "--dry-run"]):
            assert word in events(db, *args, "--id", five[name]).stderr
    assert "no event nobody" in events(db, "retry", "--id", "nobody").stderr
    assert "something else" in events(db, "retry", "--id", five["dead"], "--status", "failed").stderr
    assert "is DEAD" not in events(db, "retry", "--id", five["dead"]).stderr


def test_arguments_that_postgresql_cannot_read(db, five):
    events(db, "list", "--since", "2024-02-31T00:00:00Z", code=64)
    events(db, "list", "--since", "2024-13-01T25:00:00Z", code=64)
    events(db, "list", "--since", "2024-01-01T00:00:00+25:99", code=64)
    events(db, "list", "--topic", b"\xff", code=64)


def test_no_terminal_obeys_what_a_server_says(db, five):
    db.execute("""CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION E'no \\u001b[2J\\u009b'; END $$;
        CREATE TRIGGER no BEFORE DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION no()""")
    said = events(db, "discard", "--all", code=1).stderr
    assert "no ?[2J?" in said and "\x1b" not in said and "\x9b" not in said


def test_held_rows_only_when_named(db, five):
    assert changed(db, "discard", "--all")["changed"] == 2
    assert set(statuses(db)) == {"sent", "held", "new"}
    db.execute("UPDATE outbox_events SET retry_after = 'infinity' WHERE status = 2")  # discarding its head released it
    assert changed(db, "retry", "--status", "held")["changed"] == 1
    assert db.value("SELECT retry_after FROM outbox_events WHERE status = 2") is None


def test_a_released_follower_is_not_discarded_as_failed(db):
    follower, refused = publish(db.conn, "orders", "a"), publish(db.conn, "orders", "b")
    set_row(db, follower, 2, None, 0)
    set_row(db, refused, 2, None, 1)
    assert changed(db, "discard", "--status", "failed")["changed"] == 1
    assert db.execute("SELECT id FROM outbox_events") == [(follower,)]
    assert changed(db, "discard", "--id", follower)["changed"] == 1


def test_discard_frees_followers(db, five):
    outcome = changed(db, "discard", "--id", five["failed"])
    assert outcome["changed"] == 1 and outcome["freed"] == 1
    assert db.value("SELECT retry_after FROM outbox_events WHERE id = %s", five["held"]) is None


def test_discard_frees_followers_in_every_topic_of_a_list(db):
    head = publish(db.conn, "x", "k", routing_key="orders,audit")
    behind = [publish(db.conn, topic, "k") for topic in ("orders", "audit", "other")]
    set_row(db, head, 9)
    for id in behind:
        set_row(db, id, 2, "infinity")
    assert changed(db, "discard", "--topic", "audit")["freed"] == 2
    assert db.value("SELECT retry_after = 'infinity' FROM outbox_events WHERE id = %s", behind[2])


def test_limits_and_batches(db):
    """More than a batch, in a few lanes, plain and with lists, with a limit and without."""
    bulk(db.conn, "orders", 3000, 3)
    bulk(db.conn, "payments", 10, 3)
    db.execute("UPDATE outbox_events SET routing_key = 'orders,audit' WHERE seq % 10 = 0 AND topic = 'orders'")
    db.execute("UPDATE outbox_events SET status = 9 WHERE seq % 2 = 0")
    db.execute("UPDATE outbox_events SET status = 2, retry_count = 1, retry_after = now() + interval '1 hour' WHERE seq % 2 = 1")
    assert changed(db, "retry", "--topic", "orders", "--limit", "700")["changed"] == 700
    assert changed(db, "retry", "--topic", "orders")["changed"] == 2300
    assert changed(db, "retry", "--all", "--dry-run")["matched"] == 10
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 2 AND retry_after IS NULL AND retry_count = 0") == 3000


@pytest.mark.parametrize("action", ["retry", "discard"])
@pytest.mark.parametrize("limit", [1, 7, 30])
def test_a_limit_takes_the_oldest_whatever_their_lanes(db, action, limit):
    """What the dry run shows is what the change touches: the oldest of all lanes, DEAD or FAILED, plain or with a list."""
    bulk(db.conn, "orders", 60, 20)
    db.execute("UPDATE outbox_events SET status = 9 WHERE seq % 3 = 0")
    db.execute("UPDATE outbox_events SET status = 2, retry_count = 1, retry_after = now() + interval '1 hour' WHERE seq % 3 = 1")
    db.execute("UPDATE outbox_events SET routing_key = 'orders,audit' WHERE seq % 5 = 0")
    before = dict(db.execute("SELECT id, e::text FROM outbox_events e"))
    oldest = [id for (id,) in db.execute("SELECT id FROM outbox_events WHERE status <> 0 ORDER BY seq LIMIT %s", limit)]
    dry = changed(db, action, "--all", "--limit", str(limit), "--dry-run")
    assert [row["id"] for row in dry["events"]] == oldest and dry["matched"] == limit
    outcome = changed(db, action, "--all", "--limit", str(limit))
    assert outcome["matched"] == outcome["changed"] == limit
    after = dict(db.execute("SELECT id, e::text FROM outbox_events e"))
    assert {id for id in before if before[id] != after.get(id)} == set(oldest)


def test_a_dry_run_leaves_out_what_no_change_touches(db):
    """A follower that was released is FAILED in the table, but was never refused."""
    released, refused = publish(db.conn, "orders", "a"), publish(db.conn, "orders", "b")
    set_row(db, released, 2, None, 0)
    set_row(db, refused, 2, None, 1)
    dry = changed(db, "discard", "--topic", "orders", "--dry-run")
    assert dry["matched"] == 1 and [row["id"] for row in dry["events"]] == [refused]
    assert {row["id"] for row in listed(db, "--status", "failed")} == {released, refused}


def test_a_topic_is_found_without_taking_plain_rows_apart(db, five):
    """Only a list of topics is worth the function: it costs more than the rest of the look."""
    routed = publish(db.conn, "x", "r", routing_key="audit, orders")
    set_row(db, routed, 9)
    db.execute("""CREATE OR REPLACE FUNCTION outbox_topics(topic text, routing_key text) RETURNS text[] IMMUTABLE LANGUAGE plpgsql
        AS $$ BEGIN ASSERT routing_key IS NOT NULL; RETURN regexp_split_to_array(routing_key, ', *'); END $$""")
    assert {row["id"] for row in listed(db, "--topic", "orders")} == {*five.values(), routed}
    for status in ("new", "sent", "dead", "failed", "held"):
        listed(db, "--topic", "orders", "--status", status)
    assert changed(db, "retry", "--topic", "orders", "--dry-run")["matched"] == 3
    assert changed(db, "retry", "--topic", "audit")["changed"] == 1


def test_a_change_counts_no_further_than_its_progress_needs(db):
    db.execute("ALTER TABLE outbox_events DISABLE TRIGGER rig_note")
    db.execute("""INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status)
        SELECT 'orders', 'a', 'k', '{}', 9 FROM generate_series(1, 12000) n""")
    assert changed(db, "retry", "--all", "--dry-run")["matched"] == 12000
    outcome = changed(db, "retry", "--all")
    assert outcome["matched"] == outcome["changed"] == 12000


def test_progress_is_for_terminals(db, five):
    """And what a program reads is not mixed with it."""
    bulk(db.conn, "orders", 2500, 5)
    db.execute("UPDATE outbox_events SET status = 9 WHERE status = 0")
    master, slave = pty.openpty()
    done = subprocess.run([daemon.binary(), "events", "retry", "--all", "--json"], env=daemon.environment(db.settings),
                          stdout=subprocess.PIPE, stderr=slave, timeout=process.PATIENCE)
    os.close(slave)
    seen = os.read(master, 65536).decode()
    os.close(master)
    assert json.loads(done.stdout)["changed"] == 2503
    assert re.search(r"\r\033\[K\d+ of 2503", seen) and "2503 changed" in seen


def test_ctrl_c_ends_a_change_and_the_log_tells_how_far_it_came(db):
    bulk(db.conn, "orders", 500, 100)
    db.execute("UPDATE outbox_events SET status = 9")
    last = db.value("SELECT max(lane) FROM outbox_events")
    with db.connect() as other, other.transaction():
        other.execute("SELECT FROM outbox_lanes WHERE lane = %s FOR UPDATE", (last,))
        child = subprocess.Popen([daemon.binary(), "events", "discard", "--all"], env=daemon.environment(db.settings),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                            "AND wait_event_type = 'Lock'"), "it waits for the last lane")
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=process.PATIENCE)
    gone = 500 - db.value("SELECT count(*) FROM outbox_events")
    assert child.returncode == 1 and out == "" and gone > 0
    assert f"discard by postgres: --all: {gone} changed" in said and "interrupted" in said and "run the command again" in said


def test_waits_for_the_lane(db, five):
    """Whoever holds the lane is waited for, and nothing is changed before."""
    lane = db.value("SELECT lane FROM outbox_events LIMIT 1")
    with db.connect() as other:
        with other.transaction():
            other.execute("SELECT FROM outbox_lanes WHERE lane = %s FOR UPDATE", (lane,))
            thread = threading.Thread(target=lambda: changed(db, "retry", "--all"))
            thread.start()
            process.wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                                "AND wait_event_type = 'Lock'"), "it waits")
            assert db.value("SELECT count(*) FROM outbox_events WHERE status = 9") == 1
            thread.join(3)  # longer than one slice of the wait
            assert thread.is_alive()
    thread.join(30)
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 9") == 0


def test_through_pgbouncer(db, five, new_pgbouncer):
    bouncer = new_pgbouncer(db.cluster)
    url = db.cluster.url(db.name, "postgres", PASSWORD, bouncer.port)
    assert "retried 2 events" in daemon.call("events", "retry", "--all", OUTBOX_DATABASE_URL=url).stdout


def test_another_schema(new_db):
    db = new_db(schema="odd name").prepare()
    publish(db.conn, "orders", "k", schema="odd name")
    db.execute(f"UPDATE {db.table} SET status = 9")
    assert changed(db, "retry", "--all")["changed"] == 1 and len(listed(db)) == 1


def test_no_schema_and_no_server(empty_db):
    assert "migrate up" in events(empty_db, "list", code=78).stderr
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:{process.free_port()}/x"
    assert daemon.call("events", "list", OUTBOX_DATABASE_URL=url).returncode == 1


def raise_limit(kafka, topic, witness):
    """Returns when the broker has put it into effect. It does so in the order of the changes, so the second topic tells, which
    may get a message that is no event."""
    for name in (topic, witness):
        entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        for future in kafka.admin.incremental_alter_configs([resource]).values():
            future.result(30)
    producer = Producer({"bootstrap.servers": kafka.internal})

    def taken():
        failures = []
        producer.produce(witness, b"x" * BIG, on_delivery=lambda failure, _: failures.append(failure))
        producer.flush(30)
        return failures == [None]

    process.wait_until(taken, "the limit is raised")


@pytest.mark.parametrize("on_dead", ["skip", "block"])
def test_replay_in_order(db, kafka, new_topic, start, judge, on_dead):
    """1,000 dead events of ten keys; the cause is mended; retried, they are delivered in order."""
    topic, witness = (new_topic(max_message_bytes=SMALL) for _ in range(2))
    bulk(db.conn, topic, 1000, 10, BIG)
    relay = start(db, OUTBOX_MAX_RETRIES=0, OUTBOX_ON_DEAD=on_dead)
    heads = 1000 if on_dead == "skip" else 10
    process.wait_until(lambda: db.value("SELECT count(*) FROM outbox_events WHERE status = 9") == heads, "dead")
    raise_limit(kafka, topic, witness)
    assert changed(db, "retry", "--topic", topic)["changed"] == heads
    db.wait_settled(None, relay)
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 1") == 1000
    judge(topic).check()


def test_discard_beside_a_running_relay(db, kafka, new_topic, start):
    """In a blocked stream the dead head is discarded, and its followers arrive."""
    topic = new_topic(max_message_bytes=SMALL)
    for n in range(20):
        publish(db.conn, topic, "k", json.dumps({"fill": "x" * (BIG if n == 3 else 10)}))
    relay = start(db, OUTBOX_MAX_RETRIES=0, OUTBOX_ON_DEAD="block")
    process.wait_until(lambda: db.execute("SELECT count(*) FILTER (WHERE status = 9), count(*) FILTER (WHERE status = 1) "
                                          "FROM outbox_events") == [(1, 3)], "blocked")
    assert changed(db, "discard", "--topic", topic)["changed"] == 1
    db.wait_settled(None, relay)
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 1") == 19


def test_retry_probes_a_parked_topic(db, kafka, start):
    topic = f"late-{process.free_port()}"
    publish(db.conn, topic, "k")
    relay = start(db)
    process.wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics"), "parked")
    relay.stop()
    db.execute("UPDATE outbox_parked_topics SET probe_after = now() + interval '1 day'")
    kafka.create_topic(topic)
    for nothing in (["--topic", "something-else"], ["--key", "nosuch"], ["--id", "nosuch"], ["--tenant", "nosuch"]):
        assert changed(db, "retry", *nothing)["probes"] == 0
    assert changed(db, "retry", "--key", "k", "--dry-run")["probes"] == 1
    assert changed(db, "retry", "--topic", topic)["probes"] == 1
    relay = start(db)
    db.wait_settled(None, relay)
    relay.wait_log(f'"topic":"{topic}","message":"no longer parked')


def test_sent_events_are_looked_for_among_the_latest(db):
    db.execute("ALTER TABLE outbox_events DISABLE TRIGGER rig_note")
    insert = """INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, created_at, published_at)
        SELECT %s, 'a', 'k', '{}', 1, now() - interval '1 hour' * %s, now() FROM generate_series(1, %s) n"""
    db.execute(insert, "old", 5, 10)
    assert events(db, "list", "--topic", "old").stderr == ""
    assert listed(db, "--topic", "old", "--since", "2h") == []  # written since, whenever it was sent
    db.execute(insert, "new", 0, 100000)
    assert "among the latest 100000" in events(db, "list", "--topic", "old").stderr
    assert "among the latest" in events(db, "list", "--topic", "old", "--json", "--since", "6h").stderr
    assert events(db, "list", "--topic", "old", "--since", "4h").stderr == ""  # all that is behind the bound is older
    assert events(db, "list", "--topic", "old", "--status", "dead").stderr == ""
    assert len(listed(db, "--id", db.value("SELECT min(id) FROM outbox_events"))) == 1


def test_cheap_on_a_large_table(db):
    """Every question is answered through an index: no plan reads the whole table."""
    db.execute("ALTER TABLE outbox_events DISABLE TRIGGER rig_note")
    db.execute("""INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, published_at, retry_after)
        SELECT 't' || n % 5, 'a', 'k' || n % 1000, '{}', CASE WHEN n % 10 = 0 THEN 2 ELSE 1 END, now(),
               CASE WHEN n % 10 = 0 THEN 'infinity'::timestamptz END FROM generate_series(1, 100000) n""")
    db.execute("VACUUM ANALYZE outbox_events")

    def scans():
        process.wait_until(lambda: not db.cluster.execute(  # a backend counts at its end
            f"SELECT FROM pg_stat_activity WHERE datname = '{db.name}' AND backend_type = 'client backend'"), "backends end")
        with db.connect() as other:
            return other.execute("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox_events'").fetchone()[0]

    db.conn.close()
    scans()
    db.cluster.execute("SELECT pg_stat_reset()", db.name)
    assert scans() == 0
    for args in ([], ["--status", "held"], ["--status", "failed"], ["--status", "sent"], ["--topic", "t0"], ["--key", "k7"],
                 ["--tenant", "default"], ["--since", "1h"]):
        assert re.search("held|SENT|no events", events(db, "list", *args).stdout)
    for args in (["retry", "--all", "--limit", "5"], ["retry", "--all"], ["retry", "--status", "held"], ["discard", "--topic", "t1"], ["retry", "--all", "--dry-run"]):
        changed(db, *args)
    assert scans() == 0
