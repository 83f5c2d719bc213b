"""The proxy passes bytes as they are, and each fault does what it says."""

import contextlib
import socket
import threading
import time

import pytest
from rig.process import wait_until
from rig.proxy import Proxy


@pytest.fixture
def echo():
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(conn):
        with conn, contextlib.suppress(OSError):
            while data := conn.recv(65536):
                conn.sendall(data)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


@pytest.fixture
def proxy(echo):
    proxy = Proxy(echo)
    yield proxy
    proxy.close()


def connect(proxy, timeout=30):
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=timeout)


def read(conn, count):
    data = b""
    while len(data) < count:
        part = conn.recv(65536)
        if not part:
            break
        data += part
    return data


def test_bytes_pass_unchanged(proxy):
    payload = bytes(range(256)) * 40000
    with connect(proxy) as conn:
        threading.Thread(target=conn.sendall, args=(payload,), daemon=True).start()
        assert read(conn, len(payload)) == payload


def test_cut_and_heal(proxy):
    with connect(proxy) as conn:
        conn.sendall(b"a")
        assert read(conn, 1) == b"a"
        proxy.cut()
        assert conn.recv(1) == b""
    with connect(proxy) as conn:
        assert conn.recv(1) == b""
    proxy.heal()
    with connect(proxy) as conn:
        conn.sendall(b"b")
        assert read(conn, 1) == b"b"


def test_reset(proxy):
    with connect(proxy) as conn:
        conn.sendall(b"a")
        assert read(conn, 1) == b"a"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            conn.recv(1)


def test_frozen_bytes_arrive_later(proxy):
    with connect(proxy) as conn:
        conn.sendall(b"a")
        assert read(conn, 1) == b"a"
        proxy.freeze()
        conn.sendall(b"b")
        conn.settimeout(0.2)
        with pytest.raises(TimeoutError):
            conn.recv(1)
        proxy.heal()
        conn.settimeout(30)
        assert read(conn, 1) == b"b"


def test_dropped_bytes_never_arrive(proxy):
    with connect(proxy) as conn:
        conn.sendall(b"a")
        assert read(conn, 1) == b"a"
        proxy.drop()
        conn.sendall(b"b")
        conn.settimeout(0.2)
        with pytest.raises(TimeoutError):
            conn.recv(1)
        proxy.heal()
        conn.settimeout(30)
        with pytest.raises(ConnectionResetError):
            conn.recv(1)


def test_delay(proxy):
    proxy.delay(0.15)
    with connect(proxy) as conn:
        start = time.monotonic()
        conn.sendall(b"a")
        assert read(conn, 1) == b"a"
        assert time.monotonic() - start >= 0.3


def test_the_end_of_a_server_reaches_the_client(proxy):
    with connect(proxy) as conn:
        conn.sendall(b"a")
        assert read(conn, 1) == b"a"
        conn.shutdown(socket.SHUT_WR)
        assert conn.recv(1) == b""
    wait_until(lambda: not proxy.pipes, "both ends are closed")
