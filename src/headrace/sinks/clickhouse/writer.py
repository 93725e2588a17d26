"""Writes change blocks: one block, one INSERT, one part.

Invariant: when `write` returns, the block is stored and visible. When it raises, the block is stored whole or not at all (one batch is one
part, or one in each partition), and writing it again is right in both cases: the table merges equal versions into one, or, where its engine
counts rows, the server knows the block by its token and leaves it out.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.model.change import ChangeBlock
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.blocks import BlockEncoder
from headrace.sinks.clickhouse.client import INSERT_SETTINGS, TOKEN_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.doubts import Doubts
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.layout import Layout
from headrace.sinks.clickhouse.layouts import LayoutScope, resolve_one
from headrace.sinks.clickhouse.leaving_out import without_deletions
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.tokens import token_of
from headrace.sinks.clickhouse.windows import BlockCount


@dataclass(frozen=True, slots=True)
class _Route:
    """Where a table's blocks go, and how."""

    layout: Layout
    statement: bytes
    encoder: BlockEncoder
    named: _Named | None
    """For a table whose blocks have tokens."""


@dataclass(frozen=True, slots=True)
class _Named:
    """What is kept of a table whose blocks have tokens."""

    count: BlockCount
    doubts: Doubts


class ClickHouseWriter:
    """Writes to one server; belongs to one task. Opening it costs nothing; the first write connects."""

    def __init__(self, scope: LayoutScope, pipe: str = "", *, again: bool = False, tables: tuple[TableSchema, ...] = ()) -> None:
        """`pipe` tells the blocks of one pipe from those of others; `again`: some may be there from an earlier run; `tables`: those that
        may come, to be asked about together."""
        self._scope, self._target, self._pipe, self._again = scope, scope.target, pipe, again
        self._tables = tables
        self._attempt = secrets.token_hex(8)
        self._connection: Connection | None = None
        self._settings: dict[str, str] = {}
        self._token_settings: dict[str, str] = {}
        self._routes: dict[TableSchema, _Route] = {}
        self._named: dict[TableSchema, _Named] = {}
        self._closed = False

    def write(self, block: ChangeBlock) -> None:
        """Write the block durably; when it returns, the block is visible to readers of the sink."""
        if self._closed:
            raise DefiniteError("the writer is closed", place=str(self._target), hint="this is a defect of the caller; please report it")
        if not block.rows:
            return
        connection = self._connected()
        route = self._route(block.schema, connection)
        written = without_deletions(route.layout, block) if route.layout.ignores_deletes else block
        if not written.rows:
            return
        if route.named is None:
            self._send(connection, route, written, self._settings)
            return
        route.named.count.add(written.rows)
        left = route.named.doubts.left_of(written)
        if left.block.rows:
            token = token_of(self._pipe, block, self._attempt) + (":rest" if left.is_rest else "")
            self._send(connection, route, left.block, {**self._token_settings, "insert_deduplication_token": token})
        route.named.doubts.answered()

    def _send(self, connection: Connection, route: _Route, block: ChangeBlock, settings: dict[str, str]) -> None:
        body = route.encoder.encode(block, route.statement)
        settings = {**settings, **route.layout.insert_settings}
        with translated(self._target, f"writing {block.rows} rows to table {block.schema.name}"):
            # Without a table name the driver sends the body as it is, which saves a copy of it.
            connection.client.raw_insert("", None, body, settings=settings)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the task's writing. The connection stays with the process for the next task."""
        self._closed = True
        self._routes.clear()

    def _connected(self) -> Connection:
        connection = connect(self._target)
        if connection is not self._connection:
            # Another host may know other settings, and hold other dates.
            self._connection = connection
            self._settings = connection.known(INSERT_SETTINGS)
            self._token_settings = connection.known({**INSERT_SETTINGS, **TOKEN_SETTINGS})
            self._routes.clear()
        return connection

    def _route(self, schema: TableSchema, connection: Connection) -> _Route:
        """The table's INSERT statement and the encoder of its blocks, made once."""
        route = self._routes.get(schema)
        if route is None:
            compression = None if self._target.is_loopback else "lz4"
            layout = resolve_one(self._scope, schema, self._tables)
            encoder = BlockEncoder(layout, connection.limits, compression=compression)
            columns = ", ".join(quote_name(name) for name in encoder.columns)
            statement = f"INSERT INTO {layout.qualified} ({columns}) FORMAT ArrowStream\n"
            if layout.is_ordered and schema not in self._named:
                self._named[schema] = _Named(BlockCount(self._scope, layout, connection), Doubts(self._scope, layout, again=self._again))
            # What was written before a change of hosts counts on.
            route = self._routes[schema] = _Route(layout, statement.encode(), encoder, self._named.get(schema))
        return route
