"""One test's database: migrated by the program under test, with a ledger for the judge."""

import uuid

from . import daemon, judge, process
from .postgres import ident

PASSWORD = "pl34se-do-not-log-me"
"""Every database URL carries it. Trust authentication ignores it, the judge of the logs does not."""


class Database:
    def __init__(self, cluster, schema="public", user="postgres"):
        self.cluster, self.schema, self.user = cluster, schema, user
        self.name = f"t_{uuid.uuid4().hex[:12]}"
        cluster.create_database(self.name)
        self._conn = None

    @property
    def url(self):
        return self.cluster.url(self.name, self.user, PASSWORD)

    @property
    def settings(self):
        settings = {"OUTBOX_DATABASE_URL": self.url}
        return settings if self.schema == "public" else {**settings, "OUTBOX_SCHEMA": self.schema}

    def connect(self, **options):
        return self.cluster.connect(self.name, **options)

    @property
    def conn(self):
        """One connection for the test's own questions, opened anew after a restart."""
        if self._conn is None or self._conn.closed:
            self._conn = self.connect()
        return self._conn

    def execute(self, sql, *params):
        cursor = self.conn.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else None

    def value(self, sql, *params):
        return self.execute(sql, *params)[0][0]

    def migrate(self, *args, check=True, **settings):
        done = daemon.call("migrate", *(args or ("up",)), **{**self.settings, **settings})
        if check and done.returncode != 0:
            raise AssertionError(f"migrate {args} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def prepare(self, **settings):
        self.migrate("up", **settings)
        judge.install_ledger(self.conn, self.schema)
        return self

    @property
    def table(self):
        return f"{ident(self.schema)}.outbox_events"

    def unfinished(self):
        return self.value(f"SELECT count(*) FROM {self.table} WHERE status NOT IN (1, 9)")

    def wait_settled(self, timeout=None, *daemons):
        """Until every row is SENT, DEAD or gone."""
        def settled():
            for one in daemons:
                assert one.alive, f"outboxd ended with {one.process.returncode}:\n{one.tail()}"
            return not self.value(f"SELECT EXISTS (SELECT FROM {self.table} WHERE status NOT IN (1, 9))")

        process.wait_until(settled, lambda: f"{self.unfinished()} rows settled", timeout, pause=0.05)

    def drop(self):
        if self._conn is not None:
            self._conn.close()
        self.cluster.drop_database(self.name)
