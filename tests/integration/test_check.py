"""`outboxd check` against broken set-ups: each is named, with the command that mends it, and the command does."""

import contextlib
import json
import re
import time

import pytest
from confluent_kafka.admin import AclOperation, AlterConfigOpType, ConfigEntry, ConfigResource
from rig import clock, daemon, process
from rig.database import PASSWORD
from rig.writer import publish


@pytest.fixture
def check(db, kafka):
    def check(*, code=None, **settings):
        settings = {"OUTBOX_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap, **db.settings, **settings}
        done = daemon.call("check", "--json", **settings)
        assert PASSWORD not in done.stdout + done.stderr
        answer = json.loads(done.stdout)
        assert done.returncode == (1 if answer["errors"] else 0) and code in (None, done.returncode), done.stdout
        for finding in answer["findings"]:
            if finding["level"] in ("warning", "error"):
                assert finding["why"] and finding["remedy"], finding
            for line in commands(finding["remedy"]):
                process.run(["bash", "-n", "-c", re.sub("<.*?>", "", line)])
        return answer["findings"]

    return check


SQL = re.compile(r"(SELECT|GRANT|ALTER|CREATE|REINDEX|VACUUM|INSERT|COMMIT|ROLLBACK) .*;")


def commands(remedy):
    """The lines that one would paste into a shell."""
    return re.findall(r"^(?:OUTBOX_\w+=\S+ )?(?:outboxd|kafka-\w+\.sh) .*", remedy or "", re.M)


def statements(remedy):
    """Those for psql."""
    return [line for line in remedy.splitlines() if SQL.fullmatch(line)]


def finding(findings, name, level, *words):
    """The one finding of that name and level that says all the words; its remedy."""
    for found in findings:
        text = f"{found['seen']} {found['remedy']}"
        if found["name"] == name and found["level"] == level and all(word in text for word in words):
            return found["remedy"] or ""
    raise AssertionError(f"no {level} {name} with {words} in {json.dumps(findings, indent=1)}")


def troubles(findings, *names):
    """What is above info, without those of the shared server that another test may cause."""
    return [found for found in findings if found["level"] in ("warning", "error") and found["name"] not in (*names, "xmin", "slot")]


@pytest.mark.short
def test_healthy(db, kafka, topic, check):
    publish(db.conn, topic, "k")
    found = check(code=0)
    assert troubles(found) == []
    people = daemon.call("check", OUTBOX_KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap, **db.settings)
    assert people.returncode == 0 and "0 errors" in people.stdout
    assert {f["name"] for f in found if f["level"] == "ok"} >= {"version", "schema", "privileges", "index", "connection", "topic"}


def test_usage_and_bad_settings(db):
    assert daemon.call("check", "--nonsense").returncode == 64
    assert daemon.call("check", OUTBOX_WORKERS="none").returncode == 78
    assert daemon.call("check", OUTBOX_DATABASE_URL="postgresql://u:%zz@h/d").returncode == 78
    assert daemon.call("check", **db.settings, OUTBOX_KAFKA_NO_SUCH="1").returncode == 78


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def role(cluster, name, sql=""):
    cluster.execute(f"DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN {sql}")
    try:
        yield name
    finally:
        cluster.execute(f"DROP ROLE {name}")


def test_missing_grant(db, check):
    with role(db.cluster, "clerk"):
        url = db.cluster.url(db.name, "clerk", PASSWORD)
        db.execute("GRANT SELECT, UPDATE ON outbox_events, outbox_lanes TO clerk")
        grants = [f["remedy"] for f in check(OUTBOX_DATABASE_URL=url) if f["name"] == "privileges"]
        assert "GRANT DELETE ON public.outbox_events TO clerk;" in grants
        assert "GRANT SELECT, INSERT, UPDATE, DELETE ON public.outbox_parked_topics TO clerk;" in grants
        for grant in grants:
            db.execute(grant)
        assert troubles(check(code=0, OUTBOX_DATABASE_URL=url)) == []
        db.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
        remedy = finding(check(OUTBOX_DATABASE_URL=url), "privileges", "error", "public")
        assert statements(remedy) == ["GRANT USAGE ON SCHEMA public TO clerk;"]
        db.execute("DROP OWNED BY clerk")


def test_the_shipped_roles_are_enough(db, check):
    """sql/roles.sql: the relay's role leaves nothing to complain about but the sight of others' transactions."""
    with role(db.cluster, "relay_user"):
        script = daemon.SOURCE / "sql/roles.sql"
        process.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", "-v", "schema=public", "-d", db.cluster.url(db.name), "-f", script])
        db.execute("GRANT outbox_relay TO relay_user")
        found = check(code=0, OUTBOX_DATABASE_URL=db.cluster.url(db.name, "relay_user", PASSWORD))
        assert troubles(found) == []
        assert "GRANT pg_read_all_stats TO relay_user" in finding(found, "xmin", "info", "others")
        db.execute("DROP OWNED BY relay_user, outbox_relay, outbox_writer, outbox_reader")
        db.cluster.execute("DROP ROLE outbox_relay, outbox_writer, outbox_reader")


def test_the_shipped_roles_where_functions_are_not_for_everybody(db, check):
    db.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC")
    roles = ("outbox_writer", "outbox_relay", "outbox_reader")
    with role(db.cluster, "clerk"), role(db.cluster, "worker"), role(db.cluster, "guest"):
        url, look = (db.cluster.url(db.name, user, PASSWORD) for user in ("worker", "guest"))
        db.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO worker")
        done = daemon.call("run", **db.settings | {"OUTBOX_DATABASE_URL": url}, OUTBOX_HTTP_LISTEN="off",
                           OUTBOX_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
        assert done.returncode == 78 and "lacks a privilege: EXECUTE ON FUNCTION outbox_topics" in done.stderr
        grants = [f["remedy"] for f in check(OUTBOX_DATABASE_URL=url) if f["name"] == "privileges"]
        assert "GRANT EXECUTE ON FUNCTION public.outbox_lane(key text) TO worker;" in grants and len(grants) == 3
        script = daemon.SOURCE / "sql/roles.sql"
        process.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", "-v", "schema=public", "-d", db.cluster.url(db.name), "-f", script])
        for name, user in zip(roles, ("clerk", "worker", "guest"), strict=True):
            db.execute(f"GRANT {name} TO {user}")
        assert troubles(check(code=0, OUTBOX_DATABASE_URL=url)) == []
        with db.connect(user="clerk") as clerk:
            assert clerk.execute("SELECT outbox_publish('t', 'order', 'o', '{}'), inbox_accept('g', 'e')").fetchone()[1]
        for args in (("status",), ("events", "list", "--topic", "t", "--key", "o")):
            assert daemon.call(*args, OUTBOX_DATABASE_URL=look).returncode == 0
        with db.connect(user="guest") as guest:
            assert guest.execute("SELECT status FROM outbox_backlog").fetchall() == [("NEW",)]
        db.execute(f"DROP OWNED BY clerk, worker, guest, {', '.join(roles)}")
        db.cluster.execute(f"DROP ROLE {', '.join(roles)}")


def test_wrong_password_and_no_server(db, check):
    with role(db.cluster, "locked", "PASSWORD 'the right one'"):
        remedy = finding(check(OUTBOX_DATABASE_URL=db.cluster.url(db.name, "locked", PASSWORD)), "connection", "error",
                         "password authentication failed", "locked")
        assert "OUTBOX_DATABASE_URL" in remedy and "ALTER ROLE" in remedy
    url = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{process.free_port()}/x"
    assert "pg_isready" in finding(check(OUTBOX_DATABASE_URL=url), "connection", "error", "refused")
    assert "CREATE DATABASE" in finding(check(OUTBOX_DATABASE_URL=db.cluster.url("nowhere")), "connection", "error", "nowhere")


def test_a_database_that_takes_every_byte(cluster, check):
    cluster.execute("DROP DATABASE IF EXISTS bytes")
    cluster.execute("CREATE DATABASE bytes TEMPLATE template0 ENCODING SQL_ASCII LOCALE 'C'")
    try:
        assert "-E UTF8" in finding(check(OUTBOX_DATABASE_URL=cluster.url("bytes")), "encoding", "warning", "SQL_ASCII")
    finally:
        cluster.drop_database("bytes")


def test_autovacuum_off(db, check):
    db.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
    remedy = finding(check(), "autovacuum", "warning", "outbox_events")
    db.execute(remedy)
    assert troubles(check()) == []


def test_autovacuum_off_in_the_server(new_cluster, new_db, check):
    db = new_db(new_cluster(settings={"autovacuum": "off"})).prepare()
    assert "ALTER SYSTEM SET autovacuum = on" in finding(check(**db.settings), "autovacuum", "warning", "server")


def test_held_xmin(new_cluster, new_db, check):
    """Somebody's transaction, a prepared one and an abandoned slot, each for ten thousand transactions."""
    cluster = new_cluster(settings={"max_prepared_transactions": "2", "wal_level": "logical"})
    db = new_db(cluster).prepare()
    cluster.execute("SELECT pg_create_physical_replication_slot('forgotten', true)")
    with db.connect(application_name="report") as sleeper, db.connect() as preparer:
        sleeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        sleeper.execute("SELECT count(*) FROM outbox_events")
        preparer.execute("BEGIN; CREATE TABLE x (); PREPARE TRANSACTION 'lost and found'")
        db.execute("CREATE TABLE waste (n int)")
        db.execute("""DO $$ BEGIN FOR n IN 1..10100 LOOP
            BEGIN INSERT INTO waste VALUES (n); EXCEPTION WHEN unique_violation THEN NULL; END; END LOOP; END $$""")
        found = check(**db.settings)
        pid = sleeper.info.backend_pid
        assert re.search(r"open for [\d.]+ (m \d+ )?s, over", json.dumps(found))
        [end] = statements(finding(found, "xmin", "warning", f"pid {pid} ", "report", "10"))
        [commit, rollback] = statements(finding(found, "xmin", "warning", "prepared transaction", db.name))
        [drop] = statements(finding(found, "slot", "warning", "forgotten"))
        for statement in (end, rollback, drop):
            db.execute(statement)
        sleeper.close()
    assert commit.startswith("COMMIT PREPARED 'lost and found'")
    assert {f["name"] for f in check(**db.settings) if f["level"] == "warning"} == set()


def test_clocks_that_differ(db, check, root):
    """The host's clock is an hour ahead."""
    jumping = clock.Jumping(root, db.name)
    jumping.by(1)
    ahead = check(code=0, **jumping)
    assert "timedatectl" in finding(ahead, "clock", "warning", "3600.")
    assert "clock" not in {f["name"] for f in check(code=0)}


def test_a_transaction_of_more_than_a_minute(db, check, root):
    """What a minute is, PostgreSQL's clock decides: here it is waited for."""
    with db.connect(application_name="lunch") as sleeper:
        sleeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        sleeper.execute("SELECT count(*) FROM outbox_events")
        assert "lunch" not in json.dumps(check())
        time.sleep(61)
        assert "pg_terminate_backend" in finding(check(), "xmin", "warning", "lunch", "open for 1 m ")


def test_read_only_by_default(db, check):
    db.execute(f"ALTER DATABASE {db.name} SET default_transaction_read_only = on")
    remedy = finding(check(code=1), "read-only", "error", "default_transaction_read_only")
    db.execute("SET default_transaction_read_only = off")
    for statement in remedy.rstrip(";").split(";"):
        db.execute(statement)
    assert troubles(check(code=0)) == []


def test_bloat(new_cluster, new_db, check):
    db = new_db(new_cluster(settings={"autovacuum": "off"})).prepare()
    db.execute("ALTER TABLE outbox_events DISABLE TRIGGER rig_note")
    db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload) SELECT 't', 'o', 'k', '{}' "
               "FROM generate_series(1, 200100)")
    db.execute("DELETE FROM outbox_events")
    db.execute("SELECT pg_stat_force_next_flush()" if db.conn.info.server_version >= 150000 else "SELECT pg_sleep(1)")
    db.conn.close()
    found = process.wait_until(lambda: [f for f in check(**db.settings) if f["name"] == "bloat"], "counted", 30)
    assert "200100 dead rows" in found[0]["seen"]
    [vacuum] = statements(found[0]["remedy"])
    db.execute(vacuum)
    process.wait_until(lambda: "bloat" not in {f["name"] for f in check(**db.settings)}, "gone", 30)


def test_pgbouncer(db, check, new_pgbouncer):
    url = db.cluster.url(db.name, "postgres", PASSWORD, new_pgbouncer(db.cluster).port)
    finding(check(code=0, OUTBOX_DATABASE_URL=url), "pgbouncer", "info", "PgBouncer")
    assert "OUTBOX_NOTIFY=off" in finding(check(OUTBOX_DATABASE_URL=url, OUTBOX_NOTIFY="on"), "pgbouncer", "warning", "OUTBOX_NOTIFY")


def test_missing_and_invalid_index(db, check):
    db.execute("DROP INDEX outbox_events_ready")
    db.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_events_dead'::regclass")
    found = check(code=1)
    create = finding(found, "index", "error", "outbox_events_ready", "missing")
    assert create.startswith("CREATE INDEX CONCURRENTLY outbox_events_ready ON \"public\".outbox_events (lane, seq) WHERE ")
    reindex = finding(found, "index", "error", "outbox_events_dead", "not valid")
    assert "REINDEX" in reindex
    db.execute(create)
    db.execute(reindex)
    assert troubles(check(code=0)) == []


def test_schema_missing_older_newer(db, check):
    last = db.value("SELECT max(version) FROM outbox_schema_version")
    db.execute("INSERT INTO outbox_schema_version (version, name, checksum) VALUES (%s, 'later', 'x')", last + 1)
    finding(check(code=1), "schema", "error", "newer", str(last + 1))
    db.execute("DELETE FROM outbox_schema_version WHERE version > %s", last)
    db.migrate("down", "--to", str(last - 1))
    assert finding(check(code=1), "schema", "error", f"version {last - 1}") == "outboxd migrate up"
    assert "migrate up" in finding(check(code=1, OUTBOX_SCHEMA="elsewhere"), "schema", "error", "elsewhere")


@pytest.mark.parametrize("kind, name", [("TABLE", "outbox_parked_topics"), ("TABLE", "processed_events"), ("FUNCTION", "outbox_topics")])
def test_a_table_or_function_that_is_missing(db, check, kind, name):
    """As a backup in parts may leave it, while outbox_schema_version says that all is there."""
    db.execute(f"ALTER {kind} {name} RENAME TO lost")
    assert commands(finding(check(code=1), "schema", "error", f"{kind.lower()} {name} is missing")) == ["outboxd migrate print"]
    db.execute(f"ALTER {kind} lost RENAME TO {name}")
    assert troubles(check(code=0)) == []


def test_tables_that_were_changed(db, check):
    db.execute("ALTER TABLE outbox_events ALTER COLUMN payload SET STORAGE EXTENDED")
    db.execute("ALTER TABLE outbox_events ALTER COLUMN seq SET CACHE 20")
    db.execute("ALTER TABLE outbox_events RESET (autovacuum_vacuum_scale_factor)")
    db.execute("DELETE FROM outbox_lanes WHERE lane = 3")
    found = check(code=1, OUTBOX_NOTIFY="on")
    for remedy in (finding(found, "storage", "warning", "payload"), finding(found, "sequence", "error", "20"),
                   finding(found, "lanes", "error", "15 rows"), finding(found, "autovacuum", "warning", "lost")):
        db.execute(remedy)
    assert commands(finding(found, "notify", "warning", "trigger")) == ["OUTBOX_NOTIFY=on outboxd migrate up"]
    db.migrate("up", OUTBOX_NOTIFY="on")
    assert troubles(check(code=0, OUTBOX_NOTIFY="on")) == []


def test_an_odd_schema_name(new_db, check):
    db = new_db(schema='odd "na\'me"').prepare()
    assert troubles(check(code=0, **db.settings)) == []


def test_dead_and_parked(db, topic, check):
    publish(db.conn, topic, "k")
    publish(db.conn, "no topic!", "k")  # no name for a topic: its error says so, and looking again does not help
    db.execute("UPDATE outbox_events SET status = 9")
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "VALUES ('locked', 'Topic authorization failed', now(), 1, 1)")
    found = check()
    assert "events list --status dead" in finding(found, "dead", "info", "2 DEAD")
    assert not any("no topic!" in f["seen"] for f in found)
    assert "events retry --topic locked" in finding(found, "parked", "warning", "authorization failed")


# --- Kafka -----------------------------------------------------------------------------------------------------------


def test_no_kafka(check):
    port = process.free_port()
    assert "OUTBOX_KAFKA_BOOTSTRAP_SERVERS" in finding(check(code=1, OUTBOX_KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{port}"),
                                                       "connection", "error", str(port))


def test_missing_topic(db, kafka, check):
    """Waiting as NEW, held, routed or dead: every way in which an event can wait for a topic. And nobody creates it."""
    names = {kind: f"missing-{kind}-{process.free_port()}" for kind in ("new", "held", "routed", "dead", "grave", "other")}
    for kind, name in names.items():
        if kind not in ("grave", "other"):
            publish(db.conn, "x" if kind == "routed" else name, kind, **({"routing_key": name} if kind == "routed" else {}))
    db.execute("UPDATE outbox_events SET status = 2, retry_after = 'infinity' WHERE aggregate_id IN ('held', 'routed')")
    db.execute("UPDATE outbox_events SET status = 9 WHERE aggregate_id = 'dead'")
    found = check(code=1, OUTBOX_DEAD_TOPIC=names["grave"], OUTBOX_CONSUMER_DEAD_TOPIC=names["other"])
    for name in names.values():
        remedy = finding(found, "topic", "error", name)
        assert f"kafka-topics.sh --bootstrap-server {kafka.bootstrap} --create --topic {name} " in remedy
    finding(found, "topic", "error", "OUTBOX_DEAD_TOPIC", names["grave"])
    finding(found, "topic", "error", "OUTBOX_CONSUMER_DEAD_TOPIC", names["other"])
    assert not set(names.values()) & set(kafka.admin.list_topics(timeout=10).topics)
    assert not any(re.search(r"topic x ", f["seen"]) for f in found)  # the list replaces it


def test_small_topic_limit(db, new_topic, check):
    topic = new_topic(max_message_bytes=5000)
    publish(db.conn, topic, "k")
    remedy = finding(check(code=0), "size", "warning", topic, "5000", "1000000")
    assert "kafka-configs.sh" in remedy and "OUTBOX_KAFKA_MESSAGE_MAX_BYTES=5000" in remedy
    assert troubles(check(OUTBOX_KAFKA_MESSAGE_MAX_BYTES=5000)) == []


def test_replicas(db, kafka, topic, check):
    entry = ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
    for future in kafka.admin.incremental_alter_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])]).values():
        future.result(30)
    publish(db.conn, topic, "k")
    assert "min.insync.replicas=1" in finding(check(code=1), "replicas", "error", topic)


def login(kafka, password=None):
    return {"OUTBOX_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap, **kafka.sasl("newcomer", password)}


def test_denied_acl(db, guarded, check):
    topic = guarded.create_topic(f"denied-{process.free_port()}")
    publish(db.conn, topic, "k")
    found = check(code=1, **login(guarded))
    remedy = finding(found, "acl", "error", topic)
    assert "kafka-acls.sh" in remedy and "--allow-principal User:newcomer" in remedy and "--operation Write" in remedy
    assert "IdempotentWrite" in finding(found, "acl", "error", "producer")
    guarded.allow(topic, "newcomer", [AclOperation.DESCRIBE])  # may look, may not write
    finding(check(code=1, **login(guarded)), "acl", "error", "IdempotentWrite")
    guarded.allow(topic, "newcomer", [AclOperation.WRITE])
    process.wait_until(lambda: troubles(check(**login(guarded))) == [], "granted", pause=0.5)
    assert "DescribeConfigs" in finding(check(**login(guarded)), "size", "info", topic)


def test_wrong_kafka_password(guarded, check):
    found = check(code=1, **login(guarded, "Wr0ng-4nd-secret"))
    assert "OUTBOX_KAFKA_SASL_PASSWORD" in finding(found, "authentication", "error", "uthentication")
    assert "Wr0ng-4nd-secret" not in json.dumps(found)


def test_scram_with_an_old_librdkafka(guarded, check):
    settings = {**login(guarded), "OUTBOX_KAFKA_SASL_MECHANISM": "SCRAM-SHA-256"}
    if daemon.librdkafka() < (2, 6, 1):
        assert "PLAIN" in finding(check(**settings), "librdkafka", "warning", "SCRAM")


def test_settings_without_effect(check):
    found = check(code=0, OUTBOX_KAFKA_LINGER_MS=5)
    assert "OUTBOX_BATCH_SIZE" in finding(found, "librdkafka", "warning", "OUTBOX_KAFKA_LINGER_MS")
    assert "password" not in json.dumps(found)  # that is another trap's


def test_marks_that_expire_before_the_messages(check, new_topic):
    """Equal is too short: Kafka deletes whole segments, later."""
    equal, short = new_topic(partitions=1, retention_ms=7 * 86400000), new_topic(partitions=1, retention_ms=3600000)
    forever = new_topic(partitions=1, cleanup_policy="compact")
    found = check(OUTBOX_CONSUMER_TOPICS=f"{equal},{short},{forever},missing")
    remedy = finding(found, "retention", "warning", equal, "for 7d")
    assert remedy.startswith("OUTBOX_INBOX_RETENTION=9d")
    finding(found, "retention", "warning", forever, "for ever")
    assert len(troubles(found)) == 2
    assert troubles(check(OUTBOX_CONSUMER_TOPICS=equal, OUTBOX_INBOX_RETENTION="9d")) == []


def test_what_a_consumer_needs_of_inbox_dead(db, check):
    eater = {"OUTBOX_DATABASE_URL": db.cluster.url(db.name, "eater")}
    db.execute("DO $$ BEGIN CREATE ROLE eater LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
               "GRANT ALL ON ALL TABLES IN SCHEMA public TO eater; REVOKE UPDATE ON inbox_dead FROM eater")
    assert "GRANT UPDATE ON public.inbox_dead TO eater" in finding(check(**eater), "privileges", "error", "UPDATE on inbox_dead")
