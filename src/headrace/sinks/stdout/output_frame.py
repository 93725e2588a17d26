"""Text that the driver prints around the lines of an output: at its beginning, around transactions, and around rows of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Framing:
    """What is printed before and after lines."""

    preface: bytes = b""
    before_transaction: bytes = b""
    after_transaction: bytes = b""
    before_snapshot: bytes = b""
    after_snapshot: bytes = b""


UNFRAMED: Final = Framing()
