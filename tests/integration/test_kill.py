"""kill -9 at random moments and at every named point of the way: nothing missing, nothing out of order."""

import random
import time

import pytest
from rig import writer

BATCH, WORKERS = 100, 2
SEAMS = ["claimed", "half-published", "acknowledged", "marked", "committed"]


@pytest.mark.parametrize("seam", SEAMS)
def test_kill_at_seam(seam, db, topic, start, judge, seams):
    kills = 12
    chance = random.Random(seam)
    with writer.Stream(db.connect, topic, keys=10, batch=20, pause=0.005):
        for _ in range(kills):
            daemon = start(db, build=seams, OUTBOX_WORKERS=WORKERS, OUTBOX_BATCH_SIZE=BATCH,
                           OUTBOXD_SEAM=f"{seam}:{chance.randrange(1, 6)}:kill")
            assert daemon.wait() == -9, daemon.tail()
    finish(db, start, judge, topic, kills)


def test_kill_at_random_moments(db, topic, start, judge):
    """Two daemons; one or the other is killed and started again while both work."""
    kills = 40
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = {"OUTBOX_WORKERS": WORKERS, "OUTBOX_BATCH_SIZE": BATCH}
    with writer.Stream(db.connect, topic, keys=10, batch=20, pause=0.005):
        daemons = [start(db, **settings) for _ in range(2)]
        for _ in range(kills):
            time.sleep(chance.uniform(0.05, 0.5))
            victim = chance.randrange(2)
            daemons[victim].kill()
            daemons[victim] = start(db, **settings)
    finish(db, start, judge, topic, kills)


def finish(db, start, judge, topic, kills):
    survivor = start(db)
    db.wait_settled(None, survivor)
    verdict = judge(topic).check(duplicates=kills * WORKERS * BATCH)
    print(verdict)
