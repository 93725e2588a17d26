"""The changes at the sources: one thread for each stream of changes of a database, all from one seed.

A server that is killed may lose the current transaction; its rows after the restart are the expected result. Streams reconnect and
continue. Any other error ends the soak.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from headrace.demo.private_server import PrivateServer
from testkit.generators.migrations import Migrations
from testkit.generators.workload import Workload, run_transaction
from testkit.soak.things import Things

_AWAY = (0, 1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2002, 2003, 2006, 2013, 2055)
"""Error numbers of clients whose server has ended or is ending."""
_BUSY = (1205, 1213, 1020)
"""Locked rows, and rows that changed during a transaction: continue with the next transaction."""
BEAT_S = 0.5
_NUMBERS = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"


class Gate:
    """Prevents the kill of a server during statements that are not atomic.

    TRUNCATE empties the table before it is logged: a server that is killed in between differs from its own log, which no reader of the log
    can know.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        """Wait until no such statement runs, and block new ones."""
        self._lock.acquire()

    def open(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.close()

    def __exit__(self, *ended: object) -> None:
        self.open()


class Traffic:
    """All streams of changes of one database."""

    def __init__(self, server: PrivateServer, database: str, seed: int, *, topic: bool = False, pause_s: float = 0.1) -> None:
        self.server, self.database, self.gate = server, database, Gate()
        self._topic, self._pause_s = topic, pause_s
        self._seed = f"{seed} {server.flavour} {database}"
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._things = Things(server.flavour, self._chooser("things"), topic=topic)
        self._migrations = _Guarded(server, database, self._chooser("migrations").randrange(1 << 30), self.gate)
        self.transactions = self.changes = self.lost_connections = 0
        self.last_beat: datetime | None = None
        """When the last heartbeat was committed, by this machine's clock."""
        self._comings: list[str] = []
        self.failures: list[BaseException] = []

    @property
    def schema_changes(self) -> int:
        return len(self._migrations.done) + len(self._things.altered) + len(self._comings)

    def prepare(self) -> None:
        """The tables, with rows in them."""
        with closing(self.server.root_connection()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
        Workload(self.server, self.database, 0).prepare()
        with closing(self.server.root_connection(self.database)) as connection, connection.cursor() as cursor:
            self._things.prepare(cursor)
            cursor.execute("CREATE TABLE beat (id INT PRIMARY KEY, n BIGINT NOT NULL, at DATETIME(6) NOT NULL)")
            cursor.execute("CREATE TABLE bulk (id INT PRIMARY KEY, batch INT NOT NULL, filler VARCHAR(120), amount DECIMAL(14,2))")
        if not self._topic:
            self._migrations.prepare()

    def start(self) -> None:
        streams: list[tuple[str, Callable[[Connection[Any], random.Random], None], float]] = [
            ("rows", _rows, self._pause_s),
            ("things", self._change_things, self._pause_s),
            ("bulk", _bulk, self._pause_s * 80),
            ("beat", self._beat, BEAT_S),
        ]
        if not self._topic:
            streams += [("migrations", self._migrate, self._pause_s * 10), ("comings", self._come_and_go, self._pause_s * 80)]
        streams += [("alterations", self._alter_things, self._pause_s * (80 if not self._topic else 600))]
        for name, step, pause_s in streams:
            given = (step, self._chooser(name), pause_s)
            thread = threading.Thread(target=self._run, args=given, name=f"traffic-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End after the current transactions."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.failures.append(RuntimeError(f"{thread.name} of {self.database} did not end"))

    def _chooser(self, name: str) -> random.Random:
        return random.Random(f"{self._seed} {name}")

    def _run(self, step: Callable[[Connection[Any], random.Random], None], chooser: random.Random, pause_s: float) -> None:
        connection: Connection[Any] | None = None
        try:
            while not self._stopping.wait(pause_s * chooser.uniform(0.5, 1.5)):
                try:
                    connection = connection or self._connected()
                    step(connection, chooser)
                    self.transactions += 1
                except pymysql.MySQLError as error:
                    connection = self._go_on(connection, error)
        # The error must fail the soak, not the thread.
        except BaseException as error:  # noqa: BLE001
            self.failures.append(error)
        finally:
            if connection is not None:
                connection.close()

    def _go_on(self, connection: Connection[Any] | None, error: pymysql.MySQLError) -> Connection[Any] | None:
        """Return the connection to continue with after an expected error; None: a new one."""
        code = error.args[0] if error.args else 0
        if code in _BUSY and connection is not None:
            _roll_back(connection)
            return connection
        if code not in _AWAY:
            raise error
        self.lost_connections += 1
        time.sleep(0.3)
        return None

    def _connected(self) -> Connection[Any]:
        traffic = self

        class Counting(Cursor):
            """Counts rows as the server counts them."""

            def execute(self, query: Any, args: Any = None) -> int:
                rows = super().execute(query, args)
                # `executemany` passes bytes.
                verb = query[:7] if isinstance(query, str) else bytes(query[:7]).decode()
                if verb.startswith(("INSERT", "REPLACE", "UPDATE", "DELETE")):
                    traffic.changes += max(rows, 0)
                return rows

        connection = self.server.root_connection(self.database, autocommit=False, read_timeout=120, cursorclass=Counting)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00'")
            # A lock wait on a stream that waits for the gate would never end.
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 5")
        return connection

    def newest_beat(self) -> datetime:
        """When the last heartbeat was written, by the source's clock and rows."""
        with closing(self.server.root_connection(self.database)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT MAX(at) FROM beat")
            found: datetime = cursor.fetchone()[0]
        return found.replace(tzinfo=UTC)

    def _beat(self, connection: Connection[Any], chooser: random.Random) -> None:
        del chooser
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO beat VALUES (1, 1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE n = n + 1, at = UTC_TIMESTAMP(6)")
        connection.commit()
        self.last_beat = datetime.now(UTC)

    def _change_things(self, connection: Connection[Any], chooser: random.Random) -> None:
        with connection.cursor() as cursor:
            self._things.transaction(cursor)
        _end(connection, chooser)

    def _alter_things(self, connection: Connection[Any], chooser: random.Random) -> None:
        del chooser
        with connection.cursor() as cursor:
            statement = self._things.alter(cursor)
            if statement and self._migrations.attempt(cursor, statement):
                self._things.altered.append(statement)
        connection.commit()

    def _migrate(self, connection: Connection[Any], chooser: random.Random) -> None:
        del chooser
        with connection.cursor() as cursor:
            self._migrations.step(cursor)
        connection.commit()

    def _come_and_go(self, connection: Connection[Any], chooser: random.Random) -> None:
        """Create tables, fill, rename and drop them."""
        name, other = (f"guest{number}" for number in chooser.sample(range(4), 2))
        with connection.cursor() as cursor:
            cursor.execute("SHOW TABLES LIKE 'guest%%'")
            there = {str(row[0]) for row in cursor.fetchall()}
            if name not in there:
                key = chooser.choice(("PRIMARY KEY (id)", "PRIMARY KEY (id, word)"))
                self._define(cursor, f"CREATE TABLE {name} (id INT NOT NULL, word VARCHAR(30) NOT NULL, note JSON, {key})")
                rows = [(number, f"word {number}", '{"a": [1, 2]}') for number in range(chooser.choice((0, 5, 400)))]
                if rows:
                    cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s, %s)", rows)
            elif chooser.random() < 0.4:
                self._define(cursor, f"DROP TABLE {name}")
            elif other not in there and chooser.random() < 0.5:
                self._define(cursor, f"RENAME TABLE {name} TO {other}")
            else:
                cursor.execute(f"UPDATE {name} SET word = CONCAT(LEFT(word, 20), '!') WHERE id %% 5 = %s", (chooser.randrange(5),))
        connection.commit()

    def _define(self, cursor: Cursor, statement: str) -> None:
        cursor.execute(statement)
        self._comings.append(statement)


class _Guarded(Migrations):
    """The migrations of the crash tests; no kill happens during a TRUNCATE."""

    def __init__(self, server: PrivateServer, database: str, seed: int, gate: Gate) -> None:
        super().__init__(server, database, seed)
        self._gate = gate

    def attempt(self, cursor: Cursor, statement: str) -> bool:
        if not statement.startswith("TRUNCATE"):
            return super().attempt(cursor, statement)
        with self._gate:
            return super().attempt(cursor, statement)


def _end(connection: Connection[Any], chooser: random.Random) -> None:
    if chooser.random() < 0.05:
        connection.rollback()
    else:
        connection.commit()


def _roll_back(connection: Connection[Any]) -> None:
    try:
        connection.rollback()
    except pymysql.MySQLError:
        return


def _rows(connection: Connection[Any], chooser: random.Random) -> None:
    run_transaction(connection, chooser)


def _bulk(connection: Connection[Any], chooser: random.Random) -> None:
    """Run a large transaction: insert, update or delete thousands of rows."""
    batch, rows = chooser.randrange(6), chooser.choice((500, 2000, 900, 8000))
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION() LIKE '%MariaDB%'")
        limit = "max_recursive_iterations" if cursor.fetchone()[0] else "cte_max_recursion_depth"
        cursor.execute(f"SET SESSION {limit} = 100000")
        if chooser.random() < 0.5:
            values = f"SELECT {batch} * 10000 + i, {batch}, REPEAT(SUBSTRING('abcdefghij', i % 10 + 1, 1), i % 120), i / 7 FROM n"
            cursor.execute(f"REPLACE INTO bulk {_NUMBERS.format(rows=rows)} {values}")
        elif chooser.random() < 0.6:
            cursor.execute("UPDATE bulk SET amount = amount + 1, filler = CONCAT('u', LEFT(filler, 60)) WHERE batch = %s", (batch,))
        else:
            cursor.execute("DELETE FROM bulk WHERE batch = %s AND id %% 3 = %s", (batch, chooser.randrange(3)))
    _end(connection, chooser)
