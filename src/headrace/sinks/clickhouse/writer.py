"""Writes change blocks: one block, one INSERT, one part.

Invariant: when `write` returns, the block is stored and visible. When it raises, the block is stored whole or not at all (one batch below
the server's block size is one part), and writing it again is right in both cases: the table merges equal versions into one.
"""

from __future__ import annotations

from headrace.errors import DefiniteError
from headrace.model.change import ChangeBlock
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.blocks import BlockEncoder
from headrace.sinks.clickhouse.client import INSERT_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.tables import qualified_name
from headrace.sinks.clickhouse.url import ClickHouseTarget


class ClickHouseWriter:
    """Writes to one server; belongs to one task. Opening it costs nothing; the first write connects."""

    def __init__(self, target: ClickHouseTarget) -> None:
        self._target = target
        self._connection: Connection | None = None
        self._settings: dict[str, str] = {}
        self._encoders: dict[TableSchema, BlockEncoder] = {}
        self._closed = False

    def write(self, block: ChangeBlock) -> None:
        """Write the block durably; when it returns, the block is visible to readers of the sink."""
        if self._closed:
            raise DefiniteError("the writer is closed", place=str(self._target), hint="this is a defect of the caller; please report it")
        if not block.rows:
            return
        connection = self._connected()
        encoder = self._encoder(block.schema, connection)
        payload = encoder.encode(block)
        with translated(self._target, f"writing {block.rows} rows to table {block.schema.name}"):
            connection.client.raw_insert(
                qualified_name(block.schema, self._target),
                # The driver would take a name that begins and ends with a backtick for a quoted one, so they go in quoted.
                [quote_name(name) for name in encoder.columns],
                payload,
                settings=self._settings,
                fmt="ArrowStream",
            )

    def close(self) -> None:
        """End the task's writing. The connection stays with the process for the next task."""
        self._closed = True
        self._encoders.clear()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._target)
            self._settings = self._connection.known(INSERT_SETTINGS)
        return self._connection

    def _encoder(self, schema: TableSchema, connection: Connection) -> BlockEncoder:
        encoder = self._encoders.get(schema)
        if encoder is None:
            compression = None if self._target.is_loopback else "lz4"
            encoder = self._encoders[schema] = BlockEncoder(schema, connection.limits, compression=compression)
        return encoder
