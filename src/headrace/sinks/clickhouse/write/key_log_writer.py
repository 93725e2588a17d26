"""Writes the key logs of parent tables, in tasks."""

from __future__ import annotations

from headrace.model.cascades import CascadePlan
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.cascades.key_log import KeyLog, key_logs
from headrace.sinks.clickhouse.server.client import INSERT_SETTINGS, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.types.codec import CONVERSION_SETTINGS
from headrace.sinks.clickhouse.write.block_encoder import BlockEncoder


class KeyLogWriter:
    """Writes to the key logs of one pipe; belongs to one task."""

    def __init__(self, scope: TargetScope, plan: CascadePlan, pipe: str) -> None:
        self._scope, self._plan, self._pipe = scope, plan, pipe
        self._routes: dict[TableName, tuple[KeyLog, BlockEncoder]] = {}

    def write(self, block: ChangeBlock) -> None:
        """Write those changes of the block that its children need."""
        name = block.schema.name
        if name not in self._plan.logged:
            return
        connection = connect(self._scope.target)
        if not self._routes:
            targets = dict(resolve_tables(self._scope, self._plan.schemas.values()))
            logs = key_logs(self._plan, targets, self._pipe, {})
            self._routes = {parent: (log, BlockEncoder(log.target, connection.limits)) for parent, log in logs.items()}
        log, encoder = self._routes[name]
        rows = log.rows_of(block, encoder.schema)
        if not rows.rows:
            return
        settings = connection.supported({**INSERT_SETTINGS, **(CONVERSION_SETTINGS if encoder.converts else {})})
        with translate_errors(self._scope.target, f"writing {rows.rows} changes of table {name} to {log.qualified}"):
            body = encoder.encode(rows, encoder.statement(log.qualified).encode())
            connection.client.raw_insert("", None, body, settings=settings)  # type: ignore[arg-type]
