"""Retries the dead letters of `headrace.errors`.

Invariant: a row is written with its original version, so a table that merges by version shows the newest image in any order of writing. A
table that counts duplicates gets the row once, with the row's own deduplication token. A table where the order of writing matters gets
nothing, nor does a table that was renamed, rebuilt or given other columns since: only a resync is correct there. Rows that are rejected
again keep waiting, with the new reason.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.retry import retrying
from headrace.sinks.clickhouse.bookkeeping.dead_letters import (
    DONE,
    SUPERSEDED,
    WAITING,
    DeadLetter,
    RejectedRows,
    update_dead_letters,
    waiting_dead_letters,
)
from headrace.sinks.clickhouse.bookkeeping.own_tables import LEDGER, OwnTables
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.clickhouse.types.scalar_values import rows_from_json
from headrace.sinks.schema_changes import renamed_from

_AT_ONCE = 10_000
_OVERTAKING = ("create_table", "truncate_table", "drop_table", "rename_table")
_RESHAPING = ("rename_column", "drop_column", "change_key")
# A rebuild writes all rows with the statement's version, above that of any waiting row. Text that the source shortened is shortened by an
# UPDATE, which waiting rows missed.
_REWRITING = ("EXCHANGE TABLES", " UPDATE ")
_IN_ORDER = (EngineFamily.COLLAPSING, EngineFamily.COALESCING)
ORDER_COUNTS = "the order of writing counts in this table: read it again (headrace resync)"
Place = tuple[int, int, int | None]


@dataclass(frozen=True, slots=True)
class RetryOutcome:
    letter: DeadLetter
    written: bool = False
    column: str = ""
    reason: str = ""
    waits: bool = True
    """Whether a row that was not written is tried again next time."""


def retry_dead_letters(sink: ClickHouseSink, *, pipe: str = "", table: str = "", ids: Sequence[str] = ()) -> Iterator[RetryOutcome]:
    """Write the waiting rows; each row's new state is stored before its outcome is yielded."""
    tables = sink.own_tables()
    letters, overtaken = _select_retryable(tables, waiting_dead_letters(tables, pipe=pipe, table=table, ids=ids))
    states = [(one.letter, WAITING if one.waits else SUPERSEDED, "", one.reason) for one in overtaken]
    retrying(lambda: update_dead_letters(tables, states))
    yield from (one for one in overtaken if one.reason)
    table_and_definition = operator.attrgetter("table", "definition")
    for _, alike in itertools.groupby(sorted(letters, key=table_and_definition), table_and_definition):
        group = list(alike)
        for start in range(0, len(group), _AT_ONCE):
            outcomes = _write(sink, group[0].schema, group[start : start + _AT_ONCE])
            marked = [(one.letter, DONE if one.written else WAITING, one.column, one.reason) for one in outcomes]
            retrying(lambda marked=marked: update_dead_letters(tables, marked))  # type: ignore[misc]
            yield from outcomes


def _select_retryable(tables: OwnTables, letters: list[DeadLetter]) -> tuple[list[DeadLetter], list[RetryOutcome]]:
    """Return the rows that may be written, and the outcomes of the others: after a TRUNCATE a row must not return, after a RENAME it
    would reach another table's rows, and a rebuilt or altered table would not show it."""
    statements: dict[tuple[str, str], list[_Statement]] = {}
    wanted, others = [], []
    for letter in letters:
        place = (letter.fields["pipe"], letter.table)
        if place not in statements:
            statements[place] = _statements_on(tables, *place)
        outcome = _superseding_outcome([one for one in statements[place] if one.version > letter.version], letter)
        if outcome is None:
            wanted.append(letter)
        else:
            others.append(outcome)
    return wanted, others


@dataclass(frozen=True, slots=True)
class _Statement:
    """A ledger entry: a statement that the sink applied."""

    version: int
    table: str
    """The table's name after the statement."""
    kinds: frozenset[str]
    rewrites: bool
    """Whether the statement changed existing rows."""


def _statements_on(tables: OwnTables, pipe: str, table: str) -> list[_Statement]:
    """Return the statements about a table, and those that gave its rows another name, in order; a rename away from the name comes first."""
    if not tables.exists(LEDGER):
        return []
    about = f"(source_table = {quote_text(table)} OR detail = {quote_text(renamed_from(table))})"
    where = f"pipe = {quote_text(pipe)} AND {about} AND outcome != 'ignored'"
    rows = tables.select(LEDGER, ("version", "source_table", "kind", "translation"), where)
    found = [
        _Statement(int(version), name, frozenset(kind.split(", ")), any(word in done for word in _REWRITING))
        for version, name, kind, done in rows
    ]
    return sorted(found, key=lambda one: (one.version, one.table == table))


def _superseding_outcome(later: list[_Statement], letter: DeadLetter) -> RetryOutcome | None:
    """Return the outcome of a row after these statements; None if it can still be written."""
    for one in later:
        if one.table != letter.table:
            reason = f"its table is {one.table} since: headrace resync {one.table} reads its rows"
            return RetryOutcome(letter, reason=reason, waits=False)
        if one.kinds.intersection(_OVERTAKING):
            return RetryOutcome(letter, waits=False)
    if any(one.rewrites or one.kinds.intersection(_RESHAPING) for one in later):
        reason = f"the key, the columns or the values of its table are others since: read it again (headrace resync {letter.table})"
        return RetryOutcome(letter, reason=reason)
    return None


def _write(sink: ClickHouseSink, schema: TableSchema, letters: list[DeadLetter]) -> list[RetryOutcome]:
    refused: dict[Place, tuple[str, str]] = {}

    def on_rejected(_: TargetTable, block: ChangeBlock, found: RejectedRows) -> None:
        for row, column, reason in zip(found.rows.tolist(), found.columns, found.reasons, strict=True):
            refused[_place(block, row)] = (column, reason)

    writer = sink.writer(on_rejected)
    try:
        target_table = retrying(lambda: sink.target_table(schema))
        if target_table.family in _IN_ORDER:
            return [RetryOutcome(letter, reason=ORDER_COUNTS) for letter in letters]
        block = _block(schema, letters)
        if target_table.counts_duplicates:
            for row, letter in enumerate(letters):
                one = block.taken(np.array([row]))
                retrying(lambda one=one, letter=letter: writer.write_row(one, f"headrace:retry:{letter.id}"))  # type: ignore[misc]
        else:
            retrying(lambda: writer.write(block))
    except DefiniteError as error:
        # It is unknown which rows are stored. They keep waiting; writing them again is harmless.
        return [RetryOutcome(letter, reason=f"{error.message} (at {error.place})") for letter in letters]
    finally:
        writer.close()
    found = [(letter, refused.get((letter.version, int(letter.op), letter.order))) for letter in letters]
    return [RetryOutcome(letter, written=why is None, column=why[0] if why else "", reason=why[1] if why else "") for letter, why in found]


def _block(schema: TableSchema, letters: list[DeadLetter]) -> ChangeBlock:
    return ChangeBlock(
        schema,
        rows_from_json(schema, [letter.values for letter in letters]),
        pa.array([int(letter.op) for letter in letters], pa.uint8()),
        pa.array([letter.version for letter in letters], pa.uint64()),
        pa.array([letter.commit_us for letter in letters], pa.int64()),
        order=pa.array([letter.order for letter in letters], pa.uint64()) if letters[0].order is not None else None,
    )


def _place(block: ChangeBlock, row: int) -> Place:
    order = None if block.order is None else int(block.order[row].as_py())
    return int(block.version[row].as_py()), int(Op(block.op[row].as_py())), order
