"""Everything goes wrong at once, for minutes: makers of trouble, each in a thread of its own, and the account of it.

Every trouble is written down as an incident, for the account (account.py).
"""

import contextlib
import queue
import random
import threading
import time

import psycopg
from confluent_kafka import KafkaError, KafkaException

from . import daemon
from .account import HELD_LANES, POISON, Incident, deaf_until, watch_innocents

STEADY = ["steady-1", "steady-2"]
NARROW, GUARDED, LATE = "narrow", "guarded", "late-"
LIMIT = 50_000
AWAY = (KafkaException, TimeoutError, AssertionError)  # what the rig's own requests meet while brokers are away
QUIET = 0.03  # seconds until the backends of a daemon that stands still have done what they were told
DAEMONS = 2


def now():
    return time.time() * 1000


class Service(threading.Thread):
    """A service with aggregates of its own: small transactions, some rolled back, to all kinds of topics."""

    def __init__(self, chaos, number, rate):
        super().__init__(daemon=True)
        self.chaos, self.number, self.rate = chaos, number, rate
        self.random = random.Random(f"{chaos.seed}-service-{number}")
        self.written, self.failure = 0, None

    def run(self):
        conn, begin, sent = None, time.monotonic(), 0
        while not self.chaos.silence.is_set():
            try:
                conn = conn or self.chaos.db.connect(connect_timeout=5)
                count = self.random.randint(1, 20)
                self._write(conn, count)
                sent += count
            except (psycopg.Error, psycopg.Rollback):  # the database is away, or ended this session
                if conn is not None:
                    with contextlib.suppress(psycopg.Error):
                        conn.close()
                conn = None
                self.chaos.silence.wait(0.1)
            except Exception as failure:
                self.failure = failure
                return
            # A service that was held up does not catch up in one go.
            ahead = begin + sent / self.rate - time.monotonic()
            if ahead < -2:
                begin -= ahead
            self.chaos.silence.wait(max(0.0, ahead))

    def _write(self, conn, count):
        columns = list(zip(*(self._event(n) for n in range(count))))
        with conn.transaction() as transaction:
            conn.execute("""
                INSERT INTO outbox_events (topic, event_type, aggregate_type, aggregate_id, routing_key, headers, payload)
                SELECT topic, type, 'order', key, route, headers::jsonb, jsonb_build_object('n', n, 'fill', repeat('x', size))
                  FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::int[])
                       e(topic, type, key, route, headers, n, size)""", [list(column) for column in columns])
            if self.random.random() < 0.1:
                raise psycopg.Rollback(transaction)
        self.written += count

    def _event(self, n):
        key = f"order-{self.number}-{self.random.randrange(20)}"
        topics = [*STEADY, NARROW, GUARDED, *self.chaos.late[-3:]]
        topic, kind, route, headers, size = self.random.choice(topics), "order.changed", None, "{}", 200
        dice = self.random.random()
        if dice < 0.002:
            topic, kind, size = NARROW, POISON, LIMIT + 10_000
        elif dice < 0.003:
            kind, headers = POISON, "[]"
        elif dice < 0.04:
            route = ", ".join(self.random.sample(topics, 2))
        return topic, kind, key, route, headers, self.written + n, size


class Chaos:
    """`settings`: of each daemon. `lines`: of each daemon a proxy to PostgreSQL; `kafka_lines`: one to each broker."""

    def __init__(self, seed, minutes, cluster, kafka, db, start, settings, lines, kafka_lines, rate=300):
        self.seed, self.seconds = seed, minutes * 60
        self.cluster, self.kafka, self.db, self.start, self.settings = cluster, kafka, db, start, settings
        self.lines, self.kafka_lines = lines, kafka_lines
        self.batch = int(settings[0]["OUTBOX_BATCH_SIZE"])
        self.in_flight = DAEMONS * int(settings[0]["OUTBOX_WORKERS"]) * self.batch
        self.blocks = settings[0]["OUTBOX_ON_DEAD"] == "block"
        self.hands = threading.Lock()  # who lets daemons stand still, or replaces one
        self.met, self.failures = [], []
        self.silences = []  # (begin, end) of lines to PostgreSQL that stood still
        self.over, self.silence = threading.Event(), threading.Event()
        self.late = []  # topics that services write to; not all of them are there
        self.missing = set()
        self.daemons, self.started = [], []  # those that run, and all that ever did
        self.wishes = queue.Queue()  # of servers to be started
        self.services = [Service(self, n, rate / 3) for n in range(3)]
        for topic in (*STEADY, GUARDED):
            kafka.create_topic(topic)
        kafka.create_topic(NARROW, max_message_bytes=LIMIT)
        watch_innocents(db)

    # What happened, and when.

    @property
    def incidents(self):
        return [one._replace(end=deaf_until(one.end, self.silences)) if one.lanes is not None else one for one in self.met]

    def _held(self):
        """(application, pid, lane, begin of its transaction) of every lane that is held."""
        with contextlib.suppress(psycopg.Error):  # a database that is away holds no lane
            with self.db.connect(connect_timeout=5) as conn:
                return conn.execute(HELD_LANES).fetchall()
        return []

    @contextlib.contextmanager
    def incident(self, cause, most):
        """On all lanes: what was under way when it began, and what is until its end."""
        begin = min([now(), *(since for *_, since in self._held())])
        try:
            yield
        finally:
            self.met.append(Incident(cause, begin, now(), None, most))

    @contextlib.contextmanager
    def cut(self, cause, *victims):
        """What the body cuts, on the lanes that these hold now: daemons by number, or backends by pid when it is told them
        through the yielded list. The daemons stand still meanwhile, so nothing changes hands unseen."""
        with self.hands:
            begin, pids, held = now(), [], []
            still = [self.daemons[n] for n in victims or range(DAEMONS)]
            try:
                for one in still:
                    one.freeze()
                time.sleep(QUIET)
                held = self._held()
                yield pids
            finally:
                for one in still:
                    one.thaw()
            names = [f"relay-{n}" for n in victims]
            held = [row for row in held if row[0] in names or row[1] in pids]
            lanes = {lane: since for _, _, lane, since in held}
            self.met.append(Incident(cause, begin, now(), lanes, self.batch * len({pid for _, pid, _, _ in held})))

    def _maker(self, make, pauses):
        chance = random.Random(f"{self.seed}-{make.__name__}")
        try:
            while not self.over.wait(chance.uniform(*pauses)):
                make(chance)
        except Exception as failure:
            self.failures.append(failure)
            self.over.set()

    # The makers of trouble.

    def _launch(self, start):
        """Servers die with the thread that started them (process.command): so the main thread starts them all."""
        done, answer = threading.Event(), []
        self.wishes.put((start, answer, done))
        if not done.wait(120):
            raise AssertionError("a server does not start")
        return answer[0]

    def _serve_wishes(self, seconds):
        with contextlib.suppress(queue.Empty):
            start, answer, done = self.wishes.get(timeout=seconds)
            answer.append(start())
            done.set()

    def _daemon(self, which):
        self.started.append(self.start(self.db, kafka=self.kafka, **self.settings[which]))
        return self.started[-1]

    def kill_daemons(self, chance):
        victim = chance.randrange(DAEMONS)
        if chance.random() < 0.2:  # in the midst of anything: then nobody knows what it held
            with self.incident("daemon killed", self.in_flight // DAEMONS):
                self.daemons[victim].kill()
        else:
            with self.cut("daemon killed", victim):
                self.daemons[victim].kill()
        self.over.wait(chance.choice((0, 0, 1, 3)))
        started = self._launch(lambda: self._daemon(victim))
        with self.hands:
            self.daemons[victim] = started

    def break_brokers(self, chance):
        victims = chance.sample(self.kafka.brokers, 2 if len(self.kafka.brokers) > 1 and chance.random() < 0.15 else 1)
        if chance.random() < 0.5:
            with self.incident("broker frozen", 2 * self.in_flight):
                for broker in victims:
                    broker.freeze()
                self.over.wait(chance.uniform(1, 12))
                for broker in victims:
                    broker.thaw()
                self.kafka.wait_ready()
            return
        with self.incident("broker killed", 2 * self.in_flight):
            for broker in victims:
                broker.kill()
            self.over.wait(chance.uniform(0, 8))
            for broker in victims:
                self._launch(broker.start)
            self.kafka.wait_ready()

    def cut_sessions(self, chance):
        with self.cut("session ended") as ended, contextlib.suppress(psycopg.Error):
            with self.db.connect(connect_timeout=5) as conn:
                found = conn.execute("SELECT pid, pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
                                     "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                                     "ORDER BY md5(pid::text || %s) LIMIT %s) s", (str(chance.random()), chance.randint(1, 6)))
                ended.extend(pid for pid, _ in found)

    def break_lines(self, chance):
        """Connections are reset or cut for a while, or nothing moves on them: a daemon's to PostgreSQL or all to a broker."""
        how, seconds = chance.choice(("reset", "cut", "freeze")), chance.uniform(0.3, 3)
        if chance.random() < 0.6:
            victim = chance.randrange(DAEMONS)
            if how == "freeze":
                begin = now()
                self._break(self.lines[victim], how, seconds)
                self.silences.append((begin, now()))
                return
            with self.cut("line to PostgreSQL cut", victim):
                getattr(self.lines[victim], how)()
            self.over.wait(seconds)
            self.lines[victim].heal()
        else:
            with self.incident("line to Kafka cut", self.in_flight):
                self._break(chance.choice(self.kafka_lines), how, seconds)

    def _break(self, line, how, seconds):
        getattr(line, how)()
        self.over.wait(seconds if how != "reset" else 0)
        line.heal()

    def crash_postgres(self, chance):
        with self.incident("PostgreSQL crashed", self.in_flight):
            self.cluster.stop("immediate")
            self.over.wait(chance.uniform(0, 3))
            self._launch(lambda: self.cluster.start(wait=False))
            self.cluster.wait_ready()

    def lock_rows(self, chance):
        """A foreign session sits on unfinished rows."""
        with contextlib.suppress(psycopg.Error), self.db.connect(connect_timeout=5) as conn, conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '2s'")
            conn.execute("SELECT FROM outbox_events WHERE status IN (0, 2) ORDER BY md5(id || %s) LIMIT %s FOR UPDATE SKIP LOCKED",
                         (str(chance.random()), chance.randint(1, 10)))
            self.over.wait(chance.uniform(0.2, 3))

    def retry_by_hand(self, chance):
        """An operator makes FAILED rows of a lane due, held ones too: only a hint to the claim. Whose attempts this
        forgets is noted by `watch_innocents`."""
        with contextlib.suppress(psycopg.Error), self.db.connect(connect_timeout=5) as conn, conn.transaction():
            lane = chance.randrange(16)
            conn.execute("SELECT FROM outbox_lanes WHERE lane = %s FOR UPDATE", (lane,))
            conn.execute("UPDATE outbox_events SET retry_after = NULL, retry_count = 0 WHERE status = 2 AND lane = %s "
                         "AND seq %% 3 = %s", (lane, chance.randrange(3)))

    def discard_dead(self, _chance=None):
        """OUTBOX_ON_DEAD=block: an operator frees the streams."""
        daemon.call("events", "discard", "--status", "DEAD", "--all", OUTBOX_DATABASE_URL=self.db.url, OUTBOX_ON_DEAD="block")

    def miss_topics(self, chance):
        """Services begin to write to a topic that is made only later."""
        name = f"{LATE}{len(self.late) + 1}"
        self.missing.add(name)
        self.late.append(name)
        self.over.wait(chance.uniform(3, 25))
        self._make_topic(name)

    def _make_topic(self, name):
        while name in self.missing:
            try:
                self.kafka.create_topic(name, partitions=2)
            except AWAY as failure:
                if not isinstance(failure, KafkaException) or failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    time.sleep(1)
                    continue
            self.missing.discard(name)

    def forbid_topic(self, chance):
        with contextlib.suppress(*AWAY):
            self.kafka.deny(GUARDED)
            self.over.wait(chance.uniform(1, 8))
        self._allow()

    def _allow(self):
        while True:
            with contextlib.suppress(*AWAY):
                self.kafka.undeny(GUARDED)
                return
            time.sleep(1)

    # The run.

    MAKERS = {"kill_daemons": (1, 8), "break_brokers": (8, 25), "cut_sessions": (0.3, 4), "crash_postgres": (20, 60),
              "break_lines": (3, 12), "lock_rows": (0.5, 3), "retry_by_hand": (0.5, 3), "miss_topics": (2, 20),
              "forbid_topic": (10, 40), "discard_dead": (1, 6)}

    def run(self):
        self.db.conn.close()  # it would be cut like all the others; whoever needs it later gets a new one
        self.daemons = [self._daemon(which) for which in range(DAEMONS)]
        makers = [threading.Thread(target=self._maker, args=(getattr(self, name), pauses), daemon=True)
                  for name, pauses in self.MAKERS.items() if self.blocks or name != "discard_dead"]
        for thread in (*self.services, *makers):
            thread.start()
        end = time.monotonic() + self.seconds
        self.begin = now()
        while not self.over.is_set() and time.monotonic() < end:
            self._serve_wishes(min(1, max(0, end - time.monotonic())))
        self.over.set()
        while any(thread.is_alive() for thread in makers):
            assert time.monotonic() < end + 240, "a maker of trouble does not come to its end"
            self._serve_wishes(0.2)
        self.end = now()
        self.silence.set()
        for service in self.services:
            service.join(60)
            if service.failure:
                raise service.failure
        if self.failures:
            raise self.failures[0]
        for name in sorted(self.missing):
            self._make_topic(name)

    def settle(self, timeout):
        """Until nothing is left to do."""
        end = time.monotonic() + timeout
        while self.blocks and self.db.unfinished() and time.monotonic() < end:
            self.discard_dead()
            time.sleep(1)
        self.db.wait_settled(max(1, end - time.monotonic()), *self.daemons)

    def is_moody(self, topic):
        """Whether it at times does not take what others take."""
        return topic in (NARROW, GUARDED) or topic.startswith(LATE)

    @property
    def topics(self):
        return [*STEADY, NARROW, GUARDED, *self.late]
