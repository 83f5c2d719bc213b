"""Rows in the states that the way would have left them in, and a look at them."""

TOPIC = "isolation"


def put(db, key, status=0, retry_after=None, topic=TOPIC, routing_key=None):
    """One row in the state that the way would have left it in; returns its seq."""
    return db.value("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, retry_after, routing_key) "
                    "VALUES (%s, 'order', %s, '{}', %s, %s, %s) RETURNING seq", topic, key, status, retry_after, routing_key)


def held(db, key, **columns):
    return put(db, key, 2, "infinity", **columns)


def state(db, *seqs):
    """(status, retry_after is infinite) of rows."""
    found = dict((row[0], row[1:]) for row in db.execute(
        "SELECT seq, status, coalesce(retry_after = 'infinity', false) FROM outbox_events WHERE seq = ANY (%s)", list(seqs)))
    return [found[seq] for seq in seqs]


def park(db, topic, seq, lane=0):
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "VALUES (%s, 'missing', now() + interval '1 day', %s, %s)", topic, seq, lane)


def parked(db):
    return [row[0] for row in db.execute("SELECT topic FROM outbox_parked_topics ORDER BY topic")]


def keys_of_one_lane(db, count):
    return [row[0] for row in db.execute("SELECT 'key-' || n FROM generate_series(1, 10000) n "
                                         "WHERE outbox_lane('key-' || n) = 3 ORDER BY n LIMIT %s", count)]
