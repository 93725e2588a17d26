"""The servers' own character set tables, recorded by `testkit` in a compressed file next to this module.

Every character set that is not a form of Unicode is a list of pages: the code points of consecutive last bytes after a prefix. All code
points are below U+10000, so two surrogates, which are no characters, mark the other cases. Both server families convert every character
alike, so there is one table per set.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

TABLES: Final = Path(__file__).with_name("charset_tables.xz")
UNASSIGNED, MALFORMED = 0xD800, 0xD801
"""A character without a meaning, for which the servers print a question mark; bytes that are no character."""

FOUR_BYTES: Final = b"\0\0\0"
"""The prefix of the page of gb18030's four-byte characters, which are numbered consecutively."""


@dataclass(frozen=True, slots=True)
class CodePage:
    """The code points after a prefix, for the last bytes from `first` on."""

    prefix: bytes
    first: int
    points: Sequence[int]


@dataclass(frozen=True, slots=True)
class Tables:
    """The file's content."""

    collations: Mapping[int, str]
    """From a collation's number to its character set."""
    directory: Mapping[str, Sequence[tuple[str, int, int]]]
    """Per character set, its pages: prefix, first last byte, count."""
    starts: Mapping[str, int]
    points: npt.NDArray[np.uint16]

    def pages(self, charset: str) -> Iterator[CodePage]:
        at = self.starts[charset]
        for prefix, first, count in self.directory[charset]:
            yield CodePage(bytes.fromhex(prefix), first, self.points[at : at + count].tolist())
            at += count


@functools.cache
def load_tables() -> Tables:
    raw = lzma.decompress(TABLES.read_bytes())
    size = int.from_bytes(raw[:4], "little")
    header: dict[str, Any] = json.loads(raw[4 : 4 + size])
    deltas = np.frombuffer(raw, dtype="<u2", offset=4 + size)
    collations = {
        number: charset for charset, ranges in header["collations"].items() for first, last in ranges for number in range(first, last + 1)
    }
    directory = {charset: [tuple(page) for page in pages] for charset, pages in header["pages"].items()}
    starts, at = {}, 0
    for charset, pages in directory.items():
        starts[charset] = at
        at += sum(count for _, _, count in pages)
    return Tables(collations, directory, starts, np.cumsum(deltas, dtype=np.uint16))
