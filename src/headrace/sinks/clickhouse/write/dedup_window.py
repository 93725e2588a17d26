"""How many blocks a table remembers by their tokens.

Invariant: a table whose engine counts rows remembers at least the blocks of one batch, because a batch is what is written again after a
crash. A partitioned table remembers each block once per partition that it has rows for. Where a batch turns out to be larger than what is
remembered, the table is told to remember more before it forgets the batch's first block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.client import Connection, connect
from headrace.sinks.clickhouse.server.errors import translated
from headrace.sinks.clickhouse.server.quoting import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import TargetTable

LEAST_BLOCKS: Final = 10_000
"""What every such table remembers: a batch of the default size has a hundred times fewer."""
_ALONE, _REPLICATED = "non_replicated_deduplication_window", "replicated_deduplication_window"
_DEFAULTS: Final = {_ALONE: "system.merge_tree_settings", _REPLICATED: "system.replicated_merge_tree_settings"}


@dataclass(frozen=True, slots=True)
class _Memory:
    """A table's memory of blocks, as the server has it."""

    setting: str
    blocks: int
    partitioned: bool


def ensure_windows(scope: TargetScope, layouts: Iterable[TargetTable]) -> None:
    """See to it that each of the tables remembers enough blocks. Repeatable."""
    wanted = tuple(layouts)
    for layout, memory in zip(wanted, _look(scope, wanted), strict=True):
        _ensure(scope, layout, memory, LEAST_BLOCKS)


class BlockCount:
    """Counts the blocks of one table that one task writes; makes the table's memory grow with them."""

    def __init__(self, scope: TargetScope, layout: TargetTable, connection: Connection) -> None:
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
        [memory] = _look(self._scope, [self._layout])
        if memory.partitioned:
            return _ensure(self._scope, self._layout, memory, 2 * self._parts)
        return self._parts + _ensure(self._scope, self._layout, memory, 2 * self._blocks) - self._blocks


def _ensure(scope: TargetScope, layout: TargetTable, memory: _Memory, least: int) -> int:
    """Make the table remember at least so many blocks; how many it does."""
    if memory.blocks >= least:
        return memory.blocks
    database, table = _place(layout)
    cluster = f" ON CLUSTER {quote_text(scope.choices.cluster)}" if scope.choices.cluster else ""
    with translated(scope.target, f"raising {memory.setting} of table {database}.{table} from {memory.blocks} to {least}"):
        connect(scope.target).client.command(
            f"ALTER TABLE {quote_name(database)}.{quote_name(table)}{cluster} MODIFY SETTING {memory.setting} = {least}"
        )
    return least


def _look(scope: TargetScope, layouts: Sequence[TargetTable]) -> list[_Memory]:
    """What the tables remember, as the server has it now."""
    if not layouts:
        return []
    client = connect(scope.target).client
    listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for database, table in map(_place, layouts))
    tables = f"SELECT database, name, engine, engine_full, partition_key FROM system.tables WHERE (database, name) IN ({listed})"
    usual = " UNION ALL ".join(f"SELECT name, value FROM {source} WHERE name = '{setting}'" for setting, source in _DEFAULTS.items())
    with translated(scope.target, "looking at tables"):
        found = {(database, name): about for database, name, *about in client.query(tables).result_rows}
        defaults = {name: int(value) for name, value in client.query(usual).result_rows}
    return [_memory(layout, found.get(_place(layout)), defaults) for layout in layouts]


def _memory(layout: TargetTable, about: list[str] | None, defaults: Mapping[str, int]) -> _Memory:
    if about is None:
        database, table = _place(layout)
        raise DefiniteError(
            f"the table {database}.{table} is not on this server", place=f"table {layout.source}", hint="connect to a server that has it"
        )
    engine, full, partition_key = about
    setting = _REPLICATED if engine.startswith(("Replicated", "Shared")) else _ALONE
    own = re.search(rf"\b{setting} = (\d+)", full)
    return _Memory(setting, int(own.group(1)) if own is not None else defaults[setting], bool(partition_key))


def _place(layout: TargetTable) -> tuple[str, str]:
    return layout.holder or (layout.database, layout.table)
