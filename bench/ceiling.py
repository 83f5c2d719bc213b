"""The bare ceiling: claim and mark over two connections, on the same table, with nobody to publish to.

Each connection takes half of the lanes, 2,000 rows a transaction by ordered index scans, and marks them by ctid; mark,
COMMIT, BEGIN and the next claim travel in one round trip. Only the rows' places leave the server: no relay that really
sends the events can be faster than this on the same machine.
"""

import threading
import time

BATCH, CONNECTIONS, LANES = 2000, 2, 16

CLAIM = """
    SELECT coalesce(array_agg(taken.ctid)::text, '{}') FROM unnest(%s::smallint[]) AS mine(lane)
     CROSS JOIN LATERAL (SELECT ctid FROM outbox_events e WHERE e.lane = mine.lane AND e.status = 0
                          ORDER BY e.seq LIMIT %s FOR UPDATE SKIP LOCKED) AS taken"""
MARK = "UPDATE outbox_events SET status = 1, published_at = clock_timestamp() WHERE ctid = ANY(%s::tid[])"


def work(connect, lanes, failures):
    try:
        with connect() as conn:
            conn.prepare_threshold = 0
            conn.execute("BEGIN")
            claimed = conn.execute(CLAIM, (lanes, BATCH // len(lanes))).fetchone()[0]
            while claimed != "{}":
                with conn.pipeline():
                    conn.execute(MARK, (claimed,))
                    conn.execute("COMMIT")
                    conn.execute("BEGIN")
                    answer = conn.execute(CLAIM, (lanes, BATCH // len(lanes)))
                    claimed = answer.fetchone()[0]
            conn.execute("COMMIT")
    except Exception as failure:  # handed to the caller
        failures.append(failure)


def measure(db):
    """Rows a second until every NEW row of the table is marked."""
    rows = db.value("SELECT count(*) FROM outbox_events WHERE status = 0")
    failures = []
    halves = [list(range(n, LANES, CONNECTIONS)) for n in range(CONNECTIONS)]
    threads = [threading.Thread(target=work, args=(db.connect, lanes, failures)) for lanes in halves]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    if failures:
        raise failures[0]
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 0") == 0
    return rows / seconds
