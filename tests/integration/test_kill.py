"""kill -9 at random moments and at every named point of the way: nothing missing, nothing out of order."""

import itertools
import random
import time

import pytest
from rig import writer

BATCH, WORKERS = 100, 2
SETTINGS = {"OUTBOX_WORKERS": WORKERS, "OUTBOX_BATCH_SIZE": BATCH}
KILLS = 12        # at each seam
RANDOM_KILLS = 40
SEAMS = ["claimed", "half-published", "acknowledged", "marked", "committed"]
IN_FLIGHT = {"half-published", "acknowledged", "marked"}  # something is acknowledged whose mark is not committed
ROUNDS = {"OUTBOX_KAFKA_BATCH_SIZE": 2000}  # bytes of a record batch: every batch goes out in many rounds


@pytest.mark.parametrize("seam", SEAMS)
def test_kill_at_seam(seam, db, topic, start, judge, seams):
    """A third of the kills each: plainly; with sent rows deleted; and both beside a second daemon, which goes on."""
    chance = random.Random(seam)
    with writer.Stream(db.connect, topic, keys=10, batch=20, pause=0.005):
        for kill in range(KILLS):
            if kill == KILLS * 2 // 3:
                neighbour = start(db, **SETTINGS)
            daemon = start(db, build=seams, **SETTINGS, **(ROUNDS if seam == "half-published" else {}),
                           OUTBOX_ON_SENT="delete" if KILLS // 3 <= kill < KILLS * 5 // 6 else "mark",
                           OUTBOXD_SEAM=f"{seam}:{chance.randrange(1, 6)}:kill")
            assert daemon.wait() == -9, daemon.tail()
    verdict = finish(db, neighbour, judge, topic, KILLS)
    if seam in IN_FLIGHT:
        assert verdict.duplicate >= KILLS, f"not every kill hit work in flight: {verdict}"


def test_kill_at_random_moments(db, topic, start, judge):
    """Two daemons, of which one deletes what it sent; one or the other is killed and started again while both work."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names, hits = itertools.count(), 0

    def begin(place):
        name = f"victim-{next(names)}"
        return name, start(db, **SETTINGS, OUTBOX_DATABASE_URL=f"{db.url}?application_name={name}",
                           OUTBOX_ON_SENT=("mark", "delete")[place])

    with writer.Stream(db.connect, topic, keys=10, batch=50, pause=0.002):
        pair = [begin(place) for place in range(2)]
        for _ in range(RANDOM_KILLS):
            time.sleep(chance.uniform(0.05, 0.5))
            victim = chance.randrange(2)
            name, daemon = pair[victim]
            daemon.freeze()  # its last instruction is behind it; now there is time to see where it stood
            hits += has_claim(db, name)
            daemon.kill()
            pair[victim] = begin(victim)
    verdict = finish(db, pair[0][1], judge, topic, RANDOM_KILLS)
    print(f"{hits} of {RANDOM_KILLS} kills hit a claim that was not committed")
    assert hits >= RANDOM_KILLS // 5 and verdict.duplicate > 0


def has_claim(db, name):
    """Lanes are locked by writing, so who holds some has a transaction id."""
    return db.value("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s "
                    "AND backend_xid IS NOT NULL)", name)


def finish(db, survivor, judge, topic, kills):
    db.wait_settled(None, survivor)
    verdict = judge(topic).check(duplicates=kills * WORKERS * BATCH)
    print(verdict)
    return verdict
