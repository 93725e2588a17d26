"""Claims on target tables: `headrace.targets`, one row per table and state directory.

A claim is removed by inserting a row with `removed = true`: the last row wins, and no mutation has to run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from headrace.sinks.clickhouse.bookkeeping.own_tables import MOMENT, OwnTable, OwnTables, format_timestamp, parse_timestamp_us
from headrace.sinks.clickhouse.bookkeeping.progress_store import POSITIONS
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.target_claims import Claim

TARGETS: Final = OwnTable(
    "targets",
    (
        ("target", "String"),
        ("state", "String"),
        ("pipe", "String"),
        ("source", "String"),
        ("host", "String"),
        ("directory", "String"),
        ("claimed_at", MOMENT),
        ("created", "Bool"),
        ("removed", "Bool"),
    ),
    ("target", "state"),
)

_TEXTS: Final = ("target", "state", "pipe", "source", "host", "directory")


@dataclass(frozen=True, slots=True)
class ClickHouseTargetClaims:
    """All claims of one server or cluster."""

    own: OwnTables

    def read(self) -> list[Claim]:
        if not self.own.exists(TARGETS):
            return []
        self.own.sync(TARGETS)
        rows = self.own.select(TARGETS, ("claimed_at", "created", *_TEXTS), "NOT removed", "target, state")
        return [
            Claim(**dict(zip(_TEXTS, texts, strict=True)), claimed_us=parse_timestamp_us(claimed_at), created=created)
            for claimed_at, created, *texts in rows
        ]

    def write(self, claims: Sequence[Claim]) -> None:
        self.own.ensure(TARGETS)
        self.own.insert(TARGETS, _rows(claims, removed=False))

    def remove(self, claims: Sequence[Claim]) -> None:
        self.own.insert(TARGETS, _rows(claims, removed=True))

    def existing(self, targets: Collection[str]) -> set[str]:
        return self.own.existing_tables(targets)

    def last_seen_us(self, claim: Claim) -> int:
        # Headrace 0.9 created the table without the state's id.
        if "state" not in self.own.columns(POSITIONS):
            return 0
        rows = self.own.select(POSITIONS, ("seen_at",), f"state = {quote_text(claim.state)}")
        return max((parse_timestamp_us(seen) for (seen,) in rows), default=0)


def _rows(claims: Iterable[Claim], *, removed: bool) -> list[dict[str, Any]]:
    return [{**asdict(claim), "claimed_at": format_timestamp(claim.claimed_us), "removed": removed} for claim in claims]
