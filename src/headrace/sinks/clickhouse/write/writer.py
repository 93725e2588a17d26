"""Writes change blocks: one block, one INSERT, one part.

Invariant: when `write` returns, the block is stored and visible. When it raises, each INSERT is stored completely or not at all (one batch
is one part, or one part per partition); of a block that was sent in halves, some halves may be stored. Writing the block again is safe in
all cases: the table merges equal versions, or the server drops the block by its deduplication token.

If the server rejects a block of a table that merges by version, the writer sends it in halves. So a block that exceeds the server's memory
or has too many partitions gets through, and a rejected row is isolated. Such a row halts the pipe or becomes a dead letter, by the option
`on_refused_row`. None of this costs anything until a block is rejected.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.sinks.clickhouse.bookkeeping.dead_letters import (
    HALVED_WHEN_BUSY,
    HALVED_WHEN_REFUSED,
    MAX_REJECTED,
    RejectedRows,
    RowRejected,
    event_of,
    halves,
    key_text,
    position_text,
    row_text,
    store_dead_letters,
)
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.server.client import FEW_BYTES, INSERT_SETTINGS, TOKEN_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.server.errors import RejectedByServer, ServerBusy, translate_errors
from headrace.sinks.clickhouse.server.options import OnRefusedRow
from headrace.sinks.clickhouse.tables.target_cache import resolve_table
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sinks.clickhouse.types.codec import CONVERSION_SETTINGS
from headrace.sinks.clickhouse.types.scalar_values import row_to_json, rows_from_json
from headrace.sinks.clickhouse.write.block_encoder import BlockEncoder
from headrace.sinks.clickhouse.write.deduplication import DedupChecker, dedup_token
from headrace.sinks.clickhouse.write.key_log_writer import KeyLogWriter
from headrace.sinks.clickhouse.write.merge_ages import note_written_rows
from headrace.sinks.clickhouse.write.write_context import WriteContext

log = logging.getLogger("headrace")

_MARKS_DELETIONS = (MetadataRole.SIGN, MetadataRole.DELETED, MetadataRole.OPERATION)
_REMOVALS = (Op.DELETE, Op.BEFORE)


@dataclass(frozen=True, slots=True)
class _Route:
    """How the blocks of a table are written."""

    target_table: TargetTable
    statement: bytes
    encoder: BlockEncoder
    settings: dict[str, str]
    """Additional settings of the INSERT."""
    connection: Connection
    dedup: DedupChecker | None
    """For a table whose blocks have tokens."""


OnRejected = Callable[[TargetTable, ChangeBlock, RejectedRows], None]
"""Handles rejected rows of a block."""


class ClickHouseWriter:
    """Writes to one server; belongs to one task. The first write connects."""

    def __init__(self, context: WriteContext, on_rejected: OnRejected | None = None) -> None:
        """`on_rejected` handles rejected rows instead of the tables' options."""
        self._context, self._scope, self._target, self._on_rejected = context, context.scope, context.scope.target, on_rejected
        self._attempt = secrets.token_hex(8)
        self._connection: Connection | None = None
        self._settings: dict[str, str] = {}
        self._token_settings: dict[str, str] = {}
        self._few_rows_settings: dict[str, str] = {}
        self._routes: dict[TableSchema, _Route] = {}
        self._dedups: dict[TableSchema, DedupChecker] = {}
        self._rejected_count = 0
        self._closed = False
        self._key_logs = None if context.cascades is None else KeyLogWriter(self._scope, context.cascades, context.pipe)

    def write(self, block: ChangeBlock) -> None:
        """Write the block durably; it is visible when this returns."""
        if self._closed:
            raise DefiniteError("the writer is closed", place=str(self._target), hint="this is a defect of the caller; please report it")
        if not block.rows:
            return
        if self._key_logs is not None:
            self._key_logs.write(block)
        route = self._route(block.schema)
        written = drop_deletions(route.target_table, block) if route.target_table.ignores_deletes else block
        if not written.rows:
            return
        self._rejected_count = 0
        if route.dedup is None:
            self._write_splittable(written)
            note_written_rows(self._scope, route.target_table, written.rows)
            return
        left = route.dedup.unsent_part(written)
        if left.block.rows:
            name = dedup_token(self._context.pipe, block, self._attempt) + (f":{secrets.token_hex(8)}" if left.certain else "")
            self._write_with_token(left.block, name)
        route.dedup.answered()

    def write_row(self, block: ChangeBlock, name: str) -> None:
        """Write a block of one row with its own deduplication token: a table that counts duplicates stores it once."""
        if self._route(block.schema).dedup is None:
            self._write_splittable(block)
        else:
            self._write_with_token(block, name)

    def _write_with_token(self, block: ChangeBlock, token: str) -> None:
        route = self._route(block.schema)
        settings = {**self._token_settings, "insert_deduplication_token": token}
        try:
            self._send(route.connection, route, block, settings)
        except RowRejected:
            reject = self._rejection_handler(route.target_table)
            if reject is None:
                raise
            refused = route.encoder.find_rejected_rows(block)
            reject(route.target_table, block, refused)
            rest = block.taken(np.delete(np.arange(block.rows), refused.rows))
            if rest.rows:
                self._send(route.connection, route, rest, settings)

    def _write_splittable(self, block: ChangeBlock) -> None:
        """Write to a table that merges by version, in as many parts as needed."""
        route = self._route(block.schema)
        try:
            self._send(route.connection, route, block, self._settings)
        except RowRejected:
            reject = self._rejection_handler(route.target_table)
            if reject is None:
                raise
            self._write_without_rejected(route, block, reject)
        except (RejectedByServer, ServerBusy) as error:
            self._write_in_halves(route, block, error)

    def _write_without_rejected(self, route: _Route, block: ChangeBlock, reject: OnRejected) -> None:
        """Handle the rows that the encoder rejects, then write the others."""
        refused = route.encoder.find_rejected_rows(block)
        deletions = [storable_deletion(route.target_table, route.encoder, block, refused, place) for place in range(len(refused.rows))]
        others = [place for place, deletion in enumerate(deletions) if deletion is None]
        if others:
            reject(route.target_table, block, refused.only(others))
        rest = block.taken(np.delete(np.arange(block.rows), refused.rows))
        for piece in (rest, *deletions):
            if piece is not None and piece.rows:
                self._write_splittable(piece)

    def _write_in_halves(self, route: _Route, block: ChangeBlock, error: RejectedByServer | ServerBusy) -> None:
        """The server rejected the block: halves may pass, if its size or one row's value was the reason."""
        if error.code not in (HALVED_WHEN_BUSY if isinstance(error, ServerBusy) else HALVED_WHEN_REFUSED):
            raise error
        if block.rows > 1:
            for half in halves(block):
                self._write_splittable(half)
            return
        if isinstance(error, ServerBusy):
            raise error
        reject = self._rejection_handler(route.target_table)
        self._rejected_count += 1
        if reject is None or self._rejected_count > MAX_REJECTED:
            many = f"; it is one of more than {MAX_REJECTED} of its block" if reject is not None else ""
            place = f"table {block.schema.name}{row_text(block, 0)}, {position_text(block.version[0].as_py())}"
            event = event_of(block, 0)
            raise DefiniteError(f"the row is refused{many}: {error.message}", place=place, hint=error.hint, event=event) from error
        reject(route.target_table, block, RejectedRows.of({0: ("", error.message)}))

    def _rejection_handler(self, target_table: TargetTable) -> OnRejected | None:
        if self._on_rejected is not None:
            return self._on_rejected
        chosen = self._scope.options.of(target_table.source).on_refused_row
        return self._store_dead_letters if chosen is OnRefusedRow.DEAD_LETTER else None

    def _store_dead_letters(self, target_table: TargetTable, block: ChangeBlock, refused: RejectedRows) -> None:
        store_dead_letters(OwnTables(self._scope), target_table, (self._context.pipe, self._context.label), block, refused)
        rows, table = len(refused.rows), target_table.full_name
        log.warning("%d rows of %s are in headrace.errors, not in %s: %s", rows, target_table.source, table, refused.reasons[0])

    def _send(self, connection: Connection, route: _Route, block: ChangeBlock, settings: dict[str, str]) -> None:
        body = route.encoder.encode(block, route.statement)
        few = self._few_rows_settings if len(body) < FEW_BYTES else {}
        settings = {**few, **settings, **route.settings, **route.target_table.insert_settings}
        with translate_errors(self._target, f"writing {block.rows} rows to table {block.schema.name}"):
            # Without a table name the driver sends the body as it is, which saves a copy of it.
            connection.client.raw_insert("", None, body, settings=settings)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the task's writing. The process keeps the connection for its next task."""
        self._closed = True
        self._routes.clear()

    def _route(self, schema: TableSchema) -> _Route:
        """Return how the table is written at the current host, cached."""
        connection = connect(self._target)
        if connection is not self._connection:
            # Another host may support other settings and date ranges.
            self._connection = connection
            settings = {**INSERT_SETTINGS, "max_partitions_per_insert_block": str(connection.max_partitions)}
            self._settings = connection.supported(settings)
            self._token_settings = connection.supported({**settings, **TOKEN_SETTINGS})
            self._few_rows_settings = connection.few_rows_settings
            self._routes.clear()
        route = self._routes.get(schema)
        if route is None:
            target_table = resolve_table(self._scope, schema, self._context.expected.values())
            encoder = BlockEncoder(target_table, connection.limits, compression=None if self._target.is_loopback else "lz4")
            settings = connection.supported(CONVERSION_SETTINGS) if encoder.converts else {}
            # Deduplication state survives a change of hosts.
            if target_table.needs_ordered_writes and schema not in self._dedups:
                self._dedups[schema] = DedupChecker(self._context, target_table, connection.max_partitions)
            statement = encoder.statement(target_table.qualified).encode()
            route = _Route(target_table, statement, encoder, settings, connection, self._dedups.get(schema))
            self._routes[schema] = route
        return route


def drop_deletions(target_table: TargetTable, block: ChangeBlock) -> ChangeBlock:
    """Return the block without deletions, for a table with `deletes = ignore`.

    An update that changes a row's key removes the row under its old key, which is not a deletion. A table that cannot mark a removal halts
    there; otherwise it would show the row twice.
    """
    if not any(mark.role in _MARKS_DELETIONS for mark in target_table.metadata_columns):
        _check_unmoved(block)
    deleted = pc.equal(block.op, pa.scalar(Op.DELETE, pa.uint8()))
    if not pc.any(deleted).as_py():
        return block
    return block.taken(~deleted.to_numpy(zero_copy_only=False))


def _check_unmoved(block: ChangeBlock) -> None:
    moved = pc.equal(block.op, pa.scalar(Op.BEFORE, pa.uint8()))
    if pc.any(moved).as_py():
        row = pc.index(moved, pa.scalar(True)).as_py()
        key = key_text(block, row)
        raise DefiniteError(
            f"an update moved the row {key} to another key, and its table has no column that marks the old row as deleted",
            place=f"table {block.schema.name}, row {key}",
            hint="choose the column that marks deletions (delete_column), or have one added (missing_columns = add)",
        )


def storable_deletion(
    target_table: TargetTable, encoder: BlockEncoder, block: ChangeBlock, refused: RejectedRows, place: int
) -> ChangeBlock | None:
    """Return one rejected row as a deletion that the table accepts; None if it is not a deletion or its key is rejected.

    A rejected value does not lose a deletion: a table that merges by version only needs its key and version, and readers never see its
    other values. So rejected values are replaced by NULL or by the type's least value.
    """
    row = int(refused.rows[place])
    if block.op[row].as_py() not in _REMOVALS or target_table.family is not EngineFamily.REPLACING or not target_table.has_key:
        return None
    one = block.taken(np.array([row]))
    values = row_to_json(one.images, block.schema, 0)
    for nulls in (True, False):
        made = _with_blanks(target_table, encoder, one, values, refused.columns[place], nulls=nulls)
        if made is not None:
            return made
    return None


def _with_blanks(
    target_table: TargetTable, encoder: BlockEncoder, one: ChangeBlock, values: dict[str, Any], column: str, *, nulls: bool
) -> ChangeBlock | None:
    """Return the row with blanks in all rejected columns: NULL, or the least value where NULL is rejected too."""
    blanked: set[str] = set()
    while column not in target_table.key_dependencies and column not in blanked:
        blanked.add(column)
        blank = {name: _blank(one.schema.column(name), nulls=nulls) for name in blanked}
        made = replace(one, images=rows_from_json(one.schema, [{**values, **blank}]))
        refused = encoder.find_rejected_rows(made)
        if not len(refused.rows):
            return made
        column = refused.columns[0]
    return None


def _blank(column: Column, *, nulls: bool) -> Any:
    if column.nullable and nulls:
        return None
    match column.form:
        case ValueForm.MEMBERS if not column.type.multiple:
            return column.members[0] if column.members else ""
        case ValueForm.VECTOR:
            return []
        case ValueForm.FIXED_BYTES:
            return column.type.print_value(bytes(column.arrow_type.byte_width))
        case ValueForm.JSON:
            return "{}"
        case ValueForm.TEXT | ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.MEMBERS:
            return ""
        case ValueForm.DECIMAL:
            return "0"
        case ValueForm.INTEGER | ValueForm.FLOAT | ValueForm.YEAR | ValueForm.BITS | ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return 0
        case unknown:
            assert_never(unknown)
