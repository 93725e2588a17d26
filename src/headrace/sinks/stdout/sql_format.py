"""Changes as SQL: one statement for each change, by which another MySQL or MariaDB server gets the same rows.

Invariant: a statement has the same effect under every sql_mode and collation. Text with a backslash or a control character is hexadecimal,
floats have all the digits of a double, and `PREFACE` sets the session's character set, time zone and handling of zeros. A table without a
key has all its columns in the condition, compared exactly, with LIMIT 1. Whole columns only: no Python runs per row.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.mypipe.values import vector_bytes
from headrace.model.alter_effects import Alteration
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.model.text_values import fixed_bytes_printer, format_decimals, format_hex, format_times, format_timestamps
from headrace.sinks.base import AppendOnlySchemaApplier
from headrace.sinks.event_positions import Places
from headrace.sinks.kafka.debezium.json_fragments import join
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, Step
from headrace.sinks.stdout.batches import LineOptions, Piece
from headrace.sinks.stdout.output import OutputFrame
from headrace.terminal_text import CONTROL_RANGES, FORMAT_RANGES, escape_text

_Render = Callable[[Any], Any]
SQL_FRAME: Final = OutputFrame(
    # ROLLBACK: an earlier run may have ended inside a transaction. Foreign keys: a snapshot prints a child possibly before its parent, and
    # the source's session may have had its checks off.
    preface=b"ROLLBACK;\nSET NAMES utf8mb4;\nSET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO';\nSET SESSION time_zone = '+00:00';\n"
    b"SET SESSION foreign_key_checks = 0;\n",
    before_transaction=b"BEGIN;\n",
    after_transaction=b"COMMIT;\n",
)
_ODD: Final = r"[\\" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in (*CONTROL_RANGES, *FORMAT_RANGES)) + "]"
_NOT_DONE: Final = ("ignored", "kept")
_COMMENTS: Final = ("--", "#", "/*")
_ATOMIC: Final = re.compile(r"\s+START\s+TRANSACTION\s*$", re.IGNORECASE)
"""The end of a CREATE TABLE as MySQL logs CREATE TABLE … SELECT: the rows follow in the same transaction."""


class SqlForm:
    def __init__(self, schema: TableSchema, choices: LineOptions) -> None:
        del choices
        name = f"{_identifier(schema.name.database)}.{_identifier(schema.name.table)}"
        self._literals = {column.name: _literal(column) for column in schema.columns}
        # The server computes generated columns itself.
        self._written = {column.name: _identifier(column.name) for column in schema.columns if not column.generated}
        keyed = [column for column in schema.columns if column.name in schema.row_key]
        self._conditions = [(column.name, *_condition(column, keyed=bool(keyed))) for column in keyed or schema.columns]
        rows = f"INTO {name} ({', '.join(self._written.values())}) VALUES ("
        # A snapshot that is read again replaces the rows of the one before.
        self._begin = {Op.SNAPSHOT: f"{'REPLACE' if keyed else 'INSERT'} {rows}", Op.INSERT: f"INSERT {rows}"}
        self._update, self._delete = f"UPDATE {name} SET ", f"DELETE FROM {name} WHERE "
        self._end = ";" if keyed else " LIMIT 1;"

    def lines(self, piece: Piece, position: Any) -> Any:
        values = {name: _or_null(render(piece.images.column(name))) for name, render in self._literals.items()}
        made, places = [], []
        for op in (Op.SNAPSHOT, Op.INSERT, Op.UPDATE, Op.DELETE):
            mine = np.flatnonzero(piece.ops == op)
            if mine.size:
                made.append(self._statements(op, piece, mine, values))
                places.append(mine)
        order = np.empty(len(piece.ops), dtype=np.int64)
        order[np.concatenate(places)] = np.arange(len(piece.ops))
        return join(pa.concat_arrays(made).take(pa.array(order)), " -- ", position, "\n")

    def _statements(self, op: Op, piece: Piece, mine: Places, values: dict[str, Any]) -> Any:
        own = pa.array(piece.own[mine])
        if op in self._begin:
            return join(self._begin[op], *_between([values[name].take(own) for name in self._written], ", "), ");")
        if op is Op.DELETE:
            return join(self._delete, *self._condition(piece, own, values), self._end)
        before = pa.array(np.where(piece.before[mine] >= 0, piece.before[mine], piece.own[mine]))
        sets = _between([join(f"{quoted} = ", values[name].take(own)) for name, quoted in self._written.items()], ", ")
        return join(self._update, *sets, " WHERE ", *self._condition(piece, before, values), self._end)

    def _condition(self, piece: Piece, at: Any, values: dict[str, Any]) -> list[Any]:
        parts = []
        for name, left, render in self._conditions:
            right = values[name] if render is None else _or_null(render(piece.images.column(name)))
            parts.append(join(f"{left} ", right.take(at)))
        return _between(parts, " AND ")


@dataclass(frozen=True, slots=True)
class SqlSchemaApplier(AppendOnlySchemaApplier):
    """Applies ALTER, DROP and TRUNCATE: the reader of the output executes them. `record` prints the original statements."""

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        """Every alteration has a step, so that it is recorded: also a longer VARCHAR, which changes nothing in other sinks."""
        del version
        name = alteration.before.name
        return DdlPlan((Step((f"ALTER TABLE {_identifier(name.database)}.{_identifier(name.table)}",)),), prepared=True)

    def plan_removal(self, schema: TableSchema) -> DdlPlan:
        return DdlPlan((Step((f"DROP TABLE {_identifier(schema.name.database)}.{_identifier(schema.name.table)}",)),))

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        del version
        return DdlPlan((Step((f"TRUNCATE TABLE {_identifier(schema.name.database)}.{_identifier(schema.name.table)}",)),))

    def run_step(self, step: Step) -> None:
        """Do nothing: the statement is printed when it is recorded."""
        del step


def transaction_numbers(block: ChangeBlock) -> npt.NDArray[np.uint64]:
    """Return a number for the transaction of each image; equal within a transaction."""
    if block.transaction is None:
        return np.zeros(block.rows, np.uint64)
    names = block.transaction.dictionary.to_pylist()
    numbers = np.array([int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:8], "big") for name in names], np.uint64)
    return np.asarray(numbers[block.transaction.indices.to_numpy()], np.uint64)


def print_statements(entries: Iterable[LedgerEntry]) -> bytes:
    """Return the original statements of schema changes, each once; one that the pipe ignores is a comment."""
    made: dict[tuple[int, str], str] = {}
    for entry in entries:
        table = entry.detail.removeprefix("from ") if entry.detail.startswith("from ") else entry.source_table
        text = _ATOMIC.sub("", entry.statement.rstrip().rstrip(";").rstrip())
        if entry.outcome in _NOT_DONE:
            made.setdefault((entry.version, entry.statement), f"-- {entry.outcome}: {' '.join(escape_text(text).split())}\n")
            continue
        # A comment at the end of the statement must not include the semicolon.
        end = "\n;" if any(mark in text for mark in _COMMENTS) else ";"
        made[entry.version, entry.statement] = (
            f"USE {_identifier(table.partition('.')[0])};\n{text}{end} -- {escape_text(entry.position)}\n"
        )
    return "".join(made.values()).encode()


def _identifier(name: str) -> str:
    if escape_text(name) != name:
        raise DefiniteError(
            f"the name {escape_text(name)!r} has a character that SQL for a terminal cannot contain",
            place="stdout: format=sql",
            hint="exclude the table or column, or choose format=json",
        )
    return "`" + name.replace("`", "``") + "`"


def _condition(column: Column, *, keyed: bool) -> tuple[str, _Render | None]:
    """Return the left side of a comparison with its operator, and what prints the right side if it is not the literal."""
    name = _identifier(column.name)
    if keyed:
        return f"{name} =", None
    match column.form:
        case ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS:
            # By bytes: collations ignore case or trailing spaces, and MySQL compares a JSON column with text as JSON.
            return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY) <=>", None
        case ValueForm.GEOMETRY | ValueForm.VECTOR:
            return f"HEX({name}) <=>", lambda array: join("'", pc.ascii_upper(format_hex(_raw(column, array))), "'")
        case (
            ValueForm.INTEGER
            | ValueForm.YEAR
            | ValueForm.BITS
            | ValueForm.FLOAT
            | ValueForm.DECIMAL
            | ValueForm.BYTES
            | ValueForm.FIXED_BYTES
            | ValueForm.DATE
            | ValueForm.TIMESTAMP
            | ValueForm.TIME
        ):
            return f"{name} <=>", None
        case unknown:
            assert_never(unknown)


def _literal(column: Column) -> _Render:
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return _text
        case ValueForm.FLOAT:
            return _doubles
        case ValueForm.DECIMAL:
            return lambda array: format_decimals(array, column.precision, column.scale)
        case ValueForm.DATE:
            return lambda array: join("'", _text(array), "'")
        case ValueForm.TIMESTAMP:
            return lambda array: join("'", format_timestamps(array, column.precision), "'")
        case ValueForm.TIME:
            return lambda array: join("'", format_times(array, column.precision), "'")
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return lambda array: join("x'", format_hex(_raw(column, array)), "'")
        case ValueForm.TEXT | ValueForm.JSON:
            return _quoted
        case ValueForm.MEMBERS:
            return lambda array: _quoted(array.dictionary).take(array.indices) if pa.types.is_dictionary(array.type) else _quoted(array)
        case ValueForm.FIXED_BYTES:
            printed = fixed_bytes_printer(column)
            return lambda array: join("'", printed(array), "'")
        case unknown:
            assert_never(unknown)


def _raw(column: Column, array: Any) -> Any:
    return vector_bytes(array) if column.form is ValueForm.VECTOR else array.cast(pa.binary())


def _text(array: Any) -> Any:
    return array.cast(pa.string())


def _doubles(array: Any) -> Any:
    """A float's digits as a double: servers compare and store them by their bits."""
    digits = _text(array.cast(pa.float64()))
    return pc.if_else(pc.match_substring(digits, "e"), digits, join(digits, "e0"))


def _quoted(array: Any) -> Any:
    quoted = join("'", pc.replace_substring(array, "'", "''"), "'")
    odd = pc.fill_null(pc.match_substring_regex(array, _ODD), False)
    if not pc.any(odd).as_py():
        return quoted
    hexadecimal = join("_utf8mb4 x'", format_hex(array.filter(odd).cast(pa.binary())), "'")
    return pc.replace_with_mask(quoted, odd, hexadecimal)


def _or_null(texts: Any) -> Any:
    return pc.fill_null(texts, "NULL") if texts.null_count else texts


def _between(parts: list[Any], separator: str) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        found += [separator, part] if found else [part]
    return found
