"""The version of a server, and the statements whose name depends on it."""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, int, int]

UNKNOWN: Final = (10_000, 0, 0)
"""The version of a server whose text is none: it is taken for the newest."""
_FIRST_BINARY_LOG_STATUS: Final = (8, 2, 0)
_FIRST_REPLICA_STATUS: Final = (8, 0, 22)
_FIRST_CACHED_STATISTICS: Final = (8, 0, 0)


def parse_version(text: str) -> Version:
    """Parse the version that a server reports, such as `11.8.6-MariaDB-log` or `8.0.36-28`."""
    # MariaDB prepends 5.5.5 to its real version in the handshake.
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text.removeprefix("5.5.5-"))
    return (int(found[1]), int(found[2]), int(found[3])) if found else UNKNOWN


def log_status_statement(*, mariadb: bool, version: Version) -> str:
    """Return the statement that shows the end of the log: MySQL 8.4 has only the new one, MariaDB and older MySQL only the old one."""
    return "SHOW MASTER STATUS" if mariadb or version < _FIRST_BINARY_LOG_STATUS else "SHOW BINARY LOG STATUS"


def replica_status_statement(*, mariadb: bool, version: Version) -> str:
    """Return the statement that shows whether the server is a replica."""
    if mariadb:
        return "SHOW ALL SLAVES STATUS"
    return "SHOW SLAVE STATUS" if version < _FIRST_REPLICA_STATUS else "SHOW REPLICA STATUS"


def caches_statistics(*, mariadb: bool, version: Version) -> bool:
    """Whether `information_schema` returns statistics that are up to a day old."""
    return not mariadb and version >= _FIRST_CACHED_STATISTICS
