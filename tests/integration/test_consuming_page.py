"""docs/CONSUMING.md: every program of the page runs as it stands there, and its effect is once."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rig import process
from rig.daemon import SOURCE
from rig.messages import numbered, send
from rig.process import wait_until

PAGE = (SOURCE / "docs/CONSUMING.md").read_text()
CACHE = Path(os.environ.get("OUTBOXD_CACHE", SOURCE / ".cache")) / "consuming"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>outboxd</groupId>
<artifactId>page</artifactId><version>1</version><dependencies><dependency><groupId>org.postgresql</groupId>
<artifactId>postgresql</artifactId><version>42.7.4</version></dependency></dependencies></project>"""


def program(language, group="mailer"):
    """The text of the page. Another group is given to Kafka only: members that were killed stay in theirs for a while, with their
    own client's way of sharing partitions."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    return text.replace('"mailer"', f'"{group}"')


def tool(name):
    if not shutil.which(name):
        pytest.skip(f"NOT TESTED: the page's program in this language, for there is no {name} here")


def fetch(name, *commands):
    """A folder of the cache, filled by commands of a package manager the first time."""
    folder = CACHE / name
    done = folder / ".complete"
    if done.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        result = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        if result.returncode != 0:
            pytest.skip(f"NOT TESTED: the page's program in this language, for its packages cannot be had: {result.stdout[-500:]}")
    done.touch()
    return folder


def python(folder, group):
    return [SOURCE / ".venv/bin/python", "-c", program("python", group)], folder


def go(folder, group):
    tool("go")
    (folder / "main.go").write_text(program("go", group))
    env = {**os.environ, "GOFLAGS": "-mod=mod", "GOPATH": str(CACHE / "gopath")}
    for command in (["go", "mod", "init", "page"], ["go", "get", "github.com/jackc/pgx/v5@v5.7.1", "github.com/segmentio/kafka-go@v0.4.47"],
                    ["go", "build", "-o", "mailer", "."]):
        done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=400)
        if done.returncode != 0 and command[1] == "get":
            pytest.skip(f"NOT TESTED: the page's program in Go, for its packages cannot be had: {done.stderr[-500:]}")
        assert done.returncode == 0, done.stderr
    return [folder / "mailer"], folder


def java(folder, group):
    tool("javac")
    tool("mvn")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "pom.xml").write_text(POM)
    jars = fetch("java", ["mvn", "-q", "-B", "-f", CACHE / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={CACHE}/java"])
    path = f"{jars}/*:{CACHE.parent}/kafka/libs/*"
    (folder / "Mailer.java").write_text(program("java", group))
    subprocess.run(["javac", "-cp", path, "Mailer.java"], cwd=folder, check=True, timeout=200)
    return ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{folder}:{path}", "Mailer"], folder


def node(folder, group):
    tool("node")
    tool("npm")
    packages = fetch("node", ["npm", "install", "--no-audit", "--no-fund", "--silent", "kafkajs@2.2.4", "pg@8.13.1"])
    (folder / "mailer.js").write_text(program("js", group))
    (folder / "node_modules").symlink_to(packages / "node_modules")
    return ["node", folder / "mailer.js"], folder


def url(db, language):
    if language == "java":
        return f"postgresql://127.0.0.1:{db.cluster.port}/{db.name}?user=postgres"
    return db.cluster.url(db.name)


@pytest.mark.parametrize("make", [python, go, java, node], ids=lambda make: make.__name__)
def test_programs(make, db, kafka, topic, tmp_path):
    db.execute("CREATE TABLE orders_seen (key text PRIMARY KEY, events int)")
    events = numbered(200, keys=5)
    send(kafka, topic, events)
    send(kafka, topic, events[:100])  # these come twice
    send(kafka, topic, [("end", "end", "{}")])
    env = {**os.environ, "KAFKA": kafka.bootstrap, "TOPIC": topic, "DATABASE": url(db, make.__name__)}
    for round in range(2):  # all comes again for the second one, which finds what the first one took
        folder = tmp_path / str(round)
        folder.mkdir()
        argv, cwd = make(folder, f"{make.__name__}-{round}")
        server = process.Server(argv, folder / "log", env=env, cwd=cwd)
        try:
            wait_until(lambda: seen(db, server) >= 200 + round + 1, lambda: f"{db.execute('SELECT * FROM orders_seen')}\n{server.tail()}")
        finally:
            server.kill()
        send(kafka, topic, [*events[100:], (f"end{round}", "end", "{}")])
    counts = dict(db.execute("SELECT * FROM orders_seen"))
    assert counts.pop("end") == 2 and counts == {f"k{n}": 40 for n in range(5)}
    assert db.value("SELECT count(*) FROM processed_events WHERE consumer_group = 'mailer'") == 202


def test_node_after_a_failure(db, kafka, topic, tmp_path):
    """kafkajs would go on inside the transaction that failed half way: with its mark, and without its effect."""
    db.execute("""CREATE TABLE orders_seen (key text PRIMARY KEY, events int); CREATE SEQUENCE tries;
                  CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                      IF nextval('tries') = 1 THEN RAISE EXCEPTION 'not yet'; END IF; RETURN NEW; END $$;
                  CREATE TRIGGER refuse BEFORE INSERT ON orders_seen FOR EACH ROW EXECUTE FUNCTION refuse()""")
    send(kafka, topic, [("refused once", "k", "{}")])

    def run(name):
        (tmp_path / name).mkdir()
        argv, cwd = node(tmp_path / name, f"node-{name}")
        env = {**os.environ, "KAFKA": kafka.bootstrap, "TOPIC": topic, "DATABASE": url(db, "node")}
        return process.Server(argv, tmp_path / name / "log", env=env, cwd=cwd)

    assert run("first").wait() == 1
    second = run("second")
    try:
        wait_until(lambda: seen(db, second) == 1, second.tail)
        send(kafka, topic, [("without a key", None, "{}")])  # fails in JavaScript, behind the mark
        assert second.wait() == 1
    finally:
        second.kill()
    assert db.execute("SELECT event_id FROM processed_events") == [("refused once",)]


def seen(db, server):
    assert server.alive, server.tail()
    return db.value("SELECT coalesce(sum(events), 0) FROM orders_seen")


def test_sql(db, kafka, topic, consume):
    db.execute("CREATE TABLE orders_seen (key text PRIMARY KEY, events int);" + program("sql"))
    events = numbered(200, keys=5)
    send(kafka, topic, events)
    send(kafka, topic, events)
    daemon = consume(db, topic, OUTBOX_CONSUMER_GROUP="mailer", OUTBOX_CONSUMER_HANDLER="mailer")
    wait_until(lambda: db.value("SELECT count(*) FROM processed_events") == 200, "all are taken")
    assert daemon.stop() == 0
    assert dict(db.execute("SELECT * FROM orders_seen")) == {f"k{n}": 40 for n in range(5)}
