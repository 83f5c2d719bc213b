"""Kafka is away, hangs, forbids or lacks a topic: nobody's attempt is counted, nobody dies, everything arrives in order."""

import time

import pytest
from rig import judge as judges
from rig import kafka as kafkas
from rig import writer
from rig.faults import fault, length
from rig.process import wait_until

AWAY, FROZEN = length(10, long=60), length(8, long=15)
BATCH, WORKERS = 500, 2
SETTINGS = {"OUTBOX_MAX_RETRIES": 1, "OUTBOX_BATCH_SIZE": BATCH, "OUTBOX_WORKERS": WORKERS}
IN_FLIGHT = BATCH * WORKERS  # what one cut may repeat


@pytest.fixture(scope="module")
def breakable(root):
    """breakable(n): n brokers for the tests that take some away; whole again for the next test."""
    made = {}

    def get(brokers):
        if brokers not in made:
            made[brokers] = kafkas.Kafka(root, brokers=brokers).start()
        for broker in made[brokers].brokers:
            broker.thaw()
            if not broker.server.alive:
                broker.start()
        made[brokers].wait_ready()
        return made[brokers]

    yield get
    for kafka in made.values():
        kafka.destroy()


@pytest.fixture
def single(breakable):
    return breakable(1)


@pytest.fixture
def three(breakable):
    return breakable(3)


def flow(db, topic):
    """About 1,000 events a second, until the `with` ends."""
    return writer.Stream(db.connect, topic, keys=10, batch=20, pause=0.02)


def check_innocent(db):
    """Nobody is dead, no attempt was counted, no complaint is left."""
    assert db.execute("SELECT status, retry_count, last_error, count(*) FROM outbox_events "
                      "WHERE status <> 1 OR retry_count > 0 OR last_error IS NOT NULL GROUP BY 1, 2, 3") == []


def sent(db):
    return db.value("SELECT count(*) FROM outbox_events WHERE status = 1")


def wait_flowing(db, count=1000):
    """Until so many more are sent."""
    goal = sent(db) + count
    wait_until(lambda: sent(db) >= goal, lambda: f"{sent(db)} of {goal} sent")


def rss(daemon):
    with open(f"/proc/{daemon.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


@fault("the broker is away", how=f"SIGKILL, started again after {AWAY} s, 1,000 events a second meanwhile, OUTBOX_MAX_RETRIES=1",
       promise="0 DEAD, no attempt counted, not ready with the reason within 5 s, memory flat, drained afterwards")
def test_broker_away(db, single, serve, judge, seen):
    kafka = single
    topic = kafka.create_topic("away")
    daemon, window = serve(db, kafka=kafka, **SETTINGS)
    with flow(db, topic):
        wait_flowing(db, 3000)
        before = rss(daemon)
        kafka.brokers[0].kill()
        begin = time.monotonic()
        reason = window.wait("/readyz", 503, 30)
        assert "broker answers" in reason or "Kafka is away" in reason
        noticed = time.monotonic() - begin
        assert noticed < 5, "it waited for a batch to time out"
        assert window.get("/healthz")[0] == 200
        time.sleep(AWAY)  # the fault's length
        during = rss(daemon)
        kafka.brokers[0].start()
        kafka.wait_ready()
        window.wait("/readyz", 200, 15)  # however long it was away: no pause is longer than 5 s
        wait_flowing(db)
    db.wait_settled(None, daemon)
    check_innocent(db)
    after = rss(daemon)
    verdict = judge(topic, kafka=kafka).check(duplicates=IN_FLIGHT)
    assert max(during, after) - before < 64 << 20, (before, during, after)
    seen(verdict, f"not ready after {noticed:.1f} s; resident {before >> 20}, {during >> 20}, {after >> 20} MiB "
         "before, during, after")


@fault("the broker hangs", how=f"SIGSTOP for {FROZEN} s, request time-outs of 2 s (fatal to librdkafka 2.0.2's idempotent producer)",
       promise="0 DEAD, no attempt counted, a new producer if it must be, drained afterwards")
def test_broker_frozen(db, single, serve, judge, seen):
    kafka = single
    topic = kafka.create_topic("frozen")
    daemon, window = serve(db, kafka=kafka, OUTBOX_KAFKA_SOCKET_TIMEOUT_MS=2000, OUTBOX_KAFKA_REQUEST_TIMEOUT_MS=2000, **SETTINGS)
    with flow(db, topic):
        wait_flowing(db, 3000)
        kafka.brokers[0].freeze()
        time.sleep(FROZEN)  # the fault's length
        kafka.brokers[0].thaw()
        wait_flowing(db)
    db.wait_settled(None, daemon)
    check_innocent(db)
    rebuilds = window.metrics()["outboxd_producer_rebuilds_total"]
    verdict = judge(topic, kafka=kafka).check(duplicates=IN_FLIGHT * 4)
    seen(verdict, f"{rebuilds:g} new producers")


def test_a_broker_that_only_says_nothing_is_away(db, single, serve, judge):
    """It closes no connection and librdkafka has no complaint: the batch that was not acknowledged in time tells, and the daemon
    pauses with that reason until the broker answers."""
    kafka = single
    topic = kafka.create_topic("silent")
    daemon, window = serve(db, kafka=kafka, OUTBOX_DELIVERY_TIMEOUT="2s", **SETTINGS)
    writer.bulk(db.conn, topic, 100, keys=5)
    db.wait_settled(None, daemon)
    kafka.brokers[0].freeze()
    writer.bulk(db.conn, topic, 100, keys=5, start=100)
    assert "answer" in window.wait("/readyz", 503, 9)  # the delivery time-out, and a question to the cluster
    kafka.brokers[0].thaw()
    window.wait("/readyz", 200)
    db.wait_settled(None, daemon)
    check_innocent(db)
    judge(topic, kafka=kafka).check(duplicates=IN_FLIGHT)


@fault("one of three brokers is killed", how="SIGKILL of a leader under flow; a topic of one replica lives on it, too",
       promise="partitions move and the flow goes on; the topic without leader is parked with that reason, then drains in order")
def test_one_of_three_killed(db, three, start, judge, seen):
    topic = three.create_topic("moving", replicas=3, min_insync_replicas=2)
    lonely = three.create_topic("lonely", partitions=1, replicas=1)
    daemon = start(db, kafka=three, **SETTINGS)
    victim = three.leader(lonely)
    with flow(db, topic):
        wait_flowing(db)
        victim.kill()
        writer.bulk(db.conn, lonely, 100, keys=5)
        reason = wait_until(lambda: db.execute("SELECT reason FROM outbox_parked_topics WHERE topic = %s", lonely),
                            "the topic without leader is parked")[0][0]
        assert "no leader" in reason, "a batch had to time out first"
        wait_flowing(db)
        victim.start()
        three.wait_ready()
        wait_flowing(db)
    db.wait_settled(None, daemon)
    check_innocent(db)
    verdict = judge(topic, lonely, kafka=three).check(duplicates=IN_FLIGHT * 4)
    seen(verdict, f"meanwhile {reason}")


@fault("too few replicas in sync", how="min.insync.replicas=2 of 2: the other replica's broker is killed; then a second broker of three",
       promise="the topic is parked, its neighbours flow and do not wait with its probes; with two brokers away nobody pays; all "
               "drains in order")
def test_not_enough_replicas(db, three, serve, judge, seen):
    strict = three.create_topic("strict", partitions=1, replicas=2, min_insync_replicas=2)
    free = three.create_topic("free", partitions=3, replicas=3)
    daemon, window = serve(db, kafka=three, OUTBOX_DELIVERY_TIMEOUT="12s", **SETTINGS)
    leader = three.leader(strict)
    nodes = three.admin.list_topics(strict, timeout=10).topics[strict].partitions[0].replicas
    [other] = [three.brokers[n - 1] for n in nodes if three.brokers[n - 1] is not leader]
    [third] = [b for b in three.brokers if b not in (leader, other)]
    with flow(db, free):
        wait_flowing(db)
        other.kill()
        wait_until(lambda: len(three.admin.list_topics(timeout=10).brokers) == 2, "the broker counts as gone")
        writer.bulk(db.conn, strict, 200, keys=5)
        reason = wait_until(lambda: db.execute("SELECT reason FROM outbox_parked_topics WHERE topic = %s", strict),
                            "the topic is parked")[0][0]
        wait_flowing(db)
        since = db.value("SELECT clock_timestamp()")
        wait_until(lambda: db.value("SELECT probes >= 3 FROM outbox_parked_topics WHERE topic = %s", strict), "it is tried again")
        slowest = float(db.value("SELECT extract(epoch FROM max(published_at - created_at)) FROM outbox_events "
                                 "WHERE topic = %s AND created_at > %s", free, since))
        assert slowest < 9, "the neighbours wait with the probes, for the whole delivery time-out"
        assert db.value("SELECT count(*) FROM outbox_events WHERE topic = %s AND (status IN (1, 9) OR retry_count > 0)", strict) == 0
        assert window.metrics()["outboxd_producer_rebuilds_total"] >= 1, "a producer whose messages were purged is used no more"
        third.kill()
        time.sleep(5)  # the fault's length
        for broker in (other, third):
            broker.start()
        three.wait_ready()
        wait_flowing(db)
    db.wait_settled(None, daemon)
    check_innocent(db)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 0, "nothing is parked any more")
    verdict = judge(strict, free, kafka=three).check(duplicates=IN_FLIGHT * 8)
    seen(verdict, f"meanwhile {reason}; the slowest neighbour took {slowest:.1f} s beside three probes")


@fault("many topics have too few replicas", how="five topics with min.insync.replicas=3 of 3, each waiting in a lane of its own; "
       "one of three brokers is killed; one worker",
       promise="their probes, one of which is always due, take turns with the neighbours' batches")
def test_many_silent_topics(db, three, start, judge, seen):
    free = three.create_topic("beside", partitions=3, replicas=3)
    strict = [three.create_topic(f"silent-{n}", partitions=1, replicas=3, min_insync_replicas=3) for n in range(5)]
    keys = [row[0] for row in db.execute("SELECT min(k) FROM generate_series(1, 500) n, format('key-%s', n) k GROUP BY outbox_lane(k)")]
    daemon = start(db, kafka=three, OUTBOX_DELIVERY_TIMEOUT="12s", **{**SETTINGS, "OUTBOX_WORKERS": 1})
    with flow(db, free):
        wait_flowing(db)
        victim = three.leader(free)
        victim.kill()
        for topic, key in zip(strict, keys):
            writer.publish(db.conn, topic, key)
        wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 5, "all five are parked")
        note_probes(db)
        wait_until(lambda: db.value("SELECT min(probes) >= 2 FROM outbox_parked_topics"), "each is tried again")
        gaps, alone = db.execute("""
            SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (SELECT FROM outbox_events e WHERE topic = %s
                AND e.lane <> p.lane AND e.published_at > p.before AND e.published_at < p.at))
              FROM (SELECT at, lane, lag(at) OVER (ORDER BY at) AS before FROM rig.probes) p WHERE before IS NOT NULL""", free)[0]
        # Not all of them: a machine that stands still for as long as a probe takes lets two come together.
        assert alone <= gaps / 2, f"{alone} of {gaps} times nothing but a probe's lane moved between two probes"
        victim.start()
        three.wait_ready()
    db.wait_settled(None, daemon)
    check_innocent(db)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 0, "nothing is parked any more")
    seen(judge(free, *strict, kafka=three).check(duplicates=IN_FLIGHT * 8), f"neighbours moved between {gaps - alone} of {gaps} pairs of probes")


def note_probes(db):
    """From now on, when each probe was over, and its lane."""
    db.execute("""
        CREATE TABLE rig.probes (at timestamptz, lane smallint);
        CREATE FUNCTION rig.note_probe() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO rig.probes VALUES (clock_timestamp(), NEW.probe_lane); RETURN NULL; END $$;
        CREATE TRIGGER rig_probes AFTER UPDATE OF probes ON outbox_parked_topics
            FOR EACH ROW EXECUTE FUNCTION rig.note_probe()""")


def count_updates(db):
    """From now on the test's own trigger counts every row that an UPDATE touches: exact, and told with the commit."""
    db.execute("""
        CREATE TABLE rig.updates (n bigint);
        CREATE FUNCTION rig.count_updates() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO rig.updates SELECT count(*) FROM written; RETURN NULL; END $$;
        CREATE TRIGGER rig_updates AFTER UPDATE ON outbox_events REFERENCING NEW TABLE AS written
            FOR EACH STATEMENT EXECUTE FUNCTION rig.count_updates()""")


def updates(db):
    return int(db.value("SELECT coalesce(sum(n), 0) FROM rig.updates"))


def park_and_drain(db, daemon, topic, good, rows, mend, judge):
    """`rows` events wait for a topic that nobody can write to while another flows; then it is mended. Returns what was seen."""
    count_updates(db)
    writer.bulk(db.conn, topic, rows, keys=200)
    held = "SELECT count(*) FROM outbox_events WHERE topic = %s AND status = 2 AND retry_after = 'infinity' AND retry_count = 0"
    wait_until(lambda: db.value(held, topic) == rows, lambda: f"{db.value(held, topic)} of {rows} rows are held")
    reason = db.value("SELECT reason FROM outbox_parked_topics WHERE topic = %s", topic)
    wait_until(lambda: db.value("SELECT probes FROM outbox_parked_topics WHERE topic = %s", topic) >= 2, "it is probed")
    waiting = updates(db) / rows
    assert waiting <= 1.05
    before = updates(db)
    writer.bulk(db.conn, good, 1000, keys=20)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_events WHERE topic = %s AND status <> 1", good) == 0, "the neighbour flows")
    assert updates(db) - before <= 1000 + 20
    mend()
    writer.bulk(db.conn, topic, 500, keys=200)  # new rows of the same streams stay behind the old ones
    db.wait_settled(None, daemon)
    check_innocent(db)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 0, "the topic is parked no more")
    in_all = (updates(db) - 1000) / (rows + 500)
    assert in_all <= 2.1
    verdict = judge(topic, good).check()
    return verdict, f"held with: {reason}; {waiting:.3f} updates a row while they wait, {in_all:.3f} in all"


@fault("a missing topic", how="5,000 events for a topic that is created only later",
       promise="held with one write each, nothing counted; neighbours flow; when the topic appears they flow in order")
def test_missing_topic(db, kafka, topic, start, judge, seen):
    late = f"{topic}-late"
    daemon = start(db, **SETTINGS)
    seen(*park_and_drain(db, daemon, late, topic, 5000, lambda: kafka.create_topic(late), judge))


@fault("a forbidden topic", how="Write denied by an ACL while 5,000 events wait, then granted",
       promise="parked with the reason, held with one write each; neighbours flow; after the grant they flow in order")
def test_forbidden_topic(db, guarded, start, judge, seen):
    topic, good = guarded.create_topic("forbidden"), guarded.create_topic("allowed")
    daemon = start(db, kafka=guarded, secrets=guarded.users.values(), **guarded.sasl("relay"), **SETTINGS)
    writer.bulk(db.conn, topic, 500, keys=200)  # the daemon has written to it before
    db.wait_settled(None, daemon)
    guarded.deny(topic)
    seen(*park_and_drain(db, daemon, topic, good, 5000, lambda: guarded.undeny(topic), lambda *t: judge(*t, kafka=guarded)))


@fault("a wrong password", how="SASL PLAIN; the broker learns the new password later, the daemon is not touched",
       promise="not ready, with Kafka's own reason; nothing counted; delivered when the password is right")
def test_wrong_password(db, guarded, serve, judge, seen):
    topic = guarded.create_topic("secretive")
    writer.bulk(db.conn, topic, 100, keys=5)
    _, window = serve(db, kafka=guarded, secrets=["the-next-password"], **guarded.sasl("clerk", "the-next-password"), **SETTINGS)
    wait_until(lambda: "uthentication" in window.get("/readyz")[1], lambda: f"the reason: {window.get('/readyz')}")
    reason = window.get("/readyz")[1].strip()
    assert "password" not in reason.replace("Invalid username or password", "")
    assert db.value("SELECT count(*) FROM outbox_events WHERE status <> 0") == 0
    guarded.users["clerk"] = "the-next-password"
    [broker] = guarded.brokers
    broker.kill()
    guarded._configure(broker)
    broker.start()
    guarded.wait_ready()
    window.wait("/readyz", 200)
    db.wait_settled()
    check_innocent(db)
    seen(judge(topic, kafka=guarded).check(), f"not ready: {reason}")


@fault("a producer that may write nowhere", how="a user without any ACL; granted later",
       promise="the world's trouble: not ready with the reason, no write, no attempt; delivered after the grant")
def test_no_rights_at_all(db, guarded, serve, judge, seen):
    topic = guarded.create_topic("closed")
    guarded.allow(topic, user="guest", operations=(kafkas.Kafka.WRITER[1],))  # Describe: it sees the topic
    writer.bulk(db.conn, topic, 100, keys=5)
    _, window = serve(db, kafka=guarded, **guarded.sasl("guest"), **SETTINGS)
    wait_until(lambda: window.get("/readyz")[0] == 503 and "allowed" in window.get("/readyz")[1],
               lambda: f"the reason: {window.get('/readyz')}")
    reason = window.get("/readyz")[1].strip()
    assert db.value("SELECT count(*) FROM outbox_events WHERE status <> 0 OR retry_count > 0") == 0
    guarded.allow(topic, user="guest")
    db.wait_settled()
    check_innocent(db)
    window.wait("/readyz", 200)
    seen(judge(topic, kafka=guarded).check(), f"not ready: {reason}")


def key_of_lane(db, lane):
    return db.value("SELECT k FROM (SELECT 'key-' || n AS k FROM generate_series(1, 10000) n) s WHERE outbox_lane(k) = %s LIMIT 1", lane)


@fault("topics that wait for each other", how="two missing topics; in each one's probe lane only an event for both, behind one of the other",
       promise="when both appear, each is probed with a row that waits for nothing else, and all flows in order")
def test_topics_that_wait_for_each_other(db, kafka, topic, start, judge, seen):
    a, b = f"{topic}-a", f"{topic}-b"
    for lane, first in ((3, b), (9, a)):
        key = key_of_lane(db, lane)
        writer.publish(db.conn, first, key)
        writer.publish(db.conn, a, key, routing_key=f"{a},{b}")
    daemon = start(db, **SETTINGS)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_events WHERE retry_after = 'infinity'") == 4, "all are held")
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 2, "both are parked")
    assert daemon.stop() == 0
    # Nothing but the event for both topics stands in these lanes for them, and it is behind one of the other topic.
    db.execute("UPDATE outbox_parked_topics SET probe_lane = CASE topic WHEN %s THEN 3 ELSE 9 END", a)
    for name in (a, b):
        kafka.create_topic(name)
    daemon = start(db, **SETTINGS)
    db.wait_settled(None, daemon)
    check_innocent(db)
    seen(judge(a, b).check())


def leader_of(kafka, topic):
    """The node that leads its first partition, or None: a broker may hear of a topic later than another."""
    found = kafka.admin.list_topics(topic, timeout=10).topics[topic].partitions
    return found[0].leader if 0 in found and found[0].leader >= 0 else None


@fault("one broker of two does not know our password", how="another password in its configuration, restarted; its topic and one of the other broker flow",
       promise="the daemon stays ready; the topic that it leads is parked, the other flows; drained in order when it is mended")
def test_one_broker_refuses_us(db, new_kafka, serve, judge, seen):
    kafka = new_kafka(brokers=2, users={"relay": "the-relay-password"}, heap=192)
    kafka.allow()
    topics = {}  # node → a topic that lives there alone
    while len(topics) < 2:
        name = kafka.create_topic(f"topic-{len(topics)}-{time.monotonic_ns()}", partitions=1, replicas=1)
        topics.setdefault(wait_until(lambda: leader_of(kafka, name), "it has a leader"), name)
    good, bad = topics[1], topics[2]
    odd = kafka.brokers[1]
    right = odd.config.read_text()

    def restart(text):
        odd.kill()
        odd.config.write_text(text)
        odd.start()
        kafka.wait_ready()
        wait_until(lambda: all(kafka._has_leaders(name, 1) for name in topics.values()), "the topics have leaders")

    restart(right.replace("the-relay-password", "another-password"))
    daemon, window = serve(db, kafka=kafka, secrets=kafka.users.values(), OUTBOX_DELIVERY_TIMEOUT="5s", **kafka.sasl("relay"), **SETTINGS)
    writer.bulk(db.conn, bad, 100, keys=10)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics WHERE topic = %s", bad), "its topic is parked")
    with flow(db, good):
        ready = []
        for _ in range(100):
            ready.append(window.get("/readyz")[0])
            time.sleep(0.1)
        wait_flowing(db)
    assert set(ready) == {200}
    assert not [line for _, message, line in daemon.lines() if "Kafka is back" in message]
    restart(right)
    db.wait_settled(None, daemon)
    check_innocent(db)
    seen(f"{judge(good, bad, kafka=kafka).check(duplicates=IN_FLIGHT)}; ready all the time")


@fault("a batch takes all its time", how="the hand-over sleeps nearly as long as OUTBOX_DELIVERY_TIMEOUT; then a topic gives no report",
       promise="one deadline for the batch: marked before PostgreSQL ends the transaction, nothing sent again")
def test_one_deadline(db, three, start, judge, seams, seen):
    strict = three.create_topic("strict-in-time", partitions=1, replicas=2, min_insync_replicas=2)
    topic = three.create_topic("free-in-time", replicas=3)
    nodes = three.admin.list_topics(strict, timeout=10).topics[strict].partitions[0].replicas
    [other, *_] = [three.brokers[n - 1] for n in nodes if n != leader_of(three, strict)]
    other.kill()
    wait_until(lambda: len(three.admin.list_topics(timeout=10).brokers) == 2, "the broker counts as gone")
    writer.bulk(db.conn, topic, 100, keys=10)
    writer.bulk(db.conn, strict, 10, keys=5)
    daemon = start(db, build=seams, kafka=three, OUTBOX_WORKERS=1, OUTBOX_DELIVERY_TIMEOUT="14s",
                   OUTBOXD_SEAM="handed-over:1:sleep13000")
    wait_until(lambda: sent(db) == 100, lambda: f"{sent(db)} of 100 sent", 40)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 1, "the other topic is parked")
    assert not [line for _, message, line in daemon.lines() if "PostgreSQL ended" in message]
    db.execute("DELETE FROM outbox_events WHERE topic = %s", strict)
    db.execute("DELETE FROM rig.ledger WHERE topic = %s", strict)
    seen(judge(topic, kafka=three).check())


@fault("a copy for the dead topic cannot be sent", how="OUTBOX_DEAD_TOPIC does not exist", promise="the event is DEAD all the same; the copy is counted and logged")
def test_lost_copy_is_counted(db, topic, serve, seen):
    daemon, window = serve(db, OUTBOX_DEAD_TOPIC=f"{topic}-graves", **SETTINGS)
    writer.publish(db.conn, "no topic", "k")
    writer.publish(db.conn, topic, "k")
    db.wait_settled(None, daemon)
    wait_until(lambda: window.metrics()["outboxd_dead_copies_lost_total"] == 1, "it is counted")
    assert [line for _, message, line in daemon.lines() if "1 of 1 copies" in message]
    seen("1 copy lost and counted")


@fault("an event dies while the broker goes away", how="SIGKILL of the broker, then a bad event and a good one in one batch; OUTBOX_DEAD_TOPIC is set",
       promise="it is left until its copy can be sent")
def test_no_death_without_a_copy(db, single, serve, judge, seen):
    topic, graves = single.create_topic("dying"), single.create_topic("graves")
    daemon, window = serve(db, kafka=single, OUTBOX_DEAD_TOPIC=graves, **SETTINGS)
    writer.bulk(db.conn, topic, 100, keys=10)
    wait_until(lambda: sent(db) == 100, "it flows")
    single.brokers[0].kill()
    with db.conn.transaction():
        dead = writer.publish(db.conn, "no topic", "order-1")
        writer.publish(db.conn, topic, "order-1")
    window.wait("/readyz", 503, 30)
    assert db.value("SELECT status FROM outbox_events WHERE id = %s", dead) == 0
    single.brokers[0].start()
    single.wait_ready()
    db.wait_settled(None, daemon)
    copies = [message for messages in judges.read_topics(single.internal, [graves]) for message in messages]
    assert [dict(one.headers())["id"].decode() for one in copies] == [dead]
    assert window.metrics()["outboxd_dead_copies_lost_total"] == 0
    seen(judge(topic, kafka=single, without=[dead]).check())
