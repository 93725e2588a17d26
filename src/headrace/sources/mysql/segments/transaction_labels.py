"""Labels changes with their transaction, their order in it, and their statement, for whole blocks and from the versions alone.

A version holds the image's address, and addresses rise along the log, so the transaction of an image is the last one that starts before it.
There is no work per row, and none at all unless the reader requests labels. The flags of row events label changes in the same way.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName
from headrace.model.version import OFFSET_BITS
from headrace.sources.mysql.events import event_types
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.event_expander import EventBuffer
from headrace.sources.mysql.segments.group_addresses import parse_tagged_gtid
from headrace.sources.mysql.server.gtid import source_name

_ADDRESS: Final = np.uint64((1 << OFFSET_BITS) - 1)
_FIRST_ROOM: Final = 4_096
_FLAGS_AT: Final = HEADER_SIZE + 6
"""The flags follow the table id of six bytes."""
_NO_FOREIGN_KEY_CHECKS: Final = 0x02


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction that is open at the start of a segment."""

    address: int
    name: str
    committed: int
    """The commit time, in microseconds; 0 if the log does not contain it."""


def name_group(group: npt.NDArray[np.int64], file: str, *, mariadb: bool) -> str:
    """Return the name of a group's transaction: its GTID, otherwise its start."""
    first, second, number, tag = group[scan.GTID].tolist()
    if not number:
        return f"{file}:{int(group[scan.START])}"
    return f"{first}-{second}-{number}" if mariadb else f"{source_name(first, second, tag)}:{number}"


class TransactionLabels:
    """The transactions and statements seen so far in one pass over a segment."""

    def __init__(self, file: str, open_transaction: OpenTransaction, *, transactions: bool, queries: bool) -> None:
        self._file, self._transactions, self._queries = file, transactions, queries
        self._starts, self._names = [open_transaction.address], [open_transaction.name]
        self._text_starts: list[int] = [open_transaction.address]
        self._texts: list[str | None] = [None]
        self._marks = np.empty((_FIRST_ROOM, scan.MARK_COLUMNS), dtype=np.int64)

    def note(self, piece: EventBuffer, start: int, end: int) -> None:
        """Record the transactions and statements of the events in [start, end) of a buffer."""
        for known in (self._starts, self._names, self._text_starts, self._texts):
            del known[:-1]
        marks = self._list(piece, start, end)
        addresses, places = piece.locate(marks[:, scan.MARK_POS])
        for (at, kind), address, place in zip(marks.tolist(), addresses.tolist(), places.tolist(), strict=True):
            size = int.from_bytes(piece.buf[at + 9 : at + 13].tobytes(), "little") - (CHECKSUM_SIZE if piece.checksum else 0)
            event = piece.buf[at : at + size].tobytes()
            if kind in (event_types.ROWS_QUERY_EVENT, event_types.ANNOTATE_ROWS_EVENT):
                # The first byte of MySQL's event is a length that stops at 255.
                text = event[HEADER_SIZE + (kind == event_types.ROWS_QUERY_EVENT) :].decode("utf8", "replace")
                self._text_starts.append(address)
                self._texts.append(text)
                continue
            self._starts.append(address)
            self._names.append(self._name(kind, event, place))
            self._text_starts.append(address)
            self._texts.append(None)

    def attach(self, block: ChangeBlock) -> ChangeBlock:
        addresses = _addresses(block)
        if self._transactions:
            starts = np.array(self._starts, dtype=np.int64)
            at = np.searchsorted(starts, addresses, side="right") - 1
            order = pa.array((addresses - starts[at]).astype(np.uint64))
            block = replace(block, transaction=_dictionary(at, self._names), order=order)
        if self._queries:
            at = np.searchsorted(np.array(self._text_starts, dtype=np.int64), addresses, side="right") - 1
            block = replace(block, query=_dictionary(at, self._texts))
        return block

    def _list(self, piece: EventBuffer, start: int, end: int) -> npt.NDArray[np.int64]:
        while True:
            found = int(scan.list_marks(piece.buf, start, end, piece.checksum, self._marks))
            if found >= 0:
                return self._marks[:found]
            if len(self._marks) * HEADER_SIZE > end - start:
                raise DefiniteError("the events of a segment cannot be listed", place=self._file)
            self._marks = np.empty((4 * len(self._marks), scan.MARK_COLUMNS), dtype=np.int64)

    def _name(self, kind: int, event: bytes, place: int) -> str:
        body = event[HEADER_SIZE:]
        if kind == event_types.GTID_EVENT:
            return f"{uuid.UUID(bytes=body[1:17])}:{int.from_bytes(body[17:25], 'little')}"
        if kind == event_types.MARIADB_GTID_EVENT:
            number, domain, server = (int.from_bytes(part, "little") for part in (body[:8], body[8:12], event[5:9]))
            return f"{domain}-{server}-{number}"
        if kind == event_types.GTID_TAGGED_EVENT:
            source, number, tag, _ = parse_tagged_gtid(body, f"{self._file}:{place}")
            return ":".join(part for part in (str(uuid.UUID(bytes=source)), tag, str(number)) if part)
        return f"{self._file}:{place}"


def _addresses(block: ChangeBlock) -> npt.NDArray[np.int64]:
    addresses: npt.NDArray[np.int64] = (block.version.to_numpy(zero_copy_only=False) & _ADDRESS).astype(np.int64)
    return addresses


def _dictionary(at: npt.NDArray[np.int64], values: list[str] | list[str | None]) -> pa.DictionaryArray:
    used, indices = np.unique(at, return_inverse=True)
    chosen = [values[i] for i in used.tolist()]
    missing = np.array([value is None for value in chosen], dtype=np.bool_)[indices]
    keys = pa.array(indices.astype(np.int32), mask=missing)
    return pa.DictionaryArray.from_arrays(keys, pa.array([value or "" for value in chosen], pa.string()))


class ForeignKeyChecks:
    """Labels changes with whether the server checked foreign keys, from the flags of their row events in one window of a segment.

    A statement with `foreign_key_checks = 0` has no effect on child tables.
    """

    def __init__(self, tables: frozenset[TableName]) -> None:
        self._tables = tables
        self._addresses = np.empty(0, dtype=np.int64)
        self._unchecked = np.empty(0, dtype=np.bool_)

    def note(self, piece: EventBuffer, positions: npt.NDArray[np.int64]) -> None:
        """Record the flags of the row events that start at these positions of a buffer, in the order of the log."""
        self._addresses = piece.locate(positions)[0]
        self._unchecked = (piece.buf[positions + _FLAGS_AT] & _NO_FOREIGN_KEY_CHECKS) != 0

    def attach(self, block: ChangeBlock) -> ChangeBlock:
        if block.schema.name not in self._tables:
            return block
        at = np.searchsorted(self._addresses, _addresses(block), side="right") - 1
        return replace(block, unchecked=pa.array(self._unchecked[at]))
