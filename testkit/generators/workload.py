"""A small, hostile workload for replication tests: every kind of change, in transactions of every size, from a seed.

Keys are few, so that the same row is inserted, updated, moved and deleted repeatedly: a lost, repeated or reordered change is visible.
"""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any, Self

from pymysql.connections import Connection

from headrace.demo.private_server import PrivateServer
from testkit.servers.servers import execute_in

TABLES = ("accounts", "parts", "notes")
KEYS = {"accounts": "id", "parts": "(account, line)", "notes": "title"}
_ACCOUNTS, _NOTES = 3000, 800


class Workload:
    """Runs transactions in its own thread while it is open."""

    def __init__(self, server: PrivateServer, database: str, seed: int, pause_s: float = 0.01) -> None:
        self._server, self._database, self._pause_s = server, database, pause_s
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)
        self.transactions = 0
        self.failure: BaseException | None = None

    def prepare(self) -> None:
        """Create the tables with some rows in them."""
        execute_in(self._server, self._database, *_TABLES, "ANALYZE TABLE accounts, parts, notes")

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> BaseException | None:
        """End after the current transaction; return the error that ended it earlier, if any."""
        self._stopping.set()
        self._thread.join(60)
        return self.failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        failure = self.stop()
        if failure is not None:
            raise failure

    def _run(self) -> None:
        try:
            with self._server.root_connection(self._database, autocommit=False) as connection:
                while not self._stopping.wait(self._pause_s):
                    run_transaction(connection, self._random)
                    self.transactions += 1
        # The error must fail the test, not the thread.
        except BaseException as error:  # noqa: BLE001
            self.failure = error


def run_transaction(connection: Connection[Any], chooser: random.Random) -> None:
    """Run one transaction of one to four statements; some are rolled back."""
    with connection.cursor() as cursor:
        for _ in range(chooser.choice((1, 1, 1, 2, 4))):
            cursor.execute(chooser.choice(_STATEMENTS)(chooser))
    if chooser.random() < 0.05:
        connection.rollback()
    else:
        connection.commit()


_NUMBERS = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
_TABLES = (
    "CREATE TABLE accounts (id INT PRIMARY KEY, owner VARCHAR(40) NOT NULL, balance DECIMAL(12,2), changed DATETIME(6))",
    "CREATE TABLE parts (account VARCHAR(20), line INT UNSIGNED, amount DOUBLE, PRIMARY KEY (account, line))",
    "CREATE TABLE notes (title VARCHAR(60) COLLATE utf8mb4_bin PRIMARY KEY, body TEXT, stars TINYINT)",
    f"INSERT INTO accounts {_NUMBERS.format(rows=900)} SELECT i, CONCAT('owner ', i), i / 7, '2024-05-06 07:08:09.123456' FROM n",
    f"INSERT INTO parts {_NUMBERS.format(rows=400)} SELECT CONCAT('a', i % 20), i, i / 3 FROM n",
    f"INSERT INTO notes {_NUMBERS.format(rows=300)} SELECT CONCAT('note ', i), REPEAT('text ', i % 9), i % 5 FROM n",
)


def _insert_accounts(chooser: random.Random) -> str:
    rows = [(chooser.randrange(_ACCOUNTS), chooser.randrange(10**6)) for _ in range(chooser.choice((1, 5, 60)))]
    values = ", ".join(f"({key}, 'new {amount}', {amount} / 100, NOW(6))" for key, amount in rows)
    return f"INSERT INTO accounts VALUES {values} ON DUPLICATE KEY UPDATE owner = VALUES(owner), balance = VALUES(balance)"


def _update_accounts(chooser: random.Random) -> str:
    start = chooser.randrange(_ACCOUNTS)
    return f"UPDATE accounts SET balance = balance + 1, changed = NOW(6) WHERE id BETWEEN {start} AND {start + chooser.choice((0, 9, 200))}"


def _delete_accounts(chooser: random.Random) -> str:
    start = chooser.randrange(_ACCOUNTS)
    return f"DELETE FROM accounts WHERE id BETWEEN {start} AND {start + chooser.choice((0, 3, 40))}"


def _move_account(chooser: random.Random) -> str:
    return f"UPDATE IGNORE accounts SET id = {chooser.randrange(_ACCOUNTS)} WHERE id = {chooser.randrange(_ACCOUNTS)}"


def _insert_parts(chooser: random.Random) -> str:
    account = chooser.randrange(30)
    values = ", ".join(f"('a{account}', {chooser.randrange(500)}, {chooser.random()})" for _ in range(chooser.choice((1, 8))))
    return f"REPLACE INTO parts VALUES {values}"


def _move_parts(chooser: random.Random) -> str:
    account, line = chooser.randrange(30), chooser.randrange(500)
    where = f"account = 'a{account}' AND line BETWEEN {line} AND {line + 20}"
    return f"UPDATE IGNORE parts SET account = 'a{chooser.randrange(30)}' WHERE {where}"


def _delete_parts(chooser: random.Random) -> str:
    return f"DELETE FROM parts WHERE account = 'a{chooser.randrange(30)}' AND line % 7 = {chooser.randrange(7)}"


def _write_note(chooser: random.Random) -> str:
    title = f"note {chooser.randrange(_NOTES)}"
    return f"REPLACE INTO notes VALUES ('{title}', REPEAT('é', {chooser.randrange(300)}), NULL)"


def _rename_note(chooser: random.Random) -> str:
    # A change of case is a change of key only because the column's collation is binary.
    return f"UPDATE IGNORE notes SET title = UPPER(title), stars = 1 WHERE title = 'note {chooser.randrange(_NOTES)}'"


def _delete_note(chooser: random.Random) -> str:
    return f"DELETE FROM notes WHERE title IN ('note {chooser.randrange(_NOTES)}', 'NOTE {chooser.randrange(_NOTES)}')"


_STATEMENTS = (
    _insert_accounts,
    _insert_accounts,
    _update_accounts,
    _delete_accounts,
    _move_account,
    _insert_parts,
    _move_parts,
    _delete_parts,
    _write_note,
    _rename_note,
    _delete_note,
)
