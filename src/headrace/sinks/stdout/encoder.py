"""Encodes blocks as lines, one per change, in the order of the block.

Invariant: every change of a block is one line, and a line is one change: no value, name or statement can end it or begin another. An
update is one line with both of its images, also where it moves the row to another key. Lines carry the versions of their changes, by which
lines of several blocks are put in the order of the log. Whole columns only: no Python runs per row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.sinks.event_positions import event_places, file_name, file_numbers
from headrace.sinks.schema_changes import LedgerEntry
from headrace.sinks.stdout.batches import LineForm, LineOptions, Piece, committed, pieces
from headrace.sinks.stdout.json_values import NULL, join, or_null, renderer
from headrace.sinks.stdout.sql_format import SqlForm, print_statements, transaction_numbers
from headrace.sinks.stdout.text_format import HumanForm, statement_line
from headrace.terminal_text import escape_text

WORDS: Final = {Op.SNAPSHOT: "snapshot", Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
_BY_NUMBER: Final = pa.array([WORDS.get(op, "") for op in Op])


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
        """The lines of schema changes."""
        return print_statements(entries) if self.choices.sql else b"".join(map(self.statement, entries))

    def statement(self, entry: LedgerEntry) -> bytes:
        """The line of a schema change."""
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
    """A line of JSON for each change of one table."""

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
    """Columns of JSON to rows of it."""
    parts: list[Any] = []
    for place, (name, values) in enumerate(fragments.items()):
        parts += [f"{',' if place else '{'}{_json(name)}:", values]
    return join(*parts, "}")


def _named(array: Any, at: Any) -> Any:
    """A column of few different texts, as JSON."""
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
