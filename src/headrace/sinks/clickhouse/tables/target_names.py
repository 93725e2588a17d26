"""Maps a source table to its target database and table from options alone, without a server."""

from __future__ import annotations

from headrace.model.schema import TableName
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget


def target_name(name: TableName, target: ClickHouseTarget, options: ClickHouseOptions) -> tuple[str, str]:
    """Return target database and table of a source table."""
    chosen = options.of(name)
    before, _, table = chosen.target.rpartition(".")
    database = before or chosen.database or target.database or name.database
    return (_filled(database, name) if before or chosen.database else database), _filled(table, name) if table else name.table


def _filled(pattern: str, name: TableName) -> str:
    return pattern.replace("{database}", name.database).replace("{table}", name.table)
