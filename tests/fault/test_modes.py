"""The ways of working that are not the default ones, under the same kills and cuts."""

import time

import pytest
from rig import writer
from rig.faults import fault

BATCH, WORKERS = 100, 2
SETTINGS = {"OUTBOX_BATCH_SIZE": BATCH, "OUTBOX_WORKERS": WORKERS, "OUTBOX_MAX_RETRIES": 1}


MODES = [{"OUTBOX_ON_SENT": "delete"}, {"OUTBOX_ORDERING": "none"}, {"OUTBOX_ON_SENT": "delete", "OUTBOX_ORDERING": "none"}]


@fault("kills and cuts in other modes", how="two daemons with OUTBOX_ON_SENT=delete, OUTBOX_ORDERING=none or both; kill -9 of "
       "one or pg_terminate_backend of some connections, 40 times at random, while events flow",
       promise="nothing missing, nothing made up, no attempt counted, order kept unless it is given up; with delete the table "
               "is empty in the end")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: " ".join(mode.values()))
def test_kills_and_cuts(db, topic, start, judge, chance, seen, mode):
    rounds, kills, cuts = 40, 0, 0
    settings = {**SETTINGS, **mode}
    with writer.Stream(db.connect, topic, keys=10, batch=20, pause=0.01):
        daemons = [start(db, **settings) for _ in range(2)]
        for _ in range(rounds):
            time.sleep(chance.uniform(0.05, 0.4))
            if chance.random() < 0.5:
                victim = chance.randrange(2)
                daemons[victim].kill()
                daemons[victim] = start(db, **settings)
                kills += 1
            else:
                cuts += db.value("SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity "
                                 "WHERE datname = current_database() AND application_name = 'outboxd' ORDER BY random() "
                                 "LIMIT %s) s", chance.randint(1, 4))
    db.wait_settled(None, *daemons)
    verdict = judge(topic, ordered="OUTBOX_ORDERING" not in mode).check(duplicates=(kills * WORKERS + cuts) * BATCH)
    left = db.execute("SELECT status, retry_count, count(*) FROM outbox_events GROUP BY 1, 2")
    assert kills > 5 and cuts > 5 and verdict.committed > 1000
    assert left == ([] if "OUTBOX_ON_SENT" in mode else [(1, 0, verdict.committed)])
    seen(f"{' and '.join(f'{name}={value}' for name, value in mode.items())}: {kills} kills, {cuts} connections ended; {verdict}")
