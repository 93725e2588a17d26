"""Handles a second snapshot of a table without a key: the pipe halts, or its rows replace all older ones, as configured.

Invariant: the target of such a table shows the rows of one snapshot and the changes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace.model.schema import TableName
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot, begun_twice, second_snapshot
from headrace.sources.debezium.events.options import SecondSnapshot
from headrace.sources.debezium.events.records import Truncation

Known = Mapping[tuple[TableName, str], KeylessSnapshot]
"""The snapshot whose rows the target shows, by table and topic."""


def newest_snapshots(
    known: Known, seen: Iterable[KeylessSnapshot], chosen: SecondSnapshot, replaceable: Callable[[TableName], bool]
) -> tuple[dict[tuple[TableName, str], KeylessSnapshot], list[Truncation]]:
    """Return the current snapshots after a batch, and the truncations of tables that start over with a new one.

    `replaceable`: whether versions tell which rows of a table are older than a snapshot.
    """
    counts, restarted = dict(known), list[Truncation]()
    for one in sorted(seen, key=lambda one: (one.table, one.topic, one.version, one.place)):
        former = counts.get((one.table, one.topic))
        if former is None:
            counts[one.table, one.topic] = one
        elif former.place == one.place:
            begins = former.begins | one.begins
            if len(begins) > 1:
                raise begun_twice(one)
            counts[one.table, one.topic] = replace(former, begins=begins, version=max(former.version, one.version))
        else:
            if chosen is SecondSnapshot.HALT or not replaceable(one.table) or one.version <= former.version:
                raise second_snapshot(former, one, replaceable=replaceable(one.table))
            counts[one.table, one.topic] = one
            restarted.append(Truncation(one.table, one.version))
    return counts, restarted
