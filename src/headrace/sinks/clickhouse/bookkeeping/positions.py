"""Progress of each pipe: the table `headrace.positions` with one current row per pipe, and the view `headrace.lag`.

Invariant: when the row is written, the tables contain every change before `position`, except the tables in `incomplete`, whose snapshot
runs. The row is written after a batch's data and before the batch is committed: after a crash it may be ahead of the checkpoint, never
ahead of the data. A replayed batch is not counted again, because its end is not above the stored position.
"""

from __future__ import annotations

from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTable, OwnTables, format_timestamp, parse_timestamp_us
from headrace.sinks.clickhouse.server.identifiers import quote_text

_MOMENT = "DateTime64(6, 'UTC')"
POSITIONS = OwnTable(
    "positions",
    (
        ("pipe", "String"),
        ("source", "String"),
        ("position", "String"),
        ("gtid", "String"),
        ("version", "UInt64"),
        ("commit_time", f"Nullable({_MOMENT})"),
        ("rows", "UInt64"),
        ("total_rows", "UInt64"),
        ("incomplete", "Array(String)"),
        ("updated_at", _MOMENT),
        ("seen_at", _MOMENT),
        ("pending_since", f"Nullable({_MOMENT})"),
        ("state", "String"),
    ),
    ("pipe",),
)
LAG = "lag"
STOPPED_S = 30
"""A pipe without a heartbeat for this long counts as stopped."""


def prepare_positions(tables: OwnTables) -> None:
    """Create the table and the view."""
    tables.ensure(POSITIONS)
    tables.create_view(
        LAG,
        "SELECT pipe, source, position, version, commit_time, "
        # The lag of a stopped pipe counts from its last heartbeat.
        f"ifNull(greatest(dateDiff('millisecond', multiIf(pending_since IS NOT NULL, pending_since, "
        f"silent_seconds > {STOPPED_S}, toNullable(seen_at), NULL), now64(6, 'UTC')), 0) / 1000, 0) AS lag_seconds, "
        "dateDiff('millisecond', updated_at, now64(6, 'UTC')) / 1000 AS idle_seconds, "
        "dateDiff('millisecond', seen_at, now64(6, 'UTC')) / 1000 AS silent_seconds, "
        f"rows, total_rows, incomplete FROM {POSITIONS.qualified} FINAL",
    )


def write_progress(tables: OwnTables, progress: Progress) -> None:
    row = {
        "pipe": progress.pipe,
        "source": progress.source,
        "position": progress.position,
        "gtid": progress.gtid,
        "version": progress.version,
        "commit_time": format_timestamp(progress.commit_us) if progress.commit_us else None,
        "rows": progress.rows,
        "total_rows": progress.total_rows,
        "incomplete": list(progress.incomplete),
        "updated_at": format_timestamp(progress.updated_us),
        "seen_at": format_timestamp(progress.seen_us),
        "pending_since": format_timestamp(progress.pending_us) if progress.pending_us else None,
        "state": progress.state,
    }
    tables.insert(POSITIONS, [row])


def read_progress(tables: OwnTables, pipe: str) -> Progress | None:
    """Return a pipe's stored progress; None if there is none."""
    existing_tables = tables.columns(POSITIONS)
    if not existing_tables:
        return None
    # Headrace 0.9 created the table without the last two columns; a pipe adds them when it starts.
    names = [name for name, _ in POSITIONS.columns if name in existing_tables]
    rows = tables.select(POSITIONS, names, f"pipe = {quote_text(pipe)}")
    if not rows:
        return None
    row = dict(zip(names, rows[0], strict=True))
    commit, pending = row["commit_time"], row.get("pending_since")
    return Progress(
        row["pipe"],
        row["source"],
        row["position"],
        int(row["version"]),
        parse_timestamp_us(commit) if commit is not None else 0,
        int(row["rows"]),
        int(row["total_rows"]),
        parse_timestamp_us(row["updated_at"]),
        parse_timestamp_us(row["seen_at"]),
        row["gtid"],
        tuple(row["incomplete"]),
        parse_timestamp_us(pending) if pending is not None else 0,
        row.get("state", ""),
    )
