"""What comes back from the queue of a draining topic, and what stands behind it, by the program's own statements."""

from rig.rows import TOPIC, held, park, put


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
