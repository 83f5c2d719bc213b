"""Strangers at a daemon's HTTP window, as fast as they can: `python strangers.py PORT`, until the end of stdin.

Silent connections, slow headers, garbage, huge headers and wrong tokens, all at once.
"""

import contextlib
import os
import socket
import sys
import threading
import time

SILENT = 5000
GARBAGE = (
    os.urandom(8 << 10),
    b"GET /" + b"a" * (64 << 10),
    b"GET /metrics HTTP/1.1\r\nX: " + b"y" * (64 << 10) + b"\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(4000)),
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\r\n",
)


def connect(port, timeout):
    one = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    one.settimeout(timeout)
    return one


def shout(port):
    for turn in range(sys.maxsize):
        with contextlib.suppress(OSError), connect(port, 0.2) as one:
            one.sendall(GARBAGE[turn % len(GARBAGE)])
            one.recv(4096)
        time.sleep(0.005)


def crowd(port):
    """Many connections of which each sends a byte of a header now and then; one that was sent away comes back."""
    here = []
    while True:
        for _ in range(100):
            with contextlib.suppress(OSError):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
                here.append(one)
        for one in here[:-SILENT]:
            one.close()
        here = here[-SILENT:]
        for one in here[-100:]:
            with contextlib.suppress(OSError):
                one.send(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        time.sleep(0.05)


if __name__ == "__main__":
    for work in (shout, shout, crowd):
        threading.Thread(target=work, args=(int(sys.argv[1]),), daemon=True).start()
    sys.stdin.read()
