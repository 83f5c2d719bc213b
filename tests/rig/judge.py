"""The judge: reads everything that the topics hold and compares it with what was committed.

Used by the integration and fault suites, the demo and the benchmarks alike. What was committed comes from the ledger
(`install_ledger`): a copy of every inserted row, made by a trigger inside the writer's own transaction, so it is right
also for writers that were cut off at COMMIT and for rows that the relay deletes after sending.

It looks for
- missing: a committed event that a topic of its route does not hold;
- phantom: a message whose id was never committed (rolled back, or made up), or went to a topic it should not go to;
- duplicate: the same id in the same topic once more;
- disorder: among first deliveries of one (topic, key), a message whose seq is lower than one before it;
- misplaced: another partition than the Java client's default partitioner would choose;
- altered: key, value or headers that are not those of the row.
"""

import contextlib
import gc
import json
from collections import Counter, namedtuple
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, TopicPartition

from .postgres import ident

OWN_HEADERS = ("id", "event_type", "aggregate_type", "aggregate_id", "tenant_id", "schema_version", "occurred_at")
FAULTS = ("missing", "phantom", "duplicate", "disorder", "misplaced", "altered")

Expected = namedtuple("Expected", "seq id topics key value headers")  # headers: what plain_headers takes, or None

COLUMNS = """seq, id, topic, routing_key, coalesce(partition_key, aggregate_id), payload::text, payload_bytes,
             headers::text, metadata::text, coalesce(event_type, topic), aggregate_type, aggregate_id, tenant_id,
             schema_version::text,
             to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


def install_ledger(conn, schema="public"):
    """Makes rig.ledger follow outbox_events. Rows that are there already are copied, too."""
    table = f"{ident(schema)}.outbox_events"
    conn.execute(f"""
        CREATE SCHEMA IF NOT EXISTS rig;
        CREATE TABLE IF NOT EXISTS rig.ledger (LIKE {table});
        INSERT INTO rig.ledger SELECT * FROM {table};
        CREATE OR REPLACE FUNCTION rig.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
            $$ BEGIN INSERT INTO rig.ledger SELECT * FROM written; RETURN NULL; END $$;
        CREATE TRIGGER rig_note AFTER INSERT ON {table} REFERENCING NEW TABLE AS written
            FOR EACH STATEMENT EXECUTE FUNCTION rig.note()""")


def topics_of(topic, routing_key):
    if routing_key is None:
        return (topic,)
    return tuple(dict.fromkeys(name.strip() for name in routing_key.split(",") if name.strip()))


def _text(value):
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def plain_headers(id, event_type, aggregate_type, aggregate_id, tenant_id, schema_version, occurred_at, own, metadata):
    """What OUTBOX_HEADERS=plain promises, as a dict. `own` and `metadata` are JSON texts. Values that are not texts are
    compared as JSON by same_headers."""
    own = {} if own == "{}" else json.loads(own)
    metadata = {} if metadata == "{}" else json.loads(metadata)
    headers = {"id": id, "event_type": event_type, "aggregate_type": aggregate_type, "aggregate_id": aggregate_id,
               "tenant_id": tenant_id, "schema_version": schema_version, "occurred_at": occurred_at}
    for name in ("traceparent", "tracestate"):
        if isinstance(metadata.get(name), str):
            headers[name] = metadata[name]
    for name, value in own.items():
        if name not in OWN_HEADERS:
            headers[name] = value
    return {name: None if value is None else _text(value) for name, value in headers.items()}


def _json(data):
    try:
        return json.loads(data)
    except (TypeError, ValueError, UnicodeDecodeError):
        return data


def same_time(a, b):
    """RFC 3339 in UTC, with as many decimals as the writer of the text liked."""
    def normal(text):
        text = text.decode().replace("+00:00", "Z").rstrip("Z")
        whole, _, fraction = text.partition(".")
        return whole, fraction.rstrip("0")

    return normal(a) == normal(b)


def same_headers(expected, found):
    if len(found) != len(expected):
        return False
    for name, value in found:
        if name not in expected:
            return False
        want = expected[name]
        if value == want:
            continue
        if value is None or want is None:
            return False
        if name == "occurred_at" and same_time(value, want):
            continue
        if name in OWN_HEADERS or _json(value) != _json(want):
            return False
    return True


@contextlib.contextmanager
def no_collector():
    """A million long-lived objects, none of them garbage: the collector would only walk over them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def committed(conn, table="rig.ledger", where="true", headers=True):
    """Every committed event, by id. `headers` False leaves the headers out of the comparison (other formats)."""
    events = {}
    shared = {}  # texts that many rows have in common are kept once
    with conn.cursor(binary=True) as cursor, no_collector():
        cursor.execute(f"SELECT {COLUMNS} FROM {table} WHERE {where} ORDER BY seq")
        while rows := cursor.fetchmany(20000):
            for (seq, id, topic, routing_key, key, payload, payload_bytes, own, metadata, *plain) in rows:
                value = payload_bytes if payload_bytes is not None else None if payload == "null" else payload.encode()
                topics = topics_of(topic, routing_key)
                expect = (*plain, own, metadata) if headers else None
                events[id] = Expected(seq, id, shared.setdefault(topics, topics), shared.setdefault(key, key.encode()),
                                      value, shared.setdefault(expect, expect))
    return events


def murmur2(data):
    """The hash of the Java client's default partitioner."""
    mask = 0xFFFFFFFF
    length = len(data)
    h = (0x9747B28C ^ length) & mask
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at:at + 4], "little")
        k = (k * 0x5BD1E995) & mask
        k ^= k >> 24
        k = (k * 0x5BD1E995) & mask
        h = ((h * 0x5BD1E995) & mask) ^ k
    rest = length & 3
    if rest == 3:
        h ^= data[whole + 2] << 16
    if rest >= 2:
        h ^= data[whole + 1] << 8
    if rest >= 1:
        h = ((h ^ data[whole]) * 0x5BD1E995) & mask
    h ^= h >> 13
    h = (h * 0x5BD1E995) & mask
    return h ^ (h >> 15)


def java_partition(key, partitions):
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def read_topics(bootstrap, topics, **config):
    """Yields lists of messages: everything between the watermarks of now, in order within each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False,
                         "auto.offset.reset": "earliest", "enable.partition.eof": False, "log_level": 0,
                         "queued.max.messages.kbytes": 65536, "fetch.message.max.bytes": 8 << 20,
                         "fetch.wait.max.ms": 20, **config})
    try:
        left = {}
        for topic in topics:
            found = consumer.list_topics(topic, timeout=30).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            for partition in found.partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
                if high > low:
                    left[topic, partition] = (low, high)
        consumer.assign([TopicPartition(t, p, low) for (t, p), (low, _) in left.items()])
        silent = 0
        while left:
            messages = consumer.consume(10000, timeout=1)
            silent = 0 if messages else silent + 1
            if silent > 60:
                raise AssertionError(f"Kafka holds messages that it does not hand out: {left}")
            wanted = []
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
                wanted.append(message)
                at = message.topic(), message.partition()
                if at in left and message.offset() + 1 >= left[at][1]:
                    del left[at]
            if wanted:
                yield wanted
            # Control records and aborted ones at the end of a partition come to nobody: ask for the position.
            if not messages and left:
                places = consumer.position([TopicPartition(*at) for at in left])
                for place in places:
                    if place.offset >= left[place.topic, place.partition][1]:
                        del left[place.topic, place.partition]
    finally:
        consumer.close()


@dataclass
class Verdict:
    committed: int = 0
    messages: int = 0
    counts: Counter = field(default_factory=Counter)
    examples: dict = field(default_factory=dict)
    per_id: Counter = field(default_factory=Counter)  # duplicates by id

    def note(self, fault, text):
        self.counts[fault] += 1
        examples = self.examples.setdefault(fault, [])
        if len(examples) < 5:
            examples.append(text() if callable(text) else text)

    def __getattr__(self, name):
        if name in FAULTS:
            return self.counts[name]
        raise AttributeError(name)

    def good(self, duplicates=0):
        """No fault, and at most so many duplicates."""
        return self.duplicate <= duplicates and all(not self.counts[f] for f in FAULTS if f != "duplicate")

    def check(self, duplicates=0):
        assert self.good(duplicates), str(self)
        return self

    def __str__(self):
        lines = [f"{self.committed} committed, {self.messages} messages: "
                 + ", ".join(f"{self.counts[fault]} {fault}" for fault in FAULTS)]
        for fault, texts in self.examples.items():
            lines += [f"  {fault}: {text}" for text in texts]
        return "\n".join(lines)


class Judge:
    """Takes messages one list after the other, in partition order; `close` says what is missing."""

    def __init__(self, events, partitions=None, ordered=True):
        self.events, self.partitions, self.ordered = events, partitions or {}, ordered
        self.verdict = Verdict(committed=len(events))
        self.seen = {}    # topic → ids
        self.last = {}    # (topic, key) → the first delivery with the highest seq
        self.places = {}  # (topic, key) → partition

    def take(self, messages):
        for message in messages:
            headers = message.headers() or []
            self.look(message.topic(), message.partition(), message.offset(), message.key(), message.value(), headers)

    def look(self, topic, partition, offset, key, value, headers):
        verdict = self.verdict
        verdict.messages += 1
        where = f"{topic}/{partition}@{offset}"
        id = next((v.decode() for n, v in headers if n in ("id", "ce_id") and v is not None), None)
        event = self.events.get(id)
        if event is None or topic not in event.topics:
            verdict.note("phantom", lambda: f"{where} key={key} id={id}")
            return
        seen = self.seen.setdefault(topic, set())
        first = id not in seen
        if first:
            seen.add(id)
        else:
            verdict.per_id[id] += 1
            verdict.note("duplicate", lambda: f"{where} key={key} id={id} seq={event.seq}")
        self._compare(event, where, key, value, headers)
        stream = topic, key
        if first and self.ordered:
            last = self.last.get(stream)
            if last is not None and last.seq > event.seq:
                verdict.note("disorder", lambda: f"{where} key={key} seq {event.seq} after {last.seq}")
            else:
                self.last[stream] = event
        if self.places.get(stream) != partition:
            self._place(stream, partition, where)

    def _place(self, stream, partition, where):
        topic, key = stream
        count = self.partitions.get(topic)
        right = java_partition(key or b"", count) if count else self.places.get(stream, partition)
        if partition != right:
            self.verdict.note("misplaced", lambda: f"{where} key={key} belongs to partition {right}")
        self.places[stream] = partition

    def _compare(self, event, where, key, value, headers):
        if key != event.key:
            self.verdict.note("altered", lambda: f"{where} id={event.id} key {key} instead of {event.key}")
        if value != event.value and (value is None or event.value is None or _json(value) != _json(event.value)):
            self.verdict.note("altered", lambda: f"{where} id={event.id} value {str(value)[:80]}"
                                                 f" instead of {str(event.value)[:80]}")
        if event.headers is not None:
            expected = plain_headers(event.id, *event.headers)
            if not same_headers(expected, headers):
                self.verdict.note("altered", lambda: f"{where} id={event.id} headers {headers} instead of {expected}")

    def close(self):
        for event in self.events.values():
            for topic in event.topics:
                if event.id not in self.seen.get(topic, ()):
                    self.verdict.note("missing", lambda: f"{topic} key={event.key} id={event.id} seq={event.seq}")
        return self.verdict


def judge(kafka, conn, topics, where="true", table="rig.ledger", headers=True, ordered=True, without=()):
    """Reads the topics to their ends and compares with the rows of `table`. `without`: ids that must not arrive."""
    events = committed(conn, table, where, headers)
    for id in without:
        events.pop(id)
    found = kafka.admin.list_topics(timeout=30).topics
    partitions = {topic: len(found[topic].partitions) for topic in topics}
    referee = Judge(events, partitions, ordered)
    with no_collector():
        for messages in read_topics(kafka.internal, topics):
            referee.take(messages)
    return referee.close()
