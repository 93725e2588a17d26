"""A second snapshot of a table without a key: the pipe halts, or its rows replace all older ones, by choice.

Invariant: what the target shows of such a table are rows of one snapshot and the changes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.debezium.choices import SecondSnapshot
from headrace.sources.debezium.records import Truncation
from headrace.sources.debezium.snapshots import Snapshot

Known = Mapping[tuple[TableName, str], Snapshot]
"""The snapshot whose rows the target shows, by table and topic."""


def newest_snapshots(
    known: Known, seen: Iterable[Snapshot], chosen: SecondSnapshot, replaceable: Callable[[TableName], bool]
) -> tuple[dict[tuple[TableName, str], Snapshot], list[Truncation]]:
    """The snapshots that count after a batch in which rows of these were seen, and from which versions on their tables are begun anew.

    `replaceable`: whether versions tell which rows of a table are older than a snapshot.
    """
    counts, anew = dict(known), list[Truncation]()
    for one in sorted(seen, key=lambda one: (one.table, one.topic, one.version, one.place)):
        former = counts.get((one.table, one.topic))
        if former is None:
            counts[one.table, one.topic] = one
        elif former.place == one.place:
            begins = former.begins | one.begins
            if len(begins) > 1:
                raise _at_one_place(one)
            counts[one.table, one.topic] = replace(former, begins=begins, version=max(former.version, one.version))
        else:
            if chosen is SecondSnapshot.HALT or not replaceable(one.table) or one.version <= former.version:
                raise _second(former, one, replaceable=replaceable(one.table))
            counts[one.table, one.topic] = one
            anew.append(Truncation(one.table, one.version))
    return counts, anew


def _second(former: Snapshot, one: Snapshot, *, replaceable: bool) -> DefiniteError:
    if replaceable and one.version <= former.version:
        hint = "if the source's log begins anew, raise debezium.epoch by one, too"
    elif replaceable:
        hint = "let them replace all older rows: --set debezium.second_snapshot=replace"
    else:
        hint = "empty the copy, and begin anew with another --state from the new snapshot on (--start)"
    return DefiniteError(
        f"table {one.table} has no key, and the connector has taken a second snapshot of it, at {one.place or 'no place that it says'} "
        f"(the first: {former.place or 'no place that it says'}): its rows would stand beside those of the first",
        place=_where(one),
        hint=f"{hint}; or let the connector make a key (message.key.columns) and begin anew",
    )


def _at_one_place(one: Snapshot) -> DefiniteError:
    return DefiniteError(
        f"table {one.table} has no key, and the connector has begun its snapshot twice, both at {one.place or 'no place that it says'}: "
        "its rows are there twice, and nothing tells which are of the first",
        place=_where(one),
        hint="empty the copy, and begin anew with another --state from the new snapshot on (--start), or let the connector make a key "
        "(message.key.columns)",
    )


def _where(one: Snapshot) -> str:
    last = max(one.begins, default=None)
    return one.topic if last is None else f"{one.topic}[{last[0]}]@{last[1]}"
