"""processed_events and inbox_accept: the answer is right whatever two transactions do to each other."""

import threading
import time

import psycopg
import pytest
from rig.process import wait_until

ACCEPT = "SELECT inbox_accept(%s, %s)"


def accept(conn, event, group="g"):
    return conn.execute(ACCEPT, (group, event)).fetchone()[0]


class Racer(threading.Thread):
    """Accepts one event in a transaction of its own; `answer` is what it got."""

    def __init__(self, conn, event):
        super().__init__(daemon=True)
        self.conn, self.event, self.answer, self.failure = conn, event, None, None

    def run(self):
        try:
            self.answer = accept(self.conn, self.event)
            self.conn.commit()
        except psycopg.Error as failure:
            self.failure = failure
            self.conn.rollback()


@pytest.fixture
def session(db):
    """session(isolation=…) → a connection that is not in autocommit mode."""
    made = []

    def session(isolation=None):
        conn = db.connect()
        conn.autocommit = False
        conn.isolation_level = isolation
        made.append(conn)
        return conn

    yield session
    for conn in made:
        conn.close()


def waits_for_lock(db, conn):
    return db.value("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", conn.info.backend_pid)


@pytest.mark.short
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_second_waits_for_the_first(db, session, end):
    first, second = session(), session()
    assert accept(first, "e1") is True
    racer = Racer(second, "e1")
    racer.start()
    wait_until(lambda: waits_for_lock(db, second), "the second one waits")
    time.sleep(0.2)
    assert racer.is_alive()
    getattr(first, end)()
    racer.join(30)
    assert racer.answer is (end == "rollback")
    assert accept(first, "e1") is False


def test_repeatable_read_raises_instead_of_false(db, session):
    """Documented in docs/CONSUMING.md: a race ends in 40001, and the next try gets the answer."""
    level = psycopg.IsolationLevel.REPEATABLE_READ
    first, second = session(level), session(level)
    second.execute("SELECT 1")  # its snapshot is older than the first one's commit
    assert accept(first, "e1") is True
    racer = Racer(second, "e1")
    racer.start()
    wait_until(lambda: waits_for_lock(db, second), "the second one waits")
    first.commit()
    racer.join(30)
    assert isinstance(racer.failure, psycopg.errors.SerializationFailure)
    assert accept(second, "e1") is False


def test_groups_do_not_know_each_other(db):
    assert [accept(db.conn, "e1", group) for group in ("a", "b", "a", "b")] == [True, True, False, False]


def test_expiry_is_what_the_caller_says(db):
    db.execute("SELECT inbox_accept('g', 'week'), inbox_accept('g', 'hour', '1 hour')")
    ages = dict(db.execute("SELECT event_id, round(extract(epoch FROM expires_at - now())) FROM processed_events"))
    assert abs(ages["week"] - 7 * 86400) < 60 and abs(ages["hour"] - 3600) < 60


def test_missing_arguments_are_refused(db):
    for arguments in ("NULL, 'e'", "'g', NULL", "'g', repeat('x', 301)", "repeat('x', 101), 'e'"):
        with pytest.raises(psycopg.Error):
            db.execute(f"SELECT inbox_accept({arguments})")
    assert accept(db.conn, "x" * 300) is True  # room for topic/partition/offset of the longest topic


def test_a_caller_without_rights_on_the_schema_path(db):
    """The function brings its own search_path: a table of the caller's cannot take the place of ours."""
    db.execute("CREATE SCHEMA evil; CREATE TABLE evil.processed_events (LIKE public.processed_events INCLUDING ALL)")
    with db.connect() as conn:
        conn.execute("SET search_path = evil, public")
        assert accept(conn, "e1") is True
    assert db.value("SELECT count(*) FROM public.processed_events") == 1
