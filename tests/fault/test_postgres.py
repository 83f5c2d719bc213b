"""PostgreSQL fails in every way we could think of: nothing is lost, the order stays, the daemon goes on by itself."""

import time
from pathlib import Path

import psycopg
import pytest
from rig import clock, mounts, writer
from rig.faults import fault
from rig.judge import judge as judge_all
from rig.process import own, wait_until

BATCH, WORKERS = 100, 2
SETTINGS = {"OUTBOX_BATCH_SIZE": BATCH, "OUTBOX_WORKERS": WORKERS}
PROMISE = "nothing lost, nothing out of order, and the daemon goes on by itself"


@pytest.fixture
def own_db(new_cluster, new_db):
    """A database in a cluster of its own, to be broken."""
    return new_db(new_cluster()).prepare()


def sent(db):
    return db.value("SELECT count(*) FROM outbox_events WHERE status = 1")


def flow(db, count=500):
    """Waits until so many more events are marked."""
    before = sent(db)
    wait_until(lambda: sent(db) >= before + count, lambda: f"events flow: {sent(db) - before} of {count}")


def warnings(daemon):
    return sum(level == "warning" for level, _, _ in daemon.lines())


def stream(db, topic, **options):
    return writer.Stream(db.connect, topic, **{"keys": 10, "batch": 20, "pause": 0.005, **options})


def finish(db, kafka, topic, seen, daemons, duplicates):
    db.wait_settled(None, *daemons)
    assert all(one.alive for one in daemons)
    seen(judge_all(kafka, db.conn, [topic]).check(duplicates=duplicates))


@fault("backends terminated", how="pg_terminate_backend of every connection of two daemons, 20 times, every 300 ms",
       promise=f"{PROMISE}; at most the batches in flight are sent twice")
def test_backends_terminated(db, topic, kafka, start, seen):
    rounds = 20
    with stream(db, topic):
        daemons = [start(db, **SETTINGS) for _ in range(2)]
        flow(db)
        killed = 0
        for _ in range(rounds):
            time.sleep(0.3)
            killed += db.value("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                               "WHERE datname = current_database() AND application_name = 'outboxd'")
        assert killed > rounds
        flow(db)
    seen(f"{killed} connections ended")
    finish(db, kafka, topic, seen, daemons, duplicates=killed * BATCH)


@fault("PostgreSQL crashes", how="immediate stop (twice) and kill -9 of the postmaster, with recovery, while events flow",
       promise=f"{PROMISE}; at most the batches in flight are sent twice")
def test_immediate_stop(own_db, topic, kafka, start, seen):
    db, cluster = own_db, own_db.cluster
    with stream(db, topic):
        daemon = start(db, **SETTINGS)
        for crash in (lambda: cluster.stop("immediate"), cluster.kill, lambda: cluster.stop("immediate")):
            flow(db)
            db.conn.close()
            crash()
            cluster.start()
        flow(db)
    finish(db, kafka, topic, seen, [daemon], duplicates=3 * WORKERS * BATCH)


@fault("failover to a standby that missed marks",
       how="the standby stops streaming, 2,000 events are sent and marked, then the primary is killed and the standby promoted",
       promise="the events whose marks are lost are sent again, in order; none is lost")
def test_failover_without_the_marks(own_db, new_cluster, topic, kafka, start, seen):
    db, primary = own_db, own_db.cluster
    writer.bulk(db.conn, topic, 2000, keys=10)
    standby = primary.standby()
    new_cluster.adopt(standby)
    end = db.value("SELECT pg_current_wal_lsn()")
    wait_until(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{end}'")[0][0], "the standby has the events")
    standby.stop()
    conf = standby.data / "postgresql.auto.conf"
    conf.write_text("".join(line for line in conf.open() if not line.startswith("primary_conninfo")))
    standby.start()
    url = (f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/{db.name}"
           "?target_session_attrs=read-write")
    daemon = start(db, OUTBOX_DATABASE_URL=url, **SETTINGS)
    db.wait_settled(None, daemon)
    db.conn.close()
    primary.kill()
    standby.promote()
    db.cluster = standby
    assert db.unfinished() > 0, "the standby does not know the marks"
    writer.bulk(db.conn, topic, 1000, keys=10, start=2000)
    finish(db, kafka, topic, seen, [daemon], duplicates=2000)


def rolled_back(db):
    return db.value("SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()")


@fault("the disk is full at the mark", how="outbox_events in a tablespace on a small tmpfs that another table fills",
       promise=f"{PROMISE} as soon as there is room; what was acknowledged and could not be marked is sent again")
def test_disk_full_at_mark(root, own_db, topic, kafka, start, seen):
    if not mounts.own_namespace():
        pytest.skip("only root can mount a small file system")
    db, cluster = own_db, own_db.cluster
    folder = mounts.small(root / f"small-{cluster.port}", "16m")
    own(folder, cluster.user)
    try:
        db.conn.close()
        cluster.restart()  # into the namespace that has the mount
        db.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        db.execute("ALTER TABLE outbox_events SET TABLESPACE small")
        writer.bulk(db.conn, topic, 3000, keys=10)
        db.execute("CREATE TABLE filler (t text) TABLESPACE small")
        db.execute("ALTER TABLE filler ALTER t SET STORAGE PLAIN")
        for size in (7000, 100):
            with pytest.raises(psycopg.errors.DiskFull):
                while True:
                    db.execute(f"INSERT INTO filler SELECT repeat('x', {size}) FROM generate_series(1, 100)")
        begin = time.monotonic()
        daemon = start(db, **SETTINGS)
        tries = 8
        wait_until(lambda: rolled_back(db) >= tries * WORKERS, lambda: f"it tries again: {rolled_back(db)}")
        daemon.wait_log("No space left on device")
        assert db.value("SELECT count(*) FROM outbox_events WHERE status <> 0 OR retry_count > 0") == 0
        db.execute("DROP TABLE filler")
        db.wait_settled(None, daemon)
        tries = 6 + (time.monotonic() - begin) / 2.5  # the pauses grow to 2.5 s at least
        finish(db, kafka, topic, seen, [daemon], duplicates=int(tries * WORKERS * BATCH))
    finally:
        cluster.stop("immediate")
        mounts.unmount(folder)


@fault("a statement is held by a lock", how="another session keeps outbox_events in ACCESS EXCLUSIVE mode until a statement "
       "of the daemon has run into its time-out", promise=f"no call waits for ever; {PROMISE}")
def test_statement_held_by_a_lock(db, topic, kafka, start, seen):
    with stream(db, topic, pause=0.05):
        daemon = start(db, **SETTINGS)
        flow(db, 100)
        with db.connect() as hog, hog.transaction():
            hog.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
            # A worker's: the janitor's statements have time-outs of their own.
            seen(daemon.wait_log(r'"worker":\d.*(statement timeout|did not answer in time)')[1])
            assert daemon.alive
        flow(db, 100)
    finish(db, kafka, topic, seen, [daemon], duplicates=WORKERS * BATCH)


@fault("a half-open connection", how="a daemon has a batch in flight, and from now on no packet passes between it and "
       "PostgreSQL; its connections stay open on both sides",
       promise="another daemon delivers the lanes of the one cut off within the delivery time-out + 15 s; what the first one "
               "still sends afterwards is a repetition")
def test_half_open_connection(db, cluster, topic, kafka, new_proxy, start, seams, seen):
    timeout = 3
    settings = {**SETTINGS, "OUTBOX_WORKERS": 1, "OUTBOX_DELIVERY_TIMEOUT": f"{timeout}s"}
    proxy = new_proxy(cluster.port)
    writer.bulk(db.conn, topic, 1000, keys=50)
    lost = start(db, build=seams, OUTBOX_DATABASE_URL=cluster.url(db.name, port=proxy.port),
                 OUTBOXD_SEAM="acknowledged:3:stop", **settings)
    wait_until(lambda: stopped(lost), "a batch is acknowledged and not marked")
    other = start(db, **settings)
    other.wait_log("schema public at version")
    proxy.freeze()
    lost.thaw()
    begin = time.monotonic()
    db.wait_settled(timeout + 15, other)
    seen(f"delivered {time.monotonic() - begin:.1f} s after the cut with a delivery time-out of {timeout} s")
    wait_until(lambda: warnings(lost), "the first daemon notices, though nobody tells it")
    proxy.heal()
    with stream(db, topic):
        other.stop()
        flow(db, 200)
    finish(db, kafka, topic, seen, [lost], duplicates=2 * BATCH)


def stopped(daemon):
    assert daemon.alive, daemon.tail()
    return Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@fault("privileges are revoked", how="REVOKE on outbox_events, on outbox_lanes and on the schema, one after the other, while "
       "events flow", promise=f"the log names the remedy, and after GRANT {PROMISE}")
def test_privileges_revoked(db, cluster, topic, kafka, start, seen):
    role = f"relay_{db.name}"
    grants = ["USAGE ON SCHEMA public", "SELECT, UPDATE, DELETE ON outbox_events", "SELECT, UPDATE ON outbox_lanes",
              "SELECT, INSERT, UPDATE, DELETE ON outbox_parked_topics, processed_events, inbox_dead",
              "SELECT ON outbox_schema_version, outbox_incarnation"]
    db.execute(f"CREATE ROLE {role} LOGIN; REVOKE USAGE ON SCHEMA public FROM public; "
               + "; ".join(f"GRANT {grant} TO {role}" for grant in grants))
    try:
        with stream(db, topic):
            daemon = start(db, OUTBOX_DATABASE_URL=cluster.url(db.name, user=role), **SETTINGS)
            flow(db)
            for grant in grants[:3]:
                before = daemon.text().count("permission denied")
                db.execute(f"REVOKE {grant} FROM {role}")
                wait_until(lambda: daemon.text().count("permission denied") > before, "it is told")
                db.execute(f"GRANT {grant} TO {role}")
                flow(db)
        daemon.wait_log("grant the role outbox_relay")
        finish(db, kafka, topic, seen, [daemon], duplicates=3 * WORKERS * BATCH)
        daemon.stop()
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}; GRANT USAGE ON SCHEMA public TO public")


@pytest.fixture
def jumping(root, db):
    """Settings of a daemon whose host's clock jumps by as many hours as jumping.by(…) says."""
    return clock.Jumping(root, db.name)


@fault("the host's clock jumps", how="50 minutes forth, ten days back, nine days forth (a preloaded library), while events flow "
       "and one waits for its next try", promise=f"only PostgreSQL's clock counts; {PROMISE}, nothing twice")
def test_clock_jumps(db, topic, kafka, start, jumping, seen):
    waiting = writer.publish(db.conn, topic, "waiting")
    db.execute("UPDATE outbox_events SET status = 2, retry_count = 1, retry_after = now() + interval '30 minutes'")
    with stream(db, topic):
        daemon = start(db, **SETTINGS, **jumping)
        flow(db)
        for hours in (0.8, -240, -24):
            jumping.by(hours)
            flow(db, 1000)
    assert db.value("SELECT status FROM outbox_events WHERE id = %s", waiting) == 2, "the host's clock made it due"
    assert db.value("SELECT max(abs(extract(epoch FROM published_at - created_at))) FROM outbox_events") < 1200
    db.execute("UPDATE outbox_events SET retry_after = now() WHERE id = %s", waiting)
    finish(db, kafka, topic, seen, [daemon], duplicates=0)


def test_a_jump_in_the_midst_of_a_batch(db, new_kafka, start, jumping, judge):
    """A deadline is no time of day: half an hour that never passed ends no batch."""
    kafka = new_kafka(properties={"broker.session.timeout.ms": 30000})  # the fault is not long enough to lose its partitions
    topic = kafka.create_topic("jump")
    writer.bulk(db.conn, topic, 100, keys=5)
    daemon = start(db, kafka=kafka, **jumping)
    db.wait_settled(None, daemon)
    kafka.brokers[0].freeze()
    writer.bulk(db.conn, topic, 100, keys=5, start=100)
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                "AND application_name = 'outboxd' AND state = 'idle in transaction'"), "a batch is on its way")
    jumping.by(0.5)
    time.sleep(4)  # the fault's length: longer than the question to the cluster that would follow a deadline
    kafka.brokers[0].thaw()
    db.wait_settled(None, daemon)
    assert warnings(daemon) == 0, daemon.tail()
    judge(topic, kafka=kafka).check()


@fault("the host's clock is a day ahead", how="a preload that moves the wall clock; the broker refuses times of publishing "
       "that are more than an hour ahead", promise="the events wait, none is counted or dies; when the clock is right they flow")
def test_a_clock_far_ahead_kills_no_event(db, topic, start, jumping, judge, seen):
    """The time of a record is ours to set: that the broker does not take it is not the event's fault."""
    jumping.by(24)
    writer.bulk(db.conn, topic, 20, keys=5)
    daemon = start(db, OUTBOX_MAX_RETRIES=1, **SETTINGS, **jumping)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_events WHERE retry_after = 'infinity'") == 20, "they wait")
    assert "clock" in db.value("SELECT reason FROM outbox_parked_topics")
    assert db.value("SELECT max(retry_count) FROM outbox_events") == 0
    jumping.by(0)
    db.wait_settled(None, daemon)
    assert sent(db) == 20
    seen(judge(topic).check())


@fault("PgBouncer restarts", how="a PgBouncer in transaction mode between daemon and database is killed and started again, "
       "three times, while events flow", promise=f"{PROMISE}; at most the batches in flight are sent twice")
def test_pgbouncer_restarts(db, cluster, topic, kafka, start, new_pgbouncer, seen):
    bouncer = new_pgbouncer(cluster)
    with stream(db, topic):
        daemon = start(db, OUTBOX_DATABASE_URL=cluster.url(db.name, port=bouncer.port), **SETTINGS)
        for _ in range(3):
            flow(db)
            before = warnings(daemon)
            bouncer.stop()
            wait_until(lambda: warnings(daemon) > before, "the daemon notices")
            bouncer.start()
        flow(db)
    finish(db, kafka, topic, seen, [daemon], duplicates=3 * WORKERS * BATCH)
