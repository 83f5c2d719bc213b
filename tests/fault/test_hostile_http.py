"""Strangers at the daemon's window: it stays small, keeps answering, and events flow."""

import contextlib
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from rig import process, writer
from rig.http import Window
from rig.process import wait_until

CONNECTIONS = 10000
MEMORY = 48 << 20  # what all the visitors together may cost
DESCRIPTORS = 400


@pytest.fixture
def served(db, start):
    port = process.free_port()
    daemon = start(db, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{port}", OUTBOX_HTTP_TOKEN="right-token", secrets=["right-token"])
    window = Window(port, "right-token")
    window.wait("/readyz", 200)
    window.metrics()
    return daemon, window


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def memory(daemon):
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def connect(window):
    return socket.create_connection(("127.0.0.1", window.port), timeout=5)


def slowest_of(window, count=20):
    """Seconds of the slowest honest scrape; every one must be answered."""
    worst = 0
    for _ in range(count):
        begin = time.monotonic()
        code, text = window.get("/metrics", timeout=20)
        assert code == 200, (code, text)
        worst = max(worst, time.monotonic() - begin)
    return worst


@contextlib.contextmanager
def background(work):
    stop = threading.Event()
    thread = threading.Thread(target=lambda: work(stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def test_ten_thousand_connections(served, db, topic, judge):
    daemon, window = served
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 1000:
        pytest.fail(f"this process may open only {hard} files: raise the limit to try {CONNECTIONS} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS + 1000, hard))
    before, opened, most = memory(daemon), [], 0
    try:
        with writer.Stream(db.connect, topic, keys=10, batch=10, pause=0.01):
            for n in range(CONNECTIONS):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", window.port))
                opened.append(one)
                if n % 1000 == 999:
                    most = max(most, descriptors(daemon))
                    slowest_of(window, 2)
            worst = slowest_of(window)
            most = max(most, descriptors(daemon))
            grown = memory(daemon) - before
    finally:
        for one in opened:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{CONNECTIONS} connections: {most} descriptors, {grown >> 10} KiB more, slowest scrape {worst:.3f} s")
    assert most < DESCRIPTORS and grown < MEMORY
    db.wait_settled(None, daemon)
    judge(topic).check()


def test_slow_headers(served):
    """A byte now and then keeps no place for ever."""
    daemon, window = served
    drips = [connect(window) for _ in range(150)]
    for one in drips:
        with contextlib.suppress(OSError):
            one.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")

    def drip(stop):
        while not stop.wait(1):
            for one in drips:
                with contextlib.suppress(OSError):
                    one.send(b"x")

    with background(drip):
        print(f"slowest scrape beside slow headers: {slowest_of(window):.3f} s")
        wait_until(lambda: descriptors(daemon) < 60, lambda: f"{descriptors(daemon)} descriptors", 60)
    for one in drips:
        one.close()


@pytest.mark.parametrize("what", ["random", "endless-line", "many-headers", "one-huge-header", "body", "chunked", "nul"])
def test_garbage(served, what):
    daemon, window = served
    before = memory(daemon)
    garbage = {
        "random": lambda: os.urandom(64 << 10),
        "endless-line": lambda: b"GET /" + b"a" * (1 << 20),
        "many-headers": lambda: b"GET /metrics HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(50000)),
        "one-huge-header": lambda: b"GET /metrics HTTP/1.1\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n",
        "body": lambda: b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + b"z" * (1 << 20),
        "chunked": lambda: b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n" + b"z" * (1 << 20),
        "nul": lambda: b"GET /metrics\0/../x HTTP/1.1\r\nHost: \0\r\n\r\n",
    }[what]
    for _ in range(50):
        with contextlib.suppress(OSError), connect(window) as one:
            one.settimeout(0.2)
            one.sendall(garbage())
            answer = one.recv(4096)
            assert b"outboxd_pending" not in answer
    slowest_of(window)
    grown = memory(daemon) - before
    print(f"{what}: {grown >> 10} KiB more")
    assert grown < MEMORY and daemon.alive


def test_wrong_tokens(served):
    daemon, window = served
    before = memory(daemon)
    for n in range(2000):
        assert window.get("/metrics", token=f"wrong-{n}")[0] == 401
    assert slowest_of(window) < 20 and memory(daemon) - before < MEMORY
    assert "wrong-" not in daemon.text()


def test_a_reader_that_never_reads(served):
    daemon, window = served
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right-token\r\n\r\n"
    before, greedy = memory(daemon), [connect(window) for _ in range(60)]
    for one in greedy:
        one.setblocking(False)
        for _ in range(50):
            with contextlib.suppress(OSError):
                one.send(request)
    slowest_of(window)
    assert memory(daemon) - before < MEMORY
    for one in greedy:
        one.close()
