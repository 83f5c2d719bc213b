"""Bad input: a message that names what is wrong and the remedy, the right exit code, and no secret in it."""

import json
import os
import subprocess

import pytest
from rig import daemon, process
from rig.database import PASSWORD, Database

NOWHERE = {"OUTBOX_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "OUTBOX_HTTP_LISTEN": "off"}


def refused(code, *patterns, command=("run",), secrets=(), **settings):
    """Runs the command, which must end by itself with `code` and say each of `patterns`."""
    done = daemon.call(*command, **{**NOWHERE, **settings})
    text = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}: {text}"
    for pattern in patterns:
        assert pattern.lower() in text.lower(), f"{pattern!r} is not in: {text}"
    for secret in (PASSWORD, *secrets):
        assert secret not in text, text
    return text


@pytest.mark.short
def test_every_bad_setting_in_one_message():
    refused(78, "OUTBOX_WORKRES", "OUTBOX_WORKERS", "OUTBOX_POLL_INTERVAL", "OUTBOX_BATCH_SIZE", "OUTBOX_ORDERING",
            OUTBOX_WORKRES=3, OUTBOX_POLL_INTERVAL="50 parsecs", OUTBOX_BATCH_SIZE="-1", OUTBOX_ORDERING="maybe")


def test_exactly_once_is_not_built_yet():
    refused(78, "OUTBOX_DELIVERY", OUTBOX_DELIVERY="exactly-once")


@pytest.mark.parametrize("name, value", [("ENABLE_IDEMPOTENCE", "false"), ("ACKS", "0"), ("MAX_IN_FLIGHT", "5")])
def test_kafka_properties_that_would_break_a_promise(name, value, db):
    refused(78, f"OUTBOX_KAFKA_{name}", **db.settings, **{f"OUTBOX_KAFKA_{name}": value})


def test_unknown_kafka_property(db):
    refused(78, "OUTBOX_KAFKA_NO_SUCH_THING", **db.settings, OUTBOX_KAFKA_NO_SUCH_THING="1")


def test_setting_and_file_both_given(root):
    path = root / "both"
    path.write_text("3\n")
    refused(78, "OUTBOX_WORKERS_FILE", OUTBOX_WORKERS="2", OUTBOX_WORKERS_FILE=path)


def test_file_that_is_not_there():
    """The name is not repeated: somebody may have put the secret itself there."""
    refused(78, "OUTBOX_DATABASE_URL_FILE", "no such file", OUTBOX_DATABASE_URL_FILE="postgresql://u:S3cret@h/db",
            secrets=["S3cret"])


@pytest.mark.parametrize("url", [
    "postgresql://user:S3cret%zz@127.0.0.1/db",
    "postgresql://127.0.0.1:S3cret/db",
    "postgresql://127.0.0.1:65536/db",
    "host=127.0.0.1 password='S3cret",
    "S3cret",
])
@pytest.mark.parametrize("command", [("run",), ("migrate", "up")])
def test_database_url_that_cannot_be_read(url, command):
    refused(78, "OUTBOX_DATABASE_URL", command=command, OUTBOX_DATABASE_URL=url, secrets=["S3cret"])


def journal(path, *command, **settings):
    """What the command writes for journald, which names its stream by device and inode."""
    with open(path, "w") as stream:
        at = os.fstat(stream.fileno())
        env = daemon.environment({**NOWHERE, **settings, "JOURNAL_STREAM": f"{at.st_dev}:{at.st_ino}"})
        done = subprocess.run([daemon.binary(), *command], env=env, stderr=stream, timeout=process.PATIENCE)
    assert done.returncode == 78
    return path.read_text().splitlines()


def test_a_daemon_logs_why_it_does_not_start(empty_db, tmp_path):
    """One line, in the log's own format, with the remedy as a field."""
    for command in (("run",), ("purge",)):
        text = refused(78, command=command, **empty_db.settings, OUTBOX_LOG_FORMAT="json")
        line = json.loads(text.splitlines()[-1])
        assert line["level"] == "error" and "no outbox" in line["message"] and "migrate up" in line["hint"]
        last = journal(tmp_path / "log", *command, **empty_db.settings)[-1]
        assert last.startswith("<3>error ") and "migrate up" in last
    assert refused(78, command=("purge", "--once"), **empty_db.settings).startswith("outboxd: ")


@pytest.mark.parametrize("command", ["run", "consume", "purge"])
def test_bad_settings_are_one_line_of_the_log(command, tmp_path):
    bad = {f"OUTBOX_{name}": "maybe" for name in ("WORKERS", "ORDERING", "NOTIFY")}
    [line] = refused(78, command=(command,), OUTBOX_LOG_FORMAT="json", **bad).splitlines()
    message = json.loads(line)["message"]
    assert message.startswith("3 bad settings: OUTBOX_WORKERS: ") and message.count("; OUTBOX_") == 2
    [line] = journal(tmp_path / "log", command, **bad)
    assert line.startswith("<3>error ")


def test_unmigrated_schema(empty_db):
    refused(78, "outboxd migrate up", **empty_db.settings)


@pytest.mark.parametrize("command", [("run",), ("purge",), ("purge", "--once")], ids=" ".join)
def test_older_schema(command, db):
    last = db.value("SELECT max(version) FROM outbox_schema_version")
    db.migrate("down", "--to", str(last - 1))
    refused(78, "outboxd migrate up", f"version {last - 1}", command=command, **db.settings)


def test_status_of_an_older_schema(db):
    """In the midst of an upgrade one wants to see the backlog all the same."""
    last = db.value("SELECT max(version) FROM outbox_schema_version")
    db.migrate("down", "--to", str(last - 1))
    refused(0, "outboxd migrate up", '"pending":0', command=("status", "--json"), **db.settings)


@pytest.mark.parametrize("command", [("run",), ("migrate", "up"), ("purge", "--once"), ("status",)], ids=" ".join)
def test_newer_schema(command, db):
    [(version,)] = db.execute("INSERT INTO outbox_schema_version (version, name, checksum) "
                              "SELECT max(version) + 7, 'from the future', 'x' FROM outbox_schema_version RETURNING version")
    refused(78, "newer", str(version), command=command, **db.settings)


def test_schema_without_one_of_its_tables(db):
    db.execute("DROP TABLE outbox_lanes")
    refused(78, "outbox_lanes", "does not exist", **db.settings)


def test_another_schema_name(db):
    refused(78, "elsewhere", "migrate up", **db.settings, OUTBOX_SCHEMA="elsewhere")


def test_migrate_without_a_server():
    port = process.free_port()
    refused(1, "127.0.0.1", str(port), command=("migrate", "up"),
            OUTBOX_DATABASE_URL=f"postgresql://postgres:{PASSWORD}@127.0.0.1:{port}/db")


def test_run_without_a_server_says_what_it_waits_for(start):
    port = process.free_port()
    daemon = start(None, OUTBOX_DATABASE_URL=f"postgresql://postgres:{PASSWORD}@127.0.0.1:{port}/db")
    daemon.wait_log(rf"{port}|refused")
    assert daemon.stop() == 0


def test_run_without_a_broker_says_what_it_waits_for(db, start):
    port = process.free_port()
    db.execute("SELECT outbox_publish('orders', 'order', 'o', '{}')")
    daemon = start(db, OUTBOX_KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{port}")
    daemon.wait_log(rf"127\.0\.0\.1:{port}")
    assert daemon.stop() == 0
    assert db.execute("SELECT status, retry_count FROM outbox_events") == [(0, 0)]


@pytest.fixture
def locked_user(cluster):
    cluster.execute("DROP ROLE IF EXISTS locked; CREATE ROLE locked LOGIN PASSWORD 'the right one'")
    yield "locked"
    cluster.execute("REASSIGN OWNED BY locked TO postgres; DROP OWNED BY locked; DROP ROLE locked")


CONSUMER = {"OUTBOX_CONSUMER_GROUP": "g", "OUTBOX_CONSUMER_TOPICS": "t", "OUTBOX_CONSUMER_HANDLER": "h"}
EVERY = pytest.mark.parametrize("command", [
    ("run",), ("consume",), ("migrate", "status"), ("migrate", "up"), ("status",), ("events", "list"), ("events", "retry", "--all"),
    ("inbox", "list"), ("purge",), ("purge", "--once")], ids=" ".join)


@EVERY
def test_wrong_password(command, db, locked_user):
    url = db.cluster.url(db.name, locked_user, PASSWORD)
    refused(78, "password authentication failed", "locked", "OUTBOX_DATABASE_URL", command=command, OUTBOX_DATABASE_URL=url, **CONSUMER)


@EVERY
def test_an_option_that_libpq_does_not_take(command, db):
    refused(78, "sslmode", "nonsense", command=command, OUTBOX_DATABASE_URL=f"{db.url}?sslmode=nonsense", **CONSUMER)
    refused(78, "port", "99999", command=command, PGHOST="127.0.0.1", PGPORT="99999", **CONSUMER)


@pytest.fixture
def stranger(cluster):
    """May log in, and nothing else."""
    cluster.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN")
    yield "stranger"
    cluster.execute("DROP ROLE stranger")


@EVERY
def test_missing_privilege(command, db, stranger):
    refused(78, "permission denied", "grant", command=command,
            OUTBOX_DATABASE_URL=db.cluster.url(db.name, stranger, PASSWORD), **CONSUMER)


def test_missing_privilege_to_migrate(cluster, stranger):
    db = Database(cluster)
    try:
        db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        refused(78, "permission denied", "as the owner", "GRANT CREATE ON SCHEMA", command=("migrate", "up"), OUTBOX_DATABASE_URL=cluster.url(db.name, stranger, PASSWORD))
        refused(78, "permission denied", "GRANT CREATE ON DATABASE", command=("migrate", "up"), OUTBOX_SCHEMA="elsewhere",
                OUTBOX_DATABASE_URL=cluster.url(db.name, stranger, PASSWORD))
    finally:
        db.drop()


@pytest.mark.short
@pytest.mark.parametrize("args, word", [(("no-such-command",), "no-such-command"), (("run", "--no-such-option"), "usage"),
                                        (("migrate", "sideways"), "sideways"), (("migrate", "down", "--to", "x"), "--to")])
def test_usage(args, word):
    refused(64, word, command=args)
