"""A worker driven by hand, statement by statement, with the program's own SQL: for interleavings that no clock may decide."""

import contextlib
import threading
from collections import namedtuple

import psycopg

from .process import PATIENCE, wait_until
from .statements import sql

Taken = namedtuple("Taken", "ctid seq lane topic key")


class Hand:
    def __init__(self, db):
        self.conn = db.connect(cursor_factory=psycopg.RawCursor)
        self.conn.autocommit = False
        self.conn.execute("SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; "
                          f"SET lock_timeout = '{PATIENCE:.0f}s'")  # a test that lacks its rule fails and does not hang
        self.conn.commit()

    def run(self, text, *params):
        cursor = self.conn.execute(text, params or None)
        return cursor.fetchall() if cursor.description else cursor.rowcount

    def lanes(self, count=16, first=0, only=False, text=sql("claim.c", "lanes")):
        """Locks free lanes, or only the first one, and returns their numbers."""
        found = self.run(text, first, count, only)[0][0]
        return [int(lane) for lane in found.split(",") if lane]

    def take(self, limit=100, text=sql("claim.c", "take")):
        """The rows that this worker now holds."""
        return [Taken(row[0], row[2], row[3], row[5], row[12] or row[9]) for row in self.run(text, limit, 1 << 30, (1 << 31) - 1)]

    def skipped(self, *taken, limit=100):
        """The seqs of rows that stand before these and are not ours."""
        if not self.run(sql("claim.c", "skipped"), limit)[0][0]:
            return []
        last = {row.lane: max(other.seq for other in taken if other.lane == row.lane) for row in taken}
        return [row[0] for row in self.run(sql("obstacles.c", "bystanders"), list(last), list(last.values()))]

    def blocking(self, *taken):
        """For each row: the seq of the first unfinished row of its stream that is not in the batch, or None."""
        found = dict(self.run(sql("obstacles.c", "blocking"), [row.lane for row in taken], [row.topic for row in taken],
                              [row.key for row in taken], False))
        return [found.get(n) for n in range(1, len(taken) + 1)]

    def drained(self, *taken, limit=100):
        """The seqs of the rows of draining topics that come back with these to one who holds all lanes."""
        last = {lane: max((row.seq for row in taken if row.lane == lane), default=0) for lane in range(16)}
        return [row[2] for row in self.run(sql("obstacles.c", "drained"), list(last), list(last.values()), limit, 1 << 30, True, False,
                                           (1 << 31) - 1)]

    def unpark(self, topics, text=sql("parking.c", "unpark")):
        """How many of these topics went."""
        return len(self.run(text, topics, True, False))

    def sent(self, *taken):
        seqs = [row.seq for row in taken]
        return self.run(sql("mark.c", "sent"), [row.ctid for row in taken], min(seqs), max(seqs))

    def release(self, topic, key, limit=100):
        lane = self.run("SELECT outbox_lane($1)", key)[0][0]
        return self.run(sql("mark.c", "release"), [lane], [topic], [key], limit)

    def hold(self, *taken, parked=None, text=sql("mark.c", "others")):
        """Marks rows as held, behind a parked topic when one is named."""
        n = len(taken)
        return self.run(text, [row.ctid for row in taken], [row.seq for row in taken], [2] * n, [0] * n, [-1] * n,
                        ["waits"] * n, [parked] * n)

    def commit(self):
        self.conn.commit()

    def rollback(self):
        self.conn.rollback()

    @contextlib.contextmanager
    def meanwhile(self, action):
        """Runs `action` in a thread; the body begins when its statement waits for a lock, and must let it go. Afterwards
        the yielded list holds its result."""
        result, failure = [], []

        def act():
            try:
                result.append(action())
            except Exception as problem:
                failure.append(problem)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        pid = self.conn.info.backend_pid
        with psycopg.connect(self.conn.info.dsn, autocommit=True) as observer:
            wait_until(lambda: failure or observer.execute("SELECT wait_event_type = 'Lock' FROM pg_stat_activity "
                                                           "WHERE pid = %s", (pid,)).fetchone()[0],
                       "the statement waits for a lock")
        yield result
        thread.join(60)
        assert not thread.is_alive(), "the statement still waits"
        if failure:
            raise failure[0]

    def close(self):
        self.conn.close()


class Gate:
    """A point inside a statement at which it waits: `rig_gate()` in its WHERE is true as soon as the gate is open."""

    def __init__(self, db):
        self.conn = db.connect()
        self.conn.execute("CREATE OR REPLACE FUNCTION rig_gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS "
                          "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN true; END $$")
        self.conn.execute("SELECT pg_advisory_lock(4711)")

    def open(self):
        self.conn.execute("SELECT pg_advisory_unlock(4711)")
        self.conn.close()
