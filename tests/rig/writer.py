"""Writers: services that commit business rows and events in one transaction, and sometimes change their mind."""

import random
import threading

import psycopg

from .postgres import ident

ORDERS = """
    CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, version int NOT NULL DEFAULT 0)
"""


def bulk(conn, topic, count, keys, size=100, schema="public", start=0):
    """Many events in one statement. Consecutive rows belong to different keys; `size` is roughly the payload's bytes."""
    conn.execute(f"""
        INSERT INTO {ident(schema)}.outbox_events (topic, event_type, aggregate_type, aggregate_id, payload)
        SELECT %s, 'order.changed', 'order', 'order-' || n %% %s,
               jsonb_build_object('n', n, 'fill', repeat('x', %s))
          FROM generate_series(%s::bigint, %s::bigint) n""",
                 (topic, keys, max(0, size - 24), start, start + count - 1))


def publish(conn, topic, key, payload="{}", schema="public", **columns):
    """One event through outbox_publish; returns its id."""
    names = "".join(f", {name} => %s" for name in columns)
    row = conn.execute(f"SELECT {ident(schema)}.outbox_publish(%s, %s, %s, %s::jsonb{names})",
                       (topic, "order", key, payload, *columns.values())).fetchone()
    return row[0]


class OrderWriter(threading.Thread):
    """Changes random orders: locks the order's row, so that its events are written one after the other, raises its
    version, publishes the new version, and commits, or rolls back one time in `rollback`."""

    def __init__(self, connect, topic, orders, count, rollback=5, seed=0, events_each=1):
        super().__init__(daemon=True)
        self.connect, self.topic, self.orders, self.count = connect, topic, orders, count
        self.rollback, self.random, self.events_each = rollback, random.Random(seed), events_each
        self.committed = self.rolled_back = 0
        self.failure = None

    def run(self):
        try:
            with self.connect() as conn:
                while self.committed < self.count:
                    self._change(conn)
        except Exception as failure:  # handed to the test by join_all
            self.failure = failure

    def _change(self, conn):
        order = f"order-{self.random.randrange(self.orders)}"
        with conn.transaction() as transaction:
            version = conn.execute("INSERT INTO orders (id, version) VALUES (%s, 1) ON CONFLICT (id) "
                                   "DO UPDATE SET version = orders.version + 1 RETURNING version", (order,)).fetchone()[0]
            for part in range(self.events_each):
                publish(conn, self.topic, order, f'{{"version": {version}, "part": {part}}}')
            gives_up = self.rollback and self.random.randrange(self.rollback) == 0
            if gives_up:
                raise psycopg.Rollback(transaction)
        if gives_up:
            self.rolled_back += 1
        else:
            self.committed += self.events_each

    @staticmethod
    def join_all(writers, timeout=300):
        for writer in writers:
            writer.join(timeout)
            assert not writer.is_alive(), "a writer does not come to its end"
            if writer.failure:
                raise writer.failure


class Stream:
    """Writes small transactions from a thread until it is stopped: events flow while the test does something else."""

    def __init__(self, connect, topic, keys, batch=20, pause=0.0, size=60):
        self.connect, self.topic, self.keys, self.batch = connect, topic, keys, batch
        self.pause, self.size, self.written, self.failure = pause, size, 0, None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def _run(self):
        conn = None
        while not self.stopping.is_set():
            try:
                conn = conn or self.connect()
                bulk(conn, self.topic, self.batch, self.keys, self.size, start=self.written)
                self.written += self.batch
            except psycopg.OperationalError:  # the database is away: that is what some tests do
                conn = None
                self.stopping.wait(0.1)
            except Exception as failure:
                self.failure = failure
                return
            self.stopping.wait(self.pause)

    def stop(self):
        self.stopping.set()
        self.thread.join(60)

    def __exit__(self, *_):
        self.stop()
        if self.failure:
            raise self.failure
