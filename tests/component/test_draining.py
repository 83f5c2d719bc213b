"""What comes back from the queue of a draining topic, and what stands behind it, by the program's own statements."""

from rig.rows import TOPIC, park, put


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
