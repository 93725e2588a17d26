"""Merges the rows whose cells were written, in ClickHouse: the keys go into a temporary table, the rows do not leave the server.

A merge that fails in between is repeated with its block: the temporary table belongs to one session, and a session that was lost is an
error, never a merge without keys.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.clickhouse.cells.batches import CellBatch
from headrace.sinks.clickhouse.cells.key_order import Array
from headrace.sinks.clickhouse.cells.merged_rows.row_merge import MERGE_SETTINGS, RANGE, SCOPE, TOUCHED, KeyScope, MergeStep, RowMerge
from headrace.sinks.clickhouse.cells.storage import RANGES
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, INSERT_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.tables.target_cache import TargetScope

_SESSION_S: Final = "300"
_TABLES_AT_ONCE: Final = 100
_KEY_BYTES: Final = 32 << 20
"""Of the keys of one merge; the embedded server reads a larger body from a file."""
_ROWS_AT_ONCE: Final = 500_000
_PARTITION_ROWS: Final = 100
"""Rows of one statement, and how many a partition counts as: a statement must end before the connection's timeout."""
_MOST_RANGES: Final = 8
"""Touched ranges of a partition; if there are more, all of its rows are merged. Each is compared with each row of the partition."""


def merge_settings(connection: Connection) -> dict[str, str]:
    """Return the settings of statements that merge rows."""
    return connection.supported({**INSERT_SETTINGS, **CREATE_SETTINGS, **MERGE_SETTINGS})


def run_steps(connection: Connection, steps: Iterable[MergeStep], session: Mapping[str, str] | None = None) -> None:
    """Merge rows, each step with its own version."""
    settings = {**merge_settings(connection), **(session or {})}
    for step in steps:
        [[version]] = connection.client.query(step.version, settings=settings).result_rows
        connection.client.command(step.insert(int(version)), settings=settings)


class _OwnSession(threading.local):
    """The thread's session. A forked process has its own."""

    id = ""
    process = 0


_own = _OwnSession()


@contextmanager
def own_session() -> Iterator[dict[str, str]]:
    """Provide the settings of the thread's session. A statement that failed may still run in it: then the next one is new."""
    if not _own.id or _own.process != os.getpid():
        _own.id, _own.process = f"headrace-{secrets.token_hex(16)}", os.getpid()
    try:
        yield {"session_id": _own.id, "session_timeout": _SESSION_S}
    except BaseException:
        _own.id = ""
        raise


def due_merges(scope: TargetScope, merges: Sequence[RowMerge], since: int) -> list[RowMerge]:
    """Return those tables that may have rows with a cell that has expired since a time (seconds since 1970)."""
    found: list[RowMerge] = []
    connection = connect(scope.target)
    with translate_errors(scope.target, "looking for expired rows"):
        for start in range(0, len(merges), _TABLES_AT_ONCE):
            some = merges[start : start + _TABLES_AT_ONCE]
            probes = [f"(SELECT {place} FROM {one.tables.rows} WHERE {one.due_condition(since)} LIMIT 1)" for place, one in enumerate(some)]
            rows = connection.client.query(" UNION ALL ".join(probes), settings=merge_settings(connection)).result_rows
            found += [some[int(place)] for (place,) in rows]
    return found


class RowMerger:
    """Merges rows of one base table: gathers the keys of written cells, and merges their rows together. Belongs to one task."""

    def __init__(self, scope: TargetScope, merge: RowMerge) -> None:
        self._scope, self._merge = scope, merge
        self._touched: list[pa.Table] = []

    def touch(self, batches: Iterable[tuple[CellBatch, bool]]) -> None:
        """Add the keys of batches that are stored; a batch of partitions touches all of their rows."""
        self._touched += [self._keys(batch, of_rows=of_rows) for batch, of_rows in batches]
        if self._key_bytes() > _KEY_BYTES:
            # Blocks often touch the same rows.
            self._touched = [self._distinct()]
            if self._key_bytes() > _KEY_BYTES // 2:
                self.merge()

    def merge(self) -> None:
        """Merge the rows that were touched since the last merge. A merge that fails can be repeated."""
        if self._touched:
            for part in _parts(self._distinct()):
                self._merge_keys(part)
            self._touched = []

    def _key_bytes(self) -> int:
        return sum(keys.nbytes for keys in self._touched)

    def _keys(self, batch: CellBatch, *, of_rows: bool) -> pa.Table:
        """Return the distinct keys of a batch, their scopes and their ranges."""
        columns = self._merge.key(of_rows=of_rows)
        keys = pa.table([pa.array(batch.columns[name]) for name in columns], names=columns)
        for name in self._merge.key(of_rows=True)[len(columns) :]:
            keys = keys.append_column(name, pa.repeat(pa.scalar(b"", pa.binary()), keys.num_rows))
        ranges = pa.repeat(pa.scalar(b"", pa.binary()), batch.rows) if of_rows else _ranges(batch)
        other = KeyScope.ROW if of_rows else KeyScope.PARTITION
        scopes = pc.if_else(
            pc.equal(ranges, pa.scalar(b"", pa.binary())), pa.scalar(other, pa.uint8()), pa.scalar(KeyScope.RANGE, pa.uint8())
        )
        keys = keys.append_column(SCOPE, scopes).append_column(RANGE, ranges)
        return keys.group_by(keys.column_names).aggregate([])

    def _distinct(self) -> pa.Table:
        """Return each touched key once, and no row or range of a partition that is merged whole."""
        keys = pa.concat_tables(self._touched)
        keys = keys.group_by(keys.column_names).aggregate([])
        keys = self._without_many_ranges(keys)
        partitions = _of_scope(keys, KeyScope.PARTITION)
        if not partitions.num_rows:
            return keys
        columns = self._merge.key(of_rows=False)
        others = keys.filter(pc.not_equal(keys.column(SCOPE), KeyScope.PARTITION))
        return pa.concat_tables(
            [partitions, others.join(partitions.select(columns), columns, join_type="left anti").select(keys.column_names)]
        )

    def _without_many_ranges(self, keys: pa.Table) -> pa.Table:
        """Return the keys with the partition instead of its ranges if there are many."""
        columns = self._merge.key(of_rows=False)
        ranges = _of_scope(keys, KeyScope.RANGE)
        counts = ranges.group_by(columns).aggregate([([], "count_all")])
        many = counts.filter(pc.greater(counts.column("count_all"), _MOST_RANGES)).select(columns)
        if not many.num_rows:
            return keys
        whole = ranges.join(many, columns, join_type="left semi").select(keys.column_names)
        whole = whole.set_column(
            whole.schema.get_field_index(SCOPE), SCOPE, pa.repeat(pa.scalar(KeyScope.PARTITION, pa.uint8()), whole.num_rows)
        )
        whole = whole.set_column(whole.schema.get_field_index(RANGE), RANGE, pa.repeat(pa.scalar(b"", pa.binary()), whole.num_rows))
        keys = pa.concat_tables([keys, whole])
        return keys.group_by(keys.column_names).aggregate([])

    def expire(self, since: int) -> None:
        """Merge the rows with a cell that has expired since a time (seconds since 1970)."""
        connection = connect(self._scope.target)
        with translate_errors(self._scope.target, f"merging expired rows into {self._merge.tables.rows}"), own_session() as session:
            settings = {**merge_settings(connection), **session}
            # The first statement changes which rows are due, so all statements take the same keys.
            due = self._merge.due_sql(since)
            connection.client.command(f"CREATE TEMPORARY TABLE {TOUCHED} ENGINE = Memory AS {due}", settings=settings)
            [[count]] = connection.client.query(f"SELECT count() FROM {TOUCHED}", settings=session).result_rows
            self._merge_touched(connection, self._merge.steps(self._merge.typed()) if count else (), session)

    def _merge_keys(self, keys: pa.Table) -> None:
        connection = connect(self._scope.target)
        columns = ", ".join(f"{quote_name(name)} {'UInt8' if name == SCOPE else 'String'}" for name in keys.column_names)
        what = f"merging {keys.num_rows} rows into {self._merge.tables.rows}"
        source = self._merge.touched(frozenset(map(KeyScope, pc.unique(keys.column(SCOPE)).to_pylist())))
        with translate_errors(self._scope.target, what), own_session() as session:
            client = connection.client
            client.command(f"CREATE TEMPORARY TABLE {TOUCHED} ({columns})", settings=session)
            client.raw_insert("", None, _body(keys), settings={**connection.supported(INSERT_SETTINGS), **session})
            self._merge_touched(connection, self._merge.steps(source), session)

    def _merge_touched(self, connection: Connection, steps: Iterable[MergeStep], session: dict[str, str]) -> None:
        run_steps(connection, steps, session)
        connection.client.command(f"DROP TEMPORARY TABLE {TOUCHED}", settings=session)


def _ranges(batch: CellBatch) -> Array:
    """Return the deleted range of each row of a batch of partitions; empty if it is a static cell or the whole partition that changed."""
    if RANGES not in batch.columns:
        return pa.repeat(pa.scalar(b"", pa.binary()), batch.rows)
    found: Any = batch.columns[RANGES]
    offsets = found.offsets.to_numpy()
    # The encoder gives each deletion a row of its own.
    is_range = np.diff(offsets) == 1
    return found.keys.take(pa.array(offsets[:-1], mask=~is_range)).fill_null(b"")


def _of_scope(keys: pa.Table, scope: KeyScope) -> pa.Table:
    return keys.filter(pc.equal(keys.column(SCOPE), int(scope)))


def _parts(keys: pa.Table) -> Iterator[pa.Table]:
    """Yield the keys of each statement; in the order of the key, so that each statement reads another part of the tables."""
    rows = _estimated_rows(keys)
    count = max(1, -(-keys.nbytes // _KEY_BYTES), -(-int(rows.sum()) // _ROWS_AT_ONCE))
    if count == 1:
        yield from [keys] if keys.num_rows else []
        return
    keys = keys.sort_by([(name, "ascending") for name in keys.column_names])
    ends = np.cumsum(_estimated_rows(keys))
    bounds = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count, side="right")
    for start, end in pairwise([0, *bounds.tolist(), keys.num_rows]):
        if end > start:
            yield keys.slice(start, end - start)


def _estimated_rows(keys: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.where(keys.column(SCOPE).to_numpy() == KeyScope.ROW, 1, _PARTITION_ROWS)


def _body(keys: pa.Table) -> Any:
    out = pa.BufferOutputStream()
    out.write(f"INSERT INTO {TOUCHED} FORMAT ArrowStream\n".encode())
    with pa.ipc.new_stream(out, keys.schema) as stream:
        stream.write_table(keys)
    return memoryview(out.getvalue())
