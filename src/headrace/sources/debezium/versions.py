"""What makes a change newer than another of the same row: never a clock.

A table's rule (`Order`) is fixed by its first record and kept by the driver, so that no two changes of a table are ever compared by
different rules.

- **MySQL, MariaDB** (`binlog`): epoch, number of the log file, position of the event + ordinal in it, as decision 1 has it for a log that
  Headrace reads itself. The log is in the order of commits, and a row is in an event once.
- **PostgreSQL** (`lsn`): the change's LSN. Whoever changes a row after another transaction wrote it waited for that one's commit, so a row's
  LSNs rise even where transactions overlap. Rows of a snapshot are below all changes, whatever their LSN: a transaction that was open
  when the snapshot was taken wrote its changes below the snapshot's LSN and is not in it.
- **all others** (`offset`): the record's offset: a row's records are in one partition as long as their number stays the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Rule(StrEnum):
    BINLOG = "binlog"
    LSN = "lsn"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class Order:
    """How a table's changes are ordered, for good."""

    rule: Rule
    topic: str = ""
    """With `offset`: the only topic that may lead to the table, because offsets of two cannot be compared."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Order:
        return cls(Rule(raw["rule"]), raw["topic"])


@dataclass(frozen=True, slots=True)
class Tail:
    """How a source's log was at the last event of a partition: from it the next batch can tell that the log began anew."""

    base: str = ""
    """MySQL, MariaDB: the log files' base name."""
    number: int = 0
    """The highest file number so far."""
    server_id: int = 0
    """The server that wrote the last event."""
    snapshot: int = 0
    """PostgreSQL: the LSN of the snapshot whose rows are there; 0 if none."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Tail:
        return cls(**raw)
