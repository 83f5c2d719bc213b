"""All of it at once: ./dev test chaos --minutes N --seed S. A minute of it belongs to the default run."""

import random

from rig import account, chaos
from rig.database import PASSWORD as DB_PASSWORD
from rig.faults import fault
from rig.process import wait_until

WORKERS, BATCH, PASSWORD = 2, 200, "n0-w0rds-in-logs"


@fault("everything at once", how="two daemons; kill -9, brokers killed and frozen, sessions ended, PostgreSQL crashed, lines to "
       "both cut, reset and frozen, poison, missing and forbidden topics, lists of topics, foreign row locks, retries by hand, "
       "a purge after 2 s, OUTBOX_ON_DEAD=skip or block, all at random",
       promise="nothing missing, nothing made up, order kept, no innocent event dead and no attempt of one counted at any time, "
               "repeats explained by what was cut while they were published")
def test_chaos(request, chance, new_cluster, new_kafka, new_db, new_proxy, start, seen):
    minutes = request.config.getoption("--minutes")
    count = 3 if minutes >= 5 else 1
    on_dead = random.Random(f"{chance.printed_seed}-dead").choice(("skip", "block"))
    cluster = new_cluster()
    kafka_lines = [new_proxy(0) for _ in range(count)]
    kafka = new_kafka(brokers=count, users={"relay": PASSWORD}, properties={"min.insync.replicas": 2} if count == 3 else {},
                      advertise={n: line.port for n, line in enumerate(kafka_lines, 1)})
    for line, broker in zip(kafka_lines, kafka.brokers):
        line.target_port = broker.client_port
    kafka.allow()
    db = new_db(cluster).prepare()
    lines = [new_proxy(cluster.port) for _ in range(chaos.DAEMONS)]
    common = {**kafka.sasl("relay"), "OUTBOX_WORKERS": WORKERS, "OUTBOX_BATCH_SIZE": BATCH, "OUTBOX_MAX_RETRIES": 2,
              "OUTBOX_RETRY_BASE": "200ms", "OUTBOX_DELIVERY_TIMEOUT": "8s", "OUTBOX_KAFKA_MESSAGE_MAX_BYTES": 1000000,
              "OUTBOX_ON_DEAD": on_dead, "OUTBOX_RETENTION": "2s", "OUTBOX_DEAD_RETENTION": "5s", "OUTBOX_PURGE_INTERVAL": "1s"}
    # The second daemon's requests time out soon: librdkafka 2.0.2 then dies of its own confusion.
    impatient = {"OUTBOX_KAFKA_SOCKET_TIMEOUT_MS": 3000, "OUTBOX_KAFKA_REQUEST_TIMEOUT_MS": 3000}
    settings = [{**common, **own, "OUTBOX_DATABASE_URL": cluster.url(db.name, password=DB_PASSWORD, port=line.port)
                 + f"?application_name=relay-{n}"} for n, (own, line) in enumerate(zip(({}, impatient), lines))]
    run = chaos.Chaos(chance.printed_seed, minutes, cluster, kafka, db, start, settings, lines, kafka_lines)
    run.run()

    run.settle(300)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 0, "no topic is parked any more")
    verdict, causes, unexplained = account.verdict(run)
    print(verdict)
    by_cut = account.covered([i for i in run.incidents if i.lanes is not None], run.begin, run.end)
    by_any = account.covered(run.incidents, run.begin, run.end)
    counts = {cause: sum(i.cause == cause for i in run.incidents) for cause in sorted({i.cause for i in run.incidents})}
    culprits = db.value("SELECT count(*) FROM rig.ledger WHERE event_type = %s", account.POISON)
    seen(f"{minutes:g} min, seed {chance.printed_seed}, ON_DEAD={on_dead}: {verdict.committed} events, {culprits} culprits, "
         f"{len(run.late)} late topics; " + ", ".join(f"{n} × {cause}" for cause, n in counts.items())
         + f"; {verdict.missing} missing, {verdict.phantom} phantom, {verdict.disorder} out of order, "
         + f"{verdict.duplicate} repeats ("
         + (", ".join(f"{n} {cause}" for cause, n in causes.most_common()) or "none")
         + f"); cuts of sessions, daemons and lines excuse what was published in {100 * by_cut:.1f} % of the lanes' time, "
         + f"with brokers and crashes {100 * by_any:.0f} %; {len(unexplained)} repeats are explained by nothing")
    suffered = db.execute("SELECT * FROM rig.noted WHERE event_type <> %s ORDER BY at LIMIT 20", account.POISON)
    assert not suffered, f"innocent events that suffered: {suffered}"
    verdict.check(duplicates=verdict.duplicate)
    assert not unexplained, (f"{len(unexplained)} of {verdict.duplicate} repeats are explained by nothing: "
                             f"{unexplained[:5]}, near {account.nearest(run.incidents, unexplained[0])}; the daemons meanwhile:\n"
                             f"{account.said(run.started, unexplained[0])}")
    alive = db.execute("SELECT id, headers FROM rig.ledger WHERE event_type = %s AND id NOT IN (SELECT id FROM rig.noted)",
                       account.POISON)
    assert not alive, f"culprits that did not die: {alive}"
    assert db.value("SELECT count(*) FROM outbox_events") < verdict.committed, "the purge worked meanwhile"
