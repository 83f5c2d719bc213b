"""All of it at once: ./dev test chaos --minutes N --seed S. A minute of it belongs to the default run."""

from rig import chaos
from rig.faults import fault
from rig.process import wait_until

WORKERS, BATCH, PASSWORD = 2, 200, "n0-w0rds-in-logs"


@fault("everything at once", how="two daemons; kill -9, brokers killed and frozen, sessions ended, PostgreSQL crashed, poison, "
       "missing and forbidden topics, foreign row locks, retries by hand, all at random",
       promise="nothing missing, nothing made up, order kept, no innocent event dead, every repeat explained")
def test_chaos(request, chance, new_cluster, new_kafka, new_db, start, seen):
    minutes = request.config.getoption("--minutes")
    cluster = new_cluster()
    kafka = new_kafka(brokers=3 if minutes >= 5 else 1, users={"relay": PASSWORD},
                      properties={"min.insync.replicas": 2} if minutes >= 5 else {})
    kafka.allow()
    db = new_db(cluster).prepare()
    common = {**kafka.sasl("relay"), "OUTBOX_WORKERS": WORKERS, "OUTBOX_BATCH_SIZE": BATCH, "OUTBOX_MAX_RETRIES": 2,
              "OUTBOX_RETRY_BASE": "200ms", "OUTBOX_DELIVERY_TIMEOUT": "8s", "OUTBOX_KAFKA_MESSAGE_MAX_BYTES": 1000000}
    # The second daemon's requests time out soon: librdkafka 2.0.2 then dies of its own confusion.
    impatient = {**common, "OUTBOX_KAFKA_SOCKET_TIMEOUT_MS": 3000, "OUTBOX_KAFKA_REQUEST_TIMEOUT_MS": 3000}
    run = chaos.Chaos(chance.printed_seed, minutes, cluster, kafka, db, start, [common, impatient])
    run.run()

    db.wait_settled(300, *run.daemons)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox_parked_topics") == 0, "no topic is parked any more")
    verdict, causes = chaos.verdict(run)
    print(verdict)
    counts = {cause: sum(i.cause == cause for i in run.incidents) for cause in sorted({i.cause for i in run.incidents})}
    culprits = db.value("SELECT count(*) FROM rig.ledger WHERE event_type = %s", chaos.POISON)
    seen(f"{minutes:g} min, seed {chance.printed_seed}: {verdict.committed} events, {culprits} culprits, {len(run.late)} late topics; "
         + ", ".join(f"{n} × {cause}" for cause, n in counts.items())
         + f"; {verdict.missing} missing, {verdict.phantom} phantom, {verdict.disorder} out of order, {verdict.duplicate} repeats ("
         + (", ".join(f"{n} {cause}" for cause, n in causes.most_common()) or "none") + ")")
    verdict.check(duplicates=verdict.duplicate)
    assert None not in causes, f"repeats that nothing explains: {causes}"
    dead = db.execute("SELECT event_type, status, retry_count, last_error, count(*) FROM outbox_events "
                      "WHERE (event_type = %s) <> (status = 9) OR (event_type <> %s AND retry_count > 0) GROUP BY 1, 2, 3, 4",
                      chaos.POISON, chaos.POISON)
    assert not dead, f"innocent events that suffered, or culprits that did not: {dead}"
