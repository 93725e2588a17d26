"""Sizes the deduplication window: how many block tokens a table keeps.

Invariant: a table that counts duplicates keeps at least the tokens of one batch, because a crash replays one batch. A partitioned table
keeps one token per block and partition. If a batch needs more tokens than the window holds, the window grows before the server drops the
token of the batch's first block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.client import Connection, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import TargetTable

MIN_BLOCKS: Final = 10_000
"""Minimum window: a batch of the default size has a hundredth of these blocks."""
_ALONE, _REPLICATED = "non_replicated_deduplication_window", "replicated_deduplication_window"
_DEFAULTS: Final = {_ALONE: "system.merge_tree_settings", _REPLICATED: "system.replicated_merge_tree_settings"}


@dataclass(frozen=True, slots=True)
class _WindowSetting:
    """A table's deduplication window on the server."""

    setting: str
    blocks: int
    partitioned: bool


def ensure_dedup_windows(scope: TargetScope, target_tables: Iterable[TargetTable]) -> None:
    """Raise the window of each table to the minimum. Repeatable."""
    wanted = tuple(target_tables)
    for target_table, memory in zip(wanted, _read_windows(scope, wanted), strict=True):
        _ensure(scope, target_table, memory, MIN_BLOCKS)


class DedupWindow:
    """Counts the blocks that one task writes to one table, and grows the table's window with them."""

    def __init__(self, scope: TargetScope, target_table: TargetTable, connection: Connection, writers: int = 1) -> None:
        """`writers`: how many tasks may write the table in a batch; the tokens of all of them must fit."""
        self._scope, self._target_table, self._writers = scope, target_table, writers
        self._most_partitions = connection.max_partitions
        self._blocks = self._parts = 0
        self._room = MIN_BLOCKS

    def add(self, rows: int) -> None:
        """Count a block before it is written."""
        self._blocks += self._writers
        self._parts += self._writers * min(rows, self._most_partitions or rows)
        if self._parts > self._room:
            self._room = self._make_room()

    def _make_room(self) -> int:
        """Grow the window; return how many parts may be written before the next check."""
        [memory] = _read_windows(self._scope, [self._target_table])
        if memory.partitioned:
            return _ensure(self._scope, self._target_table, memory, 2 * self._parts)
        return self._parts + _ensure(self._scope, self._target_table, memory, 2 * self._blocks) - self._blocks


def _ensure(scope: TargetScope, target_table: TargetTable, memory: _WindowSetting, least: int) -> int:
    """Set the window to at least `least` blocks; return its size."""
    if memory.blocks >= least:
        return memory.blocks
    database, table = _local_table(target_table)
    cluster = f" ON CLUSTER {quote_text(scope.options.cluster)}" if scope.options.cluster else ""
    with translate_errors(scope.target, f"raising {memory.setting} of table {database}.{table} from {memory.blocks} to {least}"):
        connect(scope.target).client.command(
            f"ALTER TABLE {quote_name(database)}.{quote_name(table)}{cluster} MODIFY SETTING {memory.setting} = {least}"
        )
    return least


def _read_windows(scope: TargetScope, target_tables: Sequence[TargetTable]) -> list[_WindowSetting]:
    """Read the tables' windows from the server."""
    if not target_tables:
        return []
    client = connect(scope.target).client
    listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for database, table in map(_local_table, target_tables))
    tables = f"SELECT database, name, engine, engine_full, partition_key FROM system.tables WHERE (database, name) IN ({listed})"
    usual = " UNION ALL ".join(f"SELECT name, value FROM {source} WHERE name = '{setting}'" for setting, source in _DEFAULTS.items())
    with translate_errors(scope.target, "looking at tables"):
        found = {(database, name): about for database, name, *about in client.query(tables).result_rows}
        defaults = {name: int(value) for name, value in client.query(usual).result_rows}
    return [_parse_window(target_table, found.get(_local_table(target_table)), defaults) for target_table in target_tables]


def _parse_window(target_table: TargetTable, about: list[str] | None, defaults: Mapping[str, int]) -> _WindowSetting:
    if about is None:
        database, table = _local_table(target_table)
        raise DefiniteError(
            f"the table {database}.{table} is not on this server",
            place=f"table {target_table.source}",
            hint="connect to a server that has it",
        )
    engine, full, partition_key = about
    setting = _REPLICATED if engine.startswith(("Replicated", "Shared")) else _ALONE
    own = re.search(rf"\b{setting} = (\d+)", full)
    return _WindowSetting(setting, int(own.group(1)) if own is not None else defaults[setting], bool(partition_key))


def _local_table(target_table: TargetTable) -> tuple[str, str]:
    return target_table.local_table or (target_table.database, target_table.table)
