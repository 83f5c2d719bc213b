"""Everything goes wrong at once, for minutes: makers of trouble, each in a thread of its own, and the account of it.

Every trouble is written down as an incident with its time. A message that arrives twice must have met one between its
first delivery and the repeat: only something that took a batch away from its worker after Kafka had it makes a repeat.
Events with several topics are the exception by design: they are sent again to all when one of them does not take them.
"""

import contextlib
import queue
import random
import threading
import time
from collections import Counter, namedtuple

import psycopg
from confluent_kafka import KafkaError, KafkaException

from . import judge

Incident = namedtuple("Incident", "cause begin end")  # milliseconds, as messages carry them

STEADY = ["steady-1", "steady-2"]
NARROW, GUARDED = "narrow", "guarded"
LIMIT = 50_000
AWAY = (KafkaException, TimeoutError, AssertionError)  # what the rig's own requests meet while brokers are away
POISON = "poison"  # the event_type of what no broker takes
SLACK = 1500  # milliseconds: a fault acts on what was published a moment before it was noted, and a moment after it ended


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
    def __init__(self, seed, minutes, cluster, kafka, db, start, settings, rate=300):
        self.seed, self.seconds = seed, minutes * 60
        self.cluster, self.kafka, self.db, self.start, self.settings = cluster, kafka, db, start, settings
        self.incidents, self.failures = [], []
        self.over, self.silence = threading.Event(), threading.Event()
        self.late = []  # topics that services write to; not all of them are there
        self.missing = set()
        self.daemons = []
        self.wishes = queue.Queue()  # of servers to be started
        self.services = [Service(self, n, rate / 3) for n in range(3)]
        for topic in (*STEADY, GUARDED):
            kafka.create_topic(topic)
        kafka.create_topic(NARROW, max_message_bytes=LIMIT)

    # What happened, and when.

    @contextlib.contextmanager
    def incident(self, cause):
        begin = now()
        try:
            yield
        finally:
            self.incidents.append(Incident(cause, begin, now()))

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
        return self.start(self.db, kafka=self.kafka, **self.settings[which])

    def kill_daemons(self, chance):
        victim = chance.randrange(2)
        with self.incident("daemon killed"):
            self.daemons[victim].kill()
        self.over.wait(chance.choice((0, 0, 1, 3)))
        with self.incident("daemon started"):
            self.daemons[victim] = self._launch(lambda: self._daemon(victim))

    def break_brokers(self, chance):
        victims = chance.sample(self.kafka.brokers, 2 if len(self.kafka.brokers) > 1 and chance.random() < 0.15 else 1)
        if chance.random() < 0.5:
            with self.incident("broker frozen"):
                for broker in victims:
                    broker.freeze()
                self.over.wait(chance.uniform(1, 12))
                for broker in victims:
                    broker.thaw()
                self.kafka.wait_ready()
            return
        with self.incident("broker killed"):
            for broker in victims:
                broker.kill()
            self.over.wait(chance.uniform(0, 8))
            for broker in victims:
                self._launch(broker.start)
            self.kafka.wait_ready()

    def cut_sessions(self, chance):
        with self.incident("session ended"), contextlib.suppress(psycopg.Error):
            with self.db.connect(connect_timeout=5) as conn:
                conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                             "AND pid <> pg_backend_pid() ORDER BY md5(pid::text || %s) LIMIT %s",
                             (str(chance.random()), chance.randint(1, 6)))

    def crash_postgres(self, chance):
        with self.incident("PostgreSQL crashed"):
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
        """An operator makes FAILED rows of a lane due, held ones too: only a hint to the claim."""
        with contextlib.suppress(psycopg.Error), self.db.connect(connect_timeout=5) as conn, conn.transaction():
            lane = chance.randrange(16)
            conn.execute("SELECT FROM outbox_lanes WHERE lane = %s FOR UPDATE", (lane,))
            conn.execute("UPDATE outbox_events SET retry_after = NULL, retry_count = 0 WHERE status = 2 AND lane = %s "
                         "AND seq %% 3 = %s", (lane, chance.randrange(3)))

    def miss_topics(self, chance):
        """Services begin to write to a topic that is made only later."""
        name = f"late-{len(self.late) + 1}"
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
              "lock_rows": (0.5, 3), "retry_by_hand": (0.5, 3), "miss_topics": (2, 20), "forbid_topic": (10, 40)}

    def run(self):
        self.db.conn.close()  # it would be cut like all the others; whoever needs it later gets a new one
        self.daemons = [self._daemon(which) for which in range(2)]
        makers = [threading.Thread(target=self._maker, args=(getattr(self, name), pauses), daemon=True)
                  for name, pauses in self.MAKERS.items()]
        for thread in (*self.services, *makers):
            thread.start()
        end = time.monotonic() + self.seconds
        while not self.over.is_set() and time.monotonic() < end:
            self._serve_wishes(min(1, max(0, end - time.monotonic())))
        self.over.set()
        while any(thread.is_alive() for thread in makers):
            assert time.monotonic() < end + 240, "a maker of trouble does not come to its end"
            self._serve_wishes(0.2)
        self.silence.set()
        for service in self.services:
            service.join(60)
            if service.failure:
                raise service.failure
        if self.failures:
            raise self.failures[0]
        for name in sorted(self.missing):
            self._make_topic(name)

    @property
    def topics(self):
        return [*STEADY, NARROW, GUARDED, *self.late]


class Referee(judge.Judge):
    """Keeps the time of every delivery, so that repeats can be explained."""

    def __init__(self, events, partitions):
        super().__init__(events, partitions)
        self.times = {}  # (topic, id) → of the last delivery so far
        self.repeats = []  # (id, topic, before, again)

    def take(self, messages):
        super().take(messages)
        for message in messages:
            id = next((v.decode() for n, v in message.headers() or [] if n == "id"), None)
            at, place = message.timestamp()[1], (message.topic(), id)
            if place in self.times:
                self.repeats.append((id, message.topic(), *sorted((self.times[place], at))))
            self.times[place] = at


def explain(repeats, incidents, events, slack=SLACK):
    """Repeats by cause; None counts those that nothing explains."""
    causes = Counter()
    for id, _, before, again in repeats:
        met = [i.cause for i in incidents if i.begin - slack <= again and i.end + slack >= before]
        if len(events[id].topics) > 1:
            met.append("several topics")
        # The rarest and heaviest names the repeat when several happened.
        order = ("PostgreSQL crashed", "broker killed", "broker frozen", "daemon killed", "session ended", "several topics")
        causes[next((cause for cause in order if cause in met), None)] += 1
    return causes


def verdict(chaos):
    """(verdict, repeats by cause) of everything that was committed; culprits must not arrive."""
    events = judge.committed(chaos.db.conn)
    culprits = {row[0] for row in chaos.db.execute("SELECT id FROM rig.ledger WHERE event_type = %s", POISON)}
    for id in culprits:
        events.pop(id)
    found = chaos.kafka.admin.list_topics(timeout=30).topics
    referee = Referee(events, {topic: len(found[topic].partitions) for topic in chaos.topics})
    with judge.no_collector():
        for messages in judge.read_topics(chaos.kafka.internal, chaos.topics):
            referee.take(messages)
    result = referee.close()
    return result, explain(referee.repeats, chaos.incidents, events)
