"""The program itself between two steps of somebody else: it keeps the rules that test_isolation.py shows to be needed."""

import pytest
from rig.process import wait_until
from rig.rows import TOPIC, held, keys_of_one_lane, park, parked, put, state
from rig.statements import NO_LOOK_AT_SKIPPED, sql


def session_that_waits(db, kind):
    """The daemon's session that waits for a lock of this kind; None: there is none."""
    found = db.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'outboxd' AND datname = current_database() "
                       "AND wait_event_type = 'Lock' AND wait_event = %s", kind)
    return found[0][0] if found else None


def test_the_program_s_claim_sees_the_marks_of_the_lane_s_last_owner(db, topic, hands, gated, start, judge, without_rule):
    """The daemon: its claim has begun and waits for the lanes while their owner marks and releases. The look at
    skipped rows would find out, too, so here the program has none."""
    [key] = keys_of_one_lane(db, 1)
    head = put(db, key, 2, None, topic=topic)
    for _ in range(2):
        held(db, key, topic=topic)
    gate = gated("outbox_lanes", "%SKIP LOCKED%")
    owner = hands()
    lanes, take = (sql("claim.c", name).replace("outbox_lanes", "real_outbox_lanes") for name in ("lanes", "take"))
    owner.lanes(text=lanes)
    taken = owner.take(text=take)
    assert [row.seq for row in taken] == [head]
    put(db, key, topic=topic)
    daemon = start(db, build=without_rule(NO_LOOK_AT_SKIPPED), OUTBOX_WORKERS=1)
    wait_until(lambda: session_that_waits(db, "advisory"), "the claim waits at the gate")
    owner.sent(*taken)
    owner.release(topic, key)
    owner.commit()
    gate.open()
    db.wait_settled(None, daemon)
    sent_by_hand = db.value("SELECT id FROM outbox_events WHERE seq = %s", head)
    assert judge(topic, without=[sent_by_hand]).check().messages == 3


def test_the_program_asks_for_the_topic_before_it_holds(db, topic, hands, start, judge):
    """The worker waits for who is about to remove the topic, finds it gone and sends the row."""
    park(db, topic, 0)
    janitor = hands()
    topics = [row[0] for row in janitor.run(sql("parking.c", "lock_topics"))]
    put(db, "k", topic=topic)
    daemon = start(db, OUTBOX_WORKERS=1)
    wait_until(lambda: session_that_waits(db, "transactionid"), "the worker waits for the topic's row")
    assert janitor.unpark(topics) == 1
    janitor.commit()
    db.wait_settled(None, daemon)
    judge(topic).check()


ONE_SNAPSHOT = ("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '30s'",
                "BEGIN ISOLATION LEVEL REPEATABLE READ;SET LOCAL statement_timeout = '30s'")


@pytest.mark.parametrize("rule", [True, False], ids=["with-the-rule", "without"])
def test_the_program_s_janitor_looks_again_after_the_lock(db, hands, gated, start, without_rule, rule):
    """The janitor: a row becomes held between the snapshot and the lock of its first statement."""
    seq = put(db, "k")
    park(db, TOPIC, seq)
    holder = hands()
    holder.lanes()
    taken = holder.take()
    gate = gated("outbox_parked_topics", "SELECT topic FROM%FOR UPDATE SKIP LOCKED")
    daemon = start(db, build=None if rule else without_rule(ONE_SNAPSHOT))
    janitor = wait_until(lambda: session_that_waits(db, "advisory"), "the janitor waits at the gate")
    holder.run(sql("mark.c", "keep_parked"), [TOPIC])
    holder.hold(*taken, parked=TOPIC)
    holder.commit()
    gate.open()
    if not rule:
        daemon.wait_log("no longer parked")
        return
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'idle'", janitor), "it is done")
    assert db.execute("SELECT topic, reason FROM outbox_parked_topics") == [(TOPIC, "missing")], "it has gone, or was parked anew"
    assert state(db, seq) == [(2, True)]


def test_two_workers_may_park_a_topic_at_once(db, hands, start):
    """The second one comes while the first has not committed: it waits, and finds the topic parked."""
    first = hands()
    first.run(sql("mark.c", "park"), [TOPIC], ["missing"], [86400000], [1], [0])
    seq = put(db, "k")
    daemon = start(db, OUTBOX_WORKERS=1)
    wait_until(lambda: session_that_waits(db, "transactionid"), "the worker waits for the other one's row")
    first.commit()
    wait_until(lambda: state(db, seq) == [(2, True)], "the row is held")
    assert parked(db) == [TOPIC]
    assert "duplicate key" not in daemon.text(), "a batch was lost for it"


def test_a_topic_that_fails_while_it_drains_is_parked_again(db, start):
    seq = held(db, "k")
    park(db, TOPIC, seq)
    db.execute("UPDATE outbox_parked_topics SET state = 'draining'")
    start(db)
    wait_until(lambda: db.execute("SELECT state FROM outbox_parked_topics") == [("parked",)], "it is probed with pauses again")
    assert state(db, seq) == [(2, True)]
