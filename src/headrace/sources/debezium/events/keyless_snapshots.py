"""Snapshots of tables without a key.

Equal rows of such a table cannot be distinguished, so a second snapshot would duplicate the first. Therefore each snapshot is reported
with its identity: the log position at which it was taken, and where its records begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.schema import TableName

_FIRST: Final = pa.array(["first", "first_in_data_collection"])


@dataclass(frozen=True, slots=True)
class KeylessSnapshot:
    table: TableName
    topic: str
    place: str
    """The log position at which it was taken; empty if its rows do not contain it."""
    version: int
    """The epoch of its rows."""
    begins: frozenset[tuple[int, int]] = frozenset()
    """Partition and offset of the records marked as its first."""

    def to_json(self) -> list[Any]:
        return [self.table.database, self.table.table, self.topic, self.place, self.version, sorted(self.begins)]

    @classmethod
    def from_json(cls, raw: list[Any]) -> KeylessSnapshot:
        database, table, topic, place, version, begins = raw
        return cls(TableName(database, table), topic, place, version, frozenset((partition, offset) for partition, offset in begins))


def find_snapshots(
    table: TableName, topic: str, partition: int, source: pa.RecordBatch, offset: npt.NDArray[np.int64], version: npt.NDArray[np.uint64]
) -> list[KeylessSnapshot]:
    """Return the snapshots of these rows; `source` holds their source fields."""
    log = pc.binary_join_element_wise(source["file"], pc.cast(source["pos"], pa.string()), ":")
    names = pc.fill_null(pc.coalesce(log, pc.cast(source["lsn"], pa.string())), "").dictionary_encode()
    codes = names.indices.to_numpy()
    first = pc.is_in(source["snapshot"], value_set=_FIRST).to_numpy(zero_copy_only=False)
    found = []
    for code, place in enumerate(names.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        begins = frozenset((partition, int(offset[row])) for row in rows[first[rows]].tolist())
        found.append(KeylessSnapshot(table, topic, place, int(version[rows].max()), begins))
    return found


def check_first(known: Mapping[tuple[TableName, str], KeylessSnapshot], seen: Iterable[KeylessSnapshot], *, replaceable: bool) -> None:
    """Raise `DefiniteError` if rows are from another snapshot than those in the sink."""
    for one in seen:
        former = known.get((one.table, one.topic))
        if former is not None and former.place != one.place:
            raise second_snapshot(former, one, replaceable=replaceable)
        if former is not None and len(former.begins | one.begins) > 1:
            raise begun_twice(one)


def second_snapshot(former: KeylessSnapshot, one: KeylessSnapshot, *, replaceable: bool) -> DefiniteError:
    if replaceable and one.version <= former.version:
        hint = "if the source's log was reset, also raise debezium.epoch by one"
    elif replaceable:
        hint = "let them replace all older rows: --set debezium.second_snapshot=replace"
    else:
        hint = "empty the target, and start over with another --state from the new snapshot on (--start)"
    return DefiniteError(
        f"table {one.table} has no key, and the connector has taken a second snapshot of it, at {one.place or 'an unknown position'} "
        f"(the first: {former.place or 'an unknown position'}): its rows would be added to those of the first",
        place=_where(one),
        hint=f"{hint}; or configure a key in the connector (message.key.columns) and start over",
    )


def begun_twice(one: KeylessSnapshot) -> DefiniteError:
    return DefiniteError(
        f"table {one.table} has no key, and the connector has started its snapshot twice, both at {one.place or 'an unknown position'}: "
        "its rows exist twice, and nothing distinguishes the first ones",
        place=_where(one),
        hint="empty the target, and start over with another --state from the new snapshot on (--start), or let the connector make a key "
        "(message.key.columns)",
    )


def _where(one: KeylessSnapshot) -> str:
    last = max(one.begins, default=None)
    return one.topic if last is None else f"{one.topic}[{last[0]}]@{last[1]}"
