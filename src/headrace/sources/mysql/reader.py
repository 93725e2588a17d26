"""A segment of the log to change blocks: what a task does with an address.

A segment is a byte range of a log file that starts and ends on statement bounds, so it never needs bytes from before its start. Reading
it again gives equal blocks. The range is mapped, not loaded, and walked in windows, so memory is bounded whatever the segment's size.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.model.change import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sources.mysql import scan
from headrace.sources.mysql.decoder import ReadOptions, RowDecoder
from headrace.sources.mysql.events import truncated
from headrace.sources.mysql.position import BinlogPosition, file_number
from headrace.sources.mysql.tablemap import TableMap, parse_table_map, parse_table_name

_WINDOW_EVENTS: Final = 65_536
_MAX_MAPS: Final = 4_096
_ID_SLOTS: Final = 16_384
_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Segment:
    """The address of a piece of log: bytes [start, end) of `path`, which mirrors the server's `file`."""

    path: str
    file: str
    start: int
    end: int
    epoch: int
    checksum: bool

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Segment:
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a reader must know of the tables: their schemas, the columns that make up their keys in the sink, and which names are wanted."""

    schemas: Mapping[TableName, TableSchema]
    keys: Mapping[TableName, tuple[str, ...]]
    wanted: Callable[[TableName], bool]
    options: ReadOptions = field(default_factory=ReadOptions)
    since: Mapping[TableName, BinlogPosition] = field(default_factory=dict)
    """Tables whose events before a position are left out."""


def read_segment(segment: Segment, catalog: Catalog) -> Iterator[ChangeBlock]:
    """The blocks of a segment, table by table within each window."""
    if segment.start == segment.end:
        return
    page = mmap.ALLOCATIONGRANULARITY
    base = segment.start // page * page
    with Path(segment.path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if segment.end > size:
            raise truncated("binary log", f"{segment.file}:{size}")
        # A private mapping is writable for numpy's sake; nothing writes to it.
        mapped = mmap.mmap(file.fileno(), segment.end - base, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=base)
    buf = np.frombuffer(mapped, dtype=np.uint8)
    yield from _Walk(buf, base, segment, catalog).blocks()


class _Walk:
    """One pass over a mapped segment."""

    def __init__(self, buf: npt.NDArray[np.uint8], base: int, segment: Segment, catalog: Catalog) -> None:
        self._buf, self._base, self._segment, self._catalog = buf, base, segment, catalog
        self._version_base = pack_version(segment.epoch, file_number(segment.file), 0)
        self._maps = np.zeros((_MAX_MAPS, 2), dtype=np.int64)
        self._ids = np.zeros((_ID_SLOTS, 2), dtype=np.int64)
        self._since: list[int] = []
        self._decoders: dict[int, RowDecoder | None] = {}
        self._by_map: dict[TableMap, RowDecoder] = {}
        self._state = np.zeros(4, dtype=np.int64)
        self._state[scan.I_POS] = segment.start - base

    def blocks(self) -> Iterator[ChangeBlock]:
        end = self._segment.end - self._base
        events = np.empty((_WINDOW_EVENTS, scan.INDEX_COLUMNS), dtype=np.int64)
        while self._state[scan.I_POS] < end:
            self._state[scan.I_EVENTS] = 0
            status = scan.index_rows(self._buf, end, self._base, self._segment.checksum, events, self._maps, self._ids, self._state)
            if status not in (scan.OK, scan.NO_ROOM):
                raise self._error(status)
            yield from self._decode(events[: self._state[scan.I_EVENTS]])

    def _decode(self, events: npt.NDArray[np.int64]) -> Iterator[ChangeBlock]:
        for m in range(len(self._since), int(self._state[scan.I_MAPS])):
            self._since.append(self._first_offset(m))
        groups: dict[int, tuple[RowDecoder, list[int]]] = {}
        late = events[:, scan.EVENT_AT] >= np.array([*self._since, 0], dtype=np.int64)[events[:, scan.MAP]]
        if not late.all():
            events = events[late]
        for m in np.unique(events[:, scan.MAP]).tolist():
            decoder = self._decoders[m] if m in self._decoders else self._decoders.setdefault(m, self._decoder(m))
            if decoder is not None:
                groups.setdefault(id(decoder), (decoder, []))[1].append(m)
        for decoder, maps in groups.values():
            chosen = np.ascontiguousarray(events[np.isin(events[:, scan.MAP], maps)])
            yield from decoder.decode(self._buf, chosen, self._version_base, self._segment.file)

    def _first_offset(self, m: int) -> int:
        """From where on in this file the events of a table map count."""
        if not self._catalog.since:
            return 0
        start, size = self._maps[m].tolist()
        name = parse_table_name(self._buf[start : start + size].tobytes(), f"{self._segment.file}:{self._base + start}")
        since = self._catalog.since.get(name)
        if since is None or file_number(since.file) < file_number(self._segment.file):
            return 0
        return since.offset if since.file == self._segment.file else _NEVER

    def _decoder(self, m: int) -> RowDecoder | None:
        start, size = self._maps[m].tolist()
        place = f"{self._segment.file}:{self._base + start}"
        body = self._buf[start : start + size].tobytes()
        # A table nobody wants may have columns nobody can read.
        if not self._catalog.wanted(parse_table_name(body, place)):
            return None
        table_map = parse_table_map(body, place)
        if table_map in self._by_map:
            return self._by_map[table_map]
        schema = self._catalog.schemas.get(table_map.name)
        if schema is None:
            raise DefiniteError(
                f"the log holds changes of {table_map.name}, which was not there when replication started",
                place=place,
                hint="start Headrace again with the same state: it then takes a snapshot of the new table and goes on",
            )
        decoder = RowDecoder(schema, table_map, self._catalog.keys[table_map.name], self._catalog.options, place)
        self._by_map[table_map] = decoder
        return decoder

    def _error(self, status: int) -> DefiniteError:
        place = f"{self._segment.file}:{int(self._state[scan.I_ERROR_AT])}"
        if status == scan.NO_MAP:
            return DefiniteError("a row event has no table map before it", place=place)
        if status == scan.TOO_MANY_MAPS:
            return DefiniteError(f"more than {_MAX_MAPS} distinct tables in one segment", place=place, hint="lower --flush-bytes")
        return truncated("binary log", place)
