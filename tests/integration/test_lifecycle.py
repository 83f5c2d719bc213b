"""Start in any order, stop without a trace, come back after either server was away."""

import signal
import time

import pytest
from rig import kafka as kafkas
from rig import writer
from rig.clock import Jumping
from rig.judge import judge as judge_all
from rig.process import wait_until


def delivered(db):
    return db.value("SELECT count(*) FROM rig.ledger") - db.unfinished()


@pytest.mark.short
def test_sigterm_under_load_leaves_no_duplicate(db, topic, start, judge):
    with writer.Stream(db.connect, topic, keys=20, batch=50):
        for _ in range(5):
            before = delivered(db)
            daemon = start(db, OUTBOX_BATCH_SIZE=200)
            wait_until(lambda: delivered(db) > before + 500, "events flow")
            assert daemon.stop() == 0
    daemon = start(db)
    db.wait_settled(None, daemon)
    judge(topic).check()


def test_second_sigterm_leaves_at_once(root, new_kafka, db, start):
    """The broker hangs, so the batch in flight cannot be finished: the second SIGTERM does not wait for it. Nor for the time of
    day, which changes meanwhile."""
    kafka, clock = new_kafka(), Jumping(root, "second-sigterm")
    topic = kafka.create_topic("hanging")
    daemon = start(db, kafka=kafka, OUTBOX_SHUTDOWN_TIMEOUT="10m", OUTBOX_DELIVERY_TIMEOUT="10m", **clock)
    writer.bulk(db.conn, topic, 1000, keys=10)
    db.wait_settled(None, daemon)
    kafka.brokers[0].freeze()
    writer.bulk(db.conn, topic, 5000, keys=10, start=1000)
    wait_until(lambda: holds_transaction(db), "a batch is in flight")
    daemon.signal(signal.SIGTERM)
    daemon.wait_log(r"(?i)(SIGTERM|stopping|shutting|finish)")
    assert daemon.alive
    clock.by(hours=1)
    time.sleep(1)  # it waits by the new time
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(60) == 0  # of the ten minutes that it might have waited
    assert "second signal" in daemon.text()
    kafka.brokers[0].thaw()
    daemon = start(db, kafka=kafka)
    db.wait_settled(None, daemon)
    judge_all(kafka, db.conn, [topic]).check(duplicates=2 * 2000)


def holds_transaction(db):
    return db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND state = 'idle in transaction'")


def test_start_before_the_servers(root, new_cluster, new_db, start, new_topic):
    cluster = new_cluster()
    db = new_db(cluster).prepare()
    writer.bulk(db.conn, "late", 100, keys=5)
    db.conn.close()
    cluster.stop()
    kafka = kafkas.Kafka(root)  # has its ports, does not run yet
    daemon = start(db, kafka=kafka)
    daemon.wait_log(r"(?i)postgres|database|connect")
    assert daemon.alive
    cluster.start()
    try:
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") > 1,
                   "the daemon is connected")
        assert daemon.alive and db.unfinished() == 100
        kafka.start()
        kafka.create_topic("late")
        db.wait_settled(None, daemon)
        judge_all(kafka, db.conn, ["late"]).check()
        assert daemon.stop() == 0
    finally:
        kafka.destroy()


def test_postgres_restarts(new_cluster, new_db, topic, start, kafka):
    cluster = new_cluster()
    db = new_db(cluster).prepare()
    with writer.Stream(db.connect, topic, keys=10, batch=20, pause=0.002):
        daemon = start(db, OUTBOX_BATCH_SIZE=100)
        for mode in ("fast", "immediate", "fast"):
            before = delivered(db)
            wait_until(lambda: delivered(db) > before + 500, "events flow")
            db.conn.close()
            cluster.restart(mode)
    db.wait_settled(None, daemon)
    daemon.wait_log("PostgreSQL is back")
    judge_all(kafka, db.conn, [topic]).check(duplicates=3 * 2 * 100)


def test_idle_workers_keep_their_connections(db, start):
    db.execute(f"ALTER DATABASE {db.name} SET idle_session_timeout = '3s'")
    daemon = start(db, OUTBOX_WORKERS=3)
    daemon.wait_log("relaying")
    sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outboxd' ORDER BY pid"
    wait_until(lambda: len(db.execute(sessions)) == 4, "workers and janitor are connected")
    before = db.execute(sessions)
    other = db.connect()  # of a service that pauses: the server ends it
    pid = other.info.backend_pid
    wait_until(lambda: not db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid), "the other session was ended")
    assert db.execute(sessions) == before and "ended the connection" not in daemon.text()


def test_failover(new_cluster, new_db, topic, start, kafka):
    """Two hosts in the URL: the daemon finds the promoted standby by itself."""
    primary = new_cluster()
    db = new_db(primary).prepare()
    standby = primary.standby()
    new_cluster.adopt(standby)
    url = (f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/{db.name}"
           "?target_session_attrs=read-write")
    daemon = start(db, OUTBOX_DATABASE_URL=url)
    writer.bulk(db.conn, topic, 2000, keys=10)
    db.wait_settled(None, daemon)
    end = db.value("SELECT pg_current_wal_lsn()")
    wait_until(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{end}'")[0][0], "the standby has it all")
    db.conn.close()
    primary.kill()
    standby.promote()
    db.cluster = standby
    writer.bulk(db.conn, topic, 2000, keys=10, start=2000)
    db.wait_settled(None, daemon)
    assert judge_all(kafka, db.conn, [topic]).check().messages == 4000


def test_failover_past_a_host_that_never_answers(new_cluster, new_db, topic, start, kafka):
    """The first host accepts connections and says nothing: the second one has its turn all the same."""
    frozen, good = new_cluster(), new_cluster()
    db = new_db(good).prepare()
    frozen.freeze()
    try:
        daemon = start(db, OUTBOX_DATABASE_URL=f"postgresql://postgres@127.0.0.1:{frozen.port},127.0.0.1:{good.port}/{db.name}"
                                               "?target_session_attrs=read-write")
        writer.bulk(db.conn, topic, 100, keys=10)
        db.wait_settled(None, daemon)
    finally:
        frozen.thaw()
    assert judge_all(kafka, db.conn, [topic]).check().messages == 100


def test_pgbouncer_in_transaction_mode(db, cluster, topic, start, judge, new_pgbouncer):
    bouncer = new_pgbouncer(cluster)
    url = cluster.url(db.name, port=bouncer.port)
    daemons = [start(db, OUTBOX_DATABASE_URL=url, OUTBOX_WORKERS=4) for _ in range(2)]
    for one in daemons:
        one.wait_log(r"(?i)pgbouncer")
    for round in range(20):
        writer.bulk(db.conn, topic, 500, keys=10, start=round * 500)
    db.wait_settled(None, *daemons)
    assert judge(topic).check().messages == 10000
