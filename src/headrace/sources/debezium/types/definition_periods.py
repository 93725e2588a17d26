"""Rejects events without a schema that the known types of their table would misread.

Invariant: an event passes only if its position in the source's log proves that the definition of its time gives its values the known
meaning (`pipes.debezium.definition_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.debezium.events.event_versions import file_number
from headrace.sources.debezium.events.parsed_events import Events, RowFields
from headrace.sources.debezium.events.records import DefinitionPeriod
from headrace.sources.debezium.types.inferred_fields import SEEN

_POSITION_BITS: Final = 40


def periods_of_topic(
    periods: Mapping[TableName, tuple[DefinitionPeriod, ...]], table: TableName, topic: str
) -> tuple[DefinitionPeriod, ...]:
    """Return the periods of the table whose events a topic has."""
    return periods[table] if table in periods else periods.get(source_name(table, topic), ())


def source_name(table: TableName, topic: str) -> TableName:
    """Return the table that a topic's name ends with."""
    parts = topic.split(".")
    return TableName(parts[-2], parts[-1]) if len(parts) > 1 else table


def check_periods(
    periods: Sequence[DefinitionPeriod], events: Events, expected: RowFields | None, epoch: int, place_of: Callable[[int], str]
) -> None:
    """Raise `DefiniteError` if an event without a schema may be of a period in which its values have another meaning."""
    if not periods or expected is None:
        return
    ids = {id(field) for field in expected.row}
    read = {field.name for field in events.fields.row if id(field) in ids or (SEEN in field.parameters and field.type == "int64")}
    wrong = np.array([bool(period.misread & read) for period in periods])
    if not wrong.any():
        return
    # After a change of the log, positions of the old one and the new one cannot be compared.
    at = _periods_at(periods, events.source) if not epoch else np.full(len(events.op), -1)
    rows = np.flatnonzero((at < 0) | wrong[at])
    if len(rows):
        row = int(rows[0])
        names = periods[at[row]].misread if at[row] >= 0 else frozenset().union(*(period.misread for period in periods))
        # The first period whose values have another meaning than those before it; if there is none, the only definition.
        change = periods[int(np.argmax(wrong != wrong[0]))]
        raise _misread(sorted(names & read), change.ddl, place_of(int(events.record[row])), proven=bool(at[row] >= 0))


def _misread(names: Sequence[str], ddl: str, place: str, *, proven: bool) -> DefiniteError:
    why = "is from a time" if proven else "may be from a time (its position in the log does not show it)"
    return DefiniteError(
        f"an event without a schema {why} in which {', '.join(names)} had another type than the copy knows, so its values would be "
        f"misread; the source's change: {ddl}",
        place=place,
        hint="let events carry their schemas (value.converter.schemas.enable=true), or start over with another --state and an empty target "
        "from the first event after the change (--start), at best with a new snapshot of the connector"
        + ("" if proven else "; flat rows need add.fields=source.file,source.pos,source.row,source.server_id"),
    )


def _periods_at(periods: Sequence[DefinitionPeriod], source: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the period of each event; -1 where positions do not prove it."""
    none = np.full(source.num_rows, -1)
    servers = {period.server_id for period in periods} - {0}
    files = [file_number(period.file, "") if period.file else ("", 0) for period in periods]
    starts = np.array([number << _POSITION_BITS | period.pos for (_, number), period in zip(files, periods, strict=True)], dtype=np.int64)
    if len({base for base, _ in files}) != 1 or not files[0][0] or len(servers) > 1 or (np.diff(starts) < 0).any():
        return none
    coded = source["file"].dictionary_encode()
    named = [file_number(name, "") for name in coded.dictionary.to_pylist()]
    numbers = np.array([number if base == files[0][0] else -1 for base, number in named] or [-1], dtype=np.int64)
    lacking = source["file"].is_null().to_numpy(zero_copy_only=False) | source["pos"].is_null().to_numpy(zero_copy_only=False)
    number = numbers[pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)]
    pos = pc.fill_null(source["pos"], 0).to_numpy(zero_copy_only=False)
    server = pc.fill_null(source["server_id"], -1).to_numpy(zero_copy_only=False)
    proven = ~lacking & (number >= 0) & np.isin(server, [0, *servers])
    found = np.searchsorted(starts, np.maximum(number, 0) << _POSITION_BITS | pos, side="right") - 1
    return np.where(proven, np.maximum(found, 0), none)
