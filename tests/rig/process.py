"""Child processes that die with us, free ports, and waiting for a condition."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE = float(os.environ.get("RIG_PATIENCE", "90"))
"""Seconds until a condition that must come true counts as missed. Generous: a slow machine is not a failure."""


def wait_until(condition, what, timeout=None, pause=0.02):
    """Calls `condition` until it returns something true, and returns that. `what` is text or a function that makes it."""
    bound = PATIENCE if timeout is None else timeout
    deadline = time.monotonic() + bound
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {bound:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause)


def free_port():
    """A loopback port nobody listens on. Below the ephemeral range, so that no outgoing connection takes it meanwhile."""
    for _ in range(1000):
        port = 10000 + int.from_bytes(os.urandom(2), "big") % 20000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 10000 and 30000")


def accepts(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def server_user():
    """PostgreSQL and PgBouncer refuse to run as root: then they run as the user that the Debian package made."""
    return "postgres" if os.geteuid() == 0 else None


def make_root(prefix="outboxd-rig-"):
    """A temporary folder that the servers' user may pass through."""
    root = Path(tempfile.mkdtemp(prefix=prefix))
    root.chmod(0o755)
    return root


def remove_root(root):
    shutil.rmtree(root, ignore_errors=True)


def own(path, user):
    """Hands a folder to the user the server runs as."""
    if user:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def command(argv, user=None, death="KILL"):
    """The same command, as `user`, and with a signal at our death: setpriv executes it in place, so the pid is its own."""
    wrapped = ["setpriv", "--pdeathsig", death]
    if user:
        wrapped += ["--reuid", user, "--regid", user, "--init-groups"]
    return [*wrapped, "--", *map(str, argv)]


def run(argv, user=None, **options):
    """Runs a tool to its end; its output is in the error when it fails."""
    done = subprocess.run(command(argv, user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, cwd=options.pop("cwd", "/"), **options)
    if done.returncode != 0:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


class Server:
    """A server process with a log file. Stopped by pid, never by name."""

    def __init__(self, argv, log, user=None, death="KILL", env=None, cwd="/"):
        self.log = Path(log)
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(command(argv, user, death), stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=subprocess.STDOUT, env=env, cwd=cwd,
                                            start_new_session=True)  # Ctrl-C is for us; we end it in good order

    @property
    def pid(self):
        return self.process.pid

    @property
    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        if self.alive:
            self.process.send_signal(number)

    def wait(self, timeout=None):
        try:
            return self.process.wait(PATIENCE if timeout is None else timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} did not end; its log:\n{self.tail()}") from None

    def kill(self):
        self.signal(signal.SIGKILL)
        self.wait()

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def tail(self, lines=30):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
