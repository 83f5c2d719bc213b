"""The purge: what is finished and past its time goes, everything else stays."""

import threading

import pytest
from rig import daemon as daemons
from rig import process, writer
from rig.http import Window
from rig.process import wait_until


def purge(db, *args, **settings):
    done = daemons.call("purge", *(args or ("--once",)), **{**db.settings, **settings})
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(db, name, count=10, status=1, key="'k' || n", **columns):
    values = {"topic": f"'{name}'", "aggregate_type": "'order'", "aggregate_id": key, "payload": "'{}'", "status": str(status), **columns}
    db.execute(f"INSERT INTO outbox_events ({', '.join(values)}) SELECT {', '.join(values.values())} "
               f"FROM generate_series(1, {count}) n")


def left(db):
    return dict(db.execute("SELECT topic, count(*) FROM outbox_events GROUP BY topic"))


@pytest.mark.short
def test_what_goes_and_what_stays(db):
    ago = "now() - interval '%s'"
    rows(db, "sent-old", published_at=ago % "25 hours")
    rows(db, "sent-new", published_at=ago % "23 hours")
    rows(db, "writer-wants-longer", published_at=ago % "9 days", expires_at="now() + interval '1 s' * 3600")
    rows(db, "writer-wants-shorter", published_at=ago % "1 minute", expires_at=ago % "1 s")
    rows(db, "new-old", status=0, created_at=ago % "9 days", expires_at=ago % "8 days")
    rows(db, "failed-old", status=2, created_at=ago % "9 days", expires_at=ago % "8 days", retry_after=ago % "7 days")
    rows(db, "held-old", status=2, created_at=ago % "9 days", expires_at=ago % "8 days", retry_after="'infinity'")
    rows(db, "dead-old", status=9, created_at=ago % "9 days", expires_at=ago % "8 days")
    db.execute("INSERT INTO processed_events (consumer_group, event_id, expires_at) SELECT 'g', n::text, now() + (n - 6) * interval "
               "'1 hour' FROM generate_series(1, 10) n")
    text = purge(db)
    assert "purged 20 rows of outbox_events and 6 of processed_events" in text
    stay = {"sent-new", "writer-wants-longer", "new-old", "failed-old", "held-old", "dead-old"}
    assert left(db) == {name: 10 for name in stay}
    assert db.value("SELECT count(*) FROM processed_events") == 4
    assert "purged 0 rows" in purge(db)
    purge(db, OUTBOX_RETENTION="0")
    assert set(left(db)) == stay - {"sent-new"}


def test_dead_rows(db):
    ago = "now() - interval '%s'"
    rows(db, "died-long-ago", status=9, created_at=ago % "9 days", retry_after=ago % "2 days")
    rows(db, "died-lately", status=9, created_at=ago % "9 days", retry_after=ago % "2 hours")
    purge(db)
    assert len(left(db)) == 2  # OUTBOX_DEAD_RETENTION=0: for ever
    purge(db, OUTBOX_DEAD_RETENTION="1d")
    assert set(left(db)) == {"died-lately"}


@pytest.mark.parametrize("follower", ["held", "head", "routed", "none"])
def test_dead_rows_that_block_are_spared(follower, db):
    ago = "now() - interval '2 days'"
    rows(db, "blocks", count=1, status=9, key="'k'", retry_after=ago)
    rows(db, "blocks", count=1, status=9, key="'other'", retry_after=ago)
    rows(db, "elsewhere", count=1, status=2, key="'k'", retry_after="'infinity'")  # another stream
    if follower == "held":
        rows(db, "blocks", count=1, status=2, key="'k'", retry_after="'infinity'")
    elif follower == "head":
        rows(db, "blocks", count=1, status=2, key="'k'", retry_after="now() + interval '1 hour'")
    elif follower == "routed":
        rows(db, "x", count=1, status=2, key="'k'", routing_key="'y, blocks'", retry_after="'infinity'")
    purge(db, OUTBOX_DEAD_RETENTION="1d", OUTBOX_ON_DEAD="block")
    kept = db.execute("SELECT aggregate_id FROM outbox_events WHERE status = 9")
    assert kept == ([("k",)] if follower != "none" else [])
    purge(db, OUTBOX_DEAD_RETENTION="1d", OUTBOX_ON_DEAD="skip")
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 9") == 0


def test_locked_rows_are_passed_over(db):
    rows(db, "t", count=1000, published_at="now() - interval '2 days'")
    with db.connect() as other, other.transaction():
        other.execute("SELECT FROM outbox_events WHERE aggregate_id = 'k7' FOR UPDATE")
        assert "purged 999 rows" in purge(db)
    assert "purged 1 rows" in purge(db)


def test_a_lane_that_is_held_is_left(db):
    rows(db, "t", count=100, status=9, retry_after="now() - interval '2 days'")
    with db.connect() as other, other.transaction():
        other.execute("SELECT FROM outbox_lanes WHERE lane = 3 FOR UPDATE")
        purge(db, OUTBOX_DEAD_RETENTION="1d")
        assert db.execute("SELECT DISTINCT lane FROM outbox_events") == [(3,)]
    purge(db, OUTBOX_DEAD_RETENTION="1d")
    assert left(db) == {}


def test_a_row_that_is_retried_meanwhile_stays(db):
    """The condition stands on the row that is deleted, too."""
    rows(db, "t", count=2000, published_at="now() - interval '2 days'")
    stop = threading.Event()

    def undo():  # makes finished rows unfinished while the purge looks at them
        with db.connect() as conn:
            while not stop.is_set():
                conn.execute("UPDATE outbox_events SET status = 2, retry_after = 'infinity', headers = '{\"kept\": 1}' WHERE ctid IN "
                             "(SELECT ctid FROM outbox_events WHERE status = 1 ORDER BY random() LIMIT 20 FOR UPDATE SKIP LOCKED)")

    thread = threading.Thread(target=undo, daemon=True)
    thread.start()
    try:
        purge(db)
    finally:
        stop.set()
        thread.join()
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 2 AND headers <> '{}'") == db.value(
        "SELECT count(*) FROM outbox_events")


def test_the_daemons_timer(db, topic, start, judge):
    """Two daemons purge beside each other while events flow; the counters add up."""
    ports = [process.free_port() for _ in range(2)]
    pair = [start(db, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{port}", OUTBOX_PURGE_INTERVAL="1s", OUTBOX_RETENTION="2s",
                  OUTBOX_BATCH_SIZE=100) for port in ports]
    with writer.Stream(db.connect, topic, keys=10, batch=20, pause=0.01) as stream:
        wait_until(lambda: stream.written > 3000, "events are written")
    db.wait_settled(None, *pair)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_events") == 0, "every row is purged")
    counted = sum(Window(port).metrics()['outboxd_purged_total{table="outbox_events"}'] for port in ports)
    assert counted == stream.written
    judge(topic).check()


def test_until_sigterm(db, root):
    server = process.Server([daemons.binary(), "purge"], root / "purge.log",
                            env=daemons.environment({**db.settings, "OUTBOX_PURGE_INTERVAL": "1s"}))
    for _ in range(2):
        rows(db, "t", published_at="now() - interval '2 days'")
        wait_until(lambda: left(db) == {}, "the rows are purged")
    server.signal(15)
    assert server.wait() == 0
