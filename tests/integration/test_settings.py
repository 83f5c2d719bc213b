"""Settings that change what happens to the rows, and where they are."""

from datetime import timedelta

import pytest
from rig import writer
from rig.judge import judge as judge_all
from rig.process import wait_until
from rig.statements import sql


@pytest.mark.short
def test_on_sent_delete(db, topic, start, judge):
    daemon = start(db, OUTBOX_ON_SENT="delete")
    for round in range(10):
        writer.bulk(db.conn, topic, 500, keys=10, start=round * 500)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_events") == 0, "every row is gone")
    assert daemon.alive
    assert judge(topic).check().messages == 5000


def test_sent_rows_say_when(db, topic, start):
    writer.bulk(db.conn, topic, 100, keys=10)
    daemon = start(db)
    db.wait_settled(None, daemon)
    assert db.execute("SELECT DISTINCT status, retry_count, last_error, published_at >= created_at FROM outbox_events") \
        == [(1, 0, None, True)]


@pytest.mark.parametrize("schema", ["Events", 'odd "name" ä'])
def test_schema(schema, new_db, topic, start, kafka):
    db = new_db(schema=schema).prepare()
    assert db.value("SELECT count(*) FROM pg_class WHERE relname = 'outbox_events' "
                    "AND relnamespace::regnamespace::text = quote_ident(%s)", schema) == 1
    writer.bulk(db.conn, topic, 1000, keys=10, schema=schema)
    writer.publish(db.conn, topic, "order-1", schema=schema)
    daemon = start(db)
    db.wait_settled(None, daemon)
    assert judge_all(kafka, db.conn, [topic]).check().messages == 1001


def triggers(db):
    return db.value("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass AND NOT tgisinternal "
                    "AND tgname <> 'rig_note' AND tgenabled <> 'D'")


def wait_sleepy(*dbs):
    """Until each one's daemon let four seconds go by between two looks: now it sleeps for eight."""
    last, gaps = {}, {}

    def sleepy():
        for db in dbs:
            look = db.value("SELECT max(query_start) FROM pg_stat_activity WHERE datname = current_database() AND query = %s",
                            sql("claim.c", "look"))
            if last.get(db) and last[db] != look:
                gaps[db] = look - last[db]
            last[db] = look
        return all(db in gaps and gaps[db] >= timedelta(seconds=4) for db in dbs)

    wait_until(sleepy, lambda: f"looks become rare: {list(gaps.values())}")


def test_notify(empty_db, new_db, topic, start, kafka):
    """A daemon that is notified has delivered while one that is not still sleeps."""
    db, deaf = empty_db.prepare(OUTBOX_NOTIFY="on"), new_db().prepare()
    assert triggers(db) == 1 and triggers(deaf) == 0
    settings = {"OUTBOX_POLL_INTERVAL": "1m", "OUTBOX_WORKERS": 1}
    daemon = start(db, OUTBOX_NOTIFY="on", **settings)
    start(deaf, **settings)
    wait_sleepy(db, deaf)
    for one in (deaf, db):
        writer.bulk(one.conn, topic, 50, keys=10)
    db.wait_settled(None, daemon)
    assert deaf.unfinished() == 50
    assert judge_all(kafka, db.conn, [topic]).check().messages == 50
    db.migrate("up", OUTBOX_NOTIFY="off")
    assert triggers(db) == 0


@pytest.mark.parametrize("migrated, running", [("off", "on"), ("on", "off")])
def test_run_warns_when_the_trigger_and_the_setting_differ(migrated, running, empty_db, start):
    db = empty_db.prepare(OUTBOX_NOTIFY=migrated)
    daemon = start(db, OUTBOX_NOTIFY=running)
    daemon.wait_log(r'"level":"warning".*OUTBOX_NOTIFY')


def test_small_batches_and_bytes(db, topic, start, judge):
    """A row larger than OUTBOX_BATCH_BYTES still goes, alone."""
    for n in range(20):
        writer.bulk(db.conn, topic, 5, keys=5, size=100 if n % 4 else 5000, start=n * 5)
    daemon = start(db, OUTBOX_BATCH_SIZE=7, OUTBOX_BATCH_BYTES="1KiB")
    db.wait_settled(None, daemon)
    assert judge(topic).check().messages == 100


def test_settings_from_files(db, topic, start, judge, root):
    secret = root / "database-url"
    secret.write_text(db.url + "\n")
    writer.bulk(db.conn, topic, 10, keys=5)
    daemon = start(None, OUTBOX_DATABASE_URL_FILE=secret)
    db.wait_settled(None, daemon)
    judge(topic).check()


def test_text_log(db, topic, start):
    daemon = start(db, OUTBOX_LOG_FORMAT="text")
    daemon.expect_error("")
    writer.bulk(db.conn, topic, 10, keys=5)
    db.wait_settled(None, daemon)
    assert daemon.stop() == 0
    assert " error " not in daemon.text()
    assert daemon.text().splitlines()[0][:4].isdigit()
