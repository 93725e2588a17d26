"""ScyllaDB's examples on a server: on ScyllaDB with its own log, on Cassandra with a captured session.

`make test-scylla HOST=…` runs this on a ScyllaDB, and confirms the expected rows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.cql import timeuuid
from headrace.cql.decode.pages import read_rows
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_table, table_name
from headrace.cql.language.lexer import CqlCursor
from headrace.cql.log import SEQUENCE, STREAM, SUFFIX, TIME, log_table
from headrace.cql.session import CqlSession
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.captured_session import CapturedSession, capture
from headrace.sources.scylla.capture.stream_ids import Generations, even_generation
from testkit.oracles.cql_contents import is_scylla
from testkit.oracles.cql_text import Transcript, shown_row, transcripts

GOLDEN = Path(__file__).parents[2] / "golden"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class Server:
    """Runs examples in its own keyspace."""

    def __init__(self, cql: CqlSession, keyspace: str) -> None:
        self.cql, self.keyspace = cql, keyspace
        self.is_scylla = is_scylla(cql)
        self.known = CqlCatalog()
        self.captured: CapturedSession | None = None
        self._is_empty = True
        self._before: set[tuple[Any, ...]] = set()
        """Log rows from before the example."""

    def run(self, example: Transcript) -> list[list[str]] | None:
        """Return the result of the example's last statement; None if it is not a query of rows, or not for this server."""
        if not self.is_scylla and any("SCYLLA_TIMEUUID_LIST_INDEX" in one for one in example.statements):
            return None
        begun = False
        for statement in example.statements:
            text = re.sub(r"\bks\.", f"{self.keyspace}.", statement)
            verb = text.split()[0].lower()
            if verb == "create":
                self._create(text)
            elif verb == "select":
                return self._selected(text)
            elif verb != "describe":
                if not begun:
                    self._begin(example)
                begun, self._is_empty = True, False
                self._write(text)
        return None

    @property
    def name(self) -> TableName:
        return TableName(self.keyspace, "t")

    def _create(self, text: str) -> None:
        if " TABLE " in text:
            self._is_empty = True
            self.cql.execute(f"DROP TABLE IF EXISTS {table_name(self.name)}")
            self.known = self.known.apply(f"DROP TABLE IF EXISTS {table_name(self.name)}")
        self.known = self.known.apply(text)
        if " TABLE " not in text or self.is_scylla:
            self.cql.execute(text)
            return
        table, options = self.known.tables[self.name], self.known.cdc[self.name]
        self.cql.execute(f"DROP TABLE IF EXISTS {table_name(log_table(table).name)}")
        self.cql.execute(create_table(table))
        self.captured = capture(self.cql, [self.name], Generations((even_generation(),)), {self.name: options}) if options.enabled else None

    def _begin(self, example: Transcript) -> None:
        """An example sees only its own log rows, and an empty table if necessary: truncating is slow."""
        matters = self.is_scylla or any("SELECT *" in one or "- [" in one for one in example.statements)
        if matters and not self._is_empty:
            self.cql.execute(f"TRUNCATE {table_name(self.name)}")
        base = self.known.tables[self.name]
        is_logged = self.known.cdc[self.name].enabled
        self._before = {_place(row, base.partition_key[0].name) for row in self._rows(log_table(base).name)} if is_logged else set()

    def _rows(self, name: TableName) -> list[dict[str, Any]]:
        return [row for batch in read_rows(self.cql, f"SELECT * FROM {table_name(name)}") for row in batch.to_pylist()]

    def _write(self, text: str) -> None:
        if self.captured is None:
            self.cql.execute(text)
        else:
            self.captured.execute(text)

    def _selected(self, text: str) -> list[list[str]]:
        base = self.known.tables[self.name]
        table = log_table(base) if SUFFIX in text else base
        cursor = CqlCursor(text)
        cursor.word("select")
        wanted = [column.name for column in table.columns] if cursor.skip_sign("*") else [cursor.name()]
        while cursor.skip_sign(","):
            wanted.append(cursor.name())
        first = base.partition_key[0].name
        rows = [row for row in self._rows(table.name) if _place(row, first) not in self._before]
        return [shown_row(table, wanted, row) for row in sorted(rows, key=lambda row: _place(row, first))]


def _place(row: dict[str, Any], first: str) -> tuple[Any, ...]:
    """Rows of a log in the order of the writes; those of a base table in the server's order."""
    if TIME not in row:
        return ()
    return timeuuid.micros(UUID(bytes=row[TIME])), row[first], row[STREAM], row[TIME], row[SEQUENCE]


def _comparable(example: Transcript, rows: list[list[str]]) -> list[list[str]]:
    """Times that the example does not choose, and keys of lists, are compared by their order only."""
    chosen = all("TIMESTAMP" in one for one in example.statements if one.split()[0] in {"INSERT", "UPDATE", "DELETE", "BEGIN"})
    seen: dict[str, str] = {}
    found = []
    for row in rows:
        cells = dict(zip(example.header, row, strict=True))
        if TIME in cells:
            moment = str(timeuuid.micros(UUID(cells[TIME]))) if "-" in cells[TIME] else cells[TIME]
            cells[TIME] = moment if chosen else "a moment"
        found.append([_UUID.sub(lambda match: seen.setdefault(match[0], f"key {len(seen)}"), cell) for cell in cells.values()])
    return found


@pytest.mark.slow(
    "scylla_log.txt",
    because=("test_examples_are_what_a_server_s_log_says[scylla_log_rules.txt], test_the_log_is_what_the_capture_layer_says"),
)
@pytest.mark.parametrize("file", ["scylla_log.txt", "scylla_log_rules.txt"])
def test_examples_are_what_a_server_s_log_says(cql: CqlSession, keyspace: str, file: str) -> None:
    server = Server(cql, keyspace)
    examples = list(transcripts(GOLDEN / file))
    if not server.is_scylla and "rules" in file:
        # Creating and truncating tables is slow on Cassandra, and the log is the capture layer's: a few examples are enough.
        examples = [example for example in examples if example.statements[0].startswith("CREATE TABLE")][::3]
    compared = 0
    for example in examples:
        given = server.run(example)
        if given is not None and example.printed:
            assert _comparable(example, given) == _comparable(example, example.cells), example.statements
            compared += 1
    assert compared >= 3
