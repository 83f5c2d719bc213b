"""Fixtures: one PostgreSQL and one Kafka for the whole run, a database, topics and daemons of its own for each test."""

import itertools
import os
import re
from pathlib import Path

import pytest
from rig import daemon as daemons
from rig import judge as judges
from rig import kafka as kafkas
from rig import postgres, process
from rig.database import PASSWORD, Database
from rig.http import Window
from rig.pgbouncer import PgBouncer
from rig.process import wait_until
from rig.proxy import Proxy

pytest_plugins = ["rig.faults"]

numbers = itertools.count(1)


@pytest.fixture(scope="session")
def root():
    """The run's temporary folder. RIG_KEEP=1 leaves it for a look."""
    folder = process.make_root()
    yield folder
    if not os.environ.get("RIG_KEEP"):
        process.remove_root(folder)


@pytest.fixture(scope="session")
def cluster(root):
    cluster = postgres.Cluster(root).create().start()
    yield cluster
    cluster.destroy()


@pytest.fixture
def new_cluster(root):
    """Makes private clusters, for tests that stop or break them."""
    made = []

    def new(**options):
        made.append(postgres.Cluster(root, **options).create().start())
        return made[-1]

    new.adopt = made.append
    yield new
    for cluster in made:
        cluster.destroy()


@pytest.fixture(scope="session")
def kafka(root):
    kafka = kafkas.Kafka(root, heap=512).start()
    yield kafka
    kafka.destroy()


@pytest.fixture
def new_kafka(root):
    """Makes private Kafkas, for tests that stop or break them."""
    made = []

    def new(**options):
        made.append(kafkas.Kafka(root, **options).start())
        return made[-1]

    yield new
    for kafka in made:
        kafka.destroy()


@pytest.fixture(scope="session")
def guarded(root):
    """A Kafka that asks for a password and has ACLs: `relay` and `clerk` may write, `curious` may also ask for the limits of
    topics, `guest`, `newcomer` and `canary` may do nothing."""
    users = {name: f"the-{name}-password" for name in ("relay", "clerk", "curious", "guest", "newcomer")} | {"canary": kafkas.CANARY}
    kafka = kafkas.Kafka(root, users=users).start()
    for user in ("relay", "clerk", "curious"):
        kafka.allow(user=user)
    kafka.allow(user="curious", operations=(kafka.DESCRIBE_CONFIGS,))
    yield kafka
    kafka.destroy()


@pytest.fixture
def empty_db(cluster):
    """A database without our tables."""
    db = Database(cluster)
    yield db
    db.drop()


@pytest.fixture
def db(empty_db):
    """A migrated database."""
    return empty_db.prepare()


@pytest.fixture
def new_db(cluster):
    """Databases with a schema of their own, or in another cluster."""
    made = []

    def new(cluster=cluster, **options):
        made.append(Database(cluster, **options))
        return made[-1]

    yield new
    for db in made:
        if db.cluster.server.alive:
            db.drop()


@pytest.fixture
def topic(kafka, request):
    """A fresh topic of four partitions."""
    return kafka.create_topic(topic_name(request))


@pytest.fixture
def new_topic(kafka, request):
    def new(cluster=kafka, **options):
        return cluster.create_topic(topic_name(request), **options)

    return new


def topic_name(request):
    name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:60].strip("-")
    return f"{name}-{os.getpid()}-{next(numbers)}"


@pytest.fixture
def start(root, request):
    """Starts daemons: start(db, OUTBOX_WORKERS=4). At the end they are stopped, and their logs and exit codes judged."""
    started = []

    def start(db, build=None, secrets=(), kafka=None, command="run", **settings):
        kafka = kafka or request.getfixturevalue("kafka")  # not for those who bring their own
        log = root / f"{topic_name(request)}.log"
        settings = {"OUTBOX_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap, **(db.settings if db else {}), **settings}
        one = daemons.Daemon(log, settings, [PASSWORD, *secrets], build, command)
        started.append(one)
        return one

    yield start
    for one in started:
        if one.alive:
            one.thaw()
            one.signal(15)
    faults = []
    for one in started:
        try:
            one.wait(40)
        except AssertionError:
            one.kill()
            faults.append(f"SIGTERM did not end the daemon:\n{one.tail()}")
        faults += one.faults()
    assert not faults, "\n".join(faults[:20])


@pytest.fixture
def consume(start):
    """Starts consumers: consume(db, topic, …). The group is "g", the handler "handler", and a failed attempt waits only shortly."""
    def consume(db, topics, **settings):
        return start(db, command="consume", **{"OUTBOX_CONSUMER_GROUP": "g", "OUTBOX_CONSUMER_TOPICS": topics,
                                               "OUTBOX_CONSUMER_HANDLER": "handler", "OUTBOX_RETRY_BASE": "100ms", **settings})

    return consume


@pytest.fixture
def judge(kafka, db):
    """judge(topic, …) → verdict over everything committed in the test's database."""
    def judge(*topics, db=db, kafka=kafka, **options):
        return judges.judge(kafka, db.conn, topics, **options)

    judge.kafka = kafka
    return judge


@pytest.fixture
def new_proxy():
    made = []

    def new(port):
        made.append(Proxy(port))
        return made[-1]

    yield new
    for proxy in made:
        proxy.close()


@pytest.fixture
def new_pgbouncer(root):
    made = []

    def new(cluster, **options):
        made.append(PgBouncer(root, cluster, **options).start())
        return made[-1]

    yield new
    for bouncer in made:
        bouncer.stop()


@pytest.fixture(scope="session")
def seams():
    """The build with named kill points."""
    build = os.environ.get("OUTBOXD_SEAMS_BUILD", "build-seams")
    if not Path(daemons.SOURCE / build).exists():
        pytest.skip(f"no {build}: ./dev test integration makes it")
    return build


@pytest.fixture
def serve(start):
    """Starts a daemon with its window open: (daemon, window)."""
    def serve(db, **settings):
        port = process.free_port()
        daemon = start(db, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{port}", **settings)
        window = Window(port)
        wait_until(lambda: window.get("/healthz")[0] == 200, "the window is open")
        return daemon, window

    return serve
