"""Encodes blocks as lines, one per change, in the order of the block.

Invariant: every change of a block is one line, and a line is one change: no value, name or statement can end it or begin another. An
update is one line with both of its images, also where it moves the row to another key. Lines carry the versions of their changes, by which
lines of several blocks are put in the order of the log. Whole columns only: no Python runs per row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import TableSchema
from headrace.sinks.event_positions import event_places, file_name, file_numbers
from headrace.sinks.kafka.debezium.json_fragments import NULL, join, or_null
from headrace.sinks.schema_changes import LedgerEntry
from headrace.sinks.stdout.batches import LineForm, LineOptions, Piece, committed, pieces
from headrace.sinks.stdout.json_values import renderer
from headrace.sinks.stdout.sql_format import SqlForm, print_statements, transaction_numbers
from headrace.terminal_text import escape_text

WORDS: Final = {Op.SNAPSHOT: "snapshot", Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
_BY_NUMBER: Final = pa.array([WORDS.get(op, "") for op in Op])
_LONGEST: Final = 160
"""Characters, or bytes, of a value that are shown."""
_SIGNS: Final = {Op.SNAPSHOT: "* SNAPSHOT", Op.INSERT: "+ INSERT", Op.UPDATE: "~ UPDATE", Op.DELETE: "- DELETE", Op.BEFORE: ""}
_COLOURS: Final = {Op.SNAPSHOT: "36", Op.INSERT: "32", Op.UPDATE: "33", Op.DELETE: "31", Op.BEFORE: "0"}
_DIM, _BOLD, _STATEMENT = "2", "1", "35"
_PLAIN_NAME: Final = re.compile(r"[^\s=:\"]+")
_CUT: Final = (ValueForm.TEXT, ValueForm.JSON, ValueForm.BYTES, ValueForm.GEOMETRY)


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines with their line ends, and the version of the change that each is about."""

    text: Any
    version: Any
    transaction: Any = None
    """A number for the transaction of each line, if the output groups lines by transaction."""


@dataclass(slots=True)
class LineEncoder:
    """Encodes blocks of any tables. Belongs to one task."""

    choices: LineOptions = field(default_factory=LineOptions)
    log: str = "binlog"
    """What the source's log files are called before their numbers."""
    _tables: dict[TableSchema, LineForm] = field(default_factory=dict)

    def encode(self, block: ChangeBlock) -> Iterator[Lines]:
        """The block's lines, a bounded part at a time."""
        if not block.rows:
            return
        form, events, files = self._form(block.schema), event_places(block), file_numbers(block.version)
        numbers_of = transaction_numbers(block) if self.choices.sql else None
        for piece in pieces(block):
            numbers, which = np.unique(files[piece.at], return_inverse=True)
            names = pa.array([escape_text(file_name(self.log, number)) for number in numbers.tolist()]).take(pa.array(which))
            position = join(names, ":", pa.array(events.pos[piece.at]).cast(pa.string()))
            transaction = numbers_of[piece.at] if numbers_of is not None else None
            yield Lines(form.lines(piece, position), block.version.take(pa.array(piece.at)), transaction)

    def statements(self, entries: Iterable[LedgerEntry]) -> bytes:
        return print_statements(entries) if self.choices.sql else b"".join(map(self.statement, entries))

    def statement(self, entry: LedgerEntry) -> bytes:
        return (statement_line(entry, colour=self.choices.colour) if self.choices.human else _json_statement(entry)).encode()

    def _form(self, schema: TableSchema) -> LineForm:
        form = self._tables.get(schema)
        if form is None:
            made: Callable[[TableSchema, LineOptions], LineForm] = (
                SqlForm if self.choices.sql else HumanForm if self.choices.human else JsonForm
            )
            form = self._tables[schema] = made(schema, self.choices)
        return form


class JsonForm:
    def __init__(self, schema: TableSchema, choices: LineOptions) -> None:
        self._key = schema.row_key
        self._renderers = {column.name: renderer(column, big_as_text=choices.big_as_text) for column in schema.columns}
        name = schema.name
        self._table = f'","database":{_json(name.database)},"table":{_json(name.table)},"key":'

    def lines(self, piece: Piece, position: Any) -> Any:
        fragments = {name: or_null(render(piece.images.column(name))) for name, render in self._renderers.items()}
        rows = _object(fragments)
        keys = _object({name: fragments[name] for name in self._key}).take(pa.array(piece.own)) if self._key else NULL
        before, after = (or_null(rows.take(pa.array(places, mask=places < 0))) for places in (piece.before, piece.after))
        block, at = piece.block, pa.array(piece.at)
        return join(
            '{"op":"',
            _BY_NUMBER.take(pa.array(piece.ops)),
            self._table,
            keys,
            ',"before":',
            before,
            ',"after":',
            after,
            ',"position":"',
            position,
            '","transaction":',
            _named(block.transaction, at),
            ',"committed":"',
            committed(block, at, "T"),
            'Z","version":',
            block.version.take(at).cast(pa.string()),
            "}\n",
        )


def _object(fragments: dict[str, Any]) -> Any:
    parts: list[Any] = []
    for place, (name, values) in enumerate(fragments.items()):
        parts += [f"{',' if place else '{'}{_json(name)}:", values]
    return join(*parts, "}")


def _named(array: Any, at: Any) -> Any:
    if array is None:
        return NULL
    taken = array.take(at)
    texts = [NULL if name is None else _json(name) for name in taken.dictionary.to_pylist()]
    return or_null(pa.array(texts, pa.string()).take(taken.indices))


def _json(text: str) -> str:
    return escape_text(json.dumps(text, ensure_ascii=False))


def _json_statement(entry: LedgerEntry) -> str:
    database, _, table = entry.source_table.partition(".")
    document = {
        "op": "schema",
        "database": database,
        "table": table,
        "kind": entry.kind,
        "statement": entry.statement,
        "outcome": entry.outcome,
        "position": entry.position,
        "version": entry.version,
    }
    return escape_text(json.dumps(document, ensure_ascii=False, separators=(",", ":"))) + "\n"


class HumanForm:
    """Lines for people: time, operation, table; for an update the key and the changed columns. Long values are cut and marked.

    Nothing in a value, a name or a statement reaches a terminal as anything but visible text.
    """

    def __init__(self, schema: TableSchema, choices: LineOptions) -> None:
        self._key = schema.row_key
        self._schema, self._colour = schema, choices.colour
        self._renderers = {column.name: renderer(column) for column in schema.columns}
        self._cut = {column.name: column.form in _CUT for column in schema.columns}
        self._names = {name: _name(name) for name in self._renderers}
        signs = [paint(_SIGNS[op], _COLOURS[op], on=choices.colour) for op in Op]
        self._signs = pa.array([f"{sign} {paint(escape_text(str(schema.name)), _BOLD, on=choices.colour)}" for sign in signs])

    def lines(self, piece: Piece, position: Any) -> Any:
        shown = {name: self._shown(name, piece.images.column(name)) for name in self._renderers}
        own = {name: values.take(pa.array(piece.own)) for name, values in shown.items()}
        updated = pa.array(piece.before >= 0) if (piece.ops == Op.UPDATE).any() else None
        if updated is not None:
            updated = pc.and_(updated, pa.array(piece.ops == Op.UPDATE))
        parts = [self._part(name, values, shown[name], piece, updated) for name, values in own.items()]
        block, at = piece.block, pa.array(piece.at)
        place = join(" @", position) if not self._colour else join("\x1b[2m @", position, "\x1b[0m")
        when = committed(block, at, " ")
        return join(when, " ", self._signs.take(pa.array(piece.ops)), *parts, place, "\n")

    def _part(self, name: str, own: Any, shown: Any, piece: Piece, updated: Any) -> Any:
        """Return the text of a column: its value, and for an update its former value if it changed."""
        label = self._names[name]
        plain = join(f" {label}=", own)
        if updated is None:
            return plain
        old = shown.take(pa.array(np.maximum(piece.before, 0)))
        arrow = f" {paint('→', _DIM, on=self._colour)} "
        moved = join(f" {label}: ", old, arrow, own)
        # Cut values may differ behind the cut, but then in the marks of their lengths or not at all: the images decide.
        unchanged = plain if not self._key or name in self._key else ""
        differs = pc.not_equal(or_null(old), or_null(own)) if not self._cut[name] else self._differs(name, piece)
        return pc.if_else(updated, pc.if_else(differs, moved, unchanged), plain)

    def _differs(self, name: str, piece: Piece) -> Any:
        column = piece.images.column(name)
        old, new = column.take(pa.array(np.maximum(piece.before, 0))), column.take(pa.array(piece.own))
        return pc.or_(pc.fill_null(pc.not_equal(old, new), False), pc.xor(old.is_null(), new.is_null()))

    def _shown(self, name: str, values: Any) -> Any:
        if not self._cut[name]:
            return or_null(self._renderers[name](values))
        long = pc.greater(pc.binary_length(values), _LONGEST)
        if not pc.any(long).as_py():
            return or_null(self._renderers[name](values))
        is_text = pa.types.is_string(values.type)
        cut = pc.utf8_slice_codeunits(values, 0, _LONGEST) if is_text else pc.binary_slice(values, 0, _LONGEST)
        size = join("… (", pc.binary_length(values).cast(pa.string()), " bytes)")
        made = join(self._renderers[name](cut), pc.if_else(long, size, ""))
        return or_null(made)


def statement_line(entry: LedgerEntry, *, colour: bool) -> str:
    sign = paint("! SCHEMA", _STATEMENT, on=colour)
    table = paint(escape_text(entry.source_table), _BOLD, on=colour)
    text = escape_text(" ".join(entry.statement.split()))
    outcome = f" ({entry.outcome})" if entry.outcome else ""
    return f"{sign} {table} {entry.kind}{outcome}: {text}{paint(f' @{entry.position}', _DIM, on=colour)}\n"


def paint(text: str, colour: str, *, on: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if on else text


def _name(name: str) -> str:
    """A column's name as it is, or in quotes where it would be taken for something else."""
    tamed = escape_text(name)
    return tamed if _PLAIN_NAME.fullmatch(tamed) else '"' + tamed.replace('"', '\\"') + '"'
