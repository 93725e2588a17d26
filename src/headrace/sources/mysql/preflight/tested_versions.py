"""The server versions that the tests run on, and what is known to differ in others. `docs/mysql.md` has the same table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.sources.mysql.preflight.server_facts import ServerFacts
from headrace.sources.mysql.server.server_version import Version, parse_version
from headrace.sources.preflight import Finding, failure, ok, warning

OLDEST_MYSQL: Final = (5, 6)
"""Older servers send no checksums and have no variables of GTIDs, which replication queries."""
TESTED: Final = {"MariaDB": ("10.11", "11.8"), "MySQL": ("9.7",)}
"""The release series that the tests run on."""


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """What differs from the tested versions in a range of versions, from `first` on and before `end`."""

    product: str
    first: tuple[int, int]
    end: tuple[int, int]
    text: str

    def applies_to(self, product: str, version: Version) -> bool:
        return product == self.product and self.first <= version[:2] < self.end


_ANY: Final = (10_000, 0)
KNOWN_DIFFERENCES: Final = (
    KnownDifference("MySQL", (5, 6), (5, 7), "binlog_format is STATEMENT by default"),
    KnownDifference("MySQL", (5, 6), (8, 0), "no binlog_row_metadata: the schema history names the columns"),
    KnownDifference(
        "MySQL", (8, 0), (8, 1), "binlog_row_metadata from 8.0.1, partial JSON from 8.0.3, compressed transactions from 8.0.20"
    ),
    KnownDifference("MySQL", (5, 6), (8, 2), "the log's position comes from SHOW MASTER STATUS"),
    KnownDifference("MySQL", (5, 6), (9, 6), "foreign-key cascades are in no log: Headrace applies them in ClickHouse"),
    KnownDifference("MySQL", (5, 6), (8, 3), "no tagged GTIDs"),
    KnownDifference("MySQL", (5, 6), (9, 0), "no VECTOR type"),
    KnownDifference("MySQL", (9, 8), _ANY, "newer than the tests: an event type that Headrace does not know halts the pipe"),
    KnownDifference("MariaDB", (0, 0), (10, 5), "no binlog_row_metadata: the schema history names the columns"),
    KnownDifference("MariaDB", (0, 0), (10, 7), "no UUID type"),
    KnownDifference("MariaDB", (0, 0), (10, 10), "no INET4 type"),
    KnownDifference("MariaDB", (0, 0), (11, 5), "TIMESTAMP ends in 2038"),
    KnownDifference("MariaDB", (0, 0), (11, 7), "no VECTOR type; the log has the position of every event (later: binlog_legacy_event_pos)"),
    KnownDifference(
        "MariaDB",
        (11, 9),
        _ANY,
        "newer than the tests: row events in parts (PARTIAL_ROW_DATA) and logs in InnoDB (binlog_storage_engine) are not supported; an "
        "event type that Headrace does not know halts the pipe",
    ),
)


def differences_of(product: str, version: Version) -> list[str]:
    """Return what is known to differ in a version from the tested ones."""
    return [known.text for known in KNOWN_DIFFERENCES if known.applies_to(product, version)]


def is_tested(product: str, version: Version) -> bool:
    """Whether the tests run on the release series of a version."""
    return f"{version[0]}.{version[1]}" in TESTED[product]


def check_version(facts: ServerFacts) -> Iterator[Finding]:
    """Check the server's version: is it tested, and otherwise, what is known to differ?"""
    yield judge_version(facts.product, facts.version)


def judge_version(product: str, text: str) -> Finding:
    """Return the finding about a version that a server reports."""
    version, value = parse_version(text), f"{product} {text}"
    names = "; ".join(f"{name} {' and '.join(series)}" for name, series in TESTED.items())
    if product == "MySQL" and version[:2] < OLDEST_MYSQL:
        repair = "upgrade the server, or copy its log files: headrace replicate binlog:DIRECTORY"
        meaning = "a MySQL server before 5.6 sends no checksums and no GTIDs; only its copied log files are read"
        return failure("server", value, meaning, repair)
    if is_tested(product, version):
        return ok("server", value, f"one of the versions that the tests run on ({names})")
    differences = differences_of(product, version)
    meaning = f"the tests do not run on this version (they run on {names})"
    if differences:
        meaning += f"; known differences: {'; '.join(differences)}"
    return warning("server", value, meaning, "compare the copy with the source: headrace verify")
