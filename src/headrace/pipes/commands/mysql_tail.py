"""`headrace tail mysql://…`: prints changes as they happen, in one process, without Spark or state.

Lines are those of the stdout sink, in the order of the log. A transaction is held in memory until it is complete. Tables have the schemas
of the time of their changes where these are known; when reading starts in a server's past, the current ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.api.feed import Feed, FeedRequest, Transaction, group_by_transaction
from headrace.api.tracked_tables import Statement, learn_described_tables, news_of
from headrace.errors import DefiniteError
from headrace.model.schema import ZeroDates
from headrace.model.table_selection import Selection
from headrace.sinks.schema_changes import LedgerEntry
from headrace.sinks.stdout.batches import LineOptions
from headrace.sinks.stdout.encoder import LineEncoder
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.offline_source import open_directory
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.segments.segment_reader import plan_tables
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import BinlogDirectory
from headrace.sources.mysql.split_reader import BinlogPlanner, MySQLReader, SegmentSplit
from headrace.sources.splits import StatementSplit

log = logging.getLogger("headrace")

NOW, OLDEST, END = "now", "oldest", "end"
_BATCH_BYTES: Final = 8 << 20
Texts = Any
"""Lines, as an array of strings."""


@dataclass(frozen=True, slots=True)
class TailOptions:
    selection: Selection
    start: str = NOW
    """`now`, `oldest`, `FILE:OFFSET` or, for a server, a GTID set."""
    once: bool = False
    """Whether to stop at the current end of the log."""
    zero_dates: ZeroDates = ZeroDates.HALT
    lines: LineOptions = field(default_factory=LineOptions)

    @property
    def options(self) -> ReadOptions:
        return ReadOptions(every_before=True, zero_dates=self.zero_dates, transactions=True)


class ServerTail:
    def __init__(self, address: MySQLAddress, options_given: TailOptions, show: Callable[[Texts], None]) -> None:
        """`show` gets the lines of statements after all earlier lines were taken; it must return quickly."""
        self._show = show
        stop = END if options_given.once else None
        request = FeedRequest(address, options_given.selection, options_given.options, options_given.start, stop, on_statement=self._tell)
        self._encoder = LineEncoder(options_given.lines)
        self._feed: Feed[Transaction] = Feed(request, group_by_transaction, lambda transaction: transaction.blocks)
        self._encoder.log = str(self._feed.position["file"]).rpartition(".")[0]
        if not self._feed.schemas:
            self._feed.close()
            raise DefiniteError(f"no table matches {options_given.selection}", place=str(address), hint="check --tables and the database")
        place = f"{self._feed.position['file']}:{self._feed.position['pos']}"
        log.info("following %d tables of %s from %s on", len(self._feed.schemas), address, place)

    def stop(self) -> None:
        """Stop; safe in a signal handler."""
        self._feed.close()

    def lines(self) -> Generator[Texts, None, None]:
        with self._feed:
            for transaction in self._feed:
                for block in transaction.blocks:
                    yield from (made.text for made in self._encoder.encode(block))

    def _tell(self, statement: Statement) -> None:
        self._show(_statement_line(self._encoder, statement))


class DirectoryTail:
    def __init__(self, path: Path, options_given: TailOptions) -> None:
        self._looking, self._stop = options_given, threading.Event()
        # Schemas are followed from the oldest statement, wherever printing starts.
        self._log = open_directory(path, OLDEST)
        self._from = open_directory(path, options_given.start).start
        self._history = SchemaHistory(options_given.selection, Dialect.of(self._log.server_version, in_utc=True))
        self._encoder = LineEncoder(options_given.lines, self._log.start.file.rpartition(".")[0])
        learn_described_tables(self._history, self._log, options_given.selection)

    def stop(self) -> None:
        """Stop; safe in a signal handler."""
        self._stop.set()

    def lines(self) -> Generator[Texts, None, None]:
        limits = BatchLimits(flush_bytes=_BATCH_BYTES, flush_seconds=0.01, parallelism=1)
        planner = BinlogDirectory(self._log.path, self._log.start, limits, self._log.mariadb).planner()
        at = self._log.start
        try:
            while not self._stop.is_set() and not (self._looking.once and at >= self._log.end):
                until = self._from if at < self._from else None
                end = BinlogPosition.from_json(planner.plan(at.to_json(), None if until is None else until.to_json()))
                if end > at:
                    yield from self._batch(planner, at, end)
                    planner.commit(end.to_json())
                    at = end
        finally:
            planner.stop()

    def _batch(self, planner: BinlogPlanner, at: BinlogPosition, end: BinlogPosition) -> Generator[Texts, None, None]:
        splits, reader = planner.splits(at.to_json(), end.to_json()), self._reader(at)
        shown = end > self._from
        rows = [replace(split, created_with_rows=()) for split in splits if isinstance(split, SegmentSplit) and shown]
        for transaction in group_by_transaction(block for split in rows for block in reader.read(split)):
            for block in transaction.blocks:
                yield from (made.text for made in self._encoder.encode(block))
        for split in splits:
            if isinstance(split, StatementSplit):
                yield from self._statement(split, shown=shown)

    def _statement(self, split: StatementSplit, *, shown: bool) -> Generator[Texts, None, None]:
        query, position = Query.from_json(split.query), BinlogPosition.from_json(split.offset)
        followed = self._history.follow(query, position)
        if not shown:
            return
        for table, news in sorted(news_of(followed).items()):
            yield _statement_line(self._encoder, Statement(table, news, query.statement, position))

    def _reader(self, at: BinlogPosition) -> MySQLReader:
        selection, zero_dates = self._looking.selection, self._looking.zero_dates
        schemas = {name: schema.with_zero_dates(zero_dates) for name, schema in self._history.as_of(at).tables.items() if selection(name)}
        keys = {name: schema.row_key for name, schema in schemas.items()}
        return MySQLReader(None, plan_tables(schemas, keys), selection, self._looking.options, at.epoch)


def _statement_line(encoder: LineEncoder, statement: Statement) -> Texts:
    position, kind = statement.position, statement.news.name.lower()
    entry = LedgerEntry("", position.version, str(position), str(statement.table), kind, statement.text, "", "")
    return pa.array([encoder.statement(entry).decode()])
