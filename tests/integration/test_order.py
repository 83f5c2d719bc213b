"""Order per key with many workers and daemons, and nothing but what was committed."""

import pytest
from rig import writer
from rig.process import wait_until


@pytest.mark.short
def test_small_run(db, topic, start, judge):
    daemon = start(db)
    for round in range(20):
        writer.bulk(db.conn, topic, 100, keys=7, start=round * 100)
    db.wait_settled(None, daemon)
    assert judge(topic).check().messages == 2000


def test_hot_keys_two_daemons_of_four_workers(db, topic, start, judge):
    daemons = [start(db, OUTBOX_WORKERS=4, OUTBOX_BATCH_SIZE=500) for _ in range(2)]
    for round in range(100):
        writer.bulk(db.conn, topic, 500, keys=10, start=round * 500)
    db.wait_settled(None, *daemons)
    assert judge(topic).check().messages == 50000


@pytest.mark.short
def test_concurrent_writers_that_roll_back(db, topic, start, judge):
    """Eight services change the same twenty aggregates; each locks the aggregate's row, one in five gives up."""
    daemons = [start(db, OUTBOX_WORKERS=4) for _ in range(2)]
    db.execute(writer.ORDERS)
    writers = [writer.OrderWriter(db.connect, topic, orders=20, count=625, seed=seed) for seed in range(8)]
    for one in writers:
        one.start()
    writer.OrderWriter.join_all(writers)
    db.wait_settled(None, *daemons)
    verdict = judge(topic).check()
    assert verdict.messages == sum(one.committed for one in writers) == 5000
    assert sum(one.rolled_back for one in writers) > 500


def test_a_lower_seq_that_commits_later_is_not_forgotten(db, topic, start, judge):
    """A transaction that took its seq early and commits late: its event is behind the relay's reading, and arrives."""
    daemon = start(db)
    with db.connect() as late, late.transaction():
        writer.publish(late, topic, "slow")
        writer.bulk(db.conn, topic, 1000, keys=5)
        db.wait_settled(None, daemon)
    db.wait_settled(None, daemon)
    assert judge(topic).check().messages == 1001


def test_no_ordering(db, topic, start, judge):
    """OUTBOX_ORDERING=none: a follower of a row that somebody holds does not wait."""
    first = writer.publish(db.conn, topic, "k")
    with db.connect() as foreign, foreign.transaction():
        foreign.execute("SELECT FROM outbox_events WHERE id = %s FOR UPDATE", (first,))
        second = writer.publish(db.conn, topic, "k")
        daemon = start(db, OUTBOX_ORDERING="none")
        wait_until(lambda: db.value("SELECT status FROM outbox_events WHERE id = %s", second) == 1, "the follower is sent")
        assert db.value("SELECT status FROM outbox_events WHERE id = %s", first) == 0
    db.wait_settled(None, daemon)
    writer.bulk(db.conn, topic, 5000, keys=10)
    db.wait_settled(None, daemon)
    assert judge(topic, ordered=False).check().messages == 5002


def statuses(db, topic, key):
    return [row[0] for row in db.execute("SELECT status FROM outbox_events WHERE topic = %s AND aggregate_id = %s "
                                         "ORDER BY seq", topic, key)]


def same_lane_key(db, key):
    """Another key of the same lane: what shares the lane must not share the wait."""
    return db.value("SELECT k FROM (SELECT 'other-' || n AS k FROM generate_series(1, 1000) n) s "
                    "WHERE outbox_lane(k) = outbox_lane(%s) LIMIT 1", key)


def test_a_locked_row_delays_its_own_stream_only(db, new_topic, start, judge):
    topic, other_topic = new_topic(), new_topic()
    neighbour = same_lane_key(db, "stuck")
    streams = [(topic, "stuck"), (topic, neighbour), (other_topic, "stuck"), (topic, "elsewhere")]
    for _ in range(10):
        for stream in streams:
            writer.publish(db.conn, *stream)
    third = db.value("SELECT id FROM outbox_events WHERE topic = %s AND aggregate_id = 'stuck' ORDER BY seq OFFSET 2 LIMIT 1",
                     topic)
    with db.connect() as foreign, foreign.transaction():
        foreign.execute("SELECT FROM outbox_events WHERE id = %s FOR UPDATE", (third,))
        daemons = [start(db, OUTBOX_WORKERS=4) for _ in range(2)]
        # New rows of all streams keep coming; all but the stuck stream flow.
        for _ in range(10):
            for stream in streams:
                writer.publish(db.conn, *stream)
            for stream in streams[1:]:
                wait_until(lambda: set(statuses(db, *stream)) == {1}, lambda: f"{stream} flows: {statuses(db, *stream)}")
        stuck = statuses(db, *streams[0])
        assert stuck[:2] == [1, 1] and 1 not in stuck[2:], stuck
    db.wait_settled(None, *daemons)
    assert judge(topic, other_topic).check().messages == 80
