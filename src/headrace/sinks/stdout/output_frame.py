"""Text that the driver prints around lines: at the beginning of the output, and around each transaction and each part of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OutputFrame:
    """What is printed before and after lines."""

    preface: bytes = b""
    before_transaction: bytes = b""
    after_transaction: bytes = b""


NO_FRAME: Final = OutputFrame()
