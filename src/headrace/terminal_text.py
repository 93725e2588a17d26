"""Text that a terminal shows as it is: the one place that escapes names and values before people read them.

Invariant: escaped text is one line without control, format or direction characters, so that it cannot move the cursor, end a line, forge
another line, or change the order of letters. The escapes are those of JSON (`\\n`, `\\u001b`), so inside a JSON string they keep the value.
Escaping twice changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

CONTROL_RANGES: Final = ((0x00, 0x1F),)
"""C0 controls, which JSON's own quoting escapes."""
FORMAT_RANGES: Final = (
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x600, 0x605),
    (0x61C, 0x61C),
    (0x6DD, 0x6DD),
    (0x70F, 0x70F),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x180E, 0x180E),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0001, 0xE0001),
    (0xE0020, 0xE007F),
)
"""DEL, C1 controls, and Unicode's categories Cf, Zl and Zp: characters that are invisible, end lines or change the direction of text."""
_SURROGATES: Final = ((0xD800, 0xDFFF),)
"""Bytes of arguments and file names that are not UTF-8."""


def _character_class(*ranges: tuple[int, int]) -> str:
    return "[" + "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges) + "]"


UNSAFE: Final = re.compile(_character_class(*CONTROL_RANGES, *FORMAT_RANGES, *_SURROGATES))


def escape_text(text: str) -> str:
    """Return a name, a value or an external message as one line that a terminal shows unchanged."""
    return text if text.isascii() and text.isprintable() else UNSAFE.sub(lambda found: json.dumps(found.group())[1:-1], text)


def print_line(text: str, *, file: TextIO | None = None) -> None:
    """Print one escaped line and flush."""
    print(escape_text(text), file=file, flush=True)


@contextmanager
def exit_on_closed_stdout() -> Iterator[None]:
    """Exit without an error when the reader of stdout has closed it (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
