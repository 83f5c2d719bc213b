"""./dev demo: a service, its outbox, the relay and a consumer, on this machine and for a few seconds.

A private PostgreSQL and outboxd's in-memory broker are started, orders are written together with their events (and
sometimes rolled back), and each event is printed as it arrives. At the end the judge of the test suites compares what
was committed with what arrived.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time

import psycopg
from confluent_kafka import Consumer, TopicPartition
from rig import daemon, judge, postgres, process

TOPIC = "orders"
STEPS = ("placed", "paid", "packed", "shipped", "delivered")

colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def dim(text):
    return f"\033[2m{text}\033[0m" if colours else text


def bold(text):
    return f"\033[1m{text}\033[0m" if colours else text


class Shop(threading.Thread):
    """Moves orders from step to step: the order's row and its event in one transaction, one in five given up."""

    def __init__(self, connect):
        super().__init__(daemon=True)
        self.connect, self.random, self.stopping = connect, random.Random(), threading.Event()
        self.written = self.rolled_back = 0
        self.failure = None

    def run(self):
        try:
            with self.connect() as conn:
                conn.execute("CREATE TABLE orders (id text PRIMARY KEY, step int NOT NULL, amount numeric NOT NULL)")
                while not self.stopping.wait(self.random.uniform(0.05, 0.25)):
                    self.change(conn, f"order-{self.random.randrange(1, 8)}")
        except Exception as failure:  # reported by the main thread
            self.failure = failure

    def change(self, conn, order):
        with conn.transaction() as transaction:
            step, amount = conn.execute(
                "INSERT INTO orders VALUES (%s, 0, %s) ON CONFLICT (id) DO UPDATE SET step = (orders.step + 1) %% %s "
                "RETURNING step, amount", (order, self.random.randrange(500, 20000) / 100, len(STEPS))).fetchone()
            payload = json.dumps({"order": order, "step": STEPS[step], "amount": float(amount)})
            conn.execute("SELECT outbox_publish(%s, 'order', %s, %s::jsonb, event_type => %s)",
                         (TOPIC, order, payload, f"order.{STEPS[step]}"))
            gives_up = self.random.randrange(5) == 0
            if gives_up:
                raise psycopg.Rollback(transaction)
        if gives_up:
            self.rolled_back += 1
        else:
            self.written += 1


class View:
    """Prints what arrives, a line an event, and keeps it for the judge."""

    def __init__(self, bootstrap):
        self.arrived = []
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False,
                                  "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50, "log_level": 0,
                                  "allow.auto.create.topics": True})
        found = {}

        def partitions():
            found.update(self.consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions)
            return found

        process.wait_until(partitions, "the topic has partitions")
        self.consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in found])

    def look(self, seconds):
        for message in self.consumer.consume(100, timeout=seconds):
            if message.error():
                continue
            self.arrived.append(message)
            id = dict(message.headers() or []).get("id", b"?").decode()
            value = (message.value() or b"(tombstone)").decode()
            place = f"{message.topic()}  partition {message.partition()}"
            print(f"{place}  {bold('key=' + message.key().decode())}  {dim(id)}  {value}", flush=True)


class Demo:
    def __init__(self, root):
        self.root = root
        self.servers = []

    def start(self):
        self.cluster = postgres.Cluster(self.root).create().start()
        self.cluster.create_database("demo")
        self.url = self.cluster.url("demo")
        print(f"PostgreSQL  {self.url}", flush=True)

        port = process.free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        broker = self.run("dev-broker", "--listen", self.bootstrap)
        process.wait_until(lambda: process.accepts(port) or self.check(broker), "dev-broker listens")
        print(f"Kafka       {self.bootstrap} (outboxd dev-broker, in memory)", flush=True)

        self.settings = {"OUTBOX_DATABASE_URL": self.url, "OUTBOX_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap,
                         "OUTBOX_HTTP_LISTEN": "off"}
        done = daemon.call("migrate", "up", **self.settings)
        if done.returncode != 0:
            raise RuntimeError(f"outboxd migrate up failed:\n{done.stdout}{done.stderr}")
        relay = self.run("run")
        print(f"outboxd     run, process {relay.pid}, log {relay.log}\n", flush=True)

    def run(self, *args):
        server = process.Server([daemon.binary(), *args], self.root / f"{args[0]}.log",
                                env=daemon.environment(getattr(self, "settings", {})))
        self.servers.append(server)
        return server

    def check(self, *servers):
        for server in servers or self.servers:
            if not server.alive:
                raise RuntimeError(f"a part of the demo ended early; its log:\n{server.tail()}")

    def stop(self):
        """The relay first: it finishes what it has in hand. Returns its exit code."""
        codes = []
        for server in reversed(self.servers):
            server.signal(signal.SIGTERM)
            codes.append(server.wait(30))
        self.cluster.stop("immediate")
        return codes[0]


def play(demo, seconds, keep):
    demo.start()
    view = View(demo.bootstrap)
    shop = Shop(lambda: demo.cluster.connect("demo"))
    shop.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not shop.failure:
        view.look(0.1)
        demo.check()
    shop.stopping.set()
    shop.join()
    if shop.failure:
        raise shop.failure

    with demo.cluster.connect("demo") as conn:
        events = judge.committed(conn, "outbox_events")
        patience = time.monotonic() + 20
        while len(view.arrived) < len(events) and time.monotonic() < patience:
            view.look(0.1)
        view.look(0.3)  # anything that should not be there
    referee = judge.Judge(events)
    referee.take(view.arrived)
    verdict = referee.close()
    print(f"\nwritten: {shop.written}   rolled back: {shop.rolled_back}   delivered: {len(view.arrived)}   "
          f"order kept: {'no' if verdict.disorder else 'yes'}", flush=True)
    good = verdict.good() and shop.written == len(events) > 0
    if not good:
        print(verdict, file=sys.stderr)
    if keep:
        print(f"\nStill running, until Ctrl-C. In another terminal:\n"
              f"  psql {demo.url}\n"
              f"  SELECT outbox_publish('{TOPIC}', 'order', 'order-1', '{{\"hello\": \"world\"}}');\n"
              f"and the event appears here. Kafka listens on {demo.bootstrap}.\n", flush=True)
        try:
            while True:
                view.look(0.5)
                demo.check()
        except KeyboardInterrupt:
            print()
    view.consumer.close()
    return good


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description="From nothing to events in Kafka, in some seconds.")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument("--seconds", type=float, default=8, help="how long orders are written (8)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell in the background lets it be ignored
    root = process.make_root("outboxd-demo-")
    demo = Demo(root)
    try:
        good = play(demo, options.seconds, options.keep)
        if demo.stop() != 0:
            print("outboxd run did not end well", file=sys.stderr)
            good = False
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, AssertionError, psycopg.Error) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    finally:
        process.remove_root(root)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
