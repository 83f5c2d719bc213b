"""The shipped units under the real systemd: notify, status, watchdog, credentials, users, stop and restart."""

import re
import subprocess
import time
from pathlib import Path

import pytest
from rig import daemon as daemons
from rig import process, writer
from rig.http import Window
from rig.machine import Machine
from rig.process import wait_until

UNIT = "outboxd.service"


@pytest.fixture(scope="module")
def installed(root):
    """What `meson install` puts where."""
    folder = root / "installed"
    build = Path(daemons.binary()).parents[2]
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def machine(root, installed):
    why = Machine.missing()
    if why:
        # Loud, not skipped: whoever runs this suite wants to know about the units.
        pytest.fail(f"systemd cannot be booted here ({why}), so the units are NOT tested: run this suite as root")
    machine = Machine(root).boot()
    for path in (p for p in installed.rglob("*") if p.is_file()):
        machine.install(path, str(path.relative_to(installed)), path.stat().st_mode & 0o777)
    yield machine
    machine.shutdown()


@pytest.fixture
def service(machine, db, kafka):
    """Configures and starts a unit; afterwards it is stopped and its settings are gone."""
    used = []

    def service(unit=UNIT, url=None, start=True, drop_in="", **settings):
        name = unit.removesuffix(".service").partition("@")[2] or "outboxd"
        port = process.free_port()
        settings = {"OUTBOX_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap, "OUTBOX_HTTP_LISTEN": f"127.0.0.1:{port}", **settings}
        machine.write(f"/etc/outboxd/{name}.env", "".join(f"{key}={value}\n" for key, value in settings.items()))
        secret = "/etc/outboxd/database_url" if unit == UNIT else f"/etc/outboxd/{name}.database_url"
        machine.write(secret, (url or db.url) + "\n", 0o600)
        machine.write(f"/etc/systemd/system/{unit}.d/test.conf", "[Service]\n" + drop_in)
        machine.systemctl("daemon-reload")
        used.append(unit)
        if start:
            done = machine.run("systemctl", "start", unit)
            assert done.returncode == 0, done.stderr + machine.journal(unit) + machine.server.tail()
        return Window(port)

    yield service
    for unit in used:
        machine.systemctl("stop", unit)
        machine.systemctl("reset-failed", unit, check=False)


def main_pid(machine, unit=UNIT):
    return machine.show(unit, "MainPID")


def delivered(db):
    return db.value("SELECT count(*) FROM outbox_events WHERE status = 1")


def test_notify_user_and_credentials(machine, service, db, topic):
    window = service()
    assert machine.show(UNIT, "Type") == "notify" and machine.show(UNIT, "ActiveState") == "active"
    writer.bulk(db.conn, topic, 100, keys=5)
    db.wait_settled()
    wait_until(lambda: "relaying; 100 sent" in machine.show(UNIT, "StatusText"), lambda: machine.show(UNIT, "StatusText"))
    assert window.get("/readyz")[0] == 200

    pid = main_pid(machine)
    status = machine.run("cat", f"/proc/{pid}/status", check=True).stdout
    [uid] = [line.split()[1] for line in status.splitlines() if line.startswith("Uid:")]
    assert 61184 <= int(uid) <= 65519, "a dynamic user"
    for wanted in ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert wanted in status
    for name in ("cmdline", "environ"):
        text = machine.run("cat", f"/proc/{pid}/{name}", check=True).stdout
        assert "postgresql://" not in text and (name == "cmdline" or "OUTBOX_DATABASE_URL_FILE=" in text)
    lines = machine.run("journalctl", "-u", UNIT, "-o", "cat", "--no-pager", "-p", "info").stdout
    assert "relaying with 2 workers" in lines and "<6>" not in lines, "journald has taken the priorities"


def test_waits_for_postgres_and_says_so(machine, service):
    service(url="postgresql://u@127.0.0.1:1/nobody", start=False)
    machine.systemctl("start", "--no-block", UNIT)
    wait_until(lambda: "waiting for PostgreSQL" in machine.show(UNIT, "StatusText"), lambda: machine.show(UNIT, "StatusText"))
    assert machine.show(UNIT, "ActiveState") == "activating"


def test_restart_after_kill(machine, service, db, topic):
    service()
    restarts = int(machine.show(UNIT, "NRestarts"))
    for _ in range(12):  # more often than systemd's own limit
        before = main_pid(machine)
        machine.run("sh", "-c", f"kill -9 {before}", check=True)
        wait_until(lambda: main_pid(machine) not in ("0", before) and machine.show(UNIT, "ActiveState") == "active", "it is back")
    assert int(machine.show(UNIT, "NRestarts")) == restarts + 12
    writer.bulk(db.conn, topic, 50, keys=5)
    db.wait_settled()


def test_no_restart_after_78(machine, service):
    service(start=False, OUTBOX_WORKERS="many")
    assert machine.run("systemctl", "start", UNIT).returncode != 0
    time.sleep(3)
    assert machine.show(UNIT, "ActiveState") == "failed" and machine.show(UNIT, "ExecMainStatus") == "78"
    assert machine.show(UNIT, "NRestarts") == "0"
    errors = machine.run("journalctl", "-u", UNIT, "-o", "cat", "--no-pager", "-p", "err").stdout
    assert "OUTBOX_WORKERS" in errors and "<3>" not in errors, "journald has taken the priority"


@pytest.mark.parametrize("missing, status", [("shop.database_url", "243"), ("shop.env", "78")])
def test_no_restart_without_a_credential_or_settings(machine, service, missing, status):
    unit = "outboxd@shop.service"
    service(unit, start=False)
    machine.run("rm", f"/etc/outboxd/{missing}", check=True)
    assert machine.run("systemctl", "start", unit).returncode != 0
    time.sleep(3)
    assert machine.show(unit, "ActiveState") == "failed" and machine.show(unit, "ExecMainStatus") == status
    assert machine.show(unit, "NRestarts") == "0"


def test_watchdog_restarts_a_daemon_with_a_hung_worker(machine, service, db, topic, seams):
    machine.install(daemons.binary(seams), "/usr/local/bin/outboxd-seams")
    window = service(drop_in="WatchdogSec=3s\nExecStart=\nExecStart=/usr/local/bin/outboxd-seams run\n"
                             "Environment=OUTBOXD_SEAM=acknowledged:1:sleep600000\n", OUTBOX_DELIVERY_TIMEOUT="1s",
                     OUTBOX_SHUTDOWN_TIMEOUT="1s")
    pid = main_pid(machine)
    begin = time.monotonic()
    time.sleep(6)
    assert main_pid(machine) == pid, "an idle daemon feeds the watchdog"
    writer.bulk(db.conn, topic, 10, keys=1)
    wait_until(lambda: "hangs" in window.get("/readyz")[1] or main_pid(machine) != pid, "the worker hangs")
    wait_until(lambda: main_pid(machine) not in ("0", pid), "systemd has restarted it")
    print(f"restarted after {time.monotonic() - begin:.0f} s")
    assert "Watchdog timeout" in machine.run("journalctl", "--no-pager").stdout + machine.log.read_text()


def test_stop_under_load(machine, service, db, topic):
    service()
    with writer.Stream(db.connect, topic, keys=20, batch=50):
        wait_until(lambda: delivered(db) > 500, "events flow")
        begin = time.monotonic()
        machine.systemctl("stop", UNIT)
        seconds = time.monotonic() - begin
    assert seconds < 25, f"{seconds:.1f} s"
    assert machine.show(UNIT, "Result") == "success" and machine.show(UNIT, "ExecMainStatus") == "0"


def test_stop_with_a_batch_that_cannot_end(machine, service, db, new_kafka):
    """The broker hangs: OUTBOX_SHUTDOWN_TIMEOUT ends it, before systemd has to."""
    kafka = new_kafka()
    topic = kafka.create_topic("hanging")
    window = service(OUTBOX_KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap, OUTBOX_SHUTDOWN_TIMEOUT="3s")
    writer.bulk(db.conn, topic, 10, keys=1)
    db.wait_settled()
    kafka.brokers[0].freeze()
    writer.bulk(db.conn, topic, 100, keys=5)
    window.wait_metric("outboxd_lanes_held", lambda lanes: lanes > 0)
    begin = time.monotonic()
    machine.systemctl("stop", UNIT)
    assert time.monotonic() - begin < 15
    assert machine.show(UNIT, "Result") == "success"
    kafka.brokers[0].thaw()


def test_instances(machine, service, db, new_db, topic):
    other = new_db().prepare()
    service("outboxd@shop.service")
    service("outboxd@stock.service", url=other.url)
    for one in (db, other):
        writer.bulk(one.conn, topic, 20, keys=5)
        one.wait_settled()
    assert main_pid(machine, "outboxd@shop.service") != main_pid(machine, "outboxd@stock.service") != "0"


def test_commands_with_the_settings_of_a_unit(machine, service, db):
    """The snippet in OPERATIONS.md, without its sudo."""
    service("outboxd@shop.service")
    text = (daemons.SOURCE / "docs/OPERATIONS.md").read_text()
    snippet = re.search(r"```sh\n(outboxd-shop\(\).*?\n)```", text, re.S)[1].replace("sudo ", "")
    done = machine.run("bash", "-c", snippet + "outboxd-shop status --json && outboxd-shop config")
    assert '"pending":0' in done.stdout and "OUTBOX_DATABASE_URL" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("unit", ["outboxd.service", "outboxd@.service"])
def test_hardening(machine, installed, unit):
    [path] = installed.rglob(unit)
    assert str(path).endswith(f"/lib/systemd/system/{unit}")
    done = machine.run("systemd-analyze", "security", "--offline=true", "--threshold=15", "/" + str(path.relative_to(installed)))
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    done = machine.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", "/" + str(path.relative_to(installed)))
    assert done.returncode == 0, done.stderr
