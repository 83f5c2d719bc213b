"""Secrets are planted everywhere a setting can hold one; no command at any log level says one of them.

Looked at: stdout, stderr, HTTP answers, the command line, and the children (there are none to inherit an environment)."""

import base64
import contextlib
import itertools
import os
import pty
import re
import select
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rig import daemon, process
from rig.kafka import CANARY
from rig.writer import publish

URL, TOKEN, PEM, SSLPASS = "C4nary/url@1:x?", "C4nary-token-2", "C4nary-pem-4", "C4nary-keypass-5"
SASL = CANARY  # what the broker knows
SECRETS = (URL, TOKEN, SASL, PEM, SSLPASS)


def spellings(secret):
    """As it is, percent-encoded, in base64; and its pieces, as a careless reader of URLs would cut them."""
    yield secret
    yield urllib.parse.quote(secret, safe="")
    yield base64.b64encode(secret.encode()).decode()
    for piece in re.split(r"[@/:?#]", secret):
        if len(piece) > 3:
            yield piece


WORDS = sorted({word for secret in SECRETS for word in spellings(secret)})


def leaks(text):
    return [word for word in WORDS if word in text]


def commands():
    """Every command that the program knows, and its actions."""
    names = re.findall(r"^\| `outboxd ([a-z-]+)", daemon.call("help", "--markdown").stdout, re.M)
    more = {
        "migrate": [["up"], ["status"], ["print"], ["down", "--to", "2"], ["--to", "x"]],
        "events": [["list"], ["list", "--json"], ["show", "x"], ["retry", "--all"], ["discard", "--all", "--dry-run"], ["retry"]],
        "inbox": [["list"], ["list", "--json"], ["show", "x"], ["retry", "--all"], ["discard", "--all", "--dry-run"]],
        "config": [[], ["--json"], ["--env"], ["--markdown"], ["--man"]],
        "check": [[], ["--json"]],
        "status": [[], ["--json"]],
        "purge": [["--once"]],
    }
    return [[name, *args] for name in names for args in more.get(name, [[]])]


LONG = ("run", "consume", "dev-broker")


@pytest.fixture
def worlds(db, guarded, root):
    """Settings with secrets: all in order, wrong ones, nobody there, unreadable ones, from files, from libpq's own variables."""
    port = process.free_port()
    quoted = urllib.parse.quote(URL, safe="")
    url = f"postgresql://postgres:{quoted}@127.0.0.1:{db.cluster.port}/{db.name}"
    base = {
        "OUTBOX_HTTP_TOKEN": TOKEN, "OUTBOX_HTTP_LISTEN": f"127.0.0.1:{port}",
        "OUTBOX_KAFKA_BOOTSTRAP_SERVERS": guarded.bootstrap, "OUTBOX_KAFKA_SECURITY_PROTOCOL": "sasl_plaintext",
        "OUTBOX_KAFKA_SASL_MECHANISM": "PLAIN", "OUTBOX_KAFKA_SASL_USERNAME": "canary", "OUTBOX_KAFKA_SASL_PASSWORD": SASL,
        "OUTBOX_KAFKA_SSL_KEY_PASSWORD": SSLPASS,
        "OUTBOX_CONSUMER_GROUP": "g", "OUTBOX_CONSUMER_TOPICS": "t", "OUTBOX_CONSUMER_HANDLER": "handle",
    }
    files = {}
    for name, secret in {"OUTBOX_DATABASE_URL": url, "OUTBOX_HTTP_TOKEN": TOKEN, "OUTBOX_KAFKA_SASL_PASSWORD": SASL}.items():
        path = root / f"canary-{name}"
        path.write_text(secret + "\n")
        files[f"{name}_FILE"] = path
    unnamed = {name: value for name, value in base.items() if f"{name}_FILE" not in files}
    return {
        "good": {**base, "OUTBOX_DATABASE_URL": url},
        "files": {**unnamed, **files},
        "wrong passwords": {**base, "OUTBOX_KAFKA_SASL_PASSWORD": PEM,
                            "OUTBOX_DATABASE_URL": url.replace("postgres:", "locked:", 1)},
        "nobody there": {**base, "OUTBOX_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{process.free_port()}",
                         "OUTBOX_DATABASE_URL": url.replace(str(db.cluster.port), str(process.free_port()))},
        "not quoted": {**base, "OUTBOX_DATABASE_URL": f"postgresql://postgres:{URL}@127.0.0.1:{db.cluster.port}/{db.name}"},
        "bad escape": {**base, "OUTBOX_DATABASE_URL": f"postgresql://postgres:{quoted}%zz@127.0.0.1/x"},
        "words": {**base, "OUTBOX_DATABASE_URL": f"host=127.0.0.1 port={db.cluster.port} dbname={db.name} user=locked password='{URL}'"},
        "libpq": {**base, "PGHOST": "127.0.0.1", "PGPORT": str(db.cluster.port), "PGUSER": "locked", "PGDATABASE": db.name,
                  "PGPASSWORD": URL},
        "bad values": {**base, "OUTBOX_DATABASE_URL": url, "OUTBOX_HTTP_TOKEN": TOKEN + " with blanks", "OUTBOX_WORKERS": "0"},
        "both": {**base, "OUTBOX_DATABASE_URL": url, **files},
        "bad key": {**base, "OUTBOX_DATABASE_URL": url, "OUTBOX_KAFKA_SECURITY_PROTOCOL": "sasl_ssl", "OUTBOX_KAFKA_SSL_KEY_PEM": PEM,
                    "OUTBOX_KAFKA_SSL_CERTIFICATE_PEM": PEM},
        "secret as file name": {**unnamed, "OUTBOX_DATABASE_URL": url, "OUTBOX_HTTP_TOKEN_FILE": TOKEN},
    }


@pytest.fixture
def locked(cluster):
    cluster.execute("DROP ROLE IF EXISTS locked; CREATE ROLE locked LOGIN PASSWORD 'another one'")
    yield
    cluster.execute("DROP ROLE locked")


def run_until(said, args, settings, log, visit=None):
    """A command that does not end by itself: what it said, and what others could see of it meanwhile. It runs until it says
    `said`, a pattern, or ends."""
    child = process.Server([daemon.binary(), *args], log, env=daemon.environment(settings))
    seen = ""

    def look():
        nonlocal seen
        home = Path(f"/proc/{child.pid}")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            seen += (home / "cmdline").read_text()
            seen += " ".join((task / "comm").read_text() for task in (home / "task").iterdir())
            assert not "".join((task / "children").read_text() for task in (home / "task").iterdir()), "it has children"
        return re.search(said, log.read_text()) or not child.alive

    try:
        process.wait_until(look, lambda: f"{said!r} in\n{child.tail()}")
        if visit and child.alive:
            seen += visit()
    finally:
        child.signal(signal.SIGTERM)
        child.wait()
    return seen + log.read_text()


def visits(port):
    def visit():
        seen = ""
        for path, token in itertools.product(("/", "/healthz", "/readyz", "/status", "/metrics"), (None, "wrong", TOKEN)):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
            if token:
                request.add_header("Authorization", f"Bearer {token}")
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    seen += str(answer.headers) + answer.read().decode()
            except urllib.error.HTTPError as failure:
                seen += str(failure.headers) + failure.read().decode()
            except OSError:
                pass  # this one does not listen
        return seen
    return visit


def test_every_command_in_every_world(worlds, locked):
    """At the level that says most. Much of it is waiting for who is not there, so the worlds turn side by side."""
    def said(name):
        total = 0
        for args in commands():
            if args[0] in LONG:
                continue
            done = daemon.call(*args, timeout=60, **{**worlds[name], "OUTBOX_LOG_LEVEL": "debug"})
            found = leaks(done.stdout + done.stderr)
            assert not found, f"{name}: outboxd {' '.join(args)} says {found}:\n{done.stdout}{done.stderr}"
            total += len(done.stdout + done.stderr)
        return total

    with ThreadPoolExecutor(4) as pool:
        assert all(length > 300 for length in pool.map(said, worlds))  # none was silent


@pytest.mark.parametrize("level", ["error", "warning", "info", "debug"])
def test_every_level(worlds, locked, level):
    for name, form in itertools.product(("good", "wrong passwords", "nobody there"), ("text", "json")):
        settings = {**worlds[name], "OUTBOX_LOG_LEVEL": level, "OUTBOX_LOG_FORMAT": form}
        for args in (["migrate", "status"], ["events", "retry", "--all"], ["check"]) if name != "nobody there" else (["events"],):
            done = daemon.call(*args, timeout=60, **settings)
            assert not leaks(done.stdout + done.stderr), (name, level, form, args, done.stdout, done.stderr)


@pytest.mark.parametrize("world", ["good", "files", "wrong passwords", "nobody there", "words", "bad key"])
def test_the_daemon(db, worlds, locked, world, tmp_path):
    """With librdkafka's own debug lines, too; and over HTTP, with the token and without."""
    publish(db.conn, "t", "k", '{"card": 1}')
    settings = {**worlds[world], "OUTBOX_LOG_LEVEL": "debug", "OUTBOX_KAFKA_DEBUG": "security,broker,protocol,conf"}
    port = settings["OUTBOX_HTTP_LISTEN"].split(":")[1]
    seen = run_until(" warning .*(parked|waiting)", ["run"], settings, tmp_path / "log", visits(port))
    assert "outboxd" in seen and not leaks(seen), (leaks(seen), seen[-3000:])
    assert '"card"' not in seen  # a payload is nobody's business either


@pytest.mark.parametrize("world", ["good", "wrong passwords"])
def test_the_consumer(worlds, locked, world, tmp_path):
    if "consume" not in [args[0] for args in commands()]:
        pytest.skip("this build has no consume")
    settings = {**worlds[world], "OUTBOX_LOG_LEVEL": "debug", "OUTBOX_KAFKA_DEBUG": "security,conf"}
    seen = run_until(" warning ", ["consume"], settings, tmp_path / "log")
    assert not leaks(seen), (leaks(seen), seen[-3000:])


@pytest.mark.parametrize("world", ["good", "wrong passwords", "nobody there", "libpq"])
def test_the_screen_and_the_broker(worlds, locked, world, tmp_path):
    master, slave = pty.openpty()
    child = subprocess.Popen([daemon.binary(), "status", "--watch"], stdin=slave, stdout=slave, stderr=slave,
                             env=daemon.environment({**worlds[world], "OUTBOX_LOG_LEVEL": "debug", "TERM": "xterm"}))
    os.close(slave)
    seen, end = b"", time.monotonic() + 3
    while time.monotonic() < end and select.select([master], [], [], 1)[0]:
        try:
            seen += os.read(master, 65536)
        except OSError:  # it has ended
            break
    child.terminate()
    child.wait(60)
    os.close(master)
    seen = seen.decode(errors="replace") + run_until("listening", ["dev-broker"], {**worlds[world], "OUTBOX_LOG_LEVEL": "debug"},
                                                     tmp_path / "broker.log")
    assert "listening" in seen and len(seen) > 100 and not leaks(seen), (leaks(seen), seen)


def test_the_canary_sings():
    """A test that looks for nothing finds nothing."""
    assert leaks(f"password={URL}") and leaks(base64.b64encode(SASL.encode()).decode()) and leaks("C4nary%2Furl%401%3Ax%3F")
    assert not leaks("all is well")
