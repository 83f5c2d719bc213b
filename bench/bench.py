"""./dev bench: how fast, how soon, and at what cost, on real servers. Every run is judged: a fast wrong run is a failure.

A table for people on stdout and, a line a benchmark, JSON for machines.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import ceiling
from rig import judge, kafka, messages, postgres, process, writer
from rig.daemon import Daemon, cpu_seconds
from rig.database import Database
from rig.http import Window
from rig.process import wait_until

# As a small production server would have it; what the tests relax is put back.
SETTINGS = {"fsync": "on", "shared_buffers": "'1GB'", "max_wal_size": "'8GB'", "autovacuum_naptime": "'1min'"}
PARTITIONS = 8
PAYLOAD = 300
STRANGERS = Path(__file__).with_name("strangers.py")


class Bench:
    def __init__(self, root, options):
        self.root, self.options = root, options
        self.cluster = postgres.Cluster(root, settings=SETTINGS).create().start()
        self.kafka = kafka.Kafka(root, heap=1024, quick=False).start()
        self.runs = 0

    def database(self):
        db = Database(self.cluster)
        db.migrate("up")
        return db

    def topic(self, **config):
        self.runs += 1
        return self.kafka.create_topic(f"bench-{os.getpid()}-{self.runs}", PARTITIONS, **config)

    def start(self, db, command="run", **settings):
        return Daemon(self.root / f"daemon-{self.runs}.log",
                      {"OUTBOX_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap, **db.settings, **settings}, command=command)

    def check(self, db, daemon, *topics):
        """The verdict on a run, and a good end of the daemon."""
        assert daemon.stop() == 0, daemon.tail()
        assert not daemon.faults(), "\n".join(daemon.faults())
        return judge.judge(self.kafka, db.conn, topics, table="outbox_events").check()

    def warm_up(self):
        """The broker's compiler has seen the code it will run."""
        db, topic = self.database(), self.topic()
        writer.bulk(db.conn, topic, 50000, keys=1000, size=PAYLOAD)
        daemon = self.start(db)
        db.wait_settled(None, daemon)
        self.check(db, daemon, topic)
        db.drop()


def fill(db, topic, count):
    db.execute("TRUNCATE outbox_events")
    writer.bulk(db.conn, topic, count, keys=1000, size=PAYLOAD)
    db.execute("VACUUM ANALYZE outbox_events")
    db.execute("CHECKPOINT")  # nothing of the filling is left to be written


def drain(bench):
    """A backlog of NEW rows, as fast as it goes; beside it what PostgreSQL alone can do."""
    count = bench.options.events
    db, topic = bench.database(), bench.topic()
    fill(db, topic, count)
    bare = ceiling.measure(db)
    fill(db, topic, count)
    start = time.time()
    daemon = bench.start(db)
    db.wait_settled(600, daemon)
    cpu, peak = daemon.cpu_seconds(), daemon.peak_rss()
    end = float(db.value("SELECT extract(epoch FROM max(published_at)) FROM outbox_events"))
    bench.check(db, daemon, topic)
    db.drop()
    rate = count / (end - start)
    return {"events": count, "events_per_second": round(rate), "ceiling_per_second": round(bare),
            "ratio": round(rate / bare, 3), "cpu_seconds_per_million": round(cpu / count * 1e6, 2),
            "peak_rss_mib": round(peak / 2**20, 1)}


class PacedWriter(threading.Thread):
    """One event a transaction, at a steady pace, each at its own moment whether or not the last one was slow."""

    def __init__(self, connect, topic, number, rate, seconds):
        super().__init__(daemon=True)
        self.connect, self.topic, self.number, self.rate, self.seconds = connect, topic, number, rate, seconds
        self.failure = None

    def run(self):
        try:
            with self.connect() as conn:
                start = time.monotonic() + self.number / self.rate / 4
                for n in range(round(self.rate * self.seconds)):
                    time.sleep(max(0.0, start + n / self.rate - time.monotonic()))
                    conn.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, occurred_at) VALUES "
                                 "(%s, 'order', %s, jsonb_build_object('n', %s::int, 'fill', repeat('x', %s)), clock_timestamp())",
                                 (self.topic, f"order-{self.number}-{n % 50}", n, PAYLOAD - 24))
        except Exception as failure:
            self.failure = failure


def steady(bench):
    """500 events a second, one a transaction: from insert to the broker's append, with default settings."""
    rate, writers, seconds = 500, 4, bench.options.seconds
    db, topic = bench.database(), bench.topic(message_timestamp_type="LogAppendTime")
    daemon = bench.start(db)
    writer.bulk(db.conn, topic, 100, keys=100, size=PAYLOAD)  # the first events find connections and metadata
    db.wait_settled(None, daemon)
    first = db.value("SELECT max(seq) FROM outbox_events")
    before = daemon.cpu_seconds()
    threads = [PacedWriter(db.connect, topic, n, rate / writers, seconds) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        if thread.failure:
            raise thread.failure
    cpu = daemon.cpu_seconds() - before
    db.wait_settled(None, daemon)
    bench.check(db, daemon, topic)
    inserted = dict(db.execute("SELECT id, extract(epoch FROM occurred_at)::float8 * 1000 FROM outbox_events WHERE seq > %s", first))
    delays = []
    for messages in judge.read_topics(bench.kafka.internal, [topic]):
        for message in messages:
            at = inserted.get(dict(message.headers())["id"].decode())
            if at is not None:
                delays.append(message.timestamp()[1] + 0.5 - at)  # the broker's clock counts whole milliseconds
    db.drop()
    delays.sort()
    return {"events": len(delays), "events_per_second": rate, "p50_ms": round(delays[len(delays) // 2], 1),
            "p99_ms": round(delays[len(delays) * 99 // 100], 1), "max_ms": round(delays[-1], 1),
            "cpu_percent": round(cpu / seconds * 100, 1)}


def idle(bench):
    """Nothing to do: what the daemon and its sessions in the database cost."""
    seconds = bench.options.seconds
    db, topic = bench.database(), bench.topic()
    daemon = bench.start(db)
    writer.bulk(db.conn, topic, 100, keys=100, size=PAYLOAD)
    db.wait_settled(None, daemon)
    time.sleep(3)  # adaptive polling has come to rest
    sessions = [row[0] for row in db.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                                             "AND pid <> pg_backend_pid()")]

    def cpu():
        return daemon.cpu_seconds(), sum(map(cpu_seconds, sessions))

    before = cpu()
    time.sleep(seconds)
    after = cpu()
    peak = daemon.peak_rss()
    bench.check(db, daemon, topic)
    db.drop()
    own, database = ((b - a) / seconds * 100 for a, b in zip(before, after))
    return {"seconds": seconds, "cpu_percent": round(own, 2), "database_cpu_percent": round(database, 2),
            "database_sessions": len(sessions), "peak_rss_mib": round(peak / 2**20, 1)}


def timed_drain(db, daemon, topic, count):
    """Events a second from the commit of `count` events to the last mark, by a daemon that is already there."""
    writer.bulk(db.conn, topic, count, keys=1000, size=PAYLOAD)
    start = float(db.value("SELECT extract(epoch FROM clock_timestamp())"))
    wait_until(lambda: not db.value("SELECT EXISTS (SELECT FROM outbox_events WHERE status = 0)"), f"{topic} is drained", 600)
    assert daemon.alive, daemon.tail()
    end = float(db.value("SELECT extract(epoch FROM max(published_at)) FROM outbox_events WHERE topic = %s", topic))
    return count / (end - start)


def small_topic(bench):
    """Topics that take only parts of our record batches, beside an ordinary one; in turns, three each."""
    count, rates = bench.options.events // 10, {}
    limits = {"ordinary": {}, "small": {"max_message_bytes": 50_000}, "tiny": {"max_message_bytes": 5_000}}
    db = bench.database()
    topics = {name: bench.topic(**config) for name, config in limits.items()}
    daemon = bench.start(db, OUTBOX_MAX_RETRIES=0)
    for _ in range(3):
        for name, topic in topics.items():
            rates.setdefault(name, []).append(timed_drain(db, daemon, topic, count))
    bench.check(db, daemon, *topics.values())
    assert db.value("SELECT count(*) FROM outbox_events WHERE status <> 1 OR retry_count > 0") == 0
    db.drop()
    rates = {name: statistics.median(found) for name, found in rates.items()}
    return {"events": count, **{f"{name}_per_second": round(rate) for name, rate in rates.items()},
            "small_ratio": round(rates["small"] / rates["ordinary"], 3), "tiny_ratio": round(rates["tiny"] / rates["ordinary"], 3)}


def row_updates(db):
    """Of the table so far. Only right when no session has figures of its own left, so after the daemon has ended."""
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") == 1, "sessions end")
    return db.value("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox_events'")


def wait_held(db, count):
    def held():
        return db.value("SELECT count(*) FROM outbox_events WHERE status = 2 AND retry_after = 'infinity'")

    wait_until(lambda: held() == count, lambda: f"{held()} of {count} are held", 900, pause=1)


def waiting_topic(bench, broker, name, mend):
    """Many events wait for the topic `name`. What is that to the other topics, and what does each of the waiting cost?"""
    count, settings = bench.options.events, {**broker.sasl("relay"), "OUTBOX_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
    good, other = (broker.create_topic(f"{name}-neighbour-{n}", PARTITIONS) for n in range(2))
    plain, burdened = bench.database(), bench.database()
    fill(burdened, name, count)
    before = row_updates(burdened)
    daemon = bench.start(burdened, **settings)
    wait_held(burdened, count)
    assert daemon.stop() == 0
    waiting = row_updates(burdened) - before
    for db in (plain, burdened):
        db.execute("VACUUM ANALYZE outbox_events")
    rates, share = {"plain": [], "burdened": []}, max(count // 5, 1)
    for _ in range(3):
        for label, db, topic in (("plain", plain, good), ("burdened", burdened, other)):
            daemon = bench.start(db, **settings)
            timed_drain(db, daemon, topic, 1000)  # connections and metadata are there
            rates[label].append(timed_drain(db, daemon, topic, share))
            assert daemon.stop() == 0, daemon.tail()
    mend()
    daemon, start = bench.start(burdened, **settings), time.time()
    burdened.wait_settled(900, daemon)
    drained = count / (time.time() - start)
    assert daemon.stop() == 0, daemon.tail()
    in_all = row_updates(burdened) - before - 3 * (share + 1000)
    assert burdened.value("SELECT count(*) FROM outbox_events WHERE status <> 1 OR retry_count > 0") == 0
    judge.judge(broker, burdened.conn, [name, other], table="outbox_events").check()
    judge.judge(broker, plain.conn, [good], table="outbox_events").check()
    for db in (plain, burdened):
        db.drop()
    rates = {label: statistics.median(found) for label, found in rates.items()}
    return {"events_per_second": round(rates["plain"]), "beside_waiting_per_second": round(rates["burdened"]),
            "ratio": round(rates["burdened"] / rates["plain"], 3), "updates_while_waiting": round(waiting / count, 3),
            "updates_in_all": round(in_all / count, 3), "drained_per_second": round(drained)}


def parked(bench):
    """A topic that is missing, then one that is forbidden, with a backlog that waits for it: its neighbours in turns with and
    without it, three each."""
    broker = kafka.Kafka(bench.root, heap=1024, quick=False, users={"relay": "relay-secret"}).start()
    broker.allow()
    broker.create_topic("forbidden", PARTITIONS)
    broker.deny("forbidden")
    try:
        missing = waiting_topic(bench, broker, "missing", lambda: broker.create_topic("missing", PARTITIONS))
        forbidden = waiting_topic(bench, broker, "forbidden", lambda: broker.undeny("forbidden"))
    finally:
        broker.destroy()
    return {"waiting": bench.options.events, **{f"missing_{name}": value for name, value in missing.items()},
            **{f"forbidden_{name}": value for name, value in forbidden.items()}}


def scrapes(window, daemon, per_second, seconds):
    """CPU seconds of the daemon while somebody scrapes."""
    begin, before = time.monotonic(), daemon.cpu_seconds()
    for n in range(round(per_second * seconds)):
        assert window.get("/metrics")[0] == 200
        time.sleep(max(0, begin + n / per_second - time.monotonic()))
    time.sleep(max(0, begin + seconds - time.monotonic()))
    return daemon.cpu_seconds() - before


@contextlib.contextmanager
def strangers(port):
    crowd = subprocess.Popen([sys.executable, STRANGERS, str(port)], stdin=subprocess.PIPE)
    try:
        time.sleep(1)
        yield
    finally:
        crowd.stdin.close()
        crowd.wait(10)


def visitors(bench):
    """What 100 scrapes a second cost, and what hostile strangers cost the relay: drains in turns without and with them, three
    each; the CPU of every thread but the one that answers HTTP."""
    seconds, count = bench.options.seconds, bench.options.events // 5
    db, topic, port = bench.database(), bench.topic(), process.free_port()
    daemon = bench.start(db, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{port}", OUTBOX_HTTP_TOKEN="right")
    window = Window(port, "right")
    window.wait("/readyz", 200)
    timed_drain(db, daemon, topic, 1000)
    quiet = scrapes(window, daemon, 0, seconds)
    scraped = scrapes(window, daemon, 100, seconds)
    peaceful, crowded = [], []
    for _ in range(3):
        for costs, company in (peaceful, contextlib.nullcontext()), (crowded, strangers(port)):
            with company:
                before = daemon.cpu_seconds(without="http")
                timed_drain(db, daemon, topic, count)
                costs.append((daemon.cpu_seconds(without="http") - before) / count * 1e6)
            assert window.get("/metrics")[0] == 200
    peak = daemon.peak_rss()
    bench.check(db, daemon, topic)
    db.drop()
    peaceful, crowded = statistics.median(peaceful), statistics.median(crowded)
    return {"scrapes_cpu_percent": round((scraped - quiet) / seconds * 100, 2), "events": count,
            "cpu_seconds_per_million": round(peaceful, 2), "beside_strangers": round(crowded, 2),
            "ratio": round(crowded / peaceful, 3), "peak_rss_mib": round(peak / 2**20, 1)}


def consume(bench):
    """`outboxd consume` with a handler that inserts a row: how fast, and how much of the time is not the handler's."""
    count = min(bench.options.events, 500_000)
    db, topic = bench.database(), bench.topic()
    db.execute(messages.NOTES)
    fill = "x" * (PAYLOAD - 24)
    events = [(f"e{n:08}", f"order-{n % 1000}", f'{{"n": {n}, "fill": "{fill}"}}') for n in range(count)]
    messages.send(bench.kafka, topic, events)
    db.execute("CHECKPOINT")
    daemon = bench.start(db, command="consume", OUTBOX_CONSUMER_GROUP="bench", OUTBOX_CONSUMER_TOPICS=topic,
                         OUTBOX_CONSUMER_HANDLER="handler")
    process.wait_until(lambda: db.value("SELECT EXISTS (SELECT FROM notes)"), "the first event")
    first, start = db.value("SELECT max(n) FROM notes"), time.time()
    process.wait_until(lambda: db.value("SELECT max(n) FROM notes") >= count, "the last event", 600, pause=0.05)
    seconds = time.time() - start
    cpu, peak = daemon.cpu_seconds(), daemon.peak_rss()
    assert daemon.stop() == 0, daemon.tail()
    assert not daemon.faults(), "\n".join(daemon.faults())
    messages.check_notes(db, events)
    inside, outside = map(float, re.search(r"([\d.]+) s in the handler, ([\d.]+) s outside", daemon.text()).groups())
    db.drop()
    return {"events": count, "events_per_second": round((count - first) / seconds),
            "outside_handler_percent": round(100 * outside / (inside + outside), 1),
            "cpu_seconds_per_million": round(cpu / count * 1e6, 2), "peak_rss_mib": round(peak / 2**20, 1)}


BENCHMARKS = {"drain": drain, "steady": steady, "idle": idle, "small-topic": small_topic, "parked": parked,
              "visitors": visitors, "consume": consume}


def median(results):
    """The median of each figure over the rounds."""
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def show(name, results):
    figures = median(results)
    print(f"\n{name}: {BENCHMARKS[name].__doc__}")
    for figure, value in figures.items():
        rounds = "" if len(results) == 1 else f"   ({', '.join(f'{r[figure]:g}' for r in results)})"
        print(f"  {figure.replace('_', ' '):<28}{value:>12,g}{rounds}")
    print(json.dumps({"bench": name, "rounds": len(results), **figures}), flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=1, help="repeat, and show the medians")
    parser.add_argument("--events", type=int, default=1_000_000, help="the backlog of drain and parked; ten times that of small-topic")
    parser.add_argument("--seconds", type=int, default=20, help="length of steady and idle")
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name}; there are {', '.join(BENCHMARKS)}")
    root = process.make_root("outboxd-bench-")
    try:
        bench = Bench(root, options)
        bench.warm_up()
        for name in options.names or BENCHMARKS:
            results = []
            for _ in range(options.rounds):
                results.append(BENCHMARKS[name](bench))
            show(name, results)
        bench.cluster.destroy()
        bench.kafka.destroy()
    finally:
        process.remove_root(root)


if __name__ == "__main__":
    sys.exit(main())
