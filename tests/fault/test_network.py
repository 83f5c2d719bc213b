"""Packets that do not arrive: the kernels at both ends keep their sockets and say nothing.

The daemon under test lives in a network namespace; between it and the servers nftables drops, loses or resets (rig/netns.py)."""

import re
import time
from pathlib import Path

import pytest
from rig import kafka as kafkas
from rig import netns, process, writer
from rig.faults import fault
from rig.http import Window
from rig.judge import judge as judge_all
from rig.process import wait_until

BATCH, WORKERS = 100, 2
SETTINGS = {"OUTBOX_BATCH_SIZE": BATCH, "OUTBOX_WORKERS": WORKERS, "OUTBOX_MAX_RETRIES": 1}
PROMISE = "nothing lost, nothing out of order, no attempt counted, and the daemon goes on by itself"
GONE = r"lost the connection to PostgreSQL|PostgreSQL ended the connection|did not answer in time"
TOKEN = "t0ken-of-the-place"
NOTICED = 25  # seconds: tcp_user_timeout is 15 s, keepalives take 14 s


@pytest.fixture(scope="module")
def wire(root):
    try:
        wire = netns.Wire(root)
    except netns.NoNetwork as reason:
        pytest.skip(str(reason))
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def far_kafka(root, wire):
    kafka = kafkas.Kafka(root, host=wire.host).start()
    yield kafka
    kafka.destroy()


class Place:
    """The daemon's side of the wire, with a database and a topic."""

    def __init__(self, wire, db, kafka, topic, start):
        self.wire, self.db, self.kafka, self.topic, self.start = wire, db, kafka, topic, start
        self.postgres_port, self.kafka_port = db.cluster.port, kafka.brokers[0].client_port

    def daemon(self, build=None, **settings):
        """One at the far end, its window open: (daemon, window)."""
        port = process.free_port()
        daemon = self.start(self.db, build=self.wire.inside(build), kafka=self.kafka,
                            OUTBOX_DATABASE_URL=self.db.cluster.url(self.db.name, host=self.wire.host),
                            OUTBOX_HTTP_LISTEN=f"{self.wire.inner}:{port}", OUTBOX_HTTP_TOKEN=TOKEN, secrets=[TOKEN],
                            **{**SETTINGS, **settings})
        window = Window(port, TOKEN)
        window.url = f"http://{self.wire.inner}:{port}"
        wait_until(lambda: not daemon.alive or window.get("/healthz")[0] == 200, "the window is open")
        assert daemon.alive, daemon.tail()
        return daemon, window

    def stream(self):
        """About 1,000 events a second."""
        return writer.Stream(self.db.connect, self.topic, keys=10, batch=20, pause=0.02)

    def sent(self):
        return self.db.value("SELECT count(*) FROM outbox_events WHERE status = 1")

    def flow(self, count=1000):
        """Waits until so many more events are marked; seconds."""
        begin, goal = time.monotonic(), self.sent() + count
        wait_until(lambda: self.sent() >= goal, lambda: f"events flow: {self.sent()} of {goal}")
        return time.monotonic() - begin

    def finish(self, duplicates, *daemons):
        """The verdict; nobody else paid for it."""
        self.db.wait_settled(None, *daemons)
        suffered = self.db.execute("SELECT status, retry_count, last_error, count(*) FROM outbox_events "
                                   "WHERE status <> 1 OR retry_count > 0 OR last_error IS NOT NULL GROUP BY 1, 2, 3")
        assert not suffered, suffered
        return judge_all(self.kafka, self.db.conn, [self.topic]).check(duplicates=duplicates)


@pytest.fixture
def place(wire, far_kafka, new_cluster, new_db, request, start):
    wire.heal()
    cluster = new_cluster(settings={"listen_addresses": f"'127.0.0.1,{wire.host}'"})
    topic = far_kafka.create_topic(f"t-{process.free_port()}-{time.monotonic_ns()}")
    yield Place(wire, new_db(cluster).prepare(), far_kafka, topic, start)
    wire.heal()


def stopped(daemon):
    assert daemon.alive, daemon.tail()
    return Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def when(events, begin, bound):
    """How many seconds after `begin` each of the events came true, and what it said."""
    seconds, found = {}, {}

    def all_seen():
        for name, happened in events.items():
            if name not in seconds and (answer := happened()):
                seconds[name], found[name] = time.monotonic() - begin, answer
        return len(seconds) == len(events)

    wait_until(all_seen, lambda: f"{list(events)}; there were {seconds}", bound - (time.monotonic() - begin))
    return seconds, found


@fault("packets to PostgreSQL vanish", how="a daemon in a network namespace has a batch in flight, before its mark or while "
       "Kafka works; nftables then drops every packet between it and PostgreSQL, for good as far as both ends can tell",
       promise="another daemon delivers the lanes of the one cut off within the delivery time-out + 15 s; the one cut off "
               f"notices by itself within {NOTICED} s and goes on when packets pass again; nothing lost, nothing out of order")
@pytest.mark.parametrize("seam, timeout", [("acknowledged", 3), ("handed-over", 18)], ids=["at the mark", "while Kafka works"])
def test_packets_to_postgres_vanish(place, seams, start, seen, seam, timeout):
    """At the mark the kernel waits for acknowledgements (tcp_user_timeout); while Kafka works nothing is sent (keepalives)."""
    db, wire = place.db, place.wire
    settings = {"OUTBOX_WORKERS": 1, "OUTBOX_DELIVERY_TIMEOUT": f"{timeout}s"}
    lost, window = place.daemon(seams, OUTBOXD_SEAM=f"{seam}:3:stop", **settings)
    writer.bulk(db.conn, place.topic, 1000, keys=50)
    wait_until(lambda: stopped(lost), "a batch is in flight")
    other = start(db, kafka=place.kafka, **{**SETTINGS, **settings})
    other.wait_log("schema public at version")
    wire.drop(place.postgres_port, *([place.kafka_port] if seam == "handed-over" else []))
    begin = time.monotonic()
    lost.thaw()
    events = {"noticed": lambda: re.search(GONE, lost.text()), "delivered": lambda: db.unfinished() == 0}
    seconds, found = when(events, begin, max(NOTICED, timeout + 15))
    assert seconds["noticed"] <= NOTICED and seconds["delivered"] <= timeout + 15, seconds
    assert window.get("/readyz")[0] == 503
    assert wire.heal() > 0
    other.stop()
    with place.stream():
        back = place.flow()
    window.wait("/readyz", 200)
    verdict = place.finish(2 * BATCH, lost)
    seen(f"delivered by the other {seconds['delivered']:.1f} s after the cut with a delivery time-out of {timeout} s; noticed "
         f"after {seconds['noticed']:.1f} s ({found['noticed'][0]}); back {back:.1f} s after the cure; {verdict}")


@fault("packets to Kafka vanish", how="nftables drops every packet between a daemon in a network namespace and the broker for "
       "8 s, 1,000 events a second meanwhile, OUTBOX_MAX_RETRIES=1, a delivery time-out of 4 s",
       promise=f"not ready with the reason; 0 DEAD; {PROMISE}")
def test_packets_to_kafka_vanish(place, seen):
    daemon, window = place.daemon(OUTBOX_DELIVERY_TIMEOUT="4s")
    with place.stream():
        place.flow(3000)
        place.wire.drop(place.kafka_port)
        begin = time.monotonic()
        reason = window.wait("/readyz", 503, 8).strip()
        noticed = time.monotonic() - begin
        assert "broker answers" in reason or "Kafka" in reason, reason
        time.sleep(max(0, 8 - noticed))  # the fault's length
        before = place.sent()
        assert place.wire.heal() > 0
        begin = time.monotonic()
        window.wait("/readyz", 200)
        back = time.monotonic() - begin
        assert place.flow() and place.sent() > before
    verdict = place.finish(4 * WORKERS * BATCH, daemon)
    seen(f"not ready after {noticed:.1f} s ({reason}), ready {back:.1f} s after the cure; {verdict}")


@fault("packets are lost", how="nftables loses 30 % of the packets in each direction between a daemon in a network namespace and "
       "both servers for 10 s, 1,000 events a second meanwhile", promise=PROMISE)
def test_packets_are_lost(place, seen):
    daemon, _ = place.daemon()
    with place.stream():
        place.flow()
        before = place.sent()
        place.wire.drop(place.postgres_port, place.kafka_port, percent=30)
        time.sleep(10)  # the fault's length
        during = place.sent() - before
        packets = place.wire.heal()
        place.flow()
    verdict = place.finish(4 * WORKERS * BATCH, daemon)
    assert packets > 20
    seen(f"{packets} packets lost, {during} events delivered meanwhile; {verdict}")


@fault("connections are reset", how="nftables answers every packet between a daemon in a network namespace and PostgreSQL, Kafka "
       "or both with a TCP reset, for half a second, twelve times", promise=PROMISE)
def test_connections_are_reset(place, seen):
    rounds = 4
    daemon, _ = place.daemon()
    resets = []
    with place.stream():
        for _ in range(rounds):
            for ports in ((place.postgres_port,), (place.kafka_port,), (place.postgres_port, place.kafka_port)):
                place.flow(200)
                place.wire.reset(*ports)
                time.sleep(0.5)  # the fault's length
                resets.append(place.wire.heal())
        place.flow()
    assert min(resets) > 0, resets
    assert re.search(GONE, daemon.text())
    seen(f"{sum(resets)} resets; {place.finish(3 * rounds * WORKERS * BATCH, daemon)}")
