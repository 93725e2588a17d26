"""The changes at the sources: one thread for each stream of changes of a database, all from one seed.

A server that is killed may lose the current transaction; its rows after the restart are the expected result. Streams reconnect and
continue. Any other error ends the soak. `Things` is a table with a column of every common type; its floats are multiples of 1/8, so that
their sums are exact in every order: the comparison relies on it.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from headrace.demo.private_server import PrivateServer
from testkit.generators.migrations import Migrations
from testkit.generators.workload import Workload, run_transaction

KEYS = 4000
_TEXT = ("plain", "naïve", "日本語", "emoji 🎈", "quote ' and \\", "", "tab\tline\n", "ünïcödé", "Ω≈ç√")
_BASE: tuple[tuple[str, str], ...] = (
    ("id", "BIGINT NOT NULL PRIMARY KEY"),
    ("tiny", "TINYINT"),
    ("small", "SMALLINT UNSIGNED NOT NULL DEFAULT 3"),
    ("medium", "MEDIUMINT"),
    ("big", "BIGINT UNSIGNED"),
    ("price", "DECIMAL(18,4)"),
    ("ratio", "DOUBLE"),
    ("share", "FLOAT"),
    ("name", "VARCHAR(80)"),
    ("body", "MEDIUMTEXT"),
    ("raw", "VARBINARY(64)"),
    ("day", "DATE"),
    ("moment", "DATETIME(6)"),
    ("doc", "JSON"),
    ("picture", "LONGBLOB"),
)
_MORE: tuple[tuple[str, str], ...] = (
    ("fixed", "CHAR(12) CHARACTER SET latin1"),
    ("clock", "TIME(3)"),
    ("stamp", "TIMESTAMP(3) NULL"),
    ("era", "YEAR"),
    ("mood", "ENUM('calm','busy','é','late')"),
    ("tags", "SET('a','b','c','d')"),
    ("flags", "BIT(9)"),
    ("spot", "POINT"),
)
_OWN = {"mariadb": (("uid", "UUID"), ("net", "INET6")), "mysql": (("embedding", "VECTOR(4)"),)}


class Things:
    """The table, its rows and its alterations. `topic` omits what topics cannot express: dropped, renamed and retyped columns."""

    def __init__(self, flavour: str, chooser: random.Random, *, topic: bool = False) -> None:
        self._random, self._topic = chooser, topic
        self._columns = dict((*_BASE, *(() if topic else (*_MORE, *_OWN[flavour]))))
        self._number = 0
        self.altered: list[str] = []

    def prepare(self, cursor: Cursor) -> None:
        cursor.execute(f"CREATE TABLE things ({', '.join(f'`{name}` {kind}' for name, kind in self._columns.items())})")
        self._insert(cursor, range(0, KEYS, 8))

    def transaction(self, cursor: Cursor) -> None:
        """One to three statements; the caller commits."""
        steps: tuple[Callable[[Cursor], None], ...] = (self._put, self._put, self._touch, self._move, self._remove, self._document)
        for _ in range(self._random.choice((1, 1, 2, 3))):
            self._random.choice(steps)(cursor)

    def alter(self, cursor: Cursor) -> str:
        """Return the next ALTER statement of the table; empty if none fits."""
        names = self._names(cursor)
        added = [name for name in names if name.startswith("x")]
        self._number += 1
        new = f"x{self._number}"
        if self._topic:
            plain = ("INT", "VARCHAR(40)", "DECIMAL(20,3)", "DATETIME(3)", "BIGINT")
            return f"ALTER TABLE things ADD COLUMN {new} {self._random.choice(plain)}" if len(added) < 12 else ""
        kinds = ("INT NOT NULL DEFAULT 5", "VARCHAR(40) DEFAULT 'é'", "DECIMAL(20,3)", "DATETIME(3)", "BIGINT UNSIGNED", "TEXT", "DOUBLE")
        place = self._random.choice(("", "FIRST", f"AFTER `{self._random.choice(names)}`"))
        wider = (("small", "INT UNSIGNED NOT NULL DEFAULT 3"), ("tiny", "SMALLINT"), ("name", "VARCHAR(120)"), ("price", "DECIMAL(22,4)"))
        back = (("small", "INT UNSIGNED NOT NULL DEFAULT 9"), ("tiny", "INT"), ("name", "VARCHAR(90)"), ("price", "DECIMAL(20,4)"))
        name, kind = self._random.choice((*wider, *back))
        one = self._random.choice(added) if added else ""
        choices = [f"ADD COLUMN {new} {self._random.choice(kinds)} {place}"] * (2 if len(added) < 8 else 0)
        choices += [f"MODIFY COLUMN {name} {kind}"]
        choices += [f"DROP COLUMN {one}", f"RENAME COLUMN {one} TO {new}"] if one else []
        choices += [f"DROP COLUMN {one}, ADD COLUMN {new} INT DEFAULT 1, COMMENT 'step {self._number}'"] if one else []
        return f"ALTER TABLE things {self._random.choice(choices)}"

    def _names(self, cursor: Cursor) -> list[str]:
        cursor.execute("SHOW COLUMNS FROM things")
        return [str(row[0]) for row in cursor.fetchall()]

    def _put(self, cursor: Cursor) -> None:
        count = self._random.choice((1, 1, 3, 20))
        self._insert(cursor, [self._random.randrange(KEYS) for _ in range(count)])

    def _insert(self, cursor: Cursor, keys: Any) -> None:
        names = [name for name in self._columns if name != "id"]
        holders = ", ".join(
            "ST_GeomFromText(%s)" if name == "spot" else "STRING_TO_VECTOR(%s)" if name == "embedding" else "%s" for name in names
        )
        listed = ", ".join(f"`{name}`" for name in names)
        cursor.executemany(f"REPLACE INTO things (id, {listed}) VALUES (%s, {holders})", [(key, *map(self._value, names)) for key in keys])

    def _touch(self, cursor: Cursor) -> None:
        start, width = self._random.randrange(KEYS), self._random.choice((1, 8, 40))
        name = self._random.choice(("price", "medium", "body", "moment", "name", "day"))
        cursor.execute(f"UPDATE things SET `{name}` = %s WHERE id BETWEEN %s AND %s", (self._value(name), start, start + width))

    def _move(self, cursor: Cursor) -> None:
        cursor.execute("UPDATE IGNORE things SET id = %s WHERE id = %s", (self._random.randrange(KEYS), self._random.randrange(KEYS)))

    def _remove(self, cursor: Cursor) -> None:
        start = self._random.randrange(KEYS)
        cursor.execute("DELETE FROM things WHERE id BETWEEN %s AND %s", (start, start + self._random.choice((0, 2, 30))))

    def _document(self, cursor: Cursor) -> None:
        """Change a part of a document, which some servers log as a partial update."""
        start = self._random.randrange(KEYS)
        cursor.execute(
            "UPDATE things SET doc = JSON_SET(doc, '$.n', %s) WHERE id BETWEEN %s AND %s", (self._random.randrange(10**6), start, start + 9)
        )

    def _value(self, name: str) -> Any:
        chooser = self._random
        if name != "small" and chooser.random() < 0.08:
            return None
        makers: dict[str, Callable[[], Any]] = {
            "tiny": lambda: chooser.randrange(-128, 128),
            "small": lambda: chooser.randrange(1 << 16),
            "medium": lambda: chooser.randrange(-(1 << 23), 1 << 23),
            "big": lambda: chooser.randrange(1 << chooser.choice((8, 32, 64))),
            "price": lambda: f"{chooser.randrange(-(10**12), 10**12)}.{chooser.randrange(10**4):04}",
            "ratio": lambda: chooser.randrange(-(1 << 40), 1 << 40) / 8,
            "share": lambda: chooser.randrange(-(1 << 20), 1 << 20) / 8,
            "name": lambda: f"{chooser.choice(_TEXT)} {chooser.randrange(1000)}",
            "body": lambda: chooser.choice(_TEXT) * chooser.choice((0, 1, 40, 400)),
            "raw": lambda: chooser.randbytes(chooser.randrange(64)),
            "day": lambda: f"{chooser.randrange(1900, 2200)}-{chooser.randrange(1, 13):02}-{chooser.randrange(1, 29):02}",
            "moment": lambda: f"{chooser.randrange(1971, 2200)}-03-04 {chooser.randrange(24):02}:05:06.{chooser.randrange(10**6):06}",
            "doc": lambda: json.dumps(
                {"n": chooser.randrange(100), "s": chooser.choice(_TEXT), "l": [1, None, True, {"k": chooser.random()}]}
            ),
            "picture": lambda: chooser.randbytes(
                chooser.choice((0, 10, 100, 500, 5_000) if chooser.random() < 0.995 else (100_000 if self._topic else 600_000,))
            ),
            "fixed": lambda: chooser.choice(("é", "abc", "", "Zürich")),
            "clock": lambda: (
                f"{chooser.choice(('', '-'))}{chooser.randrange(800):02}:{chooser.randrange(60):02}:07.{chooser.randrange(1000):03}"
            ),
            "stamp": lambda: f"{chooser.randrange(1971, 2037)}-06-07 {chooser.randrange(24):02}:05:06.{chooser.randrange(1000):03}",
            "era": lambda: chooser.randrange(1901, 2156),
            "mood": lambda: chooser.choice(("calm", "busy", "é", "late")),
            "tags": lambda: ",".join(sorted(chooser.sample("abcd", chooser.randrange(5)))),
            "flags": lambda: chooser.randrange(1 << 9),
            "spot": lambda: f"POINT({chooser.randrange(100)} {chooser.randrange(100) / 4})",
            "uid": lambda: str(UUID(int=chooser.getrandbits(128), version=4)),
            "net": lambda: f"2001:db8::{chooser.randrange(1 << 16):x}",
            "embedding": lambda: json.dumps([chooser.randrange(100) / 4 for _ in range(4)]),
        }
        return makers[name]()


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
