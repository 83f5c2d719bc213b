"""Private PostgreSQL clusters: one folder, one loopback port, trust for everybody but the user `locked`."""

import contextlib
import glob
import os
import shutil
import signal
from pathlib import Path

import psycopg

from . import process

SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "max_connections": "120",
    "shared_buffers": "'128MB'",
    "fsync": "off",  # the tests kill processes, not the machine
    "max_wal_size": "'4GB'",
    "autovacuum_naptime": "'5s'",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "log_timezone": "'UTC'",
    "timezone": "'UTC'",
}

HBA = """\
host all          locked 127.0.0.1/32 scram-sha-256
host all          all    127.0.0.1/32 trust
host all          all    198.18.0.0/15 trust
host replication  all    127.0.0.1/32 trust
"""


def ident(name):
    """A name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def bin_dir():
    """Where the newest installed server's programs are; Debian keeps them out of PATH."""
    found = glob.glob("/usr/lib/postgresql/*/bin/initdb")
    if found:
        return Path(max(found, key=lambda path: int(path.split("/")[4]))).parent
    initdb = shutil.which("initdb")
    if not initdb:
        raise RuntimeError("PostgreSQL's initdb is not installed: run ./dev setup")
    return Path(initdb).resolve().parent


class Cluster:
    template = None  # a data folder fresh from initdb: copying it is faster than making another

    def __init__(self, root, name="pg", settings=None, port=None):
        self.root, self.name = Path(root), name
        self.user = process.server_user()
        self.port = port or process.free_port()
        self.settings = {**SETTINGS, **(settings or {}), "port": str(self.port)}
        self.home = self.root / f"{name}-{self.port}"
        self.home.mkdir()
        process.own(self.home, self.user)
        self.data = self.home / "data"
        self.log = self.home / "log"
        self.server = None

    def _tool(self, name, *args):
        return process.run([bin_dir() / name, *args], self.user)

    def create(self):
        if Cluster.template is None:
            folder = self.root / "pg-template"
            folder.mkdir()
            process.own(folder, self.user)
            self._tool("initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8",
                       "--locale=C.UTF-8", "--no-sync", "--no-instructions")
            Cluster.template = folder / "data"
        process.run(["cp", "-a", Cluster.template, self.data], self.user)
        self._configure()
        return self

    def _configure(self):
        text = "".join(f"{name} = {value}\n" for name, value in self.settings.items())
        (self.data / "postgresql.auto.conf").write_text(text)
        (self.data / "pg_hba.conf").write_text(HBA)
        for name in ("postgresql.auto.conf", "pg_hba.conf"):
            process.own(self.data / name, self.user)

    def start(self, wait=True):
        # SIGQUIT is the immediate shutdown: at our death it takes the backends along.
        self.server = process.Server([bin_dir() / "postgres", "-D", self.data], self.log, self.user, "QUIT")
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self):
        def ready():
            if not self.server.alive:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.server.tail()}")
            try:
                self.connect(connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        process.wait_until(ready, "PostgreSQL accepts connections")

    def stop(self, mode="fast"):
        """`fast` and `smart` write a checkpoint; `immediate` is a crash as PostgreSQL sees it."""
        if self.server and self.server.alive:
            self.server.thaw()
            self.server.signal({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
            self.server.wait()

    def restart(self, mode="fast"):
        self.stop(mode)
        return self.start()

    def kill(self):
        """kill -9 of the postmaster; its children notice and go. start() then recovers."""
        self.server.kill()
        pid_file = self.data / "postmaster.pid"
        process.wait_until(lambda: not self._children(), "backends left after their postmaster was killed")
        pid_file.unlink(missing_ok=True)

    def _children(self):
        found = []
        for entry in glob.glob("/proc/[0-9]*/cwd"):
            try:
                if os.readlink(entry) == str(self.data):
                    found.append(entry)
            except OSError:
                continue
        return found

    def _tell_all(self, number):
        for entry in self._children():
            with contextlib.suppress(ProcessLookupError):  # a backend that has just ended
                os.kill(int(entry.split("/")[2]), number)

    def freeze(self):
        """Stops every process of the cluster: connections stay open, nothing answers."""
        self._tell_all(signal.SIGSTOP)

    def thaw(self):
        self._tell_all(signal.SIGCONT)

    def destroy(self):
        self.thaw()
        self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)

    def standby(self, name="standby"):
        """A streaming, asynchronous standby of this cluster, started."""
        other = Cluster(self.root, name)
        self._tool("pg_basebackup", "-D", other.data, "-d", self.url("postgres"), "-c", "fast", "-R", "-X", "stream")
        conf = other.data / "postgresql.auto.conf"
        recovery = [line for line in conf.read_text().splitlines() if line.startswith("primary_conninfo")]
        other._configure()
        with open(conf, "a") as out:
            out.write("\n".join(recovery) + "\n")
        return other.start()

    def promote(self):
        self.execute("SELECT pg_promote(true, 60)")

    def url(self, dbname, user="postgres", password=None, port=None, host="127.0.0.1"):
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@{host}:{port or self.port}/{dbname}"

    def connect(self, dbname="postgres", user="postgres", **options):
        options.setdefault("connect_timeout", 30)
        return psycopg.connect(host="127.0.0.1", port=self.port, dbname=dbname, user=user, autocommit=True, **options)

    def execute(self, sql, dbname="postgres"):
        with self.connect(dbname) as conn:
            cursor = conn.execute(sql)
            return cursor.fetchall() if cursor.description else None

    def create_database(self, name):
        self.execute(f"CREATE DATABASE {ident(name)}")

    def drop_database(self, name):
        self.execute(f"DROP DATABASE IF EXISTS {ident(name)} WITH (FORCE)")
