"""The process's own standard output, which several pipes may share: whole lines only, one writer at a time."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError

_MOST: Final = 1 << 20


class Output:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self.left = False
        """Whether the reader has closed the output."""

    def write(self, lines: bytes | memoryview) -> None:
        """Print lines; when it returns, they are out of this process."""
        with self._turn:
            if self.left:
                raise reader_left()
            try:
                self._write(memoryview(lines))
            except BrokenPipeError:
                self.left = True
                # Python flushes stdout at exit: give it somewhere to write.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise reader_left() from None
            except OSError as error:
                raise DefiniteError(f"the output cannot be written: {error}", place="stdout", hint="give it more room") from error

    def _write(self, lines: memoryview) -> None:
        sys.stdout.flush()
        for start in range(0, len(lines), _MOST):
            sys.stdout.buffer.write(lines[start : start + _MOST])
        sys.stdout.buffer.flush()


STDOUT: Final = Output()


def reader_left() -> DefiniteError:
    return DefiniteError("the reader of the output has closed it", place="stdout", hint="run again: incomplete output is printed again")


def may_colour(wanted: str) -> bool:
    """Return whether lines have colours: always, never, or (auto) on a terminal without `NO_COLOR`."""
    if wanted != "auto":
        return wanted == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class OutputFrame:
    preface: bytes = b""
    before_transaction: bytes = b""
    after_transaction: bytes = b""


NO_FRAME: Final = OutputFrame()
