"""Converts text from the server's character sets to UTF-8.

Values in row events are in their column's own character set. They become exactly what the server's own conversion to utf8mb4 returns in a
SELECT, so that a row has the same text from the snapshot and from the log. That includes the question marks for characters without a
meaning. Only values that are not Unicode in any form (an unpaired surrogate, bytes that are not UTF-8 in a UTF-8 column) are rejected: the
server would return them unchanged, and no string type could hold them.

The servers' own tables were recorded by `testkit` in a compressed file next to this module. Every character set that is not a form of
Unicode is a list of pages: the code points of consecutive last bytes after a prefix. All code points are below U+10000, so two surrogates,
which are no characters, mark the other cases. Both server families convert every character alike, so there is one table per set.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.sources.mysql.kernels import charsets as kernels

Array = Any  # pyarrow ships no types
Transcoder = Callable[[Array], Array]

UTF8: Final = frozenset({"utf8mb4", "utf8mb3", "utf8"})
_WIDE: Final = {"ucs2": kernels.UCS2, "utf16": kernels.UTF16, "utf16le": kernels.UTF16LE, "utf32": kernels.UTF32}
_NO_FOURS: Final[npt.NDArray[np.int32]] = np.empty(0, dtype=np.int32)
_SPARE: Final = 8
TABLES: Final = Path(__file__).with_name("charset_tables.xz")
UNASSIGNED, MALFORMED = 0xD800, 0xD801
"""A character without a meaning, for which the servers print a question mark; bytes that are no character."""

FOUR_BYTES: Final = b"\0\0\0"
"""The prefix of the page of gb18030's four-byte characters, which are numbered consecutively."""


class NotUnicode(ValueError):
    """A value that is no text in any form of Unicode: its index in the array."""

    def __init__(self, index: int) -> None:
        super().__init__(f"value {index} is not Unicode")
        self.index = index


class UnknownCharset(ValueError):
    """A character set, or a collation number, that no known server has."""


class TextTooLarge(ValueError):
    """More text in one block than Arrow's offsets can address: the index of the value that exceeds them."""

    def __init__(self, index: int) -> None:
        super().__init__(f"value {index} does not fit")
        self.index = index


@dataclass(frozen=True, slots=True)
class _Trie:
    entries: npt.NDArray[np.int32]
    four: npt.NDArray[np.int32]
    ascii_same: bool
    growth: int
    """The most bytes of output per byte of input."""


def charset_of_collation(number: int) -> str:
    charset = load_tables().collations.get(number)
    if charset is None:
        raise UnknownCharset(f"collation {number}")
    return charset


@functools.cache
def transcoder(charset: str) -> Transcoder:
    """Return the function that converts an array of values in the character set to UTF-8. It raises NotUnicode."""
    if charset in UTF8:
        return _checked
    if charset in _WIDE:
        return functools.partial(_from_wide, _WIDE[charset])
    if charset not in load_tables().directory:
        raise UnknownCharset(f"character set {charset}")
    return functools.partial(_from_trie, _trie(charset))


def decode_text(charset: str, raw: bytes) -> str:
    """Decode a single name in the character set, with question marks for invalid bytes, as the server shows it."""
    if charset in UTF8 or charset == "binary":
        return raw.decode("utf8", "replace").replace("\ufffd", "?")
    convert = functools.partial(_from_wide, _WIDE[charset], lenient=True) if charset in _WIDE else transcoder(charset)
    return str(convert(pa.array([raw], pa.binary()))[0].as_py())


def _checked(array: Array) -> Array:
    data, offsets = _contents(array)
    if not kernels.is_ascii(data, int(offsets[0]), int(offsets[-1])) and not kernels.is_utf8(data, offsets):
        raise NotUnicode(kernels.find_bad_utf8(data, offsets))
    return _as_string(array)


def _from_trie(trie: _Trie, array: Array) -> Array:
    data, offsets = _contents(array)
    if trie.ascii_same and kernels.is_ascii(data, int(offsets[0]), int(offsets[-1])):
        return _as_string(array)

    def convert(out: npt.NDArray[np.uint8], out_offsets: npt.NDArray[np.int32]) -> int:
        return kernels.transcode_trie(data, offsets, trie.entries, trie.four, trie.ascii_same, out, out_offsets)

    return _converted(array, offsets, trie.growth, convert)


def _from_wide(form: int, array: Array, *, lenient: bool = False) -> Array:
    data, offsets = _contents(array)

    # Two bytes become at most three, four become four, and an odd one becomes a question mark.
    def convert(out: npt.NDArray[np.uint8], out_offsets: npt.NDArray[np.int32]) -> int:
        return kernels.transcode_wide(data, offsets, form, out, out_offsets)

    return _converted(array, offsets, 2, convert, lenient=lenient)


def _converted(
    array: Array,
    offsets: npt.NDArray[np.int32],
    growth: int,
    convert: Callable[[npt.NDArray[np.uint8], npt.NDArray[np.int32]], int],
    *,
    lenient: bool = False,
) -> Array:
    """Run a conversion into new buffers. The validity bitmap, and the offset into it, stay the array's own."""
    out = np.empty(int(offsets[-1] - offsets[0]) * growth + _SPARE, dtype=np.uint8)
    out_offsets = np.zeros(array.offset + len(array) + 1, dtype=np.int32)
    status = convert(out, out_offsets[array.offset :])
    if status <= kernels.TOO_LARGE:
        raise TextTooLarge(kernels.TOO_LARGE - status)
    if status >= 0 and not lenient:
        raise NotUnicode(status)
    buffers = [array.buffers()[0], pa.py_buffer(out_offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(array), buffers, offset=array.offset)


def _contents(array: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    _, bounds, data = array.buffers()
    if bounds is None or len(array) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(len(array) + 1, dtype=np.int32)
    offsets = np.frombuffer(bounds, dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)
    return np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8), offsets


def _as_string(array: Array) -> Array:
    if array.type == pa.string():
        return array
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), offset=array.offset)


@functools.cache
def _trie(charset: str) -> _Trie:
    pages: dict[bytes, npt.NDArray[np.int32]] = {b"": np.full(256, kernels.NO_CHARACTER, dtype=np.int32)}
    four = _NO_FOURS
    for page in load_tables().pages(charset):
        points = np.array(page.points, dtype=np.int32)
        if page.prefix == FOUR_BYTES:
            four = points
            continue
        for size in range(1, len(page.prefix) + 1):
            pages.setdefault(page.prefix[:size], np.full(256, kernels.NO_CHARACTER, dtype=np.int32))
        pages[page.prefix][page.first : page.first + len(points)] = _entries(points)
    numbers = {prefix: number for number, prefix in enumerate(pages)}
    for prefix, number in numbers.items():
        if prefix:
            pages[prefix[:-1]][prefix[-1]] = -1 - number
    single = pages[b""]
    ascii_same = bool((single[:128] == _entries(np.arange(128, dtype=np.int32))).all())
    return _Trie(np.concatenate(list(pages.values())), four, ascii_same, max(2, int((single >> kernels.LENGTH_SHIFT).max())))


def _entries(points: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return code points below U+10000 as trie entries: UTF-8 bytes, and their number in the highest byte."""
    points = np.where(points == UNASSIGNED, ord("?"), points)
    two = 0x80C0 | points >> 6 | (points & 63) << 8 | 2 << kernels.LENGTH_SHIFT
    three = 0x8080E0 | points >> 12 | (points >> 6 & 63) << 8 | (points & 63) << 16 | 3 << kernels.LENGTH_SHIFT
    found = np.where(points < 0x80, points | 1 << kernels.LENGTH_SHIFT, np.where(points < 0x800, two, three))
    return np.where(points == MALFORMED, kernels.NO_CHARACTER, found).astype(np.int32)


@dataclass(frozen=True, slots=True)
class CodePage:
    """The code points after a prefix, for the last bytes from `first` on."""

    prefix: bytes
    first: int
    points: Sequence[int]


@dataclass(frozen=True, slots=True)
class Tables:
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
