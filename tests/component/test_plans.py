"""What the way costs the database, read from the plans of the daemon's own statements: work for the batch, not the backlog."""

import pytest
from rig import plans, postgres, writer
from rig.database import PASSWORD, Database
from rig.process import wait_until
from rig.statements import sql

MILLION = 1_000_000
WAY = {name: sql("claim.c", name) for name in ("take", "skipped", "troubles", "look")}
ASIDE = {name: sql("obstacles.c", name) for name in ("parked_topics", "stuck_topics")}
PROBES, DRAINED = sql("obstacles.c", "probes"), sql("obstacles.c", "drained")


@pytest.fixture(scope="module")
def big_cluster(root):
    settings = {"shared_buffers": "'512MB'", "autovacuum": "off", "full_page_writes": "off"}
    cluster = postgres.Cluster(root, "plans", settings).create().start()
    yield cluster
    cluster.destroy()


def fill(db, topic, count, columns="", values=""):
    """Rows with ids of their own: making a million ULIDs would take longer than all the rest."""
    db.execute(f"""INSERT INTO outbox_events (id, topic, aggregate_type, aggregate_id, payload{columns})
                   SELECT lpad(n::text, 26, '0'), %s, 'order', 'order-' || n %% 5000, '{{"n": 1}}'{values}
                   FROM generate_series(1, {count}) n""", topic)
    db.execute("VACUUM ANALYZE outbox_events")


@pytest.fixture
def backlog(big_cluster, kafka):
    """A million NEW rows."""
    db = Database(big_cluster)
    db.migrate()
    fill(db, kafka.create_topic("plans"), MILLION)
    yield db
    db.drop()


@pytest.fixture
def held(big_cluster):
    """A million rows that wait for a topic that nobody can write to."""
    db = Database(big_cluster)
    db.migrate()
    fill(db, "nowhere", MILLION, ", status, retry_after, last_error", ", 2, 'infinity', 'parked: missing'")
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "SELECT 'nowhere', 'missing', now() + interval '1 day', seq, lane FROM outbox_events WHERE seq = 1")
    yield db
    db.drop()


def sent(db):
    return db.value("SELECT count(*) FROM outbox_events WHERE status = 1")


def work(start, db, until, what, **settings):
    """Lets a daemon work until the condition holds; returns what its sessions logged."""
    log = plans.Log(db.cluster)
    daemon = start(db, OUTBOX_DATABASE_URL=plans.explained(db.url), **settings)
    wait_until(lambda: until(log), what)
    assert daemon.stop() == 0
    return log


def check(log, statements):
    for name, text in statements.items():
        found = log.of(text)
        assert found, f"no plan of {name} in the log"
        for plan in found:
            assert not plans.faults(plan), f"{name}: {plans.faults(plan)}"


def test_the_claim_reads_its_own_lanes_in_order_and_nothing_else(backlog, start):
    log = work(start, backlog, lambda _: sent(backlog) >= 40_000, "40,000 of a million are sent", OUTBOX_WORKERS=4)
    check(log, {name: WAY[name] for name in ("take", "skipped", "troubles")})
    for plan in log.of(WAY["take"]):
        fetched = sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in plans.scans(plan))
        assert fetched <= 2000, "a claim reads what it takes"

    backlog.execute("UPDATE outbox_events SET status = 1, published_at = now() "
                    "WHERE status = 0 AND seq <= (SELECT min(seq) FROM outbox_events) + %s", int(MILLION * 0.9))
    left = backlog.unfinished()
    assert left <= 100_000
    log = work(start, backlog, lambda log: backlog.unfinished() == 0 and len(log.of(WAY["look"])) > 10,
               "the rest is sent, and the daemon looks for more", OUTBOX_WORKERS=4)
    check(log, WAY)


def test_nobody_reads_a_million_waiting_rows(held, start, new_topic):
    """Neither an idle look nor a claim of other topics, be it in the lanes and of the keys of those that wait."""
    topic = new_topic()

    def idle(log):
        return len(log.of(WAY["look"])) > 20

    log = work(start, held, idle, "the daemon looks for work", OUTBOX_WORKERS=4)
    check(log, WAY)
    assert max(map(plans.buffers, log.of(WAY["look"]))) < 150

    writer.bulk(held.conn, topic, 50, keys=5000)
    writer.bulk(held.conn, "nowhere", 50, keys=5000)
    log = work(start, held, lambda log: sent(held) == 50 and idle(log), "the other topic's events are sent",
               OUTBOX_WORKERS=4)
    check(log, {**WAY, **ASIDE, "blocking": sql("obstacles.c", "blocking")})
    for name, text in {**WAY, **ASIDE}.items():
        assert max(map(plans.buffers, log.of(text))) < 500, name

    held.execute("UPDATE outbox_parked_topics SET probe_after = now()")
    log = work(start, held, lambda log: log.of(PROBES), "the topic is tried", OUTBOX_WORKERS=4)
    check(log, {"probes": PROBES})
    assert max(map(plans.buffers, log.of(PROBES))) < 500
    assert held.value("SELECT count(*) FROM outbox_events WHERE retry_after = 'infinity'") == MILLION + 50


def test_a_queue_does_not_search_the_backlog_before_it(big_cluster, start, new_topic):
    """Rows of a topic that drains stand behind many ready ones, as after a long transaction that committed late: a claim looks
    at a few of these and not, for each row that comes back, at all of them."""
    db, back, other = Database(big_cluster), new_topic(), new_topic()
    db.migrate()
    fill(db, other, 100_000)
    writer.bulk(db.conn, back, 10_000, keys=5000)
    db.execute("UPDATE outbox_events SET status = 2, retry_after = 'infinity' WHERE topic = %s", back)
    db.execute("VACUUM ANALYZE outbox_events")
    db.execute("INSERT INTO outbox_parked_topics (topic, state, reason, probe_after, probe_seq, probe_lane) "
               "VALUES (%s, 'draining', 'was missing', now(), 1, 0)", back)
    log = work(start, db, lambda _: db.unfinished() == 0, "all is sent", OUTBOX_WORKERS=2)
    for plan in log.of(DRAINED):
        read = sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in plans.scans(plan)
                   if scan["Index Name"] == "outbox_events_ready")
        assert read <= 16 * 64
    db.drop()


PREPARED = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'looked_at'"
OF_STREAMS = [("obstacles.c", "blocking"), ("obstacles.c", "drained"), ("obstacles.c", "probes"), ("mark.c", "release"),
              ("sweep.c", "sweep_topic"), ("parking.c", "unpark"), ("parking.c", "elect")]


@pytest.mark.parametrize("file, name", OF_STREAMS, ids=[name for _, name in OF_STREAMS])
def test_a_plan_made_while_nothing_waits_is_good_when_much_does(db, file, name):
    """A session keeps its plans until the table is analysed again. An empty index looks as good as any other, and by that of
    topic and seq each look at a stream would read all of its topic."""
    fill(db, "there", 1000, ", status", ", 1")
    with db.connect(prepare_threshold=None) as conn:
        conn.execute("SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; SET jit = off; "
                     "SET plan_cache_mode = force_generic_plan")
        conn.execute(f"PREPARE looked_at AS {sql(file, name)}")
        values = ", ".join(["NULL"] * conn.execute(PREPARED).fetchone()[0])
        plan = "\n".join(row[0] for row in conn.execute(f"EXPLAIN EXECUTE looked_at ({values})"))
    assert "outbox_events_held" in plan
    assert "outbox_events_queue" not in plan


def test_the_janitor_does_not_read_the_table(big_cluster, start):
    """All that waits is of one key: the planner believes that a row can be found everywhere, and there is none in other lanes."""
    db = Database(big_cluster)
    db.migrate()
    fill(db, "nowhere", 20_000, ", partition_key, status, retry_after", ", 'hot', 2, 'infinity'")
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "SELECT 'nowhere', 'missing', now() + interval '1 day', seq, lane FROM outbox_events WHERE seq = 1")
    statements = [sql("parking.c", name) for name in ("unpark", "elect")]
    log = work(start, db, lambda log: all(map(log.of, statements)), "the janitor has looked at the parked topic")
    for text in statements:
        for plan in log.of(text):
            assert not any(scan["Node Type"] == "Seq Scan" for scan in plans.scans(plan))
    db.drop()


def test_a_look_behind_a_pooler_does_not_read_the_table(big_cluster, start, new_pgbouncer):
    """There is no session to set the planner up for, and the statistics are of a time when all rows were ready."""
    db = Database(big_cluster)
    db.migrate()
    fill(db, "there", 200_000)
    db.execute("UPDATE outbox_events SET status = 1, published_at = now()")
    for name, value in plans.SETTINGS.items():
        db.execute(f"ALTER DATABASE {db.name} SET {name} = '{value}'")
    log = plans.Log(big_cluster)
    url = big_cluster.url(db.name, "postgres", PASSWORD, new_pgbouncer(big_cluster).port)
    daemon = start(db, OUTBOX_DATABASE_URL=url)
    wait_until(lambda: log.of(WAY["look"]), "the daemon looks for work")
    assert daemon.stop() == 0
    for plan in log.of(WAY["look"]):
        assert not any(scan["Node Type"] == "Seq Scan" for scan in plans.scans(plan))
    db.drop()
