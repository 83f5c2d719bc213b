"""`outboxd status`: the figures, as a person and as a machine reads them."""

import json

import pytest
from rig import daemon as daemons
from rig import writer


def status(db, **settings):
    done = daemons.call("status", "--json", **{**db.settings, **settings})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rows(db, count, status, retry_after=None, topic="t", routing=None, age="0 s", retry_count=0):
    db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, retry_after, routing_key, "
               "created_at, retry_count) SELECT %s, 'order', n::text, '{}', %s, %s, %s, now() - %s::interval, %s "
               "FROM generate_series(1, %s) n", topic, status, retry_after, routing, age, retry_count, count)


@pytest.mark.short
def test_counts(db):
    assert status(db) == {"pending": 0, "pending_capped": False, "oldest_pending_seconds": 0, "failed": 0, "held": 0, "dead": 0,
                          "parked": []}
    rows(db, 100, 0)                                      # NEW
    rows(db, 1000, 1, age="9 days")                       # SENT: nobody's business
    rows(db, 5, 2, "2999-01-01", retry_count=1)           # refused, waits
    rows(db, 2, 2, "2999-01-01", routing="a,b", retry_count=1)
    rows(db, 30, 2, "infinity", age="1 hour")             # held
    rows(db, 4, 2, "infinity", routing="t, u")
    rows(db, 3, 2, None, retry_count=2)                   # its backoff has ended
    rows(db, 6, 2, None)                                  # released
    rows(db, 7, 9, age="3 days")                          # DEAD: not pending, however old
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "VALUES ('t', 'topic t: no \"such\" topic', now(), 1, 0)")
    seen = status(db)
    assert seen["pending"] == 100 + 5 + 2 + 30 + 4 + 3 + 6
    assert (seen["failed"], seen["held"], seen["dead"]) == (5 + 2 + 3, 34, 7)
    assert 3590 < seen["oldest_pending_seconds"] < 3900
    [parked] = seen["parked"]
    assert (parked["topic"], parked["reason"], parked["held"]) == ("t", 'no "such" topic', 34)
    assert parked["since"].startswith("20") and parked["since"].endswith("Z")

    text = daemons.call("status", **db.settings).stdout
    for wanted in ("150", "1 h 0 m", "34", "7", "parked t ", 'no "such" topic'):
        assert wanted in text


def test_other_schema(new_db):
    db = new_db(schema="it's \"odd\"").prepare()
    assert status(db)["pending"] == 0


def test_it_tells_why_not(empty_db):
    done = daemons.call("status", "--json", **empty_db.settings)
    assert done.returncode == 78 and "migrate up" in done.stderr and done.stdout == ""
    done = daemons.call("status", OUTBOX_DATABASE_URL="postgresql://u:s3cr3t@127.0.0.1:1/x")
    assert done.returncode == 1 and "s3cr3t" not in done.stderr
    assert daemons.call("status", "--jason", **empty_db.settings).returncode == 64


def test_the_looks_use_the_partial_indexes(db):
    """However the statistics are: no scan of the table, in any of the looks."""
    rows(db, 20000, 1)
    rows(db, 200, 0)
    scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox_events'"
    db.execute("SELECT pg_stat_force_next_flush()")
    before = db.value(scans)
    for _ in range(5):
        assert status(db)["pending"] == 200
    db.execute("SELECT pg_sleep(1.2)")
    assert db.value(scans) == before
