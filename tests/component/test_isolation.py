"""The interleavings that the order rests on, each forced step by step, and each seen to go wrong without its rule.

Workers driven by hand run the program's own statements. "Without the rule" means the same text with that part of it gone,
or the program itself with that part of its SQL blanked out.
"""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from rig import writer
from rig.daemon import call
from rig.hand import Gate
from rig.process import wait_until
from rig.rows import TOPIC, held, keys_of_one_lane, park, parked, put, state
from rig.statements import NO_LOOK_AT_SKIPPED, sql, without


# --- claim against mark ---

GATED = ('FROM "public".outbox_lanes WHERE', 'FROM "public".outbox_lanes WHERE rig_gate() AND')


def claim_while_another_marks(db, hands, claim):
    """The first worker marks a head SENT and releases its followers while the second's claim has begun and has no lane
    yet. Returns what the second takes, and what there was to take."""
    head = put(db, "k", 2, None)
    followers = [held(db, "k"), held(db, "k")]
    first, second, gate = hands(), hands(), Gate(db)
    first.lanes()
    taken = first.take()
    assert [row.seq for row in taken] == [head]
    followers.append(put(db, "k"))
    with second.meanwhile(lambda: claim(second)) as result:
        first.sent(*taken)
        first.release(TOPIC, "k")
        first.commit()
        gate.open()
    return [row.seq for row in result[0]], followers


def test_a_claim_sees_the_marks_of_the_lane_s_last_owner(db, hands):
    def two_statements(hand):
        hand.lanes(text=sql("claim.c", "lanes").replace(*GATED))
        return hand.take()

    took, there = claim_while_another_marks(db, hands, two_statements)
    assert took == there


def test_a_claim_of_one_statement_overtakes(db, hands):
    """Lanes and rows in one statement: its snapshot is older than the lock."""
    take = sql("claim.c", "take")
    ours = take[:take.index(" SELECT ctid, size")]
    one = take.replace(ours, "WITH lane AS MATERIALIZED (SELECT lane FROM outbox_lanes WHERE rig_gate() "
                             "ORDER BY lane LIMIT 16 FOR UPDATE SKIP LOCKED)")
    took, there = claim_while_another_marks(db, hands, lambda hand: hand.take(text=one))
    assert took == there[-1:], "the last follower, and not those that were released before it"


def test_a_lane_is_one_worker_s(hands):
    first, second = hands(), hands()
    assert len(first.lanes()) == 16
    assert second.lanes() == [], "two workers send followers of each other's rows"
    first.commit()
    assert len(second.lanes()) == 16


def test_a_probe_takes_its_lane_or_none(hands):
    """Another lane's worker would find no row to try, and put the probe off."""
    first, second = hands(), hands()
    assert first.lanes(count=1, first=5) == [5]
    assert second.lanes(first=5, only=True) == []
    assert second.lanes(first=6, only=True) == [6]


# --- operators and sweeps against a worker ---

LOCK_LANE = sql("sweep.c", "lock_lane")


def lane_of(db, key):
    return db.value("SELECT outbox_lane(%s)", key)


def sweep(hand, db, key, lock=LOCK_LANE):
    """What the daemon's sweep does with one stream."""
    lane = lane_of(db, key)
    hand.run(lock, lane, True)
    released = hand.run(sql("sweep.c", "sweep_topic"), lane, TOPIC, "", True, False, 100)[0][1]
    hand.commit()
    return released


def claim_while_swept(db, hands, lock):
    """Held rows whose head was deleted by hand, and a new one behind them. A sweep comes in the midst of a claim. Returns
    whether the claim found that the new row must wait."""
    head = put(db, "k", 2, "2099-01-01")
    held(db, "k"), held(db, "k")
    db.execute("DELETE FROM outbox_events WHERE seq = %s", head)
    put(db, "k")
    worker, sweeper = hands(), hands()
    worker.lanes()
    taken = worker.take()
    assert len(taken) == 1 and worker.skipped(*taken) == []
    if "FOR UPDATE" in lock:
        with sweeper.meanwhile(lambda: sweep(sweeper, db, "k", lock)) as released:
            waits = worker.blocking(*taken) != [None]
            worker.rollback()
        assert released == [2]
    else:
        assert sweep(sweeper, db, "k", lock) == 2
        waits = worker.blocking(*taken) != [None]
    return waits


def test_a_sweep_waits_for_the_worker(db, hands):
    assert claim_while_swept(db, hands, LOCK_LANE)


def test_a_sweep_without_the_lane_makes_a_follower_overtake(db, hands):
    assert not claim_while_swept(db, hands, without(LOCK_LANE, "FOR UPDATE"))


RETRY = ("UPDATE outbox_events SET status = 2, retry_after = NULL, retry_count = 0 "
         "WHERE seq = ANY ($1::bigint[]) AND status IN (2, 9)")


def retry_while_marked(db, hands, lock):
    """An operator asks to retry rows of which a worker holds one and releases the other when it marks."""
    head, follower = put(db, "k", 2, None), held(db, "k")
    worker, operator = hands(), hands()
    worker.lanes()
    taken = worker.take()
    assert [row.seq for row in taken] == [head]

    def retry():
        if lock:
            operator.run(LOCK_LANE, lane_of(db, "k"), True)
        operator.run("SELECT FROM outbox_events WHERE seq = $1 FOR UPDATE", follower)
        changed = operator.run(RETRY, [follower, head])
        operator.commit()
        return changed

    with operator.meanwhile(retry) as changed:
        worker.sent(*taken)
        worker.run("UPDATE outbox_events SET retry_after = NULL WHERE seq = $1", follower)
        worker.commit()
    return changed[0], state(db, head, follower)


def test_a_retry_waits_for_the_mark(db, hands):
    changed, (head, follower) = retry_while_marked(db, hands, lock=True)
    assert changed == 1 and head == (1, False) and follower == (2, False)


def test_a_retry_without_the_lane_deadlocks_with_the_mark(db, hands):
    with pytest.raises(psycopg.errors.DeadlockDetected):
        retry_while_marked(db, hands, lock=False)


def test_events_retry_waits_for_the_mark(db, hands):
    """The operator's command comes while a worker has the row in its batch: it does not revive what was sent meanwhile."""
    head = put(db, "k", 2, None)
    db.execute("UPDATE outbox_events SET retry_count = 1")
    worker = hands()
    worker.lanes()
    taken = worker.take()
    with ThreadPoolExecutor() as pool:
        command = pool.submit(call, "events", "retry", "--all", **db.settings)
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outboxd' "
                                    "AND datname = current_database() AND wait_event_type = 'Lock'"), "it waits")
        worker.sent(*taken)
        worker.commit()
        done = command.result(60)
    assert done.returncode == 0, done.stderr
    assert state(db, head) == [(1, False)]


def purge_while_retried(db, hands, lock, purge):
    """A DEAD row's time has come, and at that moment an operator makes it due again. Returns how many rows were purged."""
    seq = put(db, "k", 9, "2020-01-01")
    operator, janitor = hands(), hands()
    operator.run(LOCK_LANE, lane_of(db, "k"), True)
    assert operator.run(RETRY, [seq]) == 1

    def clean():
        if lock:
            janitor.run(lock, lane_of(db, "k"))
        gone = janitor.run(purge, lane_of(db, "k"), False, 1000)
        janitor.commit()
        return gone

    with janitor.meanwhile(clean) as gone:
        operator.commit()
    return gone[0]


def test_a_purge_spares_what_is_retried(db, hands):
    assert purge_while_retried(db, hands, sql("purge.c", "purge_lane"), sql("purge.c", "purge_dead")) == 0
    assert db.value("SELECT count(*) FROM outbox_events WHERE status = 2") == 1


def test_a_purge_that_tests_the_status_only_once_deletes_what_is_retried(db, hands):
    """Without the lane, the row's lock and the second test: the subselect's answer is old when the row is free."""
    look = sql("purge.c", "purge_dead").partition("ctid = ANY (ARRAY(")[2].removesuffix("))")
    once = without(look.replace("SELECT ctid", "SELECT id", 1), "FOR UPDATE SKIP LOCKED")
    purge = f"DELETE FROM outbox_events WHERE id = ANY (ARRAY({once}))"
    assert purge_while_retried(db, hands, None, purge) == 1


# --- un-park against hold ---

HOLD_GUARD = 'AND (v.parked IS NULL     OR EXISTS (SELECT FROM "public".outbox_parked_topics p WHERE p.topic = v.parked))'


def begin_to_hold(db, hand, keep):
    hand.lanes()
    taken = hand.take()
    if keep:
        hand.run(sql("mark.c", "keep_parked"), [TOPIC])
    hand.hold(*taken, parked=TOPIC)
    return taken


def tidy(hand):
    """What the janitor does: lock the topics, then, in a statement of its own, let go of those that are empty."""
    topics = [row[0] for row in hand.run(sql("parking.c", "lock_topics"))]
    gone = hand.unpark(topics)
    hand.commit()
    return gone


@pytest.mark.parametrize("keep", [True, False], ids=["with-the-rule", "without"])
def test_a_topic_stays_parked_while_somebody_holds_a_row_for_it(db, hands, keep):
    """The holder has written and not yet committed; the janitor finds no held row."""
    seq = put(db, "k")
    park(db, TOPIC, seq)
    holder, janitor = hands(), hands()
    begin_to_hold(db, holder, keep)
    assert tidy(janitor) == (0 if keep else 1)
    holder.commit()
    assert state(db, seq) == [(2, True)]
    assert parked(db) == ([TOPIC] if keep else []), "without the lock the row waits for a topic that is not parked"


@pytest.mark.parametrize("guard", [True, False], ids=["with-the-rule", "without"])
def test_a_row_is_not_held_for_a_topic_that_has_gone(db, hands, guard):
    """The janitor has the topic's row and is about to remove it; the holder comes too late."""
    seq = put(db, "k")
    park(db, TOPIC, seq)
    holder, janitor = hands(), hands()
    holder.lanes()
    taken = holder.take()
    topics = [row[0] for row in janitor.run(sql("parking.c", "lock_topics"))]
    assert janitor.unpark(topics) == 1
    with holder.meanwhile(lambda: holder.run(sql("mark.c", "keep_parked"), [TOPIC])):
        janitor.commit()
    others = sql("mark.c", "others")
    holder.hold(*taken, parked=TOPIC, text=others if guard else without(others, HOLD_GUARD))
    holder.commit()
    assert parked(db) == []
    assert state(db, seq) == [(0, False) if guard else (2, True)]


@pytest.mark.parametrize("statements", [2, 1], ids=["with-the-rule", "without"])
def test_who_removes_a_topic_looks_again_after_the_lock(db, hands, statements):
    """A row becomes held between the janitor's first look and its lock."""
    seq = put(db, "k")
    park(db, TOPIC, seq)
    holder, janitor, gate = hands(), hands(), Gate(db)
    lock = sql("parking.c", "lock_topics").replace("outbox_parked_topics", "outbox_parked_topics WHERE rig_gate()")
    unpark = sql("parking.c", "unpark")

    def remove():
        if statements == 1:
            unlocked = unpark.replace("topic = ANY ($1::text[])", f"$1::boolean AND topic = ANY (ARRAY({lock}))")
            return janitor.unpark(True, text=unlocked)
        return janitor.unpark([row[0] for row in janitor.run(lock)])

    with janitor.meanwhile(remove) as gone:
        begin_to_hold(db, holder, keep=True)
        holder.commit()
        gate.open()
    janitor.commit()
    assert gone == [0 if statements == 2 else 1]
    assert parked(db) == ([TOPIC] if statements == 2 else [])


@pytest.mark.parametrize("keep", [True, False], ids=["with-the-rule", "without"])
def test_a_draining_topic_stays_until_the_release_has_looked(db, hands, keep):
    """The head of a stream is marked SENT while its topic drains; the janitor finds only rows that wait behind the head."""
    head, follower = put(db, "k", 2, None), held(db, "k")
    park(db, TOPIC, follower)
    db.execute("UPDATE outbox_parked_topics SET state = 'draining'")
    worker, janitor = hands(), hands()
    worker.lanes()
    taken = worker.take()
    assert [row.seq for row in taken] == [head]
    if keep:
        worker.run(sql("mark.c", "keep_parked"), [TOPIC])
    worker.sent(*taken)
    worker.release(TOPIC, "k")
    gone = tidy(janitor)
    worker.commit()
    assert state(db, follower) == [(2, True)]
    assert (gone, parked(db)) == ((0, [TOPIC]) if keep else (1, [])), "without the lock nobody is left to free the follower"


def test_a_drained_topic_does_not_wait_for_another_one(db, hands):
    """What is left waits for a list's other topic, which is parked: the first one is well."""
    put(db, "k", 2, "infinity", routing_key=f"{TOPIC},other")
    park(db, TOPIC, 1)
    park(db, "other", 1)
    db.execute("UPDATE outbox_parked_topics SET state = 'draining' WHERE topic = %s", TOPIC)
    assert tidy(hands()) == 1 and parked(db) == ["other"]


# --- rows that somebody else has locked, or committed a moment later ---


def test_a_row_that_commits_during_the_claim_is_noticed(db, hands):
    """A lower seq becomes visible after the rows were taken: its follower must not go first."""
    late = db.connect()
    with late.transaction():
        writer.publish(late, TOPIC, "k")
        follower = put(db, "k")
        worker = hands()
        worker.lanes()
        taken = worker.take()
        assert [row.seq for row in taken] == [follower]
    assert worker.skipped(*taken) == [follower - 1]
    late.close()


@pytest.fixture
def foreign(db):
    """Locks rows in a session of its own: foreign(seq, …), and foreign.end() lets them go."""
    conn = db.connect()
    conn.autocommit = False

    def lock(*seqs):
        conn.execute("SELECT FROM outbox_events WHERE seq = ANY (%s) FOR UPDATE", (list(seqs),))

    lock.end = conn.rollback
    yield lock
    conn.close()


def sent(db, seq):
    return state(db, seq)[0][0] == 1


def test_followers_of_a_locked_head_do_not_starve_their_lane(db, topic, start, judge, foreign):
    """Many more followers than a batch has room for; the other streams of the lane go on, and nobody overtakes."""
    stuck, *others = keys_of_one_lane(db, 4)
    foreign(put(db, stuck, topic=topic))
    for _ in range(55):
        put(db, stuck, topic=topic)
    behind = [put(db, key, topic=topic) for key in others for _ in range(5)]
    daemons = [start(db, OUTBOX_BATCH_SIZE=10) for _ in range(2)]
    wait_until(lambda: all(sent(db, seq) for seq in behind), "the others are sent")
    assert db.value("SELECT count(*) FROM outbox_events WHERE aggregate_id = %s AND status = 1", stuck) == 0
    foreign.end()
    db.wait_settled(None, *daemons)
    assert judge(topic).check().messages == 56 + 15


def test_without_the_look_at_skipped_rows_followers_overtake(db, topic, start, judge, foreign, without_rule):
    build = without_rule(NO_LOOK_AT_SKIPPED)
    foreign(put(db, "k", topic=topic))
    follower = put(db, "k", topic=topic)
    daemon = start(db, build=build)
    wait_until(lambda: sent(db, follower), "the follower is sent")
    foreign.end()
    db.wait_settled(None, daemon)
    assert judge(topic).disorder == 1


def test_several_locked_rows_are_all_noticed(db, topic, start, judge, foreign):
    """A full batch that had to step over locked rows reaches further than a batch's worth of rows from the start."""
    a, b, c, d = keys_of_one_lane(db, 4)
    first = put(db, a, topic=topic)
    free = put(db, b, topic=topic)
    second = put(db, c, topic=topic)
    follower = put(db, c, topic=topic)
    last = put(db, d, topic=topic)
    foreign(first, second)
    daemon = start(db, OUTBOX_BATCH_SIZE=2)
    wait_until(lambda: sent(db, free) and sent(db, last), "the free streams flow")
    assert not sent(db, follower), "a follower overtook the locked row before it"
    foreign.end()
    db.wait_settled(None, daemon)
    judge(topic).check()


def test_a_row_for_a_parked_topic_waits_without_a_try(db, topic, start):
    """Somebody found out that the topic takes nothing, and until its probe no batch pays for that again."""
    park(db, topic, held(db, "p", topic=topic))
    late = put(db, "k", topic=topic)
    start(db)
    wait_until(lambda: state(db, late)[0] != (0, False), "the row is looked at")
    assert state(db, late) == [(2, True)], "the topic was tried"


# --- events with several topics ---


def test_a_routed_event_keeps_its_place_in_all_its_streams(db, new_topic, start, judge, foreign):
    one, two, three = new_topic(), new_topic(), new_topic()
    for topic in (one, two, three):
        put(db, "k", topic=topic)
    middle = put(db, "k", topic=one, routing_key=f"{one}, {two}")
    behind = [put(db, "k", topic=topic) for topic in (one, two)]
    chained = put(db, "k", topic=two, routing_key=f"{two},{three}")
    behind += [chained, put(db, "k", topic=three)]
    foreign(middle)
    daemon = start(db)
    neighbour = put(db, "other", topic=one)
    wait_until(lambda: sent(db, neighbour), "another key flows")
    wait_until(lambda: state(db, *behind) == [(2, True)] * 4, lambda: f"what stands behind waits: {state(db, *behind)}")
    foreign.end()
    db.wait_settled(None, daemon)
    judge(one, two, three).check()


def test_rows_that_come_later_wait_behind_a_routed_one(db, new_topic, start, judge):
    """Not only those that are in one batch with it: it was refused and is in its backoff, in the streams of both its topics."""
    one, two = new_topic(), new_topic()
    head = put(db, "k", 2, "2099-01-01", topic=one, routing_key=f"{one},{two}")
    behind = [put(db, "k", topic=topic) for topic in (one, two)]
    daemon = start(db)
    wait_until(lambda: state(db, *behind) == [(2, True)] * 2, lambda: f"they wait: {state(db, *behind)}")
    db.execute("UPDATE outbox_events SET retry_after = now() WHERE seq = %s", head)
    db.wait_settled(None, daemon)
    judge(one, two).check()


# --- heads that are gone, refused or dead ---


def swept(db):
    """Did the daemon's sweep at its start go through all lanes?"""
    return db.value("SELECT min(swept_at) > '-infinity' FROM outbox_lanes")


def test_a_deleted_head_frees_its_stream_at_the_next_sweep(db, topic, start, judge):
    head = put(db, "k", 2, "2099-01-01", topic=topic)
    followers = [put(db, "k", topic=topic) for _ in range(5)]
    daemon = start(db, OUTBOX_BATCH_SIZE=2)
    wait_until(lambda: swept(db) and state(db, *followers) == [(2, True)] * 5, "they wait behind the head")
    gone = db.value("DELETE FROM outbox_events WHERE seq = %s RETURNING id", head)
    witness = put(db, "other", topic=topic)
    wait_until(lambda: sent(db, witness), "others flow")
    assert state(db, *followers) == [(2, True)] * 5, "nobody but a sweep looks for them"
    daemon.stop()
    daemon = start(db, OUTBOX_BATCH_SIZE=2)  # sweeps at its start
    db.wait_settled(40, daemon)  # not only with the sweep of the next minute
    judge(topic, without=[gone]).check()


def test_a_deleted_head_frees_its_stream_within_a_minute(db, topic, start, judge):
    """Of a daemon that goes on: each lane is swept once a minute."""
    head = put(db, "k", 2, "2099-01-01", topic=topic)
    followers = [put(db, "k", topic=topic) for _ in range(5)]
    daemon = start(db)
    wait_until(lambda: swept(db) and state(db, *followers) == [(2, True)] * 5, "they wait behind the head")
    gone = db.value("DELETE FROM outbox_events WHERE seq = %s RETURNING id", head)
    db.wait_settled(90, daemon)
    judge(topic, without=[gone]).check()


def test_a_sweep_leaves_what_must_wait(db, start, topic):
    """A head in its backoff, a routed row, a parked topic: the sweep at the start frees none of them."""
    park(db, "nowhere", put(db, "p", 2, "infinity", topic="nowhere"))
    put(db, "k", 2, "2099-01-01", topic=topic)
    put(db, "r", 2, "2099-01-01", topic=topic, routing_key=f"{topic},more")
    waiting = [held(db, key, topic=topic) for key in ("k", "r")] + [held(db, "p", topic="nowhere")]
    db.execute("CREATE TABLE touched AS SELECT 0 AS n; CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS "
               "$$ BEGIN UPDATE touched SET n = n + 1; RETURN NULL; END $$; "
               "CREATE TRIGGER touch AFTER UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION touch()")
    start(db)
    wait_until(lambda: swept(db), "every lane is swept")
    assert state(db, *waiting) == [(2, True)] * 3
    assert db.value("SELECT n FROM touched") == 0


def test_a_long_queue_is_released_a_batch_at_a_time(db, topic, start, judge):
    """The head is due again: its 95 followers follow it in order, released ten at a time, two writes for each."""
    put(db, "k", 2, None, topic=topic)
    for _ in range(95):
        held(db, "k", topic=topic)
    db.execute("""CREATE TABLE releases (n int);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO releases SELECT count(*) FROM old_rows o JOIN new_rows n USING (seq)
                WHERE o.retry_after = 'infinity' AND n.retry_after IS NULL AND n.status = 2;
            RETURN NULL; END $$;
        CREATE TRIGGER note AFTER UPDATE ON outbox_events REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
            FOR EACH STATEMENT EXECUTE FUNCTION note()""")
    daemon = start(db, OUTBOX_BATCH_SIZE=10)
    db.wait_settled(None, daemon)
    assert db.value("SELECT sum(n) FROM releases") == 95 and db.value("SELECT max(n) FROM releases") <= 10
    assert judge(topic).check().messages == 96


def test_all_streams_together_are_released_a_batch_at_a_time(db, hands):
    """A mark, and a sweep, that frees many long streams frees no more than a batch, and some of each."""
    keys = keys_of_one_lane(db, 5)
    for key in keys:
        for _ in range(30):
            held(db, key)
    worker, lane = hands(), lane_of(db, keys[0])
    worker.lanes()
    assert worker.run(sql("mark.c", "release"), [lane] * 5, [TOPIC] * 5, keys, 20) == 20
    assert {row[0] for row in worker.run("SELECT aggregate_id FROM outbox_events WHERE retry_after IS NULL")} == set(keys)
    worker.rollback()
    assert worker.run(sql("sweep.c", "sweep_topic"), lane, TOPIC, "", True, False, 20)[0][1] == 20


def test_a_topic_without_a_row_to_try_is_not_due_at_every_look(db, start, topic):
    """Its only row waits behind a dead one that blocks: the workers try now and then, and otherwise only look."""
    dead = put(db, "k", 9, topic="nowhere")
    park(db, "nowhere", held(db, "k", topic="nowhere"), lane_of(db, "k"))
    db.execute("UPDATE outbox_parked_topics SET probe_after = now()")
    start(db, OUTBOX_ON_DEAD="block", OUTBOX_POLL_INTERVAL="5ms")
    wait_until(lambda: db.value("SELECT probes >= 2 AND probe_after > now() FROM outbox_parked_topics"), "it is put off")
    before = db.value("SELECT pg_current_xact_id()::text::bigint")
    wait_until(lambda: db.value("SELECT probes >= 4 FROM outbox_parked_topics"), "it is tried again")
    used = db.value("SELECT pg_current_xact_id()::text::bigint") - before
    assert used < 100, f"{used} transactions that write for two tries"
    assert state(db, dead) == [(9, False)]


def blocked_by_dead(db, topic, start, **options):
    put(db, "k", 9, topic=topic)
    behind = [put(db, "k", topic=topic) for _ in range(3)]
    other = put(db, "other", topic=topic)
    daemon = start(db, OUTBOX_ON_DEAD="block", **options)
    wait_until(lambda: sent(db, other), "others flow")
    return daemon, behind


def test_a_dead_row_blocks_its_stream_until_it_is_dealt_with(db, topic, start, judge):
    daemon, behind = blocked_by_dead(db, topic, start)
    wait_until(lambda: state(db, *behind) == [(2, True)] * 3, "they wait")
    dead = db.value("DELETE FROM outbox_events WHERE status = 9 RETURNING id")
    daemon.stop()
    daemon = start(db, OUTBOX_ON_DEAD="block")
    db.wait_settled(None, daemon)
    judge(topic, without=[dead]).check()


def test_without_the_look_at_dead_rows_their_followers_go(db, topic, start, without_rule):
    build = without_rule((" = s.key AND status = 9 AND", " = s.key AND status = 8 AND"))
    _, behind = blocked_by_dead(db, topic, start, build=build)
    wait_until(lambda: all(sent(db, seq) for seq in behind), "they are sent")


def test_a_dead_row_does_not_block_by_default(db, topic, start):
    put(db, "k", 9, topic=topic)
    behind = [held(db, "k", topic=topic) for _ in range(3)]
    daemon = start(db)  # the sweep at its start finds that nothing stands before them
    db.wait_settled(None, daemon)
    assert all(sent(db, seq) for seq in behind)


def test_lists_of_topics_count_as_bytes(db, hands):
    """A claim is bounded by what its rows cost, and a list of topics costs most when it is long."""
    db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, routing_key) "
               "SELECT 'a', 'order', 'k', '{}', repeat('a,', 500000) FROM generate_series(1, 20)")
    hand = hands()
    hand.lanes()
    assert len(hand.run(sql("claim.c", "take"), 100, 8 << 20, 1 << 30)) == 5
    hand.rollback()


def test_a_row_too_large_is_not_fetched(db, hands):
    """Neither its payload nor its headers, nor more of its list than ROUTE_MAX topics can need."""
    fill = "'{\"x\": \"' || repeat('x', 2000000) || '\"}'"
    db.execute(f"INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, headers, metadata, routing_key) "
               f"SELECT 'a', 'order', 'k', j, j, j, repeat('a,', 1000000) FROM (SELECT ({fill})::jsonb) f(j)")
    hand = hands()
    hand.lanes()
    [row] = hand.run(sql("claim.c", "take"), 100, 8 << 20, 9 << 20)
    size, routing_key, payload, headers, metadata = row[1], row[11], row[13], row[15], row[16]
    assert size > 9 << 20 and (len(routing_key), payload, headers, metadata) == (1000000, None, None, None)
    hand.rollback()
