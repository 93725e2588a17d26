"""Lines for people: time, operation, table; for an update the key and the changed columns. Long values are cut and marked.

Invariant: nothing in a value, a name or a statement reaches a terminal as anything but visible text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.change_block import Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import TableSchema
from headrace.sinks.schema_changes import LedgerEntry
from headrace.sinks.stdout.batches import LineOptions, Piece, committed
from headrace.sinks.stdout.json_values import join, or_null, renderer
from headrace.terminal_text import escape_text

_LONGEST: Final = 160
"""Characters, or bytes, of a value that are shown."""
_SIGNS: Final = {Op.SNAPSHOT: "* SNAPSHOT", Op.INSERT: "+ INSERT", Op.UPDATE: "~ UPDATE", Op.DELETE: "- DELETE", Op.BEFORE: ""}
_COLOURS: Final = {Op.SNAPSHOT: "36", Op.INSERT: "32", Op.UPDATE: "33", Op.DELETE: "31", Op.BEFORE: "0"}
_DIM, _BOLD, _STATEMENT = "2", "1", "35"
_PLAIN_NAME: Final = re.compile(r"[^\s=:\"]+")
_CUT: Final = (ValueForm.TEXT, ValueForm.JSON, ValueForm.BYTES, ValueForm.GEOMETRY)


class HumanForm:
    """A line for each change of one table."""

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
    """A schema change."""
    sign = paint("! SCHEMA", _STATEMENT, on=colour)
    table = paint(escape_text(entry.source_table), _BOLD, on=colour)
    text = escape_text(" ".join(entry.statement.split()))
    outcome = f" ({entry.outcome})" if entry.outcome else ""
    return f"{sign} {table} {entry.kind}{outcome}: {text}{paint(f' @{entry.position}', _DIM, on=colour)}\n"


def paint(text: str, colour: str, *, on: bool) -> str:
    """A text in a colour, if there are any."""
    return f"\x1b[{colour}m{text}\x1b[0m" if on else text


def _name(name: str) -> str:
    """A column's name as it is, or in quotes where it would be taken for something else."""
    tamed = escape_text(name)
    return tamed if _PLAIN_NAME.fullmatch(tamed) else '"' + tamed.replace('"', '\\"') + '"'
