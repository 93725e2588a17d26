"""Reads the log of a pipe from its end: the newest lines of a level that contain a text, page by page.

Invariant: memory depends neither on the size of the log nor on what its files hold. Blocks are read backwards; a line longer than
`MAX_LINE`, or one that is no record, is left out. A page has a limited number of lines and bytes, and searches a limited part of the log;
`before` says where the next page begins. All texts are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from headrace.model.json_record import JsonRecord
from headrace.telemetry.log_writer import MAX_LINE, segments
from headrace.terminal_text import escape_text

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
MAX_LINES: Final = 500
_PAGE_BYTES: Final = 1 << 20
_SEARCHED_BYTES: Final = 32 << 20
"""The part of the log that one page searches: about a second."""
_BLOCK: Final = 64 << 10
_PLAIN: Final = re.compile(r"[a-z0-9 _.:,=/-]+")


@dataclass(frozen=True, slots=True)
class LogQuery:
    level: str = ""
    """The lowest level; empty: all."""
    search: str = ""
    """A text that the line contains, in upper or lower case."""
    before: int | None = None
    """Only lines before this position."""
    limit: int = 100
    after: int | None = None
    """Only lines after the one at this position, which was read before."""


@dataclass(frozen=True, slots=True)
class LogLine(JsonRecord):
    position: int
    """Where the line begins in the pipe's log; later lines have higher positions."""
    at: str
    level: str
    message: str
    logger: str = ""
    place: str = ""
    remedy: str = ""
    exception: str = ""
    """The traceback, with its line breaks."""


@dataclass(frozen=True, slots=True)
class LogPage(JsonRecord):
    lines: tuple[LogLine, ...]
    """Oldest first."""
    before: int | None
    """Where the search continues; None: there are no older lines."""
    newest: int | None = None
    """The position of the newest line that was searched: `after` of the next query."""


def read_page(directory: Path, query: LogQuery) -> LogPage:
    """Return the newest lines that match."""
    levels, wanted = LEVELS[LEVELS.index(query.level) if query.level else 0 :], query.search.casefold()
    # Plain letters stand in JSON as they are, so most lines need not be parsed.
    plain = wanted.encode() if _PLAIN.fullmatch(wanted) else b""
    found: list[LogLine] = []
    size, newest = 0, query.after
    for index, (position, raw) in enumerate(_lines_backwards(directory, query.before)):
        if query.after is not None and position <= query.after:
            break
        newest = position if index == 0 else newest
        line = _parse(position, raw, levels) if plain in raw.lower() else None
        if line is not None and (not wanted or wanted in _text(line)):
            found.append(line)
            size += len(raw)
        if len(found) >= query.limit or size >= _PAGE_BYTES or (newest or 0) - position >= _SEARCHED_BYTES:
            return LogPage(tuple(reversed(found)), position, newest)
    return LogPage(tuple(reversed(found)), None, newest)


def _text(line: LogLine) -> str:
    return "\n".join((line.message, line.place, line.remedy, line.exception, line.logger)).casefold()


def _parse(position: int, raw: bytes, levels: Collection[str]) -> LogLine | None:
    try:
        record: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or record.get("level") not in levels:
        return None
    texts = {name: escape_text(_string(record, name)) for name in ("message", "logger", "place", "remedy")}
    exception = "\n".join(map(escape_text, _string(record, "exception").split("\n")))
    return LogLine(position, escape_text(_string(record, "ts")), record["level"], exception=exception, **texts)


def _string(record: dict[str, Any], name: str) -> str:
    value = record.get(name, "")
    return value if isinstance(value, str) else ""


def _lines_backwards(directory: Path, before: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield complete lines with their positions, newest first."""
    for start, path in reversed(segments(directory)):
        if before is not None and start >= before:
            continue
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                for offset, line in _file_backwards(file, size if before is None else min(size, before - start)):
                    yield start + offset, line
        except FileNotFoundError:
            # The writer has removed the oldest segment.
            return


def _file_backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    # What follows the last line break is still being written.
    rest: bytes | None = None
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        block = file.read(end - begin)
        stop = len(block)
        while (cut := block.rfind(b"\n", 0, stop)) >= 0:
            if rest is not None and stop - cut - 1 + len(rest) <= MAX_LINE:
                yield begin + cut + 1, block[cut + 1 : stop] + rest
            rest, stop = b"", cut
        if rest is not None:
            # Of a line that is too long, enough is kept to recognise it.
            rest = (block[:stop] + rest)[: MAX_LINE + 1]
        end = begin
    if rest is not None and len(rest) <= MAX_LINE:
        yield 0, rest
