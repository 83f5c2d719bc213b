"""migrate up, down, status, print; two at once; what was tampered with is refused."""

import re
import subprocess

import pytest
from rig import daemon
from rig.database import PASSWORD
from rig.process import PATIENCE


def objects(db):
    return db.value("SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
                    "WHERE nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')")


def functions(db):
    return db.value("SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace")


def latest(db):
    return db.value("SELECT max(version) FROM outbox_schema_version")


def test_up_status_down(empty_db):
    db = empty_db
    assert db.migrate("status", check=False).returncode == 1
    assert objects(db) == 0, "status changes nothing"
    db.migrate("up")
    assert db.migrate("status").returncode == 0
    before = db.execute("SELECT version, name, checksum, applied_at FROM outbox_schema_version ORDER BY version")
    assert [row[0] for row in before] == list(range(1, len(before) + 1))
    db.migrate("up")
    assert db.execute("SELECT version, name, checksum, applied_at FROM outbox_schema_version ORDER BY version") == before
    assert db.migrate("down", check=False).returncode == 64, "down asks how far"
    db.migrate("down", "--to", "0")
    assert db.value("SELECT to_regclass('outbox_events')") is None
    assert db.migrate("status", check=False).returncode == 1
    assert functions(db) == 0
    db.migrate("up")
    assert db.value("SELECT count(*) FROM outbox_events") == 0


def test_up_and_down_by_steps(empty_db):
    db = empty_db
    db.migrate("up")
    last = latest(db)
    for version in range(last - 1, 0, -1):
        db.migrate("down", "--to", str(version))
        assert latest(db) == version
    for version in range(2, last + 1):
        db.migrate("up", "--to", str(version))
        assert latest(db) == version
    assert db.migrate("status").returncode == 0


def test_what_was_rolled_back_is_not_told_as_done(db):
    db.execute("CREATE VIEW ours AS SELECT id FROM outbox_events")
    last = latest(db)
    done = db.migrate("down", "--to", "0", check=False)
    assert (done.returncode, done.stdout) == (1, "") and "rolled back" in done.stderr
    assert latest(db) == last
    db.execute("DROP VIEW ours")
    assert db.migrate("down", "--to", "0").stdout.splitlines()[0].startswith(f"reverted {last:03}_")


@pytest.mark.parametrize("notify", ["off", "on"])
def test_print_is_sql_that_works(notify, empty_db):
    """For those who may not let a program change their schema: the text does the same."""
    text = empty_db.migrate("print", OUTBOX_NOTIFY=notify).stdout
    assert "CREATE TABLE" in text and PASSWORD not in text
    assert objects(empty_db) == 0, "print changes nothing"
    done = subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", empty_db.cluster.url(empty_db.name)], input=text, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    status = empty_db.migrate("status")
    assert status.returncode == 0 and f"notify trigger: {notify}" in status.stdout


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_several_at_once(empty_db, isolation):
    empty_db.execute(f"ALTER DATABASE {empty_db.name} SET default_transaction_isolation = '{isolation}'")
    command = [daemon.binary(), "migrate", "up"]
    env = daemon.environment(empty_db.settings)
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for _ in range(4)]
    for one in running:
        output, _ = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0, output
    assert empty_db.value("SELECT count(*) = max(version) FROM outbox_schema_version")
    assert empty_db.migrate("status").returncode == 0


@pytest.mark.parametrize("command", [("migrate", "up"), ("migrate", "status"), ("run",)])
def test_a_changed_migration_is_refused_with_its_name(command, db):
    [(name,)] = db.execute("UPDATE outbox_schema_version SET checksum = 'tampered' WHERE version = 1 RETURNING name")
    done = daemon.call(*command, **db.settings, OUTBOX_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1", OUTBOX_HTTP_LISTEN="off")
    assert done.returncode == 78, done.stderr
    assert name in done.stderr + done.stdout
    assert PASSWORD not in done.stderr + done.stdout


def test_a_missing_earlier_migration_is_refused(db):
    if latest(db) < 2:
        pytest.skip("there is only one migration yet")
    [(name,)] = db.execute("DELETE FROM outbox_schema_version WHERE version = 1 RETURNING name")
    done = db.migrate("up", check=False)
    assert done.returncode == 78 and f"001_{name} is missing" in done.stderr


CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def decode(ulid):
    value = 0
    for letter in ulid:
        value = value * 32 + CROCKFORD.index(letter)
    return value


@pytest.mark.parametrize("source", ["sql", "program"])
def test_ulids_follow_the_specification(source, db):
    before = int(db.value("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)"))
    if source == "sql":
        ids = [row[0] for row in db.execute("SELECT outbox_ulid() FROM generate_series(1, 3000)")]
    else:
        ids = [daemon.call("ulid").stdout.strip() for _ in range(100)]
    after = int(db.value("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)"))
    assert len(set(ids)) == len(ids)
    for id in ids:
        assert re.fullmatch(f"[0-7][{CROCKFORD}]{{25}}", id), id
        assert before <= decode(id) >> 80 <= after
    if source == "sql":
        # 80 random bits: every digit of the random part takes every value.
        for place in range(10, 26):
            assert {id[place] for id in ids} == set(CROCKFORD)
    times = [decode(id) >> 80 for id in ids]
    assert times == sorted(times)


def test_views(db):
    db.execute("SELECT outbox_publish('t', 'order', 'o', '{}')")
    [(topic, status, count, oldest)] = db.execute("SELECT topic, status, count, oldest FROM outbox_backlog")
    assert (topic, status, count) == ("t", "NEW", 1) and oldest is not None
    assert db.execute("SELECT * FROM outbox_dead") == []


def test_publish_takes_every_writable_column(db):
    id = db.value("""SELECT outbox_publish(topic => 't', aggregate_type => 'a', aggregate_id => 'b', payload => '{}',
        event_type => 'e', schema_version => 2, tenant_id => 'x', routing_key => 'r', partition_key => 'p',
        payload_bytes => '\\x00', headers => '{"h": 1}', metadata => '{"m": 1}', max_retries => 3,
        occurred_at => '2026-01-01 00:00:00+00', expires_at => '2027-01-01 00:00:00+00')""")
    assert db.execute("SELECT event_type, schema_version, tenant_id, routing_key, partition_key, max_retries, status "
                      "FROM outbox_events WHERE id = %s", id) == [("e", 2, "x", "r", "p", 3, 0)]
