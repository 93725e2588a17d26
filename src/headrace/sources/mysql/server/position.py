"""A place in a server's binary log: Spark's offset, and what versions are made of."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import total_ordering
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.model.version import pack_version
from headrace.sources.mysql.server.log_identity import LogIdentity

UNKNOWN_GTID: Final = "unknown"
"""The `gtid` of a position whose executed GTID set could not be read, because the server committed all the time."""


def file_number(name: str) -> int:
    """The number in a log file's name, `binlog.000042` -> 42."""
    digits = name.rpartition(".")[2]
    if not digits.isdigit():
        raise DefiniteError(f"binary log file {name!r} has no number in its name")
    return int(digits)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The first half of an XA transaction, whose rows count when its XA COMMIT comes: bytes [start, end) of `file`."""

    xid: str
    """As XA statements write it: `X'67',X'62',1`."""
    file: str
    start: int
    end: int
    growth: int
    """By how many bytes it grows when its compressed events are written out."""
    checksum: bool

    @property
    def size(self) -> int:
        """How many addresses its rows take."""
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
    """Whether `gtid` may hold transactions that lie after this place: they are passed over when the log is read on from here."""
    shift: int = 0
    """How much longer this file is up to here when its compressed events are written out, from where reading started."""
    prepared: tuple[Prepared, ...] = ()
    """XA transactions that are prepared here and neither committed nor rolled back, in the order of the log."""
    identity: LogIdentity | None = None
    """Identifies the log that the position lies in; None if version 0.9 saved the position, or if it only marks a moment."""

    @property
    def version(self) -> int:
        """The version of what was read when the log stood here: below that of every later event."""
        return pack_version(self.epoch, file_number(self.file), self.offset + self.shift)

    def behind(self, other: BinlogPosition | None) -> BinlogPosition:
        """This place, with a version above all of what was read up to `other`, an earlier place, and still below every later event's.

        Addresses only move away from offsets along a file: what lies behind `other` is moved at least as far as `other` itself.
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
