"""What comes back from the queue of a draining topic, and what stands behind it, by the program's own statements."""

from rig.daemon import call
from rig.process import wait_until
from rig.rows import TOPIC, held, park, parked, put, state
from rig.statements import sql


def test_a_list_keeps_its_place_while_one_of_its_topics_drains(db, hands):
    """Its other topic is parked, so it does not come back yet; a new event of its stream must not pass it."""
    waiting = put(db, "k", 2, "infinity", routing_key=f"{TOPIC},other")
    follower = put(db, "k")
    park(db, TOPIC, waiting)
    park(db, "other", waiting)
    db.execute("UPDATE outbox_parked_topics SET state = 'draining' WHERE topic = %s", TOPIC)
    worker = hands()
    worker.lanes()
    taken = worker.take()
    assert [row.seq for row in taken] == [follower]
    assert worker.drained(*taken) == []
    assert worker.blocking(*taken) == [waiting]


def unlocked(db, *seqs):
    return [row[0] for row in db.execute("SELECT seq FROM outbox_events WHERE seq = ANY (%s) ORDER BY seq FOR UPDATE SKIP LOCKED",
                                         list(seqs))]


def test_a_release_locks_only_what_it_releases(db, hands):
    """A lock is a write a row: none for what waits behind a row that is on its way, or comes back from the queue."""
    head = put(db, "k", 2, None)
    followers = [held(db, "k") for _ in range(3)]
    worker = hands()
    assert worker.release(TOPIC, "k") == 0
    assert unlocked(db, *followers) == followers
    worker.rollback()

    db.execute("UPDATE outbox_events SET status = 1, retry_after = NULL WHERE seq = %s", head)
    park(db, TOPIC, head)
    db.execute("UPDATE outbox_parked_topics SET state = 'draining'")
    assert worker.release(TOPIC, "k") == 0
    assert unlocked(db, *followers) == followers
    worker.rollback()

    db.execute("DELETE FROM outbox_parked_topics")
    assert worker.release(TOPIC, "k", limit=2) == 2
    assert unlocked(db, *followers) == followers[2:]


def test_a_claim_passes_a_thousand_streams_that_wait_for_something_else(db, hands):
    """And no more, or with very many of them it would not end. Nobody else looks further, so the topic's row goes, and the sweep,
    which takes a thousand at a time, frees what stands behind them."""
    keys = [row[0] for row in db.execute("SELECT key FROM (SELECT 'key-' || n AS key FROM generate_series(1, 30000) n) k "
                                         "WHERE outbox_lane(key) = 3 ORDER BY key LIMIT 1001")]
    for due in ("2099-01-01", "infinity"):
        db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, retry_after) "
                   "SELECT %s, 'order', key, '{}', 2, %s FROM unnest(%s::text[]) key", TOPIC, due, keys[:-1])
    free = held(db, keys[-1])
    park(db, TOPIC, free)
    db.execute("UPDATE outbox_parked_topics SET state = 'draining'")
    worker = hands()
    worker.lanes()
    assert worker.drained() == []
    worker.rollback()
    assert worker.unpark([TOPIC]) == 1
    assert worker.run(sql("sweep.c", "sweep_topic"), 3, TOPIC, "", True, False, 100)[0] == (keys[-2], 0)
    assert worker.run(sql("sweep.c", "sweep_topic"), 3, TOPIC, keys[-2], False, False, 100)[0] == (None, 1)
    worker.commit()
    assert state(db, free) == [(2, False)]


def test_lists_that_go_elsewhere_are_not_taken_apart(db, hands):
    """A key may have very many that wait; an event of it for another topic asks about each."""
    for _ in range(50):
        held(db, "k", routing_key="first,second")
    ours = held(db, "k", routing_key=f"second, {TOPIC}")
    put(db, "k")
    worker = hands()
    worker.run("SET LOCAL track_functions = 'all'")
    worker.lanes()
    assert worker.blocking(*worker.take()) == [ours]
    ((calls,),) = worker.run("SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'outbox_topics'")
    assert calls < 10


def test_an_operator_does_not_wait_for_who_holds_rows_for_a_topic(db, hands):
    """Nor the other way round: a worker that keeps one topic parked and then writes of another, and a retry that has the second
    one and waits for the first, would wait for each other."""
    for topic in ("first", "second"):
        park(db, topic, held(db, "k", topic=topic))
    worker = hands()
    worker.run(sql("mark.c", "keep_parked"), ["second"])
    done = call("events", "retry", "--all", **db.settings)
    assert done.returncode == 0, done.stderr
    assert db.value("SELECT count(*) FROM outbox_parked_topics WHERE probe_after <= now()") == 2


def test_topics_are_looked_after_while_a_sweep_waits_for_its_lanes(db, hands, start):
    """Somebody holds all of them for long, and the janitor is the only one who takes a topic out."""
    def waits():
        return db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outboxd' "
                        "AND datname = current_database() AND wait_event_type = 'Lock'")

    db.execute("UPDATE outbox_lanes SET swept_at = now() + interval '1 day'")  # only the sweep at the start waits for lanes
    hands().lanes()
    start(db)
    wait_until(waits, "the sweep waits")
    park(db, TOPIC, 1)
    wait_until(lambda: not parked(db), "the empty topic is gone")
    wait_until(waits, "the sweep is not over: it waits for the next lane")


def test_a_sweep_finds_a_free_list_behind_many_that_wait(db, hands):
    """A thousand at a time, or it would hold the lane for as long as it takes to look at all of them."""
    free = held(db, "z", routing_key=f"{TOPIC},other")
    db.execute("ALTER TABLE outbox_events ALTER COLUMN lane DROP EXPRESSION")
    db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, retry_after, routing_key, lane) "
               "SELECT %s, 'order', (n %% 100)::text, '{}', 2, 'infinity', %s, 0 FROM generate_series(1, 1005) n",
               TOPIC, f"{TOPIC},away")
    db.execute("UPDATE outbox_events SET lane = 0 WHERE seq = %s", free)
    park(db, "away", 1)
    hand = hands()
    key, seq, released = hand.run(sql("sweep.c", "sweep_routed"), 0, False, "", 0)[0]
    assert (key, released) == ("99", 0)
    assert hand.run(sql("sweep.c", "sweep_routed"), 0, False, key, seq) == [(None, None, 1)]
    assert state(db, free)[0] == (2, True), "not committed yet"
