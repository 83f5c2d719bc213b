"""A TCP proxy on a loopback port whose connections a test cuts, freezes, delays, drops or resets.

One thread with one selector. Faults act on the connections that exist and on those that come, until `heal()`.
"""

import collections
import contextlib
import selectors
import socket
import struct
import threading
import time

CHUNK = 256 * 1024


class Pipe:
    """One direction of one connection: bytes read from `source` and not yet taken by `sink`."""

    def __init__(self, source, sink):
        self.source, self.sink = source, sink
        self.waiting = collections.deque()  # (due, bytes)
        self.size = 0
        self.ended = False  # source has said everything

    def wants_to_read(self):
        return not self.ended and self.size < 4 * CHUNK


class Proxy:
    def __init__(self, target_port, port=0):
        self.target_port = target_port
        self.listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = socket.socketpair()
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.pipes = {}  # socket → (the pipe it feeds, the pipe that feeds it)
        self.requests = collections.deque()
        self.mode, self.delay_seconds = "pass", 0.0
        self.connections = 0  # accepted so far
        self.running = True
        self.thread = threading.Thread(target=self._loop, daemon=True)
        self.thread.start()

    # What a test calls. Each returns when the fault is in effect.

    def cut(self):
        """Closes every connection and every new one at once: the server is gone."""
        self._ask(lambda: (self._set("cut"), self._close_all()))

    def reset(self):
        """Resets every connection now; new ones pass."""
        self._ask(lambda: self._close_all(reset=True))

    def freeze(self):
        """Nothing moves and nothing is closed: a peer that hangs. Bytes wait and arrive after heal()."""
        self._ask(lambda: self._set("freeze"))

    def drop(self):
        """Swallows what is sent and says nothing: packets lost for ever. heal() resets these connections."""
        self._ask(lambda: self._set("drop"))

    def delay(self, seconds):
        """Every byte takes this much longer, in each direction."""
        self._ask(lambda: setattr(self, "delay_seconds", seconds))

    def heal(self):
        def back():
            if self.mode == "drop":
                self._close_all(reset=True)
            self._set("pass")
            self.delay_seconds = 0.0

        self._ask(back)

    def close(self):
        if self.running:
            self._ask(lambda: setattr(self, "running", False))
            self.thread.join(10)

    # The thread.

    def _ask(self, action):
        done = threading.Event()
        self.requests.append((action, done))
        self.wake_write.send(b"x")
        if not done.wait(30):
            raise AssertionError("the proxy does not answer")

    def _set(self, mode):
        self.mode = mode
        for sock in list(self.pipes):
            self._watch(sock)

    def _loop(self):
        while self.running:
            for key, events in self.selector.select(self._next_due()):
                if key.fileobj is self.wake_read:
                    self.wake_read.recv(4096)
                elif key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj in self.pipes:
                    self._move(key.fileobj, events)
            while self.requests:
                action, done = self.requests.popleft()
                action()
                done.set()
            if self.delay_seconds or any(pipe.waiting for pipe, _ in self.pipes.values()):
                for sock in list(self.pipes):
                    if sock in self.pipes:
                        self._flush(sock)
        self._close_all()
        self.listener.close()
        self.selector.close()

    def _next_due(self):
        if self.mode != "pass":
            return None
        due = [pipe.waiting[0][0] for pipe, _ in self.pipes.values() if pipe.waiting]
        return max(0.001, min(due) - time.monotonic()) if due and self.delay_seconds else None

    def _accept(self):
        with contextlib.suppress(BlockingIOError):
            client, _ = self.listener.accept()
            self.connections += 1
            if self.mode == "cut":
                client.close()
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
            except OSError:
                client.close()
                return
            there, back = Pipe(client, server), Pipe(server, client)
            self.pipes[client], self.pipes[server] = (there, back), (back, there)
            for sock in (client, server):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._watch(sock)

    def _watch(self, sock):
        """Asks the selector for just those events that can lead to something now."""
        outgoing, incoming = self.pipes[sock]
        events = 0
        if self.mode == "drop" or (self.mode == "pass" and outgoing.wants_to_read()):
            events |= 0 if outgoing.ended else selectors.EVENT_READ
        if self.mode == "pass" and incoming.waiting and incoming.waiting[0][0] <= time.monotonic():
            events |= selectors.EVENT_WRITE
        registered = sock.fileno() in self.selector.get_map()
        if events and registered:
            self.selector.modify(sock, events)
        elif events:
            self.selector.register(sock, events)
        elif registered:
            self.selector.unregister(sock)

    def _move(self, sock, events):
        outgoing = self.pipes[sock][0]
        if events & selectors.EVENT_READ:
            try:
                data = sock.recv(CHUNK)
            except BlockingIOError:
                data = None
            except OSError:
                self._close(sock)
                return
            if data == b"":
                outgoing.ended = True
            elif data and self.mode == "pass":
                outgoing.waiting.append((time.monotonic() + self.delay_seconds, data))
                outgoing.size += len(data)
        self._flush(outgoing.sink)
        if sock in self.pipes:
            self._flush(sock)

    def _flush(self, sock):
        """Writes to `sock` what has come for it and is due."""
        incoming = self.pipes[sock][1]
        now = time.monotonic()
        while self.mode == "pass" and incoming.waiting and incoming.waiting[0][0] <= now:
            due, data = incoming.waiting.popleft()
            try:
                sent = sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._close(sock)
                return
            incoming.size -= sent
            if sent < len(data):
                incoming.waiting.appendleft((due, data[sent:]))
                break
        if incoming.ended and not incoming.waiting and self.mode == "pass":
            self._close(sock)
            return
        self._watch(sock)
        self._watch(incoming.source)

    def _close(self, sock, reset=False):
        if sock not in self.pipes:
            return
        outgoing, _ = self.pipes[sock]
        for end in (outgoing.source, outgoing.sink):
            if end.fileno() in self.selector.get_map():
                self.selector.unregister(end)
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            del self.pipes[end]
            end.close()

    def _close_all(self, reset=False):
        for sock in list(self.pipes):
            self._close(sock, reset)
