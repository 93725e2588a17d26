"""Writing again what waits in `headrace.errors`.

Invariant: a row is written with the version it had, so a table that merges by version shows whatever came last, in whichever order. A table
that counts rows gets it under the row's own name, once. A table for which the order of writing counts gets nothing here: reading it again
is the only right thing. What is still refused waits on, with the new reason.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.change import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.retry import retrying
from headrace.sinks.clickhouse.bookkeeping import OwnTables
from headrace.sinks.clickhouse.dead_letters import DONE, SUPERSEDED, WAITING, Letter, mark, waiting
from headrace.sinks.clickhouse.layout import Family, Layout
from headrace.sinks.clickhouse.ledger import LEDGER
from headrace.sinks.clickhouse.names import quote_text
from headrace.sinks.clickhouse.refusals import Refused, taken
from headrace.sinks.clickhouse.row_json import row_values
from headrace.sinks.clickhouse.sink import ClickHouseSink

_AT_ONCE = 10_000
_OVERTAKING = ("truncate_table", "drop_table", "rename_table")
_IN_ORDER = (Family.COLLAPSING, Family.COALESCING)
ORDER_COUNTS = "the order of writing counts in this table: read it again (headrace resync)"
Place = tuple[int, int, int | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one row."""

    letter: Letter
    written: bool
    column: str = ""
    reason: str = ""


def retry_letters(sink: ClickHouseSink, *, pipe: str = "", table: str = "", ids: Sequence[str] = ()) -> Iterator[Outcome]:
    """Write rows that wait; each is marked before it is told of."""
    tables = sink.own_tables()
    letters = _still_wanted(tables, waiting(tables, pipe=pipe, table=table, ids=ids))
    for _, alike in itertools.groupby(sorted(letters, key=_kind), _kind):
        group = list(alike)
        schema = group[0].schema
        for start in range(0, len(group), _AT_ONCE):
            outcomes = _write(sink, schema, group[start : start + _AT_ONCE])
            marked = [(one.letter, DONE if one.written else WAITING, one.column, one.reason) for one in outcomes]
            retrying(lambda marked=marked: mark(tables, marked, time.time_ns() // 1000))  # type: ignore[misc]
            yield from outcomes


def _still_wanted(tables: OwnTables, letters: list[Letter]) -> list[Letter]:
    """Those that no later statement of the source has overtaken: after a TRUNCATE a row must not come back, after a RENAME it would go to
    another table's rows. The others are marked so."""
    overtaken = [letter for letter in letters if _overtaken(tables, letter)]
    retrying(lambda: mark(tables, ((letter, SUPERSEDED, "", "") for letter in overtaken), time.time_ns() // 1000))
    return [letter for letter in letters if letter not in overtaken]


def _overtaken(tables: OwnTables, letter: Letter) -> bool:
    if not tables.exists(LEDGER):
        return False
    kinds = " OR ".join(f"position(kind, {quote_text(kind)}) > 0" for kind in _OVERTAKING)
    same = f"pipe = {quote_text(str(letter.fields['pipe']))} AND source_table = {quote_text(letter.table)}"
    return bool(tables.select(LEDGER, ("version",), f"{same} AND version > {letter.version} AND outcome != 'ignored' AND ({kinds})"))


def _kind(letter: Letter) -> tuple[str, str]:
    return letter.table, letter.definition


def _write(sink: ClickHouseSink, schema: TableSchema, letters: list[Letter]) -> list[Outcome]:
    refused: dict[Place, tuple[str, str]] = {}

    def on_refused(_: Layout, block: ChangeBlock, found: Refused) -> None:
        for row, column, reason in zip(found.rows.tolist(), found.columns, found.reasons, strict=True):
            refused[_place(block, row)] = (column, reason)

    writer = sink.writer(on_refused)
    try:
        layout = retrying(lambda: sink.layout(schema))
        if layout.family in _IN_ORDER:
            return [Outcome(letter, written=False, reason=ORDER_COUNTS) for letter in letters]
        block = _block(schema, letters)
        if layout.counts:
            for row, letter in enumerate(letters):
                one = taken(block, np.array([row]))
                retrying(lambda one=one, letter=letter: writer.write_row(one, f"headrace:retry:{letter.id}"))  # type: ignore[misc]
        else:
            retrying(lambda: writer.write(block))
    except DefiniteError as error:
        # Nothing tells which of them are there: they wait on, and writing them again is harmless.
        return [Outcome(letter, written=False, reason=f"{error.message} (at {error.place})") for letter in letters]
    finally:
        writer.close()
    return [_outcome(letter, refused.get((letter.version, int(letter.op), letter.order))) for letter in letters]


def _outcome(letter: Letter, refused: tuple[str, str] | None) -> Outcome:
    return Outcome(letter, written=True) if refused is None else Outcome(letter, written=False, column=refused[0], reason=refused[1])


def _block(schema: TableSchema, letters: list[Letter]) -> ChangeBlock:
    ordered = letters[0].order is not None
    return ChangeBlock(
        schema,
        row_values(schema, [letter.values for letter in letters]),
        pa.array([int(letter.op) for letter in letters], pa.uint8()),
        pa.array([letter.version for letter in letters], pa.uint64()),
        pa.array([letter.commit_us for letter in letters], pa.int64()),
        order=pa.array([letter.order for letter in letters], pa.uint64()) if ordered else None,
    )


def _place(block: ChangeBlock, row: int) -> Place:
    order = None if block.order is None else int(block.order[row].as_py())
    return int(block.version[row].as_py()), int(Op(block.op[row].as_py())), order
