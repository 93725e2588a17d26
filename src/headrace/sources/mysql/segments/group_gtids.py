"""Resolves rare groups that the scan leaves to Python: tagged GTIDs, and XA transactions inside compressed events."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql.events.compressed_event import inner_events
from headrace.sources.mysql.events.event_types import (
    HEADER_SIZE,
    QUERY_EVENT,
    TRANSACTION_PAYLOAD_EVENT,
    XA_PREPARE_EVENT,
    parse_query,
    truncated,
)
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.server.gtid import tag_number

_XID: Final = re.compile(r"XA\s+\w+\s+(X'[0-9A-F]*',X'[0-9A-F]*',-?[0-9]+)", re.IGNORECASE)


def complete(
    groups: npt.NDArray[np.int64], event_at: Callable[[int], memoryview], name: str
) -> tuple[npt.NDArray[np.int64], DefiniteError | None]:
    """Resolve the groups that the scan left open. Return the groups up to the first failure, and that failure if there is one.

    `event_at` returns the event at an offset of the file, without checksum.
    """
    open_ones = (groups[:, scan.TAG] != 0) | ((groups[:, scan.PACKED] != 0) & (groups[:, scan.KIND] == scan.DATA))
    for g in np.flatnonzero(open_ones).tolist():
        try:
            _complete(groups[g], event_at, name)
        except DefiniteError as error:
            return groups[:g], error
    return groups, None


def _complete(group: npt.NDArray[np.int64], event_at: Callable[[int], memoryview], name: str) -> None:
    tag_at, last_at = int(group[scan.TAG]), int(group[scan.LAST_AT])
    if tag_at:
        _fill_gtid(group, event_at(tag_at), f"{name}:{tag_at}")
    if group[scan.PACKED] and group[scan.KIND] == scan.DATA:
        event = event_at(last_at)
        if event[4] == TRANSACTION_PAYLOAD_EVENT and prepared_in(event, f"{name}:{last_at}") is not None:
            group[scan.KIND] = scan.PREPARED


def _fill_gtid(group: npt.NDArray[np.int64], event: memoryview, place: str) -> None:
    source, number, tag, committed = parse_tagged_gtid(bytes(event[HEADER_SIZE:]), place)
    group[scan.GTID0 : scan.GTID2 + 1] = (*(np.frombuffer(source, dtype=">i8").tolist()), number)
    group[scan.TAG], group[scan.COMMITTED] = tag_number(tag), committed


def parse_tagged_gtid(body: bytes, place: str) -> tuple[bytes, int, str, int]:
    """Return source, number, tag and commit time (microseconds) from the body of a GTID_TAGGED event, without checksum.

    The format is the server's own serialization: numbered fields in rising order, integers whose first byte holds their length.
    """
    source, number, tag, committed = b"", 0, "", 0
    try:
        at = 0
        for _ in ("version", "size", "last field that must be known"):
            _, at = _integer(body, at)
        while at < len(body):
            field, at = _integer(body, at)
            if field == 1:
                octets = []
                for _ in range(16):
                    octet, at = _integer(body, at)
                    octets.append(octet)
                source = bytes(octets)
            elif field == 3:
                size, at = _integer(body, at)
                tag = body[at : at + size].decode("ascii")
                at += size
            elif field <= 11:
                value, at = _integer(body, at)
                number = value >> 1 if field == 2 else number
                committed = value if field == 6 else committed
            else:
                break
    except (IndexError, ValueError) as error:
        raise truncated("GTID_TAGGED", place) from error
    if len(source) != 16 or number <= 0:
        raise truncated("GTID_TAGGED", place)
    return source, number, tag, committed


def _integer(body: bytes, at: int) -> tuple[int, int]:
    """The number of low one bits of the first byte is the number of further bytes; the other bits are the number, low bytes first."""
    more = 0
    while more < 8 and body[at] >> more & 1:
        more += 1
    if at + 1 + more > len(body):
        raise IndexError
    return int.from_bytes(body[at : at + 1 + more], "little") >> min(more + 1, 8), at + 1 + more


def prepared_in(event: memoryview, place: str) -> str | None:
    """Return the xid that a payload or an XA_PREPARE event leaves prepared, if any."""
    if event[4] != TRANSACTION_PAYLOAD_EVENT:
        return _prepared_xid(bytes(event[HEADER_SIZE:]), place)
    last = b""
    for n, inner in enumerate(inner_events(event[HEADER_SIZE:], place)):
        # The first event shows whether it is an XA transaction. Others need not be decompressed further.
        if n == 0 and (inner[4] != QUERY_EVENT or not parse_query(bytes(inner[HEADER_SIZE:]), place).statement.startswith("XA START ")):
            return None
        last = bytes(inner) if inner[4] == XA_PREPARE_EVENT else b""
    return _prepared_xid(last[HEADER_SIZE:], place) if last else None


def _prepared_xid(body: bytes, place: str) -> str | None:
    """Return the xid of an XA_PREPARE event; None if it was committed in one phase."""
    sizes = [int.from_bytes(body[at : at + 4], "little") for at in (5, 9)]
    if len(body) < 13 + sum(sizes):
        raise truncated("XA_PREPARE", place)
    if body[0]:
        return None
    form = int.from_bytes(body[1:5], "little", signed=True)
    middle, end = 13 + sizes[0], 13 + sum(sizes)
    return f"X'{body[13:middle].hex()}',X'{body[middle:end].hex()}',{form}"


def named_xid(statement: str, place: str) -> str:
    """Return the xid in an XA COMMIT or XA ROLLBACK statement, as the servers log it."""
    match = _XID.match(statement)
    if match is None:
        raise truncated("XA QUERY", place)
    return match[1].lower().replace("x'", "X'")
