"""Escapes characters that control a terminal, end a line, or reorder text.

Invariant: what is escaped here is escaped in JSON's own way (a backslash, u and four digits): in a line of JSON the value stays the same.
JSON's quoting already escapes the control characters below the space. Works on whole columns, with one scan of the bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.terminal_text import FORMAT_RANGES, UNSAFE, escape_text

_PATTERN: Final = "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in FORMAT_RANGES) + "]"
_SUSPECT: Final = np.zeros(256, dtype=bool)
_SUSPECT[[chr(code).encode()[0] for first, last in FORMAT_RANGES for code in range(first, last + 1)]] = True


def escape_unsafe(texts: Any) -> Any:
    """Escape the characters of quoted texts that control a terminal."""
    data = texts.buffers()[2]
    if data is None or not _SUSPECT[np.frombuffer(data, dtype=np.uint8)].any():
        return texts
    found = texts.filter(pc.fill_null(pc.match_substring_regex(texts, _PATTERN), False))
    # Usually few rows: collect the distinct characters of all of them first.
    there = {character for text in pc.unique(found).to_pylist() for character in UNSAFE.findall(text)} if len(found) else set()
    for character in sorted(there):
        texts = pc.replace_substring(texts, character, escape_text(character))
    return texts


def as_text(array: Any) -> Any:
    return array.cast(pa.string())
