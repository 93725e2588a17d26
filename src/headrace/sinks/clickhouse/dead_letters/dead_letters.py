"""Stores rows that could not be written in the sink's table `headrace.errors` (dead letters).

Invariant: a rejected row is in its table, in `headrace.errors`, or the pipe has halted. The writer stores a rejected row here before it
writes the rest of the block. The row's id is derived from its log position, so a replay stores it once. A dead letter keeps its version:
when it is written later, newer changes of the same row still win. This needs the newer deletions, so a table with waiting dead letters is
not purged of tombstones. A new snapshot or a TRUNCATE supersedes all older dead letters of the table; they are never written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTable, OwnTables, format_timestamp, parse_timestamp_us
from headrace.sinks.clickhouse.dead_letters.rejected_rows import RejectedRows, key_text, position_text
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, OnRefusedRow
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.clickhouse.types.row_json import row_to_json

_MOMENT: Final = "DateTime64(6, 'UTC')"
WAITING, DONE, SUPERSEDED = "waiting", "done", "superseded"
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
        ("commit_time", _MOMENT),
        ("row", "String"),
        ("place", "Nullable(UInt64)"),
        ("definition", "LowCardinality(String)"),
        ("tries", "UInt32"),
        ("failed_at", _MOMENT),
        ("updated_at", _MOMENT),
    ),
    ("table", "pipe", "id"),
)
_NAMES: Final = tuple(name for name, _ in ERRORS.columns)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row of `headrace.errors` that waits for a retry."""

    fields: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.fields["id"])

    @property
    def table(self) -> str:
        return str(self.fields["table"])

    @property
    def target(self) -> str:
        return str(self.fields["target"])

    @property
    def key(self) -> str:
        return str(self.fields["key"])

    @property
    def definition(self) -> str:
        return str(self.fields["definition"])

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
    def version(self) -> int:
        return int(self.fields["version"])

    @property
    def order(self) -> int | None:
        return None if self.fields["place"] is None else int(self.fields["place"])

    @property
    def commit_us(self) -> int:
        return parse_timestamp_us(self.fields["commit_time"])


def store_dead_letters(
    tables: OwnTables, target_table: TargetTable, pipe: tuple[str, str], block: ChangeBlock, refused: RejectedRows, now_us: int
) -> None:
    """Store rejected rows. `pipe` is the pipe's unique id and its display name."""
    definition = json.dumps(block.schema.to_json())
    rows = []
    for row, column, reason in zip(refused.rows.tolist(), refused.columns, refused.reasons, strict=True):
        version, operation = int(block.version[row].as_py()), Op(block.op[row].as_py()).name.lower()
        order = None if block.order is None else int(block.order[row].as_py())
        rows.append(
            {
                "id": _name(pipe[0], str(block.schema.name), version, operation, order),
                "pipe": pipe[1],
                "table": str(block.schema.name),
                "target": f"{target_table.full_name}",
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
                "failed_at": format_timestamp(now_us),
                "updated_at": format_timestamp(now_us),
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
    return [DeadLetter(dict(zip(_NAMES, row, strict=True))) for row in rows]


def count_waiting(tables: OwnTables, target: str) -> int:
    """Return how many rows wait for a target table."""
    if not tables.exists(ERRORS):
        return 0
    return len(tables.select(ERRORS, ("id",), f"state = {quote_text(WAITING)} AND target = {quote_text(target)}"))


def update_dead_letters(tables: OwnTables, letters: Iterable[tuple[DeadLetter, str, str, str]], now_us: int) -> None:
    """Store the new state of dead letters, with column and reason for those that still wait."""
    rows = [
        {
            **letter.fields,
            "state": state,
            "column": column or letter.fields["column"],
            "reason": reason or letter.fields["reason"],
            "tries": letter.fields["tries"] + 1,
            "updated_at": format_timestamp(now_us),
        }
        for letter, state, column, reason in letters
    ]
    tables.insert(ERRORS, rows)


def supersede_dead_letters(tables: OwnTables, target_table: TargetTable, pipe: str, before: int | None, now_us: int) -> None:
    """Mark a pipe's waiting rows of one table as superseded, because a snapshot reads the table again. `before`: only versions below it.

    Another pipe may have a table of the same name; its rows keep waiting.
    """
    target = f"{target_table.full_name}"
    old = [
        letter
        for letter in waiting_dead_letters(tables, pipe=pipe)
        if (letter.table, letter.target) == (str(target_table.source), target) and (before is None or letter.version < before)
    ]
    if old:
        update_dead_letters(tables, ((letter, SUPERSEDED, "", "") for letter in old), now_us)


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
