"""`outboxd status --watch` on a terminal of the test's own: what it draws, and that it leaves nothing behind."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
from rig import daemon as daemons
from rig.process import wait_until

LEFT = "\033[?1049l"


class Terminal:
    def __init__(self, db, width, height, **settings):
        self.master, slave = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(slave)
        env = daemons.environment({"TERM": "xterm", "LC_ALL": "C.UTF-8", **db.settings, **settings})
        self.process = subprocess.Popen([daemons.binary(), "status", "--watch"], stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.slave, self.text = slave, ""

    def resize(self, width, height):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self, seconds=0.05):
        while select.select([self.master], [], [], seconds)[0]:
            self.text += os.read(self.master, 65536).decode(errors="replace")
            seconds = 0
        return self.text

    def screen(self):
        """The lines of the last whole screen, without colours."""
        whole = ([one for one in self.read().split("\033[H") if one.endswith("\033[J")] or [""])[-1]
        return [re.sub(r"\033\[[0-9;?]*[a-zA-Z]", "", line).rstrip("\r") for line in whole.split("\r\n")]

    def wait(self, pattern):
        wait_until(lambda: re.search(pattern, "\n".join(self.screen())), lambda: f"{pattern!r} in {self.screen()}", 30)

    def end(self):
        wait_until(lambda: self.read() and self.process.poll() is not None, "it ends", 30)
        return self.process.returncode

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(db):
    opened = []

    def terminal(width=80, height=24, **settings):
        opened.append(Terminal(db, width, height, **settings))
        return opened[-1]

    yield terminal
    for one in opened:
        one.close()


@pytest.fixture
def full(db):
    """Every section has something to show, and some of it is meant ill."""
    insert = "INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload, status, retry_after, last_error) "
    db.execute(insert + "SELECT 'topic-' || n % 60, 'o', n::text, '{}', 0, NULL, NULL FROM generate_series(1, 3000) n")
    db.execute(insert + "SELECT 'dead-ä', 'o', n::text, '{}', 9, NULL, E'red\\x1b[31m\\nand a second line ' || repeat('long ', 100) "
               "FROM generate_series(1, 20) n")
    db.execute(insert + "SELECT 'gone', 'o', n::text, '{}', 2, 'infinity', 'held' FROM generate_series(1, 30) n")
    db.execute("INSERT INTO outbox_parked_topics (topic, reason, probe_after, probe_seq, probe_lane) "
               "SELECT 'gone' || CASE n WHEN 1 THEN '' ELSE n::text END, 'the topic does not exist', now(), 1, 0 "
               "FROM generate_series(1, 30) n")


@pytest.mark.parametrize("width, height", [(80, 24), (200, 50), (40, 12), (20, 5)])
def test_it_fits(terminal, full, width, height):
    one = terminal(width, height)
    one.wait(r"pending +3,030")
    lines = one.screen()
    assert len(lines) <= height and max(map(len, lines)) <= width
    if height >= 24:
        for wanted in ("PARKED TOPICS", "TOPICS", "LAST ERRORS", "dead-ä", "gone", "30 held", "q ends"):
            assert wanted in "\n".join(lines)
    os.write(one.master, b"q")
    assert one.end() == 0


@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM", "SIGHUP", "q"])
def test_the_terminal_is_as_before(terminal, how):
    one = terminal()
    one.wait("pending")
    assert termios.tcgetattr(one.slave) != one.before
    if how == "ctrl-c":
        os.write(one.master, b"\x03")
    elif how == "q":
        os.write(one.master, b"q")
    else:
        one.process.send_signal(getattr(signal, how))
    assert one.end() == 0
    assert one.text.rstrip().endswith(LEFT) and "\033[?25h" in one.text
    after = termios.tcgetattr(one.slave)
    assert after == one.before


def test_resize_is_drawn_at_once(terminal, full):
    one = terminal(80, 24)
    one.wait("q ends")
    one.resize(120, 30)
    one.process.send_signal(signal.SIGWINCH)
    wait_until(lambda: len(one.screen()) == 30, lambda: f"{len(one.screen())} lines", 10)
    assert max(map(len, one.screen())) <= 120


def test_colours_are_a_choice(terminal, full):
    colourful, plain = terminal(), terminal(NO_COLOR="1")
    for one in (colourful, plain):
        one.wait("q ends")
    assert re.search(r"\033\[[0-9;]*m", colourful.read()) and not re.search(r"\033\[[0-9;]*m", plain.read())


def test_rates_and_time_to_empty(terminal, db):
    db.execute("INSERT INTO outbox_events (topic, aggregate_type, aggregate_id, payload) SELECT 't', 'o', n::text, '{}' "
               "FROM generate_series(1, 5000) n")
    one = terminal()
    one.wait("nothing goes out")
    for _ in range(8):  # what a relay would do
        db.execute("UPDATE outbox_events SET status = 1, published_at = now() WHERE seq IN "
                   "(SELECT seq FROM outbox_events WHERE status = 0 ORDER BY seq LIMIT 500)")
        time.sleep(0.5)
    one.wait(r"out +[1-9][\d,]*/s +empty in")
    db.execute("UPDATE outbox_events SET status = 1 WHERE status = 0")
    one.wait(r"/s +empty *$|/s +empty\n")


def test_an_outage_is_shown_and_over(terminal, db, cluster):
    one = terminal()
    one.wait("q ends")
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    one.wait("not up to date")
    one.wait("q ends")


def test_ctrl_c_does_not_wait_for_a_frozen_server(terminal, db):
    one = terminal()
    one.wait("q ends")
    pid = db.value("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outboxd'")
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(2)  # it looks, and gets no answer
        begin = time.monotonic()
        os.write(one.master, b"\x03")
        assert one.end() == 0 and time.monotonic() - begin < 3
    finally:
        os.kill(pid, signal.SIGCONT)
    assert termios.tcgetattr(one.slave) == one.before


def test_topics_that_do_not_fit_are_counted(terminal, full):
    one = terminal(80, 24)
    one.wait(r"… and \d+ more, 1 of them with dead events")


@pytest.mark.parametrize("height", [1, 2, 3, 4])
def test_what_does_not_fit_is_left_out(terminal, full, height):
    """And does not follow on the last line."""
    one = terminal(60, height)
    one.wait("UTC" if height < 3 else r"pending +3,030")
    words = " ".join(one.screen())
    assert len(one.screen()) == height
    assert ("pending" in words, " in " in words, "goes out" in words or "…" in words) == (height >= 3, height >= 4, False)


def test_a_terminal_that_cannot_redraw(terminal):
    one = terminal(TERM="dumb")
    assert one.end() == 64 and "TERM is dumb" in one.text and "\033" not in one.text


def test_it_needs_a_terminal(db):
    done = daemons.call("status", "--watch", **db.settings)
    assert done.returncode == 64 and "terminal" in done.stderr
