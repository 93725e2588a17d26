"""How many blocks a table remembers by their tokens.

Invariant: a table whose engine counts rows remembers at least the blocks of one batch, because a batch is what is written again after a
crash. A partitioned table remembers each block once per partition that it has rows for. Where a batch turns out to be larger than what is
remembered, the table is told to remember more before it forgets the batch's first block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.client import Connection, connect
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.layout import Layout
from headrace.sinks.clickhouse.layouts import LayoutScope
from headrace.sinks.clickhouse.names import quote_name, quote_text

LEAST_BLOCKS: Final = 10_000
"""What every such table remembers: a batch of the default size has a hundred times fewer."""
_REPLICATED: Final = ("Replicated", "Shared")


@dataclass(frozen=True, slots=True)
class _Memory:
    """A table's memory of blocks, as the server has it."""

    setting: str
    blocks: int
    partitioned: bool


def ensure_windows(scope: LayoutScope, layouts: Iterable[Layout]) -> None:
    """See to it that each of the tables remembers enough blocks. Repeatable."""
    for layout in layouts:
        _ensure(scope, layout, LEAST_BLOCKS)


class BlockCount:
    """Counts the blocks of one table that one task writes; makes the table's memory grow with them."""

    def __init__(self, scope: LayoutScope, layout: Layout, connection: Connection) -> None:
        self._scope, self._layout = scope, layout
        self._most_partitions = connection.most_partitions
        self._blocks = self._parts = 0
        self._room = LEAST_BLOCKS

    def add(self, rows: int) -> None:
        """Before a block is written."""
        self._blocks += 1
        self._parts += min(rows, self._most_partitions or rows)
        if self._parts > self._room:
            self._room = self._make_room()

    def _make_room(self) -> int:
        """How many parts may be written before looking again."""
        memory = _look(self._scope, self._layout)
        if memory.partitioned:
            return _ensure(self._scope, self._layout, 2 * self._parts).blocks
        blocks = _ensure(self._scope, self._layout, 2 * self._blocks).blocks
        return self._parts + blocks - self._blocks


def _ensure(scope: LayoutScope, layout: Layout, least: int) -> _Memory:
    memory = _look(scope, layout)
    if memory.blocks >= least:
        return memory
    database, table = layout.holder or (layout.database, layout.table)
    cluster = f" ON CLUSTER {quote_text(scope.choices.cluster)}" if scope.choices.cluster else ""
    with translated(scope.target, f"raising {memory.setting} of table {database}.{table} from {memory.blocks} to {least}"):
        connect(scope.target).client.command(
            f"ALTER TABLE {quote_name(database)}.{quote_name(table)}{cluster} MODIFY SETTING {memory.setting} = {least}"
        )
    return _Memory(memory.setting, least, memory.partitioned)


def _look(scope: LayoutScope, layout: Layout) -> _Memory:
    connection, (database, table) = connect(scope.target), layout.holder or (layout.database, layout.table)
    with translated(scope.target, f"looking at table {database}.{table}"):
        found = connection.client.query(
            "SELECT engine, engine_full, partition_key FROM system.tables "
            f"WHERE database = {quote_text(database)} AND name = {quote_text(table)}"
        ).result_rows
        if not found:
            raise DefiniteError(
                f"the table {database}.{table} is not on this server", place=f"table {layout.source}", hint="connect to one that has it"
            )
        engine, full, partition_key = found[0]
        replicated = str(engine).startswith(_REPLICATED)
        setting = "replicated_deduplication_window" if replicated else "non_replicated_deduplication_window"
        own = re.search(rf"\b{setting} = (\d+)", str(full))
        if own is not None:
            return _Memory(setting, int(own.group(1)), bool(partition_key))
        defaults = "system.replicated_merge_tree_settings" if replicated else "system.merge_tree_settings"
        usual = connection.client.query(f"SELECT value FROM {defaults} WHERE name = '{setting}'").result_rows
    return _Memory(setting, int(usual[0][0]), bool(partition_key))
