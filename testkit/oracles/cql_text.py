"""Values and tables as cqlsh prints them, decoded by the driver; transcripts: statements, and what they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from headrace.cql import timeuuid
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_log_table, create_type
from headrace.cql.language.lexer import CqlCursor, statements
from headrace.cql.log import SUFFIX, TIME, log_table
from headrace.cql.tables import CqlTable
from headrace.cql.types import CqlType
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.log_rows import LogRow
from headrace.sources.scylla.capture.statement_capture import Capture
from testkit.generators.cql_values import PROTOCOL, driver_type

_FIRST = 1_606_000_000_000_000
NODE = 0xAF55_0000_0000_0001
"""The node whose lists' keys ScyllaDB's page shows."""


def shown(kind: CqlType, raw: bytes | None) -> str:
    """A serialised value as cqlsh prints it."""
    return "null" if raw is None else _shown(kind, driver_type(kind).from_binary(raw, PROTOCOL), inside=False)


def _shown(kind: CqlType, value: Any, *, inside: bool) -> str:
    if value is None:
        return "null"
    if kind.name in {"list", "vector", "set"}:
        items = ", ".join(_shown(kind.args[0], item, inside=True) for item in value)
        return f"{{{items}}}" if kind.name == "set" else f"[{items}]"
    if kind.name == "map":
        pairs = (f"{_shown(kind.args[0], key, inside=True)}: {_shown(kind.args[1], item, inside=True)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if kind.name == "udt":
        fields = zip(kind.fields, kind.args, value, strict=True)
        return "{" + ", ".join(f"{name}: {_shown(of, item, inside=True)}" for name, of, item in fields) + "}"
    if kind.name == "tuple":
        return "(" + ", ".join(_shown(of, item, inside=True) for of, item in zip(kind.args, value, strict=True)) + ")"
    if kind.name in {"text", "ascii"}:
        return f"'{value}'" if inside else str(value)
    return str(value)


@dataclass(frozen=True)
class Transcript:
    """One example: statements, the last of which is a query, and its printed lines."""

    statements: tuple[str, ...]
    printed: tuple[str, ...]

    @property
    def header(self) -> list[str]:
        return [cell.strip() for cell in self.printed[0].split("|")]

    @property
    def cells(self) -> list[list[str]]:
        """The printed rows, cell by cell."""
        lines = [line for line in self.printed[2:] if "|" in line or (line.strip() and not line.strip().startswith("("))]
        return [[cell.strip() for cell in line.split("|")] for line in lines]


def transcripts(path: Path) -> Iterator[Transcript]:
    """The examples of a file."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for stanza in "\n".join(lines).split("\n%%\n"):
        said, _, printed = stanza.partition("\n=>\n")
        yield Transcript(tuple(statements(said)), tuple(printed.rstrip().splitlines()))


@dataclass
class ScriptedClock:
    """Gives statements the times of their printed rows, and list elements the times of their printed keys."""

    keys: int = 0
    moments: list[int] = field(default_factory=list)
    _fresh: bool = True

    def begin(self) -> None:
        self._fresh = True

    def __call__(self) -> int:
        if self._fresh and self.moments:
            self._fresh = False
            return self.moments.pop(0)
        return self.keys or _FIRST


@dataclass
class Session:
    """Runs examples one at a time. Definitions remain, rows are deleted."""

    known: CqlCatalog = field(default_factory=CqlCatalog)

    def run(self, example: Transcript) -> list[list[str]] | str:
        """Return the result of the example's last statement."""
        clock = _clock(example)
        capture: Capture | None = None
        rows: list[LogRow] = []
        for statement in example.statements:
            verb = statement.split()[0].lower()
            if verb in {"create", "alter"}:
                self.known = self._cleared(statement).apply(statement)
            elif verb == "describe":
                return self._described(statement)
            elif verb == "select":
                return self._selected(statement, capture, rows)
            else:
                capture = capture or Capture(self.known.tables.values(), clock, self.known.cdc, seed=1, node=NODE)
                clock.begin()
                rows += capture.log(statement)
        return []

    def _cleared(self, statement: str) -> CqlCatalog:
        cursor = CqlCursor(statement)
        if not cursor.skip_word("create", "table"):
            return self.known
        first = cursor.name()
        cursor.sign(".")
        return self.known.apply(f"DROP TABLE IF EXISTS {first}.{cursor.name()}")

    def _described(self, statement: str) -> str:
        words = statement.split()
        keyspace, _, name = words[2].partition(".")
        if words[1].lower() == "type":
            return create_type(self.known.types[keyspace, name])
        base = TableName(keyspace, name.removesuffix(SUFFIX))
        return create_log_table(self.known.tables[base], self.known.cdc[base])

    def _selected(self, statement: str, capture: Capture | None, rows: Sequence[LogRow]) -> list[list[str]]:
        cursor = CqlCursor(statement)
        cursor.word("select")
        wanted = [] if cursor.skip_sign("*") else [cursor.name()]
        while cursor.skip_sign(","):
            wanted.append(cursor.name())
        cursor.word("from")
        keyspace = cursor.name()
        cursor.sign(".")
        name = cursor.name()
        assert capture is not None
        if name.endswith(SUFFIX):
            table = log_table(self.known.tables[TableName(keyspace, name.removesuffix(SUFFIX))])
            return [shown_row(table, wanted, row.values) for row in rows if row.table.name.table == name.removesuffix(SUFFIX)]
        base = self.known.tables[TableName(keyspace, name)]
        return [shown_row(base, wanted or [column.name for column in base.columns], row) for row in base_rows(capture, base)]


def base_rows(capture: Capture, table: CqlTable) -> Iterator[dict[str, bytes]]:
    """The rows of a base table, by the model, as SELECT gives them."""
    for row in capture.state.rows(table, _FIRST // 1_000_000):
        keys = dict(zip((column.name for column in table.partition_key), row.partition, strict=True))
        keys |= dict(zip((column.name for column in table.clustering), row.clustering or (), strict=False))
        yield keys | dict(row.values)


def shown_row(table: CqlTable, wanted: Sequence[str], values: Mapping[str, bytes]) -> list[str]:
    return [shown(table.column(name).type, values.get(name)) for name in wanted]


def _clock(example: Transcript) -> ScriptedClock:
    """Return the clock of an example's server: cdc$time of a statement is its timestamp, keys of lists have other times."""
    if not example.printed or TIME not in example.header or not any("-" in row[0] for row in example.cells):
        return ScriptedClock()
    times = list(dict.fromkeys(row[example.header.index(TIME)] for row in example.cells))
    keys = [int(UUID(word[:36]).time) for line in example.printed for word in line.split("{")[1:] if "-2f" in word[:14]]
    first = min(keys, default=0)
    return ScriptedClock((first - timeuuid.make(0, 0).time) // 10 if first else 0, [timeuuid.micros(UUID(one)) for one in times])
