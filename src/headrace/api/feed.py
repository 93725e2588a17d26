"""`headrace.changes(...)`: a server's changes, block by block, in this process.

Order: batches follow the log and hold whole transactions. Within a batch, the images of one table come in log order (versions rise). Blocks
of different tables have no order within a batch, except by version. `transactions` gives the exact order.

Resuming is exact because a position holds the start and the end of the batch, the last version returned per table, and the schemas. Reading
the batch again gives the same images with the same versions, and images that were already returned are skipped. A batch counts as consumed
when the next item is requested, so a reader that stops at any moment has every change before `position` and none after it.

A batch holds whole transactions, so each transaction in it is complete. Blocks are cut where the log switches to another table: within a
transaction, versions rise from block to block. Only the cuts, about one per statement, are made one by one.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from headrace.api.relay_session import FeedStart, RelaySession, is_position, resolve_place, resolve_stop
from headrace.api.tracked_tables import KnownTables, News, Statement, TableRules
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableSchema, ZeroDates
from headrace.model.table_selection import Selection
from headrace.retry import WaitState, retrying, use_wait_state
from headrace.sources.base import Offset
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.preflight.required import check_logged, check_server
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import plan_tables, skip_tables
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, plan_chunks, read_chunk
from headrace.sources.mysql.split_reader import MySQLReader, SegmentSplit
from headrace.sources.splits import StatementSplit

log = logging.getLogger("headrace")
T = TypeVar("T")
Position = dict[str, Any]
"""A position between two changes: plain values, to be stored as JSON and passed back as `start`."""
RELAY_BYTES: Final = 256 << 20
_LIMITS: Final = BatchLimits(flush_bytes=8 << 20, flush_seconds=0.01, parallelism=1)
_CONNECT_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Transaction:
    id: str
    """Its GTID, otherwise the position in the log where it begins."""
    commit_ts: int
    """The commit time, in microseconds since 1970."""
    blocks: tuple[ChangeBlock, ...]
    """The changes in log order. A table may have several blocks."""

    @property
    def changes(self) -> int:
        return sum(block.changes for block in self.blocks)


def group_by_transaction(blocks: Iterable[ChangeBlock]) -> Iterator[Transaction]:
    """Yield the transactions of whole batches of blocks that carry transaction labels."""
    held = [block for block in blocks if block.rows]
    if not held:
        return
    for name, pieces in groupby(_pieces(held), key=_name):
        cut = tuple(pieces)
        yield Transaction(name, max(int(pc.max(piece.commit_ts).as_py()) for piece in cut), cut)


def slice_block(block: ChangeBlock, start: int, size: int) -> ChangeBlock:
    """Return the images [start, start + size) of a block, without copying."""
    return replace(
        block,
        images=block.images.slice(start, size),
        op=block.op.slice(start, size),
        version=block.version.slice(start, size),
        commit_ts=block.commit_ts.slice(start, size),
        transaction=None if block.transaction is None else block.transaction.slice(start, size),
        order=None if block.order is None else block.order.slice(start, size),
        query=None if block.query is None else block.query.slice(start, size),
    )


def _name(piece: ChangeBlock) -> str:
    assert piece.transaction is not None
    return str(piece.transaction[0].as_py())


def _pieces(blocks: list[ChangeBlock]) -> Iterator[ChangeBlock]:
    """Yield slices of the blocks, each of one table and one transaction, in log order."""
    versions = np.concatenate([block.version.to_numpy() for block in blocks])
    owner = np.repeat(np.arange(len(blocks)), [block.rows for block in blocks])
    row = np.concatenate([np.arange(block.rows) for block in blocks])
    transaction = _numbered(blocks)
    order = np.argsort(versions, kind="stable")
    owner, row, transaction = owner[order], row[order], transaction[order]
    changes = np.flatnonzero((np.diff(owner) != 0) | (np.diff(transaction) != 0)) + 1
    for start, end in pairwise([0, *changes.tolist(), len(order)]):
        # Versions rise within a block, so images that are adjacent in the log are adjacent in their block.
        yield slice_block(blocks[int(owner[start])], int(row[start]), end - start)


def _numbered(blocks: list[ChangeBlock]) -> npt.NDArray[np.int64]:
    """Return each image's transaction as a number that is the same in all blocks."""
    numbers: dict[str, int] = {}
    parts = []
    for block in blocks:
        assert block.transaction is not None, "the reader was not asked for transactions"
        names = block.transaction.dictionary.to_pylist()
        known = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
        parts.append(known[block.transaction.indices.to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


def changes(
    url: str,
    tables: Sequence[str] | str = (),
    *,
    exclude: Sequence[str] | str = (),
    start: str | Position = "now",
    stop: str | Position | None = None,
    snapshot: bool = False,
    before: bool = False,
    transactions: bool = False,
    queries: bool = False,
    zero_dates: Literal["error", "null", "epoch"] = "error",
    on_statement: Callable[[Statement], None] | None = None,
    relay_bytes: int = RELAY_BYTES,
) -> Feed[ChangeBlock]:
    """Return the changes of a server's tables as blocks, from `start` on (see docs/api.md)."""
    options = ReadOptions(every_before=before, zero_dates=_zero_dates(zero_dates), transactions=transactions, queries=queries)
    request = FeedRequest(parse_mysql_url(url), _selection(url, tables, exclude), options, start, stop, snapshot, relay_bytes, on_statement)
    return _matching(block_feed(request), tables)


def transactions(
    url: str,
    tables: Sequence[str] | str = (),
    *,
    exclude: Sequence[str] | str = (),
    start: str | Position = "now",
    stop: str | Position | None = None,
    before: bool = False,
    queries: bool = False,
    zero_dates: Literal["error", "null", "epoch"] = "error",
    on_statement: Callable[[Statement], None] | None = None,
    relay_bytes: int = RELAY_BYTES,
) -> Feed[Transaction]:
    """Return the same changes, one transaction at a time. Each transaction is held in memory whole."""
    options = ReadOptions(every_before=before, zero_dates=_zero_dates(zero_dates), transactions=True, queries=queries)
    request = FeedRequest(parse_mysql_url(url), _selection(url, tables, exclude), options, start, stop, False, relay_bytes, on_statement)
    return _matching(Feed(request, group_by_transaction, lambda transaction: transaction.blocks), tables)


def block_feed(request: FeedRequest) -> Feed[ChangeBlock]:
    return Feed(request, _as_they_are, lambda block: (block,))


@dataclass(frozen=True, slots=True)
class FeedRequest:
    address: MySQLAddress
    selection: Selection
    options: ReadOptions
    start: str | Position
    stop: str | Position | None
    snapshot: bool = False
    relay_bytes: int = RELAY_BYTES
    on_statement: Callable[[Statement], None] | None = None


class Feed(Generic[T]):
    """An iterator over a server's changes, and a context manager. An error, or `close`, ends it and frees its resources."""

    def __init__(
        self, request: FeedRequest, shape: Callable[[Iterable[ChangeBlock]], Iterable[T]], blocks_of: Callable[[T], Sequence[ChangeBlock]]
    ) -> None:
        self._request, self._shape, self._blocks_of = request, shape, blocks_of
        self._turn = threading.RLock()
        self._closing = False
        self._held: T | None = None
        """The item returned last. It counts as consumed from the moment of assignment, which is atomic."""
        self._chunks: list[Chunk] = []
        # A stored position proves that the server was reached before. Otherwise its address may be wrong.
        with use_wait_state(WaitState(first_contact=not is_position(request.start))):
            place = retrying(self._open, deadline_s=_CONNECT_PATIENCE_S)
        self._offset: Offset = place.position.to_json()
        """The start of the current batch."""
        self._until = place.until
        """The end of the current batch; None if there is none."""
        self._seen = place.seen
        """The last version returned, per table."""
        self._mirror = RelaySession(request.address, self._server, place.position, request.relay_bytes, _LIMITS)
        self._mirror.stop = self._stop
        self._items: Generator[T, None, None] = self._run()

    @property
    def position(self) -> Position:
        """The position after all returned items. A feed that starts there returns the rest, without gaps and without repetition."""
        if self._chunks:
            raise DefiniteError("an unfinished snapshot has no position", hint="read on until its last row, or start it again")
        seen = self._seen | _last_versions(() if self._held is None else self._blocks_of(self._held))
        partly = {"partly": {"until": self._until, "seen": seen}} if seen and self._until is not None else {}
        return {**self._offset, "tables": [schema.to_json() for schema in self._tables.defined], **partly}

    @property
    def address(self) -> MySQLAddress:
        """The server's address without the password."""
        return self._request.address

    @property
    def schemas(self) -> list[TableSchema]:
        """The tables as of the current position."""
        return list(self._tables.schemas.values())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._turn:
            if self._closing:
                raise StopIteration
            if self._held is not None:
                self._seen |= _last_versions(self._blocks_of(self._held))
                self._held = None
            try:
                item = next(self._items)
            except (HeadraceError, OSError):
                if self._closing:
                    # A signal handler closed the feed during this call.
                    raise StopIteration from None
                self.close()
                raise
            except BaseException:
                self.close()
                raise
        self._held = item
        return item

    def close(self) -> None:
        """Free all threads, connections and files. Safe to call again, and from another thread while one waits for changes."""
        self._closing = True
        with self._turn:
            # A signal handler may call this during `__next__`, which then ends by itself.
            if inspect.getgeneratorstate(self._items) != inspect.GEN_RUNNING:
                self._items.close()
            self._mirror.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- beginning

    def _open(self) -> FeedStart:
        request = self._request
        with closing(connect(request.address)) as connection:
            server = check_server(connection, request.address)
            rules = TableRules(request.address, server, request.selection, request.options.zero_dates)
            captured, place = rules.capture_around(connection, lambda: resolve_place(connection, request.address, request.start))
            # The stored schema of a table at this position is authoritative. The current schema is a fallback.
            self._tables = KnownTables(rules, [*captured, *place.tables], rules.charsets(connection), place.position)
            check_logged(connection, request.address, self._tables.schemas)
            if request.snapshot:
                if request.start != "now":
                    raise DefiniteError("a snapshot is taken now, it cannot start elsewhere", hint='leave start= out, or write start="now"')
                self._chunks = [
                    chunk for schema in self._tables.schemas.values() for chunk in plan_chunks(connection, request.address, schema)
                ]
            self._server = server
            self._stop = resolve_stop(connection, request.address, request.stop)
        return place

    # -- reading

    def _run(self) -> Generator[T, None, None]:
        while self._chunks:
            chunk = self._chunks[0]
            schema = self._tables.schemas[chunk.name]
            epoch, options = int(self._offset["epoch"]), self._request.options
            yield from self._shape(read_chunk(self._request.address, schema, chunk, epoch, options, identity=self._server.identity))
            self._chunks.pop(0)
            self._seen = {}
        while not self._closing:
            end = self._until or self._mirror.plan(self._offset)
            if end is None:
                return
            if end == self._offset:
                continue
            self._until = end
            yield from self._batch(end)
            self._offset, self._until, self._seen = end, None, {}
            self._mirror.commit(end)

    def _batch(self, end: Offset) -> Iterator[T]:
        splits, seen, reader = self._mirror.splits(self._offset, end), dict(self._seen), self._reader()
        # A feed cannot resync a new table, so rows of a CREATE TABLE ... SELECT are an error here, not skipped.
        rows = [replace(split, created_with_rows=()) for split in splits if isinstance(split, SegmentSplit)]
        yield from self._shape(block for split in rows for block in _unseen(reader.read(split), seen))
        for split in splits:
            if isinstance(split, StatementSplit):
                for statement in self._tables.follow(split):
                    self._tell(statement)

    def _tell(self, statement: Statement) -> None:
        if self._request.on_statement is not None:
            self._request.on_statement(statement)
        elif statement.news is not News.DEFINED:
            raise statement.refused()

    def _reader(self) -> MySQLReader:
        schemas = dict(self._tables.schemas)
        plans = plan_tables(schemas, {name: schema.row_key for name, schema in schemas.items()})
        epoch = int(self._offset["epoch"])
        tables = skip_tables(plans, self._tables.gone)
        return MySQLReader(self._request.address, tables, self._request.selection, self._request.options, epoch)


def _as_they_are(blocks: Iterable[ChangeBlock]) -> Iterable[ChangeBlock]:
    return blocks


def _last_versions(blocks: Sequence[ChangeBlock]) -> dict[str, int]:
    """Return the greatest version per table. Versions rise within a block and from block to block of a batch."""
    return {str(block.schema.name): int(block.version[-1].as_py()) for block in blocks}


def _unseen(blocks: Iterable[ChangeBlock], seen: dict[str, int]) -> Iterator[ChangeBlock]:
    for block in blocks:
        last = seen.get(str(block.schema.name), -1)
        skipped = int((block.version.to_numpy() <= last).sum()) if last >= 0 else 0
        if skipped < block.rows:
            yield slice_block(block, skipped, block.rows - skipped) if skipped else block


def _zero_dates(zero_dates: str) -> ZeroDates:
    known = {"error": ZeroDates.HALT, "null": ZeroDates.NULL, "epoch": ZeroDates.EPOCH}
    if zero_dates not in known:
        raise DefiniteError(f"zero_dates={zero_dates!r} is not known", hint='write zero_dates="error", "null" or "epoch"')
    return known[zero_dates]


def _selection(url: str, tables: Sequence[str] | str, exclude: Sequence[str] | str) -> Selection:
    chosen, left_out = _patterns(tables), _patterns(exclude)
    database = parse_mysql_url(url).database
    if not chosen and not database:
        raise DefiniteError("no tables were chosen", hint='write tables=["shop.*"], or a database in the address')
    return Selection(chosen or (f"{database}.*",), left_out)


def _matching(feed: Feed[T], tables: Sequence[str] | str) -> Feed[T]:
    """Return the feed if the selection matches any table. A feed without tables would end, or wait, silently."""
    if _patterns(tables) and not feed.schemas:
        feed.close()
        chosen = ", ".join(_patterns(tables))
        raise DefiniteError(
            f"no table matches {chosen}",
            place=str(feed.address),
            hint="check tables= and the privileges of the user; create a table first, or leave tables= out to wait for tables",
        )
    names = [schema.name for schema in feed.schemas]
    for chosen in Selection(_patterns(tables), ()).unmatched(names):
        log.warning("no table of %s matches %s; a table that is created later will be read", feed.address, chosen)
    return feed


def _patterns(patterns: Sequence[str] | str) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


__all__ = ["RELAY_BYTES", "Feed", "FeedRequest", "Position", "Statement", "block_feed", "changes", "transactions"]
