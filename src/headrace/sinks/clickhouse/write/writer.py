"""Writes change blocks: one block, one INSERT, one part.

Invariant: when `write` returns, the block is stored and visible. When it raises, the block is stored completely or not at all (one batch is
one part, or one part per partition). Writing it again is safe in both cases: the table merges equal versions, or the server drops the block
by its deduplication token.

If the server rejects a block of a table that merges by version, the writer sends it in halves. So a block that exceeds the server's memory
or has too many partitions gets through, and a rejected row is isolated. Such a row halts the pipe or becomes a dead letter, by the option
`on_refused_row`. None of this costs anything until a block is rejected.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.errors import DefiniteError
from headrace.model.cascades import CascadePlan
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.dead_letters.dead_letters import store_dead_letters
from headrace.sinks.clickhouse.dead_letters.rejected_rows import (
    HALVED_WHEN_BUSY,
    HALVED_WHEN_REFUSED,
    MAX_REJECTED,
    RejectedRows,
    RowRejected,
    event_of,
    halves,
    position_text,
    row_text,
)
from headrace.sinks.clickhouse.server.client import INSERT_SETTINGS, TOKEN_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.server.errors import RejectedByServer, ServerBusy, translate_errors
from headrace.sinks.clickhouse.server.options import OnRefusedRow
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_table
from headrace.sinks.clickhouse.tables.target_table import TargetTable
from headrace.sinks.clickhouse.types.codec import CONVERSION_SETTINGS
from headrace.sinks.clickhouse.write.block_encoder import BlockEncoder
from headrace.sinks.clickhouse.write.dedup_check import DedupChecker, dedup_token
from headrace.sinks.clickhouse.write.dedup_window import DedupWindow
from headrace.sinks.clickhouse.write.delete_filter import drop_deletions
from headrace.sinks.clickhouse.write.key_log_writer import KeyLogWriter
from headrace.sinks.clickhouse.write.rejected_deletes import storable_deletion

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class _Route:
    """How the blocks of a table are written."""

    target_table: TargetTable
    statement: bytes
    encoder: BlockEncoder
    settings: dict[str, str]
    """Additional settings of the INSERT."""
    named: _Dedup | None
    """For a table whose blocks have tokens."""


@dataclass(frozen=True, slots=True)
class _Dedup:
    """Deduplication state of a table that needs ordered writes."""

    count: DedupWindow
    doubts: DedupChecker


OnRejected = Callable[[TargetTable, ChangeBlock, RejectedRows], None]
"""Handles rejected rows of a block."""


class ClickHouseWriter:
    """Writes to one server; belongs to one task. The first write connects."""

    def __init__(
        self,
        scope: TargetScope,
        pipe: str = "",
        *,
        again: bool = False,
        tables: tuple[TableSchema, ...] = (),
        label: str = "",
        on_rejected: OnRejected | None = None,
        by_images: bool = False,
        cascades: CascadePlan | None = None,
        writers: int = 1,
    ) -> None:
        """`pipe` is part of the deduplication tokens, `label` is its display name. `again`: an earlier run may have stored blocks of
        this batch. `tables`: tables to resolve in one query. `on_rejected` handles rejected rows instead of the tables' options.
        `by_images`: blocks without a name have no stable bounds, so the stored images of a history decide what is missing. `cascades`:
        changes of their parents are also written to key logs. `writers`: how many tasks may write a table at the same time."""
        self._by_images, self._writers = by_images, writers
        self._scope, self._target, self._pipe, self._again, self._label = scope, scope.target, pipe, again, label
        self._tables, self._on_rejected = tables, on_rejected
        self._attempt = secrets.token_hex(8)
        self._connection: Connection | None = None
        self._settings: dict[str, str] = {}
        self._token_settings: dict[str, str] = {}
        self._routes: dict[TableSchema, _Route] = {}
        self._named: dict[TableSchema, _Dedup] = {}
        self._rejected_count = 0
        self._closed = False
        self._key_logs = None if cascades is None else KeyLogWriter(scope, cascades, pipe)

    def write(self, block: ChangeBlock) -> None:
        """Write the block durably; it is visible when this returns."""
        if self._closed:
            raise DefiniteError("the writer is closed", place=str(self._target), hint="this is a defect of the caller; please report it")
        if not block.rows:
            return
        if self._key_logs is not None:
            self._key_logs.write(block)
        connection = self._connected()
        route = self._route(block.schema, connection)
        written = drop_deletions(route.target_table, block) if route.target_table.ignores_deletes else block
        if not written.rows:
            return
        self._rejected_count = 0
        if route.named is None:
            self._write_splittable(written)
            return
        route.named.count.add(written.rows)
        left = route.named.doubts.unsent_part(written)
        if left.block.rows:
            name = dedup_token(self._pipe, block, self._attempt) + (f":{secrets.token_hex(8)}" if left.certain else "")
            self._write_with_token(route, left.block, name)
        route.named.doubts.answered()

    def write_row(self, block: ChangeBlock, name: str) -> None:
        """Write a block of one row with its own deduplication token: a table that counts duplicates stores it once."""
        connection = self._connected()
        route = self._route(block.schema, connection)
        if route.named is None:
            self._write_splittable(block)
        else:
            self._write_with_token(route, block, name)

    def _write_with_token(self, route: _Route, block: ChangeBlock, token: str) -> None:
        settings = {**self._token_settings, "insert_deduplication_token": token}
        try:
            self._send(self._connected(), route, block, settings)
        except RowRejected:
            reject = self._rejection_handler(route.target_table)
            if reject is None:
                raise
            refused = route.encoder.find_rejected_rows(block)
            reject(route.target_table, block, refused)
            rest = block.taken(np.delete(np.arange(block.rows), refused.rows))
            if rest.rows:
                self._send(self._connected(), route, rest, settings)

    def _write_splittable(self, block: ChangeBlock) -> None:
        """Write to a table that merges by version, in as many parts as needed."""
        connection = self._connected()
        route = self._route(block.schema, connection)
        try:
            self._send(connection, route, block, self._settings)
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
        store_dead_letters(OwnTables(self._scope), target_table, (self._pipe, self._label), block, refused, time.time_ns() // 1000)
        log.warning(
            "%d rows of %s are in headrace.errors, not in %s.%s: %s",
            len(refused.rows),
            target_table.source,
            target_table.database,
            target_table.table,
            refused.reasons[0],
        )

    def _send(self, connection: Connection, route: _Route, block: ChangeBlock, settings: dict[str, str]) -> None:
        body = route.encoder.encode(block, route.statement)
        settings = {**settings, **route.settings, **route.target_table.insert_settings}
        with translate_errors(self._target, f"writing {block.rows} rows to table {block.schema.name}"):
            # Without a table name the driver sends the body as it is, which saves a copy of it.
            connection.client.raw_insert("", None, body, settings=settings)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the task's writing. The process keeps the connection for its next task."""
        self._closed = True
        self._routes.clear()

    def _connected(self) -> Connection:
        connection = connect(self._target)
        if connection is not self._connection:
            # Another host may support other settings and date ranges.
            self._connection = connection
            settings = {**INSERT_SETTINGS, "max_partitions_per_insert_block": str(connection.max_partitions)}
            self._settings = connection.supported(settings)
            self._token_settings = connection.supported({**settings, **TOKEN_SETTINGS})
            self._routes.clear()
        return connection

    def _route(self, schema: TableSchema, connection: Connection) -> _Route:
        """Return the table's INSERT statement and encoder, cached."""
        route = self._routes.get(schema)
        if route is None:
            compression = None if self._target.is_loopback else "lz4"
            target_table = resolve_table(self._scope, schema, self._tables)
            encoder = BlockEncoder(target_table, connection.limits, compression=compression)
            settings = connection.supported(CONVERSION_SETTINGS) if encoder.converts else {}
            if target_table.needs_ordered_writes and schema not in self._named:
                self._named[schema] = _Dedup(
                    DedupWindow(self._scope, target_table, connection, self._writers),
                    DedupChecker(self._scope, target_table, again=self._again, by_images=self._by_images),
                )
            # Deduplication state survives a change of hosts.
            route = self._routes[schema] = _Route(
                target_table, encoder.statement(target_table.qualified).encode(), encoder, settings, self._named.get(schema)
            )
        return route
