"""The context that a statement's text lacks: the server that wrote it, and its settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

REAL_AS_FLOAT: Final = 1 << 0
ANSI_QUOTES: Final = 1 << 2
ORACLE: Final = 1 << 9
NO_BACKSLASH_ESCAPES: Final = 1 << 20
PAD_CHAR_TO_FULL_LENGTH: Final = 1 << 31
STRICT: Final = 1 << 21 | 1 << 22


@dataclass(frozen=True, slots=True)
class Dialect:
    """The server: family, version (`MMmmpp`, as in version comments), and whether it folds the case of table names."""

    mariadb: bool
    version: int
    folds_case: bool = False
    in_utc: bool = False
    """Whether the time zone SYSTEM is UTC. Log files do not contain it; their readers assume it."""
    applies_cascades: bool = False
    """Whether the reader handles foreign keys that change rows without row events."""

    @classmethod
    def of(cls, server_version: str, *, folds_case: bool = False, in_utc: bool = False) -> Dialect:
        """Parse the version that a server reports, such as `10.11.6-MariaDB-log` or `9.7.0`."""
        # MariaDB prepends 5.5.5 to its real version in the handshake.
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", server_version.removeprefix("5.5.5-"))
        major, minor, patch = (int(part) for part in found.groups()) if found else (0, 0, 0)
        return cls("mariadb" in server_version.lower(), major * 10_000 + minor * 100 + patch, folds_case, in_utc)
