"""Messages for consumers: producing them, handlers that note what they got, and a judge over the notes."""

from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition

from .process import wait_until

SIGNATURE = "(event_id text, topic text, key text, payload jsonb, headers jsonb)"

NOTES = """
    CREATE TABLE notes (n bigint GENERATED ALWAYS AS IDENTITY, event_id text, topic text, key text, payload jsonb, headers jsonb,
                        pid int DEFAULT pg_backend_pid());
    CREATE FUNCTION handler(event_id text, topic text, key text, payload jsonb, headers jsonb) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO notes (event_id, topic, key, payload, headers) VALUES ($1, $2, $3, $4, $5); END $$;
"""
"""A handler whose effect is a row a call."""


PICKY = """
    CREATE TABLE picky (id text PRIMARY KEY, fails int);
    CREATE FUNCTION picky""" + SIGNATURE + """ RETURNS void LANGUAGE plpgsql AS $$
    DECLARE wrong int := (SELECT fails FROM picky p WHERE p.id = event_id);
    BEGIN
        IF wrong IS NOT NULL AND nextval('tries_' || event_id) <= wrong THEN  -- a sequence counts on when the transaction is undone
            RAISE EXCEPTION 'do not like %', event_id USING ERRCODE = 'P0042';
        END IF;
        PERFORM handler(event_id, topic, key, payload, headers);
    END $$
"""


def make_picky(db, fails):
    """A handler that raises for these ids, so many calls long."""
    db.execute(PICKY)
    for id, count in fails.items():
        db.execute("INSERT INTO picky VALUES (%s, %s)", id, count)
        db.execute(f"CREATE SEQUENCE tries_{id}")


class Sender:
    """Produces to one topic. An event is (id, key, value); None as an id sends no id header."""

    def __init__(self, kafka, topic, **config):
        self.topic, self.failures = topic, []
        self.producer = Producer({"bootstrap.servers": kafka.internal, "partitioner": "murmur2_random", "linger.ms": 5,
                                  "enable.idempotence": True, "queue.buffering.max.messages": 1000000, **config})

    def send(self, id, key, value, headers=(), partition=None):
        headers = [*([("id", id)] if id is not None else []), *headers]
        where = {} if partition is None else {"partition": partition}
        self.producer.produce(self.topic, value, key, headers=headers, on_delivery=self._reported, **where)
        self.producer.poll(0)

    def _reported(self, error, _message):
        if error is not None:
            self.failures.append(error)

    def flush(self):
        assert self.producer.flush(60) == 0 and not self.failures, self.failures[:3]
        return self


def send(kafka, topic, events, **config):
    sender = Sender(kafka, topic, **config)
    for id, key, value in events:
        sender.send(id, key, value)
    sender.flush()


def numbered(count, keys, start=0):
    """Events e0, e1, … of which consecutive ones belong to different keys."""
    return [(f"e{n:06}", f"k{n % keys}", f'{{"n": {n}}}') for n in range(start, start + count)]


def wait_notes(db, count, *daemons, timeout=None):
    """Until so many effects are there, while these consumers live."""
    def enough():
        for one in daemons:
            assert one.alive, f"outboxd ended with {one.process.returncode}:\n{one.tail()}"
        return db.value("SELECT count(*) FROM notes") >= count

    wait_until(enough, lambda: f"{count} notes; there are {db.value('SELECT count(*) FROM notes')}", timeout, pause=0.05)


def check_notes(db, expected, ordered=True):
    """Every expected id has exactly one note, and no other has one; within a key the order of `expected`. `n` is taken inside the
    handler, and the notes of a key are written one transaction after the other, so it is the order of effects."""
    rows = db.execute("SELECT event_id, key FROM notes ORDER BY n")
    counts = Counter(id for id, _ in rows)
    places = {id: at for at, (id, _, _) in enumerate(expected)}
    missing = [id for id in places if id not in counts]
    twice = [id for id, count in counts.items() if count > 1]
    strange = [id for id in counts if id not in places]
    disorder, last = [], {}
    for id, key in rows:
        at = places.get(id, -1)
        if key is not None and last.get(key, -1) > at:
            disorder.append(id)
        last[key] = max(at, last.get(key, -1))
    assert not missing and not twice and not strange and not (ordered and disorder), (
        f"{len(missing)} missing {missing[:5]}, {len(twice)} twice {twice[:5]}, {len(strange)} strange {strange[:5]}, "
        f"{len(disorder)} out of order {disorder[:5]}")


def committed(kafka, topic, group="g"):
    """partition → committed offset of the group."""
    consumer = Consumer({"bootstrap.servers": kafka.internal, "group.id": group, "log_level": 0})
    try:
        count = len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        return {p.partition: p.offset for p in consumer.committed([TopicPartition(topic, n) for n in range(count)], timeout=30)}
    finally:
        consumer.close()
