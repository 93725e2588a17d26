"""Text that cannot do anything to a terminal, nor pretend to be another line or another order of letters.

Invariant: what is escaped here is escaped in JSON's own way (a backslash, u and four digits): in a line of JSON the value stays the same.
JSON's quoting sees to the characters below the space already. Whole columns; the search for what is there is one look at the bytes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_RANGES: Final = ((0x7F, 0x9F), (0x61C, 0x61C), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x2069), (0xFEFF, 0xFEFF))
"""DEL and the second set of control characters; marks that are not seen, end lines, or turn the direction of letters."""
_PATTERN: Final = "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in _RANGES) + "]"
_PYTHON: Final = re.compile("[\x00-\x1f" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _RANGES) + "]")
_SUSPECT: Final = np.zeros(256, dtype=bool)
_SUSPECT[[chr(code).encode()[0] for first, last in _RANGES for code in range(first, last + 1)]] = True


def tame(texts: Any) -> Any:
    """Quoted texts with what a terminal would heed escaped."""
    data = texts.buffers()[2]
    if data is None or not _SUSPECT[np.frombuffer(data, dtype=np.uint8)].any():
        return texts
    found = texts.filter(pc.fill_null(pc.match_substring_regex(texts, _PATTERN), False))
    # A few rows in most cases; which characters there are is asked once for all of them.
    there = {character for text in pc.unique(found).to_pylist() for character in _PYTHON.findall(text)} if len(found) else set()
    for character in sorted(there):
        texts = pc.replace_substring(texts, character, escaped(character))
    return texts


def tame_name(text: str) -> str:
    """One text."""
    return _PYTHON.sub(lambda found: escaped(found.group()), text)


def escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def as_text(array: Any) -> Any:
    return array.cast(pa.string())
