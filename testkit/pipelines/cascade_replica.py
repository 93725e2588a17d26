"""A pipe over a database with foreign-key cascades, which is compared with its source after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of

PAIR = (
    "CREATE TABLE p (id INT PRIMARY KEY)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "INSERT INTO p VALUES (1), (2)",
    "INSERT INTO c VALUES (1, 1), (2, 2)",
)


class Replica:
    """The pipe over the book's database."""

    def __init__(self, book: Logbook, clickhouse: EmbeddedServer, client: Client, state: Path) -> None:
        self.book, self.client = book, client
        self.url, self.state = url_of(clickhouse), state

    def begin(self, *statements: str) -> None:
        self.book.run(*statements)
        self.restart()
        self.compare()

    def restart(self, **settings: Any) -> None:
        """Continue as another process."""
        self.pipe = DrivenPipe(self.book, self.url, self.state, **settings).open()

    def step(self, *statements: str) -> None:
        """Run the statements, replicate them in one batch, and compare."""
        self.book.run(*statements)
        self.pipe.catch_up()
        self.compare()

    def copies(self) -> set[str]:
        """Return the identities of the copies of tables whose states the cascades need."""
        rows = self.client.query("SELECT uuid FROM system.tables WHERE database = 'headrace' AND name LIKE 'cascade%base'").result_rows
        return {str(uuid) for (uuid,) in rows}

    def compare(self) -> None:
        tables = [str(row[0]) for row in self.book.fetch("SHOW TABLES")]
        assert_same(self.client, self.book, tables)
