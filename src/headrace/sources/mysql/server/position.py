"""A position in a server's binary log. It is Spark's offset, and versions are derived from it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import total_ordering
from typing import Any, Final, Self

from headrace.errors import DefiniteError
from headrace.model.version import pack_version

UNKNOWN_GTID: Final = "unknown"
"""The `gtid` of a position whose executed GTID set could not be read, because the server committed all the time."""


def file_number(name: str) -> int:
    """Return the number in a log file's name, `binlog.000042` -> 42."""
    digits = name.rpartition(".")[2]
    if not digits.isdigit():
        raise DefiniteError(f"binary log file {name!r} has no number in its name")
    return int(digits)


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """A transaction as every server that has replicated it logs it."""

    gtid: str
    committed_us: int = 0
    """When the original server committed it, in microseconds; 0 if the log does not say (MariaDB, MySQL before 8)."""
    second: int = 0
    """The second in which its first statement with rows, or its only statement, began; 0 if its events are compressed."""
    rows: str = ""
    """MariaDB: number of columns and digest of the first rows; empty if they are compressed, or if there are none."""

    def contradicts(self, other: LoggedTransaction) -> bool:
        """Whether the other one cannot be this transaction, although it has the same GTID."""
        if self.committed_us and other.committed_us:
            return self.committed_us != other.committed_us
        if self.second and other.second and self.second != other.second:
            return True
        width, _, digest = self.rows.partition(":")
        other_width, _, other_digest = other.rows.partition(":")
        # A replica may have more columns. Then the bytes of its rows may differ.
        return width == other_width and digest != other_digest


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Identifies the log file of a position, up to the position."""

    created: int
    """Seconds since 1970 in the header of the file's format description event."""
    start: int
    end: int
    digest: str
    """Of the bytes [start, end) of the file."""
    transaction: LoggedTransaction | None = None
    """The last transaction with a GTID before the position."""

    def to_json(self) -> list[Any]:
        last = self.transaction
        named = [] if last is None else list(astuple(last))
        return [self.created, self.start, self.end, self.digest, *named]

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        created, start, end, digest, *named = raw
        return cls(int(created), int(start), int(end), str(digest), LoggedTransaction(*named) if named else None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The prepared half of an XA transaction: bytes [start, end) of `file`. Its rows count when the XA COMMIT comes."""

    xid: str
    """As XA statements write it: `X'67',X'62',1`."""
    file: str
    start: int
    end: int
    growth: int
    """The number of bytes by which it grows when its compressed events are decompressed."""
    checksum: bool

    @property
    def size(self) -> int:
        """The number of addresses that its rows take."""
        return self.end - self.start + self.growth


@total_ordering
@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """`offset` in `file`, after the transactions in `gtid`; ordered within one server's log (one epoch)."""

    file: str
    offset: int
    gtid: str = ""
    epoch: int = 0
    ahead: bool = False
    """Whether `gtid` may hold transactions after this position. They are skipped when the log is read from here."""
    shift: int = 0
    """The growth of this file's compressed events up to here, from the start of reading (see `event_expander`)."""
    prepared: tuple[Prepared, ...] = ()
    """XA transactions that are prepared at this position and neither committed nor rolled back, in log order."""
    identity: LogIdentity | None = None
    """Identifies the log of this position; None if version 0.9 saved the position, or if it only marks a point in time."""

    @property
    def version(self) -> int:
        """The version of rows that were read when the log ended here. It is below the version of every later event."""
        return pack_version(self.epoch, file_number(self.file), self.offset + self.shift)

    def with_version_after(self, other: BinlogPosition | None) -> BinlogPosition:
        """Return this position with a version above everything that was read up to `other`, and below every later event.

        `other` is an earlier position. The distance between addresses and offsets only grows along a file, so everything after `other` is
        shifted at least as far as `other` itself.
        """
        if other is None or (other.epoch, other.file) != (self.epoch, self.file) or other > self:
            return self
        return replace(self, shift=max(self.shift, other.shift))

    @property
    def _order(self) -> tuple[int, int, int]:
        return self.epoch, file_number(self.file), self.offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BinlogPosition) and self._order == other._order

    def __lt__(self, other: BinlogPosition) -> bool:
        return self._order < other._order

    def __hash__(self) -> int:
        return hash(self._order)

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    def to_json(self) -> dict[str, Any]:
        raw: dict[str, Any] = {"file": self.file, "pos": self.offset, "gtid": self.gtid, "epoch": self.epoch}
        if self.ahead:
            raw["ahead"] = True
        if self.shift:
            raw["shift"] = self.shift
        if self.prepared:
            raw["prepared"] = [list(astuple(one)) for one in self.prepared]
        if self.identity is not None:
            raw["log"] = self.identity.to_json()
        return raw

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> BinlogPosition:
        return cls(
            str(raw["file"]),
            int(raw["pos"]),
            str(raw.get("gtid", "")),
            int(raw.get("epoch", 0)),
            bool(raw.get("ahead", False)),
            int(raw.get("shift", 0)),
            tuple(Prepared(*one) for one in raw.get("prepared", ())),
            LogIdentity.from_json(raw["log"]) if "log" in raw else None,
        )
