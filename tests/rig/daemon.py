"""`outboxd` as a child: its environment, its log, its end. The log of every run is judged."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

from . import process

SOURCE = Path(__file__).resolve().parents[2]

SANITIZER = re.compile(r"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|runtime error:|Assertion .* failed"
                       r"|==\d+==")
ENDS = {signal.SIGTERM: 0, signal.SIGINT: 0, signal.SIGKILL: -signal.SIGKILL}  # by signal: the exit code it must lead to
KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS")


def binary(build=None):
    """The program under test: of `build`, else of $OUTBOXD_BUILD, else of build/."""
    folder = SOURCE / (build or os.environ.get("OUTBOXD_BUILD", "build"))
    for path in (folder / "src/app/outboxd", folder / "outboxd"):
        if path.exists():
            return path
    raise RuntimeError(f"no outboxd in {folder}: run ./dev build")


def environment(settings):
    """Only what we name: a developer's own OUTBOX_ variables stay outside."""
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    if "OUTBOXD_PRELOAD" in os.environ:
        env["LD_PRELOAD"] = os.environ["OUTBOXD_PRELOAD"]
    env.update({name: str(value) for name, value in settings.items()})
    return env


def call(*args, build=None, timeout=None, **settings):
    """Runs a command of outboxd to its end: returncode, stdout, stderr."""
    return subprocess.run([binary(build), *args], env=environment(settings), text=True, capture_output=True,
                          timeout=timeout or process.PATIENCE, stdin=subprocess.DEVNULL)


def librdkafka():
    """The version in use: (2, 0, 2)."""
    return tuple(map(int, re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", call("version").stdout).groups()))


class Daemon(process.Server):
    """`outboxd run`, or another command that stays, logging JSON into its own file."""

    def __init__(self, log, settings, secrets=(), build=None, command="run"):
        self.settings = {"OUTBOX_LOG_FORMAT": "json", "OUTBOX_HTTP_LISTEN": "off", **settings}
        self.secrets = [secret for secret in secrets if secret]
        self.expected_errors = []  # patterns of lines at level error that this test provokes
        self.expected_end = -signal.SIGKILL if str(settings.get("OUTBOXD_SEAM", "")).endswith(":kill") else None  # None: lives
        super().__init__([binary(build), command], log, env=environment(self.settings))

    def text(self):
        return self.log.read_text(errors="replace")

    def lines(self):
        """(level, message, whole line) of each line."""
        found = []
        for line in self.text().splitlines():
            try:
                entry = json.loads(line)
                found.append((entry.get("level", "?"), entry.get("message", entry.get("msg", "")), line))
            except ValueError:
                found.append(("strange", line, line))
        return found

    def wait_log(self, pattern, timeout=None):
        """Waits until a line of the log matches, and returns the match."""
        return process.wait_until(lambda: self._search(pattern), lambda: f"log line {pattern!r} in\n{self.tail()}", timeout)

    def _search(self, pattern):
        found = re.search(pattern, self.text())
        if not found and not self.alive:
            raise AssertionError(f"outboxd ended with {self.process.returncode}:\n{self.tail()}")
        return found

    def signal(self, number):
        if self.alive:
            self.expected_end = ENDS.get(number, self.expected_end)
        super().signal(number)

    def stop(self, timeout=None):
        """SIGTERM, and the exit code."""
        self.thaw()
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def peak_rss(self):
        """Bytes of VmHWM."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def cpu_seconds(self, without=None):
        """So far; without the threads of that name."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir() if without else ()
        return cpu_seconds(self.pid) - sum(cpu_seconds(f"{self.pid}/task/{task.name}") for task in tasks
                                           if (task / "comm").read_text().strip() == without)

    def expect_error(self, pattern):
        self.expected_errors.append(pattern)
        return self

    def faults(self):
        """What nobody should find in this run's log, and an end that nobody asked for."""
        text = self.text()
        found = [f"secret in the log: {line}" for line in text.splitlines() for secret in self.secrets if secret in line]
        for level, message, line in self.lines():
            if SANITIZER.search(line):
                found.append(f"sanitizer: {line}")
            elif level in ("error", "strange") and not any(re.search(p, line) for p in self.expected_errors):
                found.append(f"{level}: {line}")
        if not self.alive and self.process.returncode != self.expected_end:
            found.append(f"ended with {self.process.returncode}, not {self.expected_end}:\n{self.tail()}")
        return found


def cpu_seconds(pid):
    """User and system time of a process so far, or of a thread ("PID/task/TID")."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
