"""Stores each pipe's progress (`headrace.positions`) and definition (`headrace.pipes`) in the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTable, OwnTables
from headrace.sinks.clickhouse.bookkeeping.positions import prepare_positions, read_progress, write_progress
from headrace.sinks.clickhouse.server.identifiers import quote_text

PIPES = OwnTable(
    "pipes",
    (
        ("pipe", "String"),
        ("source", "String"),
        ("selection", "String"),
        ("options", "String"),
        ("state", "String"),
        ("host", "String"),
        ("statement", "String"),
        ("created", "DateTime64(6, 'UTC')"),
    ),
    ("pipe",),
)


@dataclass(frozen=True, slots=True)
class ClickHouseProgressStore:
    """A `ProgressStore` in Headrace's own tables."""

    own: OwnTables

    @property
    def is_in_sink(self) -> bool:
        return True

    def begin(self) -> None:
        prepare_positions(self.own)

    def progress(self, pipe: str) -> Progress | None:
        return read_progress(self.own, pipe)

    def tell(self, progress: Progress) -> None:
        write_progress(self.own, progress)

    def register(self, pipe: Mapping[str, str]) -> None:
        """Store a pipe's row; creation time and statement of an earlier row of the same pipe stay."""
        self.own.ensure(PIPES)
        row, names = dict(pipe), ("state", "host", "created", "statement")
        for state, host, created, statement in self.own.select(PIPES, names, f"pipe = {quote_text(pipe['pipe'])}"):
            if (state, host) == (row["state"], row["host"]):
                row |= {"created": created, "statement": row["statement"] or statement}
        self.own.insert(PIPES, [row])
