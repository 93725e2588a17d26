"""Reads a segment of the log into change blocks, in a task.

A segment is a byte range of a log file that starts and ends on statement bounds, so it never needs bytes before its start. Reading it again
gives equal blocks: their bounds depend only on the segment's bytes and the table's definition. The range is memory-mapped and walked in
windows, so memory is bounded for any segment size. Only a segment with compressed, skipped or inserted events goes through
`event_expander`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sources.mysql.events.event_types import truncated
from headrace.sources.mysql.events.table_map import TableMap, parse_table_map, parse_table_name
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.rows.row_decoder import ReadOptions, RowDecoder
from headrace.sources.mysql.segments.event_expander import EventBuffer, EventExpander, InsertedRange, SkippedRange, map_plain
from headrace.sources.mysql.segments.skipped_events import SkippedEvents, event_place
from headrace.sources.mysql.segments.transaction_labels import ForeignKeyChecks, OpenTransaction, TransactionLabels
from headrace.sources.mysql.server.position import BinlogPosition, file_number

_WINDOW_EVENTS: Final = 262_144
"""Most segments are one window. Every table of a window gets its own block, and small blocks are expensive for sinks."""
_MAX_MAPS: Final = 4_096
_ID_SLOTS: Final = 16_384
_UNWANTED: Final = _MAX_MAPS
_NEVER: Final = 1 << 62
_ALWAYS: Final = frozenset({"path", "file", "start", "end", "epoch", "checksum"})
"""Fields of a segment that are always serialised."""


@dataclass(frozen=True, slots=True)
class Segment(JsonRecord):
    """A range of the log: bytes [start, end) of `path`, the relay's copy of the server's `file`."""

    path: str
    file: str
    start: int
    end: int
    epoch: int
    checksum: bool
    shift: int = 0
    """The distance of addresses from offsets at its start (see `event_expander`)."""
    needs_expansion: bool = False
    """Whether its events must be expanded, skipped or inserted."""
    skips: tuple[SkippedRange, ...] = ()
    inserts: tuple[InsertedRange, ...] = ()
    open_transaction: OpenTransaction | None = None
    """The transaction that is open at its start, if any."""
    crc: str = ""
    """The CRC-32 of its bytes, for tasks on other machines (see `segment_fetch`). `path` may then be empty."""
    server: str = ""
    """The identity of the server, if `crc` is set."""

    def to_json(self) -> dict[str, Any]:
        raw = super(Segment, self).to_json()
        return {name: value for name, value in raw.items() if name in _ALWAYS or value}

    def pieces(self) -> Iterator[EventBuffer]:
        if self.needs_expansion:
            expander = EventExpander(self.path, self.file, self.start, self.end, self.checksum, self.shift)
            yield from expander.pieces(self.skips, self.inserts)
        else:
            yield map_plain(self.path, self.file, self.start, self.end, self.checksum, self.shift)


def read_segment(segment: Segment, catalog: ReadCatalog) -> Iterator[ChangeBlock]:
    """Yield the blocks of a segment, table by table within each window."""
    if segment.start == segment.end:
        return
    walk = _SegmentPass(segment, catalog)
    for piece in segment.pieces():
        yield from walk.blocks(piece)


class _SegmentPass:
    def __init__(self, segment: Segment, catalog: ReadCatalog) -> None:
        self._segment, self._catalog = segment, catalog
        self._has_skipped_starts = any(plan.skip_before is not None for plan in catalog.tables.values())
        self._version_base = pack_version(segment.epoch, file_number(segment.file), 0)
        self._by_map: dict[TableMap, RowDecoder] = {}
        self._state = np.zeros(scan.INDEX_CELLS, dtype=np.int64)
        self._state[scan.I_COMMITTED] = segment.open_transaction.committed if segment.open_transaction else 0
        self._events = np.empty((_WINDOW_EVENTS, scan.INDEX_COLUMNS), dtype=np.int64)
        open_transaction = segment.open_transaction or OpenTransaction(segment.start + segment.shift, f"{segment.file}:{segment.start}", 0)
        transactions, queries = catalog.options.transactions, catalog.options.queries
        requested = transactions or queries
        self._labels = TransactionLabels(segment.file, open_transaction, transactions=transactions, queries=queries) if requested else None
        self._checks = ForeignKeyChecks(catalog.options.foreign_key_checks) if catalog.options.foreign_key_checks else None

    def blocks(self, piece: EventBuffer) -> Iterator[ChangeBlock]:
        self._piece = piece
        self._maps = np.zeros((_MAX_MAPS, 2), dtype=np.int64)
        self._ids = np.zeros((_ID_SLOTS, 2), dtype=np.int64)
        self._since: list[int] = []
        self._decoders: dict[int, RowDecoder | None] = {}
        state = self._state
        state[scan.I_POS], state[scan.I_MAPS] = piece.start, 0
        while state[scan.I_POS] < piece.end:
            start = int(state[scan.I_POS])
            state[scan.I_EVENTS] = 0
            status = scan.index_rows(piece.buf, piece.end, 0, piece.checksum, self._events, self._maps, self._ids, state)
            if status not in (scan.OK, scan.NO_ROOM):
                raise self._error(status)
            events = self._events[: state[scan.I_EVENTS]]
            if self._checks is not None:
                self._checks.note(piece, events[:, scan.PLACE])
            events[:, scan.EVENT_AT], events[:, scan.PLACE] = piece.locate(events[:, scan.PLACE])
            if len(events):
                # Raise if the address does not fit a version, instead of wrapping around.
                pack_version(0, 0, int(events[-1, scan.EVENT_AT] + events[-1, scan.IMAGES_END] - events[-1, scan.COUNT_AT]))
            if self._labels is None and self._checks is None:
                yield from self._decode(events)
            elif self._labels is None:
                yield from map(self._attach_checks, self._decode(events))
            else:
                self._labels.note(piece, start, int(state[scan.I_POS]))
                for block in self._decode(events):
                    yield self._attach_checks(self._labels.attach(block))

    def _attach_checks(self, block: ChangeBlock) -> ChangeBlock:
        return block if self._checks is None else self._checks.attach(block)

    def _decode(self, events: npt.NDArray[np.int64]) -> Iterator[ChangeBlock]:
        for m in range(len(self._since), int(self._state[scan.I_MAPS])):
            self._since.append(self._first_offset(m))
        late = events[:, scan.PLACE] >= np.array([*self._since, 0], dtype=np.int64)[events[:, scan.MAP]]
        if not late.all():
            events = events[late]
        events = self._without_skipped(events)
        tables: dict[TableName, tuple[int, dict[int, RowDecoder]]] = {}
        # Sort events by table once: a window may hold hundreds of tables.
        places = np.full(_MAX_MAPS, _UNWANTED, dtype=np.uint16)
        for m in np.unique(events[:, scan.MAP]).tolist():
            decoder = self._decoders[m] if m in self._decoders else self._decoders.setdefault(m, self._decoder_for(m, events))
            if decoder is not None:
                places[m], decoders = tables.setdefault(decoder.schema.name, (len(tables), {}))
                decoders[m] = decoder
        owners = places[events[:, scan.MAP]]
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(tables) + 1))
        for table, decoders in tables.values():
            chosen = events[order[bounds[table] : bounds[table + 1]]]
            for decoder, run in _runs(chosen, decoders):
                yield from self._decoded(decoder, run)

    def _decoded(self, decoder: RowDecoder, run: npt.NDArray[np.int64]) -> Iterator[ChangeBlock]:
        try:
            for block in self._blocks_of(decoder, run):
                left = block if self._catalog.skipped is None else self._catalog.skipped.without_rows(block)
                if left.rows:
                    yield left
        except DefiniteError as error:
            raise self._at_one_event(decoder, run, error) from error

    def _blocks_of(self, decoder: RowDecoder, run: npt.NDArray[np.int64]) -> Iterator[ChangeBlock]:
        return decoder.decode(self._piece.buf, run, self._version_base, self._segment.file)

    def _at_one_event(self, decoder: RowDecoder, run: npt.NDArray[np.int64], error: DefiniteError) -> DefiniteError:
        """Return the error of the first event that cannot be decoded alone."""
        while len(run) > 1:
            first, second = run[: len(run) // 2], run[len(run) // 2 :]
            failed = self._failure(decoder, first)
            run, error = (first, failed) if failed is not None else (second, error)
        alone = self._failure(decoder, run)
        return self._about(alone, run[0]) if alone is not None else error

    def _failure(self, decoder: RowDecoder, run: npt.NDArray[np.int64]) -> DefiniteError | None:
        try:
            for _ in self._blocks_of(decoder, np.ascontiguousarray(run)):
                pass
        except DefiniteError as error:
            return error
        return None

    def _about(self, error: DefiniteError, event: npt.NDArray[np.int64]) -> DefiniteError:
        place = event_place(self._segment.file, int(event[scan.PLACE]), self._segment.epoch)
        return DefiniteError(error.message, place=error.place, hint=error.hint, event=place)

    def _decoder_for(self, m: int, events: npt.NDArray[np.int64]) -> RowDecoder | None:
        try:
            return self._decoder(m)
        except DefiniteError as error:
            raise self._about(error, events[events[:, scan.MAP] == m][0]) from error

    def _without_skipped(self, events: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        skipped_events = self._catalog.skipped
        offsets = skipped_events.offsets(self._segment.file) if skipped_events is not None else ()
        if skipped_events is None or not offsets:
            return events
        skipped = np.isin(events[:, scan.PLACE], offsets)
        for event in events[skipped]:
            start, size = self._maps[event[scan.MAP]].tolist()
            name = parse_table_name(self._piece.buf[start : start + size].tobytes(), self._place(start))
            if self._catalog.wanted(name):
                content = self._piece.buf[event[scan.COUNT_AT] : event[scan.IMAGES_END]].tobytes()
                skipped_events.record(event_place(self._segment.file, int(event[scan.PLACE]), self._segment.epoch), name, content)
        return np.ascontiguousarray(events[~skipped])

    def _place(self, position: int) -> str:
        """Return the log position of the bytes at a position of the buffer."""
        piece = self._piece
        if piece.positions is None:
            return f"{self._segment.file}:{piece.base + position}"
        return f"{self._segment.file}:{int(piece.places[max(int(np.searchsorted(piece.positions, position, side='right')) - 1, 0)])}"

    def _first_offset(self, m: int) -> int:
        """Return the offset in this file before which events of a table map are skipped."""
        if not self._has_skipped_starts:
            return 0
        start, size = self._maps[m].tolist()
        name = parse_table_name(self._piece.buf[start : start + size].tobytes(), self._place(start))
        plan = self._catalog.tables.get(name)
        since = None if plan is None else plan.skip_before
        if since is None or file_number(since.file) < file_number(self._segment.file):
            return 0
        return since.offset if since.file == self._segment.file else _NEVER

    def _decoder(self, m: int) -> RowDecoder | None:
        start, size = self._maps[m].tolist()
        place = self._place(start)
        body = self._piece.buf[start : start + size].tobytes()
        # A table that is not selected may have columns that cannot be decoded.
        if not self._catalog.wanted(parse_table_name(body, place)):
            return None
        table_map = parse_table_map(body, place)
        if table_map in self._by_map:
            return self._by_map[table_map]
        plan = self._catalog.tables.get(table_map.name)
        if plan is None or plan.schema is None:
            raise DefiniteError(
                f"the log holds changes of {table_map.name}, which did not exist when replication started",
                place=place,
                hint="start Headrace again with the same state: it then takes a snapshot of the new table and continues"
                " (log files: they must hold the table's CREATE, or be written with binlog_row_metadata = FULL)",
            )
        decoder = RowDecoder(plan.schema, table_map, plan.key_columns, self._catalog.options, place)
        self._by_map[table_map] = decoder
        return decoder

    def _error(self, status: int) -> DefiniteError:
        place = self._place(int(self._state[scan.I_ERROR_AT]))
        if status == scan.NOT_EXPANDED:
            return DefiniteError("a piece of the log holds compressed events that the planner did not announce", place=place)
        if status == scan.NO_MAP:
            return DefiniteError("a row event has no table map before it", place=place)
        if status == scan.TOO_MANY_MAPS:
            return DefiniteError(f"more than {_MAX_MAPS} distinct tables in one segment", place=place, hint="lower --flush-bytes")
        return truncated("binary log", place)


def _runs(events: npt.NDArray[np.int64], decoders: Mapping[int, RowDecoder]) -> Iterator[tuple[RowDecoder, npt.NDArray[np.int64]]]:
    """Yield a table's events, in log order, in runs with one decoder. Nearly always there is one run."""
    if len({id(decoder) for decoder in decoders.values()}) == 1:
        yield next(iter(decoders.values())), events
        return
    # A window has two maps of a table if the server's binlog_row_metadata changed in it.
    owners = np.array([id(decoders[m]) for m in events[:, scan.MAP].tolist()])
    for run in np.split(events, np.flatnonzero(np.diff(owners)) + 1):
        yield decoders[int(run[0, scan.MAP])], np.ascontiguousarray(run)


@dataclass(frozen=True, slots=True)
class TableReadPlan:
    """How a reader reads one table."""

    schema: TableSchema | None
    """None if the table is dropped or unknown: a row event that is not skipped is then an error."""
    key_columns: tuple[str, ...] = ()
    """The columns that make up the row's key in the sink."""
    skip_before: BinlogPosition | None = None
    """Events before this position are skipped: the snapshot contains them, or the table was dropped at this position."""
    is_skipped: bool = False
    """Whether all events of the table are skipped, for example because it waits for a new snapshot."""
    ordered: bool = False
    """Whether blocks must come in log order, with the same bounds each time they are read."""
    exact: bool = False
    """Whether a snapshot must show the table as of exactly one position."""


@dataclass(frozen=True, slots=True)
class ReadCatalog:
    """The tables that one pass over a segment reads."""

    tables: Mapping[TableName, TableReadPlan]
    wanted: Callable[[TableName], bool]
    """Whether to read a table. A wanted table without a schema is an error."""
    options: ReadOptions = field(default_factory=ReadOptions)
    skipped: SkippedEvents | None = None
    """Events and rows that the user asked to skip."""


def plan_tables(schemas: Mapping[TableName, TableSchema], keys: Mapping[TableName, tuple[str, ...]]) -> dict[TableName, TableReadPlan]:
    """Plan to read every table whole, by its schema and the columns of its key in the sink."""
    return {name: TableReadPlan(schema, keys[name]) for name, schema in schemas.items()}


def skip_tables(plans: Mapping[TableName, TableReadPlan], names: Iterable[TableName]) -> dict[TableName, TableReadPlan]:
    """Return the plans with all events of `names` skipped."""
    return {**plans, **{name: replace(plans.get(name, TableReadPlan(None)), is_skipped=True) for name in names}}
