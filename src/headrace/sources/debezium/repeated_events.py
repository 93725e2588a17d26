"""Finds the events of a piece that a target has counted already, for tables whose target counts rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.debezium.events.event_versions import TableVersioning, VersionRule, Versions
from headrace.sources.debezium.events.parsed_events import DELETE, MESSAGE, READ, SOURCE, TRUNCATE, EventParser, Events
from headrace.sources.debezium.events.records import Records
from headrace.sources.debezium.events.source_marks import KEEP_NEWEST, MarkedEvents, Marks, SourceMark, find_repeated

UNCOUNTABLE = (
    "only envelopes of Debezium's connectors for MySQL and MariaDB, whose events have a position in the binary log, show which events the "
    "connector sends twice"
)


def check_countable(table: TableName, order: TableVersioning, parser: EventParser, place: str) -> None:
    """Raise `DefiniteError` if events do not show whether they were counted already."""
    if order.rule is not VersionRule.BINLOG or parser.saw_flat:
        raise DefiniteError(f"the target of {table} counts rows: {UNCOUNTABLE}", place=place, hint=KEEP_NEWEST)


def repeated_records(
    table: TableName, parts: Sequence[tuple[Events, tuple[Versions, Versions]]], records: Records, marks: Marks
) -> tuple[npt.NDArray[np.bool_], SourceMark | None]:
    """Return which records repeat an event of the table, and the mark after them. `parts`: its events by schema, with their versions."""
    repeated = np.zeros(records.rows, np.bool_)
    rows = [np.flatnonzero((events.op != TRUNCATE) & (events.op != MESSAGE)) for events, _ in parts]
    record = np.concatenate([events.record[some] for (events, _), some in zip(parts, rows, strict=True)])
    if not len(record):
        return repeated, None
    order = np.argsort(record, kind="stable")
    record = record[order]
    op = np.concatenate([events.op[some] for (events, _), some in zip(parts, rows, strict=True)])[order]
    made = [np.where(events.op == DELETE, *versions)[some] for (events, versions), some in zip(parts, rows, strict=True)]
    source = pa.Table.from_batches([events.source.take(pa.array(some)) for (events, _), some in zip(parts, rows, strict=True)], SOURCE)
    batch = source.take(pa.array(order)).combine_chunks().to_batches()[0]
    ends = np.cumsum([len(some) for some in rows])

    def digest(row: int) -> str:
        place = int(order[row])
        part = int(np.searchsorted(ends, place, side="right"))
        return _digest(parts[part][0], int(rows[part][place - (int(ends[part - 1]) if part else 0)]))

    time_us = pc.fill_null(pc.coalesce(batch["ts_us"], records.timestamp.take(pa.array(record))), 0)
    found, mark = find_repeated(
        (table, records.topic, records.partition),
        marks,
        MarkedEvents(
            op == READ,
            op == DELETE,
            np.concatenate(made)[order],
            np.asarray(time_us.to_numpy(zero_copy_only=False), dtype=np.int64),
            batch,
            records.offset.to_numpy(zero_copy_only=False)[record],
            digest,
        ),
    )
    repeated[record[found]] = True
    return repeated, mark


def _digest(events: Events, row: int) -> str:
    """Return a digest of an event's content. A field without a value does not count: a newer schema may add it."""
    (image,) = events.image.slice(row, 1).to_pylist()
    content = sorted((name, repr(value)) for name, value in image.items() if value is not None)
    return hashlib.sha256(repr((int(events.op[row]), content)).encode()).hexdigest()[:32]
