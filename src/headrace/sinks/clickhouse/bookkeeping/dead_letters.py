"""The table `headrace.errors`: rows that could not be written (dead letters), skipped events, and log rows that arrived too late.

Invariant: a rejected row is in its table, in `headrace.errors`, or the pipe has halted. The writer stores a row that the encoder rejects
here before it writes the rest of the block. The row's id is derived from its log position, so a replay stores it once. A dead letter keeps
its version: when it is written later, newer changes of the same row still win. This needs the newer deletions, so a table with waiting dead
letters is not purged of tombstones. A new snapshot or a TRUNCATE supersedes all older dead letters of the table; they are never written.

A row is rejected by the encoder before anything is sent, or by the server together with its block. In the second case the writer sends
halves of the block until the rejected rows are isolated. It does so only for errors about values; an error about the table, the server or
the statement concerns every row and halts the pipe.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.model.version import row_place, unpack_version
from headrace.sinks.cdc_log_sink import LateBatch
from headrace.sinks.clickhouse.bookkeeping.own_tables import MOMENT, OwnTable, OwnTables, format_timestamp, parse_timestamp_us
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, OnRefusedRow
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.clickhouse.types.scalar_values import render_value, row_to_json

WAITING, DONE, SUPERSEDED = "waiting", "done", "superseded"
LATE, SKIPPED = "late", "skipped"
"""The states of log rows that arrived too late to be read, and of events that the user skipped."""
UNREADABLE: Final = "unreadable"
"""The state of a record that cannot be read: it is not a row that `headrace retry` could write."""
ERRORS = OwnTable(
    "errors",
    (
        ("id", "String"),
        ("pipe", "LowCardinality(String)"),
        ("table", "LowCardinality(String)"),
        ("target", "LowCardinality(String)"),
        ("state", "LowCardinality(String)"),
        ("key", "String"),
        ("column", "LowCardinality(String)"),
        ("reason", "String"),
        ("operation", "LowCardinality(String)"),
        ("version", "UInt64"),
        ("position", "String"),
        ("commit_time", MOMENT),
        ("row", "String"),
        ("place", "Nullable(UInt64)"),
        ("definition", "LowCardinality(String)"),
        ("tries", "UInt32"),
        ("failed_at", MOMENT),
        ("updated_at", MOMENT),
    ),
    ("table", "pipe", "id"),
)
_NAMES: Final = tuple(name for name, _ in ERRORS.columns)
_LETTER_FIELDS: Final = ("id", "table", "target", "key", "definition", "version", "place")
_NO_ROW: Final = {"target": "", "key": "", "column": "", "operation": "event", "version": 0, "row": "", "place": None, "definition": ""}
"""Fields of records that are about an event, not about a row."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    fields: dict[str, Any]
    id: str
    table: str
    target: str
    key: str
    definition: str
    version: int
    order: int | None

    @property
    def schema(self) -> TableSchema:
        return TableSchema.from_json(json.loads(self.definition))

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fields["row"])
        return found

    @property
    def op(self) -> Op:
        return Op[str(self.fields["operation"]).upper()]

    @property
    def commit_us(self) -> int:
        return parse_timestamp_us(self.fields["commit_time"])


def store_dead_letters(
    tables: OwnTables, target_table: TargetTable, pipe: tuple[str, str], block: ChangeBlock, refused: RejectedRows
) -> None:
    """Store rejected rows. `pipe` is the pipe's unique id and its display name."""
    definition, now = json.dumps(block.schema.to_json()), format_timestamp(time.time_ns() // 1000)
    rows = []
    for row, column, reason in zip(refused.rows.tolist(), refused.columns, refused.reasons, strict=True):
        version, operation = int(block.version[row].as_py()), Op(block.op[row].as_py()).name.lower()
        order = None if block.order is None else int(block.order[row].as_py())
        rows.append(
            {
                "id": _name(pipe[0], str(block.schema.name), version, operation, order),
                "pipe": pipe[1],
                "table": str(block.schema.name),
                "target": target_table.full_name,
                "state": WAITING,
                "key": key_text(block, row),
                "column": column,
                "reason": reason,
                "operation": operation,
                "version": version,
                "position": position_text(version),
                "commit_time": format_timestamp(int(block.commit_ts[row].as_py())),
                "row": json.dumps(row_to_json(block.images, block.schema, row), ensure_ascii=False),
                "place": order,
                "definition": definition,
                "tries": 1,
                "failed_at": now,
                "updated_at": now,
            }
        )
    tables.ensure(ERRORS)
    tables.insert(ERRORS, rows)


def waiting_dead_letters(tables: OwnTables, *, pipe: str = "", table: str = "", ids: Sequence[str] = ()) -> list[DeadLetter]:
    """Return the waiting rows, oldest first; `table` is a glob."""
    if not tables.exists(ERRORS):
        return []
    conditions = [f"state = {quote_text(WAITING)}"]
    if pipe:
        conditions.append(f"pipe = {quote_text(pipe)}")
    if ids:
        conditions.append(f"id IN ({', '.join(map(quote_text, ids))})")
    if table:
        conditions.append(f"match(table, {quote_text(_pattern(table))})")
    rows = tables.select(ERRORS, _NAMES, " AND ".join(conditions), "version, id")
    letters = (dict(zip(_NAMES, row, strict=True)) for row in rows)
    return [DeadLetter(fields, *(fields[name] for name in _LETTER_FIELDS)) for fields in letters]


def count_waiting(tables: OwnTables, target: str) -> int:
    if not tables.exists(ERRORS):
        return 0
    return len(tables.select(ERRORS, ("id",), f"state = {quote_text(WAITING)} AND target = {quote_text(target)}"))


def update_dead_letters(tables: OwnTables, letters: Iterable[tuple[DeadLetter, str, str, str]]) -> None:
    """Store the new state of dead letters, with column and reason for those that still wait."""
    rows = (
        {
            **letter.fields,
            "state": state,
            "column": column or letter.fields["column"],
            "reason": reason or letter.fields["reason"],
            "tries": letter.fields["tries"] + 1,
            "updated_at": format_timestamp(time.time_ns() // 1000),
        }
        for letter, state, column, reason in letters
    )
    tables.insert(ERRORS, rows)


def supersede_dead_letters(tables: OwnTables, target_table: TargetTable, pipe: str, before: int | None) -> None:
    """Mark a pipe's waiting rows of one table as superseded, because a snapshot reads the table again. `before`: only versions below it.

    Another pipe may have a table of the same name; its rows keep waiting.
    """
    old = [
        letter
        for letter in waiting_dead_letters(tables, pipe=pipe)
        if (letter.table, letter.target) == (str(target_table.source), target_table.full_name)
        and (before is None or letter.version < before)
    ]
    if old:
        update_dead_letters(tables, ((letter, SUPERSEDED, "", "") for letter in old))


def check_dead_letter_options(target_tables: Iterable[TargetTable], options: ClickHouseOptions) -> None:
    """Reject `on_refused_row = dead_letter` for engines where a late row would change what the table shows."""
    for target_table in target_tables:
        chosen = options.of(target_table.source).on_refused_row
        if chosen is OnRefusedRow.DEAD_LETTER and target_table.family in (EngineFamily.COLLAPSING, EngineFamily.COALESCING):
            raise DefiniteError(
                f"{target_table.full_name} is {target_table.family}: the order of writing counts, so a row cannot be left for later",
                place=f"table {target_table.source}, on_refused_row",
                hint="choose on_refused_row = halt for it, or an engine that keeps rows by version",
            )


def _name(pipe: str, table: str, version: int, operation: str, order: int | None) -> str:
    return hashlib.sha256("\n".join((pipe, table, str(version), operation, str(order))).encode()).hexdigest()[:16]


def _pattern(glob: str) -> str:
    """Convert a glob to a ClickHouse regular expression over the whole name."""
    special = {"*": ".*", "?": "."}
    return "^" + "".join(special.get(letter, letter if letter.isalnum() or letter == "_" else f"\\{letter}") for letter in glob) + "$"


def _insert_events(tables: OwnTables, pipe: str, state: str, events: Iterable[Mapping[str, Any]]) -> None:
    """Record events that have `position`, `table`, `reason` and `commit_time`. The same position is stored once."""
    now = format_timestamp(time.time_ns() // 1000)
    rows = [
        {
            **_NO_ROW,
            "id": hashlib.sha256("\n".join((pipe, state, event["position"])).encode()).hexdigest()[:16],
            "pipe": pipe,
            "state": state,
            "tries": 1,
            "failed_at": now,
            "updated_at": now,
            **event,
        }
        for event in events
    ]
    if rows:
        tables.ensure(ERRORS)
        tables.insert(ERRORS, rows)


@dataclass(frozen=True, slots=True)
class ClickHouseLateRowStore:
    """The `LateRowStore` of the ClickHouse sinks."""

    tables: OwnTables

    def store(self, pipe: str, batches: Iterable[LateBatch]) -> None:
        events = (
            {
                "table": one.table,
                "reason": f"{one.rows} log rows arrived {(one.written_us - one.time_us) / 1e6:.0f} s later than their timestamps say, "
                "which is more than scylla.look_back allows: they were not read",
                "position": one.place,
                "commit_time": format_timestamp(max(one.time_us, 0)),
            }
            for one in batches
        )
        _insert_events(self.tables, pipe, LATE, events)

    def resolve(self, pipe: str, table: str, *, copied: bool) -> None:
        changes = {"state": SUPERSEDED if copied else DONE, "updated_at": format_timestamp(time.time_ns() // 1000)}
        late = (dict(zip(_NAMES, row, strict=True)) for row in self._select(_NAMES, LATE, pipe))
        self.tables.insert(ERRORS, [{**row, **changes} for row in late if row["table"] == table])

    def repaired_positions(self, pipe: str) -> set[str]:
        return {str(place) for place, operation in self._select(("position", "operation"), DONE, pipe) if operation == "event"}

    def _select(self, names: tuple[str, ...], state: str, pipe: str) -> list[list[Any]]:
        if not self.tables.exists(ERRORS):
            return []
        return self.tables.select(ERRORS, names, f"state = {quote_text(state)} AND pipe = {quote_text(pipe)}")


@dataclass(frozen=True, slots=True)
class ClickHouseSkippedEventStore:
    """The `SkippedEventStore` of the ClickHouse sink."""

    tables: OwnTables

    def store(self, pipe: str, event: Mapping[str, str]) -> None:
        found = {
            "table": event.get("table", ""),
            "reason": event.get("error", ""),
            "position": event["place"],
            "commit_time": format_timestamp(0),
            "row": event.get("content", ""),
        }
        _insert_events(self.tables, pipe, SKIPPED, [found])


MAX_REJECTED: Final = 1000
"""Of one block, by the server. More than that is not a problem of single rows."""
_TOO_MANY_PARTITIONS, _OUT_OF_MEMORY = 252, 241
# Errors of parsing and conversion, NULLs, ranges, constraints, and exceptions of views and defaults.
_VALUE_CODES: Final = (6, 26, 27, 32, 38, 41, 53, 69, 70, 72, 117, 128, 131, 153, 190, 321, 349, 395, 407, 469, 500, 636, 691)
HALVED_WHEN_REFUSED: Final = frozenset({*_VALUE_CODES, _TOO_MANY_PARTITIONS})
HALVED_WHEN_BUSY: Final = frozenset({_OUT_OF_MEMORY})
"""ClickHouse error codes that may be about some rows of a block, or about their number."""


class RowRejected(DefiniteError):
    """A value that the table would not store unchanged."""


@dataclass(frozen=True, slots=True)
class RejectedRows:
    rows: np.ndarray[Any, np.dtype[np.int64]]
    columns: tuple[str, ...]
    """The column of the rejected value, row by row; empty if unknown."""
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, found: dict[int, tuple[str, str]]) -> RejectedRows:
        rows = sorted(found)
        return cls(np.array(rows, dtype=np.int64), tuple(found[row][0] for row in rows), tuple(found[row][1] for row in rows))

    def only(self, places: Sequence[int]) -> RejectedRows:
        """Return some of the rows, by their index here."""
        return RejectedRows(self.rows[list(places)], tuple(self.columns[at] for at in places), tuple(self.reasons[at] for at in places))


def key_text(block: ChangeBlock, row: int) -> str:
    return ", ".join(f"{name}={render_value(block.images.column(name)[row])}" for name in block.schema.row_key)


def row_text(block: ChangeBlock, row: int) -> str:
    """Return the row key as part of an error's place; empty for a table without a key."""
    return f", row {key_text(block, row)}" if block.schema.row_key else ""


def position_text(version: int) -> str:
    _, file, offset = unpack_version(version)
    return f"log file {file}, offset {offset}"


def event_of(block: ChangeBlock, row: int) -> str:
    """Return the row's position as `headrace skip` takes it; empty for snapshot rows, which share one position."""
    return "" if block.op[row].as_py() == Op.SNAPSHOT else row_place(block.version[row].as_py())


def halves(block: ChangeBlock) -> tuple[ChangeBlock, ChangeBlock]:
    places = np.arange(block.rows)
    return block.taken(places[: block.rows // 2]), block.taken(places[block.rows // 2 :])
