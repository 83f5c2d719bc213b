"""A daemon behind a network of its own, whose packets a test drops, loses or answers with resets.

    host (PostgreSQL, Kafka: `wire.host`) --veth-- the wire, a router with nftables --veth-- the place of the daemon

Both ends keep their sockets and learn of nothing: what the kernel does about silence (keepalives, tcp_user_timeout,
retransmissions) is in the test, which a proxy would answer for. The router and the place are network namespaces without
names; each lives as long as the process that holds it, and the devices, routes and rules go with it. Needs root, ip and nft.
"""

import os
import random
import re
import socket
import subprocess
import sys

from . import daemon, process

TOOLS = "ip", "nft", "nsenter", "unshare"
NET = "198.18.0.0/15"
"""Addresses for benchmarks of network devices (RFC 2544): no real host has one."""


class NoNetwork(Exception):
    """Why no namespace can be had here."""


class Wire:
    def __init__(self, root):
        self.root = root
        if os.geteuid() != 0:
            raise NoNetwork("needs root")
        self.holders = []
        self.rules = {}  # port → text
        try:
            self._lay()
        except (RuntimeError, OSError, AssertionError) as problem:
            self.close()
            raise NoNetwork(f"no network namespace can be had here: {problem}") from None

    def _lay(self):
        for tool in TOOLS:
            self._run(tool, "-V")
        router, place = self._hold(), self._hold()
        block, device = self._free_block()
        self.host, near, far, self.inner = (f"{block}.{n}" for n in (1, 2, 5, 6))
        self._run("ip", "link", "add", device, "type", "veth", "peer", "name", "near", "netns", router)
        self._run("ip", "address", "add", f"{self.host}/30", "dev", device)
        self._run("ip", "link", "set", device, "up")
        self._inside(router, "ip", "link", "add", "far", "type", "veth", "peer", "name", "out", "netns", place)
        for pid, name, address in ((router, "near", near), (router, "far", far), (place, "out", self.inner)):
            self._inside(pid, "ip", "address", "add", f"{address}/30", "dev", name)
            self._inside(pid, "ip", "link", "set", name, "up")
        self._inside(router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        self._inside(place, "ip", "link", "set", "lo", "up")
        self._inside(place, "ip", "route", "add", "default", "via", far)
        self._run("ip", "route", "add", f"{block}.4/30", "via", near)
        self._load()
        with socket.create_server((self.host, 0)) as probe:  # a firewall of the host's may be in the way
            self._inside(place, sys.executable, "-c", f"import socket; socket.create_connection({probe.getsockname()}, 5)")

    def _hold(self):
        holder = process.Server(["unshare", "--net", "sleep", "infinity"], self.root / "netns.log")
        self.holders.append(holder)

        def inside():
            assert holder.alive, holder.tail()
            return os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net")

        process.wait_until(inside, "a network namespace", 10)
        return holder.pid

    def _free_block(self):
        """Three numbers of an address that no other run uses, and a device name like it."""
        taken = self._run("ip", "-4", "address")
        while True:
            block = f"198.{random.choice((18, 19))}.{random.randrange(1, 255)}"
            if f" {block}." not in taken:
                return block, "ob-" + block.replace(".", "-")

    @staticmethod
    def _run(*argv, text=None):
        done = subprocess.run([*map(str, argv)], input=text, text=True, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, argv))}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _inside(self, pid, *argv, **options):
        return self._run("nsenter", "-t", pid, "-n", "--", *argv, **options)

    def inside(self, build=None):
        """A build of which each daemon runs at the far end: start(db, build=wire.inside())."""
        folder = self.root / f"inside-{self.holders[1].pid}-{build or 'default'}"
        if not folder.exists():
            folder.mkdir()
            program = folder / "outboxd"
            program.write_text(f'#!/bin/sh\nexec nsenter -t {self.holders[1].pid} -n -- {daemon.binary(build)} "$@"\n')
            program.chmod(0o755)
        return folder

    # Faults act on packets from and to these ports of the host, those of connections that exist, too.

    def drop(self, *ports, percent=100):
        self._rule(ports, "counter drop" if percent == 100 else f"numgen random mod 100 < {percent} counter drop")

    def reset(self, *ports):
        """Who sends a packet is told that the connection is no more."""
        self._rule(ports, "counter reject with tcp reset")

    def heal(self, *ports):
        """Without ports: all of it. Returns how many packets the rules met since they were set."""
        met = re.findall(r"counter packets (\d+)", self._inside(self.holders[0].pid, "nft", "list", "table", "inet", "wire"))
        for port in ports or list(self.rules):
            self.rules.pop(port, None)
        self._load()
        return sum(map(int, met))

    def _rule(self, ports, what):
        for port in ports:
            self.rules[port] = f"tcp dport {port} {what}\ntcp sport {port} {what}\n"
        self._load()

    def _load(self):
        rules = "".join(self.rules.values())
        self._inside(self.holders[0].pid, "nft", "-f", "-", text=f"""
            table inet wire
            delete table inet wire
            table inet wire {{
                chain passing {{
                    type filter hook forward priority 0
                    {rules}
                }}
            }}
            """)

    def close(self):
        for holder in self.holders:
            holder.kill()
