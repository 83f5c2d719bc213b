"""A million expired rows leave beside full load, by two daemons at once, and nobody notices."""

import re
import threading
import time

from rig import judge as judges
from rig import process, writer
from rig.http import Window
from rig.process import wait_until

ROWS = 1_000_000
LOCKS_MS = 100  # a batch holds what it locks for less


class Watch(threading.Thread):
    """Looks every few milliseconds at how long purges have held what they hold, and who waits for whom."""

    def __init__(self, connect):
        super().__init__(daemon=True)
        self.connect, self.stop, self.batches, self.waits = connect, threading.Event(), {}, 0

    def run(self):
        with self.connect() as conn:
            while not self.stop.wait(0.003):
                for batch, ms, waits in conn.execute(
                        "SELECT (pid, xact_start)::text, 1e3 * extract(epoch FROM clock_timestamp() - xact_start), "
                        "wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE datname = current_database() "
                        "AND query LIKE '%gone AS (DELETE%' AND state <> 'idle' AND pid <> pg_backend_pid()"):
                    self.batches[batch] = float(ms)
                    self.waits += waits

    def percentile(self, percent):
        """Milliseconds that a batch held its locks, as far as it was seen."""
        return sorted(self.batches.values())[len(self.batches) * percent // 100]


def test_a_million_rows_beside_load(empty_db, topic, start, kafka):
    db = empty_db
    db.migrate("up")
    db.execute("INSERT INTO outbox_events (id, topic, aggregate_type, aggregate_id, payload, status, published_at) "
               "SELECT 'old-' || n, 'old', 'order', 'order-' || n %% 1000, jsonb_build_object('n', n, 'fill', repeat('x', 250)), 1, "
               "now() - interval '2 days' FROM generate_series(1::bigint, %s::bigint) n", ROWS)
    db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, retry_after, created_at) "
               "SELECT 'stays', 'order', 'k' || n, '{}', CASE WHEN n % 2 = 0 THEN 9 ELSE 2 END, 'infinity', now() - interval '9 days' "
               "FROM generate_series(1, 1000) n")
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "VALUES ('stays', 'for this test', 'infinity', 1, 0)")
    judges.install_ledger(db.conn, db.schema)
    db.execute("TRUNCATE rig.ledger")  # of what is there already, nothing is to be sent
    ports = [process.free_port() for _ in range(2)]
    watch = Watch(db.connect)
    with writer.Stream(db.connect, topic, keys=50, batch=200) as stream:
        pair = [start(db, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{port}", OUTBOX_PURGE_INTERVAL="1s", OUTBOX_LOG_LEVEL="debug") for port in ports]
        watch.start()
        begin = time.monotonic()
        wait_until(lambda: not db.value("SELECT EXISTS (SELECT FROM outbox_events WHERE topic = 'old')"), "all of them are purged", 600, 0.5)
        seconds = time.monotonic() - begin
        written = stream.written
    watch.stop.set()
    watch.join()
    wait_until(lambda: not db.value("SELECT EXISTS (SELECT FROM outbox_events WHERE status = 0)"), "the rest is sent", 300, 0.5)
    purged = [Window(port).metrics()['outboxd_purged_total{table="outbox_events"}'] for port in ports]
    longest = max(int(n) for one in pair for n in re.findall(r"longest batch so far took (\d+) ms", one.text()))
    print(f"{ROWS} rows in {seconds:.0f} s ({purged[0]:.0f} and {purged[1]:.0f} by two daemons), beside {written / seconds:.0f} events/s; "
          f"{len(watch.batches)} batches seen, half of them below {watch.percentile(50):.0f} ms, 95 % below {watch.percentile(95):.0f} ms, "
          f"all below {max(watch.batches.values()):.0f} ms, by their own account {longest} ms; {watch.waits} waits for a lock")
    assert sum(purged) == ROWS
    assert watch.waits == 0
    assert watch.percentile(95) < LOCKS_MS  # a machine that does other things, too, may stop us in the middle of some
    assert db.value("SELECT count(*) FROM outbox_events WHERE topic = 'stays'") == 1000
    judges.judge(kafka, db.conn, [topic]).check()
