"""Pages of rows as the server sent them: the driver finds where the rows begin and leaves their bytes alone.

A page is decoded by the driver's own parser when somebody iterates over it, so that one session serves both who wants raw bytes and who
wants Python's values.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from cassandra.protocol import ProtocolHandler, ResultMessage, _ProtocolHandler

from headrace.cql.bounded_connection import check_rows


class RawPage:
    """The rows of one answer: `count` times, for each column, four bytes of length and a value."""

    def __init__(self, names: Sequence[str], body: bytes, start: int, count: int, again: tuple[Any, ...]) -> None:
        self.names = tuple(names)
        self.body = body
        self.start = start
        """Where the first row begins in `body`."""
        self.count = count
        self._again = again

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.decoded())

    def decoded(self) -> list[tuple[Any, ...]]:
        """The rows by the driver's own decoder."""
        kind, first, *others = self._again
        message = ProtocolHandler.message_types_by_opcode[ResultMessage.opcode](kind)
        message.recv_results_rows(io.BytesIO(self.body[first:]), *others)
        found: list[tuple[Any, ...]] = message.parsed_rows
        return found


class _RawResult(ResultMessage):  # type: ignore[misc]
    def recv_results_rows(self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, encryption: Any) -> None:
        first = f.tell()
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        count = int.from_bytes(f.read(4), "big", signed=True)
        check_rows(count, len(columns), len(f.getvalue()) - f.tell())
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        again = (self.kind, first, protocol_version, user_type_map, result_metadata, encryption)
        self.parsed_rows = RawPage(self.column_names, f.getvalue(), f.tell(), count, again)


class RawPageHandler(_ProtocolHandler):  # type: ignore[misc]
    """A session's protocol handler: answers with rows carry `RawPage`s."""

    message_types_by_opcode = {**_ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _RawResult}  # noqa: RUF012 (the driver's own form)


class WholeResult:
    """Prevents the driver from iterating over a page."""

    __slots__ = ("page",)

    def __init__(self, page: RawPage) -> None:
        self.page = page


def read_whole_page(_names: Sequence[str], rows: RawPage) -> WholeResult:
    """A row factory that returns the page unchanged."""
    return WholeResult(rows)
