"""A workload of migrations: rows change, and so do tables, columns and keys, at random from a seed, for as long as it runs.

The next statement follows from the server's current tables, so the server accepts it or refuses it on its own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import pymysql
from pymysql.cursors import Cursor

from headrace.demo.private_server import PrivateServer

TABLES = ("alpha", "beta", "gamma")
_REFUSED = (1054, 1060, 1061, 1062, 1068, 1072, 1091, 1146, 1171, 1264, 1265, 1406, 1138, 1366, 1292)
"""Error numbers of a statement that does not fit the rows or tables."""


class Migrations:
    """Runs statements in its own thread while it is open."""

    def __init__(self, server: PrivateServer, database: str, seed: int, pause_s: float = 0.05) -> None:
        self._server, self._database, self._pause_s = server, database, pause_s
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="migrations", daemon=True)
        self._number = 0
        self.done: list[str] = []
        """The statements that changed definitions."""
        self.failure: BaseException | None = None

    def prepare(self) -> None:
        with self._server.root_connection(self._database) as connection, connection.cursor() as cursor:
            for name in TABLES:
                self._make(cursor, name)
                for _ in range(20):
                    self._insert(cursor, name)
            cursor.execute("CREATE TABLE bare (a INT, b VARCHAR(20))")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with self._server.root_connection(self._database) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES'")
                while not self._stopping.wait(self._pause_s):
                    self.step(cursor)
        # The error must fail the test, not the thread.
        except BaseException as error:  # noqa: BLE001
            self.failure = error

    def step(self, cursor: Cursor) -> None:
        """Change some rows, and sometimes a definition."""
        name = self._random.choice((*TABLES, "bare"))
        for _ in range(self._random.choice((1, 3, 8))):
            self._random.choice((self._insert, self._insert, self._update, self._delete))(cursor, name)
        if self._random.random() < 0.25:
            self._migrate(cursor, name)

    def attempt(self, cursor: Cursor, statement: str) -> bool:
        """Run a statement; return False if the server refuses it because it does not fit the rows or tables."""
        try:
            cursor.execute(statement)
        except pymysql.MySQLError as error:
            if error.args[0] not in _REFUSED:
                raise
            return False
        return True

    def _columns(self, cursor: Cursor, name: str) -> list[tuple[str, str]]:
        cursor.execute(f"SHOW COLUMNS FROM {name}")
        return [(row[0], str(row[1])) for row in cursor.fetchall()]

    def _value(self, name: str, kind: str) -> str:
        number = self._random.randrange(60 if name == "id" else 120)
        return str(number) if "int" in kind or "decimal" in kind else f"'{number}'"

    def _insert(self, cursor: Cursor, name: str) -> None:
        columns = self._columns(cursor, name)
        values = ", ".join(self._value(*column) for column in columns)
        self.attempt(cursor, f"REPLACE INTO {name} VALUES ({values})" if name != "bare" else f"INSERT INTO {name} VALUES ({values})")

    def _update(self, cursor: Cursor, name: str) -> None:
        columns = self._columns(cursor, name)
        column = self._random.choice(columns)
        self.attempt(
            cursor, f"UPDATE {name} SET `{column[0]}` = {self._value(*column)} WHERE `{columns[0][0]}` % 7 = {self._random.randrange(7)}"
        )

    def _delete(self, cursor: Cursor, name: str) -> None:
        first = self._columns(cursor, name)[0][0]
        self.attempt(cursor, f"DELETE FROM {name} WHERE `{first}` % 11 = {self._random.randrange(11)}")

    # -- definitions

    def _make(self, cursor: Cursor, name: str) -> None:
        cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 1, a INT, b VARCHAR(20))")

    def _migrate(self, cursor: Cursor, name: str) -> None:
        made: list[Callable[[str, list[tuple[str, str]]], list[str]]] = [
            *(self._add, self._add, self._drop, self._rename, self._cross, self._modify, self._modify),
            *((self._key, self._swap, self._truncate, self._again) if name != "bare" else ()),
        ]
        for statement in self._random.choice(made)(name, self._columns(cursor, name)):
            if self.attempt(cursor, statement):
                self.done.append(statement)

    def _fresh(self) -> str:
        self._number += 1
        return f"c{self._number}"

    def _others(self, columns: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [column for column in columns if column[0] not in ("id", "k")]

    def _add(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        kind = self._random.choice(
            ("INT", "INT NOT NULL DEFAULT 7", "VARCHAR(20) NOT NULL DEFAULT 'x'", "DECIMAL(9,2) DEFAULT 1.5", "BIGINT")
        )
        place = self._random.choice(("", "FIRST", f"AFTER `{self._random.choice(columns)[0]}`"))
        return [f"ALTER TABLE {name} ADD COLUMN {self._fresh()} {kind} {place if name != 'bare' else ''}"] if len(columns) < 9 else []

    def _drop(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        others = self._others(columns)
        return [f"ALTER TABLE {name} DROP COLUMN `{self._random.choice(others)[0]}`"] if len(others) > 2 else []

    def _rename(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        return [f"ALTER TABLE {name} RENAME COLUMN `{self._random.choice(self._others(columns))[0]}` TO {self._fresh()}"]

    def _cross(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        others = self._others(columns)
        if len(others) < 2:
            return []
        first, second = (column[0] for column in self._random.sample(others, 2))
        return [f"ALTER TABLE {name} RENAME COLUMN `{first}` TO `{second}`, RENAME COLUMN `{second}` TO `{first}`"]

    def _modify(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        column = self._random.choice(self._others(columns))[0]
        kind = self._random.choice(
            ("BIGINT", "INT", "VARCHAR(30)", "VARCHAR(25) NOT NULL", "INT NOT NULL", "DECIMAL(12,3)", "BIGINT FIRST")
        )
        return [f"ALTER TABLE {name} MODIFY `{column}` {kind if name != 'bare' else kind.removesuffix(' FIRST')}"]

    def _key(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        del columns
        return [f"ALTER TABLE {name} DROP PRIMARY KEY, ADD PRIMARY KEY ({self._random.choice(('id', 'id, k', 'k, id'))})"]

    def _swap(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        del columns
        other = self._random.choice([one for one in TABLES if one != name])
        return [f"RENAME TABLE {name} TO aside, {other} TO {name}, aside TO {other}"]

    def _truncate(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        del columns
        return [f"TRUNCATE TABLE {name}"]

    def _again(self, name: str, columns: list[tuple[str, str]]) -> list[str]:
        del columns
        made = f"CREATE TABLE {name} (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 1, {self._fresh()} INT, {self._fresh()} VARCHAR(20))"
        return [f"DROP TABLE {name}", made]
