"""Decides which blocks of a table may already be stored, so that none is inserted twice, and sizes the table's deduplication window.

The server drops a block whose deduplication token it knows. A block of the log has the same token at each replay, because the log's bytes
alone decide its boundaries, and no other block of any pipe has it. A snapshot differs each time it is read, so its tokens contain the
writer's attempt id, which lasts for the retries of one task.

On a server without replication the token is not enough: the server stores the part and the token one after the other. If it is killed in
between, it has the token without the block, or the block without the token. This can only be the last block before the kill. So the checker
looks for the rows of a block that was sent without an answer and, when a batch is replayed, for those of the block that contains the
table's highest version.

A history table shows exactly which images it has. There the rows decide for all doubtful blocks: missing rows are sent with a new token,
once no earlier INSERT is running. Where images cancel each other, one stored image proves that the whole block is stored, if the table has
no partitions. In all other cases the token decides: no version column, partitions, a block whose images all cancelled, a snapshot, whose
rows share one version.

Blocks of Kafka records have no stable bounds: a batch that brings a new column is read again, and brokers return records in other pieces.
For them (`by_images`) no token repeats. The images that a history stores decide: version, key, and whether it is a deletion identify a
change.

A target whose images cancel each other gets blocks of Kafka records with a name, which is in their token. The gap between part and token is
closed in the same way, by version and key: versions of several partitions overlap. Rows of a snapshot are always compared with the stored
ones, because a connector may send a row twice. The pipe writes no change that could cancel a row before all rows are stored.

The window is the number of tokens that the server keeps: at least those of one batch, because a crash replays one batch. A partitioned
table keeps one token per block and partition. If a batch needs more tokens than the window holds, the window grows before the server drops
the token of the batch's first block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock, Op
from headrace.sinks.clickhouse.reader import ClickHouseReader, Indices, encode_keys
from headrace.sinks.clickhouse.server.bounded_client import arrow_table
from headrace.sinks.clickhouse.server.client import connect, fetch_rows, run_statements
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import on_cluster, places_condition, quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sinks.clickhouse.write.write_context import WriteContext

_RUNNING_INSERT = "SELECT 1 FROM system.processes WHERE query_kind = 'Insert' AND query LIKE {like}"
_BYTES = {"output_format_arrow_string_as_string": "0"}


@dataclass(frozen=True, slots=True)
class UnsentPart:
    """The rows of a block that must be sent."""

    block: ChangeBlock
    certain: bool = False
    """Whether the rows are certainly not stored; they are then sent with a new token."""


class DedupChecker:
    """Checks the blocks of one table in one task."""

    def __init__(self, context: WriteContext, target_table: TargetTable, max_partitions: int) -> None:
        self._scope, self._target_table, self._again, self._by_images = context.scope, target_table, context.repeats, context.by_images
        self._window = DedupWindow(context.scope, target_table, max_partitions, context.writers)
        self._version = target_table.metadata_column(MetadataRole.VERSION)
        self._highest: int | None = None
        self._sent: tuple[int, int] | str | None = None

    def unsent_part(self, block: ChangeBlock) -> UnsentPart:
        """Return the rows of the block that must be sent; usually all of them. The window then has room for their token."""
        self._window.add(block.rows)
        if block.name:
            return self._unsent_named(block)
        if self._by_images:
            span = _version_span(block)
            doubtful, self._sent = self._again or self._sent == span, span
            return self._missing_images(block, span) if doubtful else UnsentPart(block, certain=True)
        if self._version is None or block.op[0].as_py() == Op.SNAPSHOT:
            return UnsentPart(block)
        span = _first_and_last_version(block)
        doubtful, self._sent = self._sent == span or self._may_be_stored(span), span
        if not doubtful or self._engine.startswith(("Replicated", "Shared")):
            # Replicated tables store part and token atomically.
            return UnsentPart(block)
        if self._target_table.family is EngineFamily.HISTORY:
            return self._missing_rows(block, span)
        if self._target_table.counts_duplicates and not self._is_partitioned and self._has_any(span):
            return UnsentPart(_filtered(block, pa.repeat(False, block.rows)))
        return UnsentPart(block)

    def _unsent_named(self, block: ChangeBlock) -> UnsentPart:
        doubtful, self._sent = self._again or self._sent == block.name, block.name
        if block.op[0].as_py() == Op.SNAPSHOT:
            if doubtful:
                check_no_running_insert(self._scope, self._target_table)
            asked, known = self._identities(block, f"{self._within(_version_span(block))}{self._key_range(block)}")
            fresh = np.zeros(block.rows, dtype=np.bool_)
            fresh[np.unique(asked, return_index=True)[1]] = True
            return UnsentPart(_filtered(block, pa.array(fresh & ~np.isin(asked, known))), certain=True)
        if doubtful and not self._is_partitioned and self._version is not None:
            check_no_running_insert(self._scope, self._target_table)
            asked, known = self._identities(block, self._within(_version_span(block)))
            if np.isin(asked, known).any():
                return UnsentPart(_filtered(block, pa.repeat(False, block.rows)))
        return UnsentPart(block)

    def answered(self) -> None:
        """Record that the server acknowledged the last block."""
        self._sent = None

    def _may_be_stored(self, span: tuple[int, int]) -> bool:
        """Whether the rows must be queried: for all blocks up to the first one above the highest stored version."""
        if not self._again:
            return False
        if self._highest is None:
            self._highest = int(self._column(f"SELECT max({self._name}) FROM {self._target_table.qualified}")[0].as_py() or 0)
        self._again = span[0] <= self._highest
        return self._target_table.family is EngineFamily.HISTORY or span[0] <= self._highest <= span[1]

    def _missing_rows(self, block: ChangeBlock, span: tuple[int, int]) -> UnsentPart:
        check_no_running_insert(self._scope, self._target_table)
        found = self._column(f"SELECT toUInt64({self._name}) FROM {self._target_table.qualified} WHERE {self._within(span)}")
        return UnsentPart(_filtered(block, pc.invert(pc.is_in(block.version, value_set=found.cast(pa.uint64())))), certain=True)

    def _missing_images(self, block: ChangeBlock, span: tuple[int, int]) -> UnsentPart:
        check_no_running_insert(self._scope, self._target_table)
        asked, known = self._identities(block, self._within(span))
        return UnsentPart(_filtered(block, pa.array(~np.isin(asked, known))), certain=True)

    def _identities(self, block: ChangeBlock, condition: str) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """Return what identifies the images of a block, and the stored ones that satisfy a condition."""
        names = block.schema.row_key
        stored, versions, live = ClickHouseReader(self._scope).read_images(block.schema, condition, names)
        asked, there = encode_keys([[side.column(name) for name in names] for side in (block.images, stored)])
        lives = pc.invert(pc.is_in(block.op, value_set=pa.array([Op.DELETE, Op.BEFORE], pa.uint8())))
        return _identities(asked, block.version, lives), _identities(there, versions, live)

    def _key_range(self, block: ChangeBlock) -> str:
        """Return a condition that limits the stored rows to the range of the block's keys, if the leading column is a number."""
        column = self._target_table.stored_column(block.schema.row_key[0])
        values = block.images.column(column.source.name)
        if not re.fullmatch(r"U?Int\d+", column.type) or not pa.types.is_integer(values.type):
            return ""
        bounds = pc.min_max(values).as_py()
        return f" AND {quote_name(column.name)} BETWEEN {bounds['min']} AND {bounds['max']}"

    def _has_any(self, span: tuple[int, int]) -> bool:
        return len(self._column(f"SELECT 1 FROM {self._target_table.qualified} WHERE {self._within(span)} LIMIT 1")) > 0

    @cached_property
    def _engine(self) -> str:
        return bytes(self._column(f"SELECT engine {self._from_tables}")[0].as_py()).decode()

    @cached_property
    def _is_partitioned(self) -> bool:
        return bool(self._column(f"SELECT partition_key != '' {self._from_tables}")[0].as_py())

    @property
    def _from_tables(self) -> str:
        database, table = self._target_table.storage_place
        return f"FROM system.tables WHERE database = {quote_text(database)} AND name = {quote_text(table)}"

    def _within(self, span: tuple[int, int]) -> str:
        return f"{self._name} BETWEEN {span[0]} AND {span[1]}"

    @property
    def _name(self) -> str:
        assert self._version is not None
        return quote_name(self._version.name)

    def _column(self, sql: str) -> pa.ChunkedArray:
        with translate_errors(self._scope.target, f"looking for the last block of {self._target_table.full_name}"):
            return arrow_table(connect(self._scope.target).client.raw_query(sql, settings=_BYTES, fmt="ArrowStream"), 1).column(0)


def dedup_token(pipe: str, block: ChangeBlock, attempt: str) -> str:
    """Return the deduplication token of a block. `pipe` is the writing pipe; `attempt` identifies one reading of a snapshot."""
    if block.name:
        return ":".join(["headrace", pipe, str(block.schema.name), block.name])
    parts = [pipe, str(block.schema.name), *_first_and_last_version(block), block.rows]
    if block.op[0].as_py() == Op.SNAPSHOT:
        parts += [attempt, block.order[0].as_py() if block.order is not None else 0]
    return ":".join(map(str, ["headrace", *parts]))


def _version_span(block: ChangeBlock) -> tuple[int, int]:
    return int(pc.min(block.version).as_py()), int(pc.max(block.version).as_py())


def _first_and_last_version(block: ChangeBlock) -> tuple[int, int]:
    return int(block.version[0].as_py()), int(block.version[block.rows - 1].as_py())


def check_no_running_insert(scope: TargetScope, target_table: TargetTable) -> None:
    """Raise `TransientError` while the server still runs an earlier INSERT, which could finish after the next statement."""
    like = target_table.qualified.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    inserting = _RUNNING_INSERT.format(like=quote_text(f"INSERT INTO {like}%"))
    if fetch_rows(scope.target, f"looking for INSERTs into {target_table.full_name}", inserting):
        raise TransientError("an earlier INSERT of the same rows is still under way", place=f"table {target_table.full_name}")


def _identities(keys: Indices, versions: pa.Array, live: pa.Array) -> npt.NDArray[np.void]:
    """Return what identifies each image: key, version, and whether it is a deletion."""
    parts = [keys, np.asarray(versions), live.to_numpy(zero_copy_only=False)]
    return np.rec.fromarrays(parts, dtype=[("key", np.int64), ("version", np.uint64), ("live", np.bool_)])


def _filtered(block: ChangeBlock, keep: pa.Array) -> ChangeBlock:
    rows = [pc.filter(part, keep) for part in (block.op, block.version, block.commit_ts)]
    return ChangeBlock(block.schema, block.images.filter(keep), *rows)


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

    def __init__(self, scope: TargetScope, target_table: TargetTable, max_partitions: int, writers: int) -> None:
        """`writers`: how many tasks may write the table in a batch; the tokens of all of them must fit."""
        self._scope, self._target_table, self._most_partitions, self._writers = scope, target_table, max_partitions, writers
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
    doing = f"raising {memory.setting} of table {'.'.join(target_table.storage_place)} from {memory.blocks} to {least}"
    table = f"{target_table.storage_name}{on_cluster(scope.options.cluster)}"
    run_statements(scope.target, doing, f"ALTER TABLE {table} MODIFY SETTING {memory.setting} = {least}")
    return least


def _read_windows(scope: TargetScope, target_tables: Sequence[TargetTable]) -> list[_WindowSetting]:
    if not target_tables:
        return []
    here = places_condition(table.storage_place for table in target_tables)
    tables = f"SELECT database, name, engine, engine_full, partition_key FROM system.tables WHERE {here}"
    usual = " UNION ALL ".join(f"SELECT name, value FROM {source} WHERE name = '{setting}'" for setting, source in _DEFAULTS.items())
    found = {(database, name): about for database, name, *about in fetch_rows(scope.target, "looking at tables", tables)}
    defaults = {name: int(value) for name, value in fetch_rows(scope.target, "looking at tables", usual)}
    return [_parse_window(table, found.get(table.storage_place), defaults) for table in target_tables]


def _parse_window(target_table: TargetTable, about: list[str] | None, defaults: Mapping[str, int]) -> _WindowSetting:
    if about is None:
        raise DefiniteError(
            f"the table {'.'.join(target_table.storage_place)} is not on this server",
            place=f"table {target_table.source}",
            hint="connect to a server that has it",
        )
    engine, full, partition_key = about
    setting = _REPLICATED if engine.startswith(("Replicated", "Shared")) else _ALONE
    own = re.search(rf"\b{setting} = (\d+)", full)
    return _WindowSetting(setting, int(own.group(1)) if own is not None else defaults[setting], bool(partition_key))
