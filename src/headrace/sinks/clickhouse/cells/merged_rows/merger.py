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
from typing import Any, Final

import pyarrow as pa

from headrace.sinks.clickhouse.cells.batches import CellBatch
from headrace.sinks.clickhouse.cells.merged_rows.row_merge import MERGE_SETTINGS, TOUCHED, MergeStep, RowMerge
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, INSERT_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.tables.target_cache import TargetScope

_SESSION_S: Final = "300"
_TABLES_AT_ONCE: Final = 100
_KEY_BYTES: Final = 32 << 20
"""Of the keys of one merge; the embedded server reads a larger body from a file."""


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
def _session() -> Iterator[dict[str, str]]:
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
    with translate_errors(scope.target, "looking for expired rows"):
        for start in range(0, len(merges), _TABLES_AT_ONCE):
            some = merges[start : start + _TABLES_AT_ONCE]
            probes = [f"(SELECT {place} FROM {one.tables.rows} WHERE {one.due_condition(since)} LIMIT 1)" for place, one in enumerate(some)]
            found += [some[int(place)] for (place,) in connect(scope.target).client.query(" UNION ALL ".join(probes)).result_rows]
    return found


class RowMerger:
    """Merges rows of one base table."""

    def __init__(self, scope: TargetScope, merge: RowMerge) -> None:
        self._scope, self._merge = scope, merge

    def merge(self, batches: Iterable[tuple[CellBatch, bool]]) -> None:
        """Merge the rows that these batches touch; a batch of partitions touches all of their rows."""
        touched = list(batches)
        partitions = self._keys(touched, of_rows=False)
        rows = self._keys(touched, of_rows=True)
        if partitions is not None:
            self._merge_parts(partitions, of_rows=False)
            rows = rows.join(partitions, partitions.column_names, join_type="left anti") if rows is not None else None
        if rows is not None:
            self._merge_parts(rows, of_rows=True)

    def _keys(self, batches: Iterable[tuple[CellBatch, bool]], *, of_rows: bool) -> pa.Table | None:
        """Return the keys of rows, or of partitions; None if there are none."""
        columns = self._merge.key(of_rows=of_rows)
        found = [
            pa.table([pa.array(batch.columns[name]) for name in columns], names=columns) for batch, is_rows in batches if is_rows is of_rows
        ]
        return pa.concat_tables(found).group_by(columns).aggregate([]) if found else None

    def _merge_parts(self, keys: pa.Table, *, of_rows: bool) -> None:
        for part in _parts(keys):
            self._merge_keys(part, of_rows=of_rows)

    def expire(self, since: int) -> None:
        """Merge the rows with a cell that has expired since a time (seconds since 1970)."""
        connection = connect(self._scope.target)
        with translate_errors(self._scope.target, f"merging expired rows into {self._merge.tables.rows}"), _session() as session:
            settings = {**merge_settings(connection), **session}
            # The first statement changes which rows are due, so all statements take the same keys.
            due = self._merge.due_sql(since)
            connection.client.command(f"CREATE TEMPORARY TABLE {TOUCHED} ENGINE = Memory AS {due}", settings=settings)
            [[count]] = connection.client.query(f"SELECT count() FROM {TOUCHED}", settings=session).result_rows
            self._merge_touched(connection, self._merge.steps(self._merge.typed()) if count else (), session)

    def _merge_keys(self, keys: pa.Table, *, of_rows: bool) -> None:
        connection = connect(self._scope.target)
        columns = ", ".join(f"{quote_name(name)} String" for name in keys.column_names)
        what = f"merging {keys.num_rows} rows into {self._merge.tables.rows}"
        with translate_errors(self._scope.target, what), _session() as session:
            client = connection.client
            client.command(f"CREATE TEMPORARY TABLE {TOUCHED} ({columns})", settings=session)
            client.raw_insert("", None, _body(keys), settings={**connection.supported(INSERT_SETTINGS), **session})
            self._merge_touched(connection, self._merge.steps(self._merge.touched(), of_rows=of_rows), session)

    def _merge_touched(self, connection: Connection, steps: Iterable[MergeStep], session: dict[str, str]) -> None:
        run_steps(connection, steps, session)
        connection.client.command(f"DROP TEMPORARY TABLE {TOUCHED}", settings=session)


def _parts(keys: pa.Table) -> Iterator[pa.Table]:
    count = max(1, -(-keys.nbytes // _KEY_BYTES))
    size = max(1, -(-keys.num_rows // count))
    for start in range(0, keys.num_rows, size):
        yield keys.slice(start, size)


def _body(keys: pa.Table) -> Any:
    out = pa.BufferOutputStream()
    out.write(f"INSERT INTO {TOUCHED} FORMAT ArrowStream\n".encode())
    with pa.ipc.new_stream(out, keys.schema) as stream:
        stream.write_table(keys)
    return memoryview(out.getvalue())
