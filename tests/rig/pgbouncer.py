"""PgBouncer in transaction mode in front of a cluster."""

import signal
from pathlib import Path

from . import process


class PgBouncer:
    def __init__(self, root, cluster, pool_size=20):
        self.user = process.server_user()
        self.port = process.free_port()
        self.home = Path(root) / f"pgbouncer-{self.port}"
        self.home.mkdir()
        process.own(self.home, self.user)
        self.config = self.home / "pgbouncer.ini"
        # auth_type any asks nobody and logs in as the user of the database line.
        self.config.write_text(f"""\
[databases]
* = host=127.0.0.1 port={cluster.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
auth_file =
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
""")
        self.server = None

    def start(self):
        self.server = process.Server(["/usr/sbin/pgbouncer", self.config], self.home / "log", self.user)
        process.wait_until(lambda: self._listens(), "PgBouncer listens")
        return self

    def _listens(self):
        if not self.server.alive:
            raise RuntimeError(f"PgBouncer did not start:\n{self.server.tail()}")
        return process.accepts(self.port)

    def stop(self):
        self.server.signal(signal.SIGINT)
        self.server.kill()
