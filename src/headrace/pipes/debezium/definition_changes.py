"""Finds tables whose definitions changed in the source so that values of events without a schema have another meaning.

`1234` is 12.34 or 0.1234 by the scale of a DECIMAL, and milliseconds or microseconds by the precision of a DATETIME. The topic of schema
changes has all definitions of a table, each with its position in the source's log; a reader compares the events with them
(`sources.debezium.types.definition_periods`). The topic is read again when it has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName, TableSchema
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.records import DefinitionPeriod
from headrace.sources.debezium.schema_history_topic import TableDefinition, read_record
from headrace.sources.debezium.types.column_mapping import is_guessed
from headrace.sources.debezium.types.definition_periods import source_name
from headrace.sources.debezium.types.inferred_fields import MILLIS_DIGITS, expected_field

_PLAIN: Final = ""
"""The meaning of values that are what their JSON shows."""
_MILLIS, _MICROS = "io.debezium.time.Timestamp", "io.debezium.time.MicroTimestamp"
_BIGINT_BITS: Final = 64
_MOMENTS: Final = (ValueForm.DATE, ValueForm.TIMESTAMP, ValueForm.TIME)
Periods = Mapping[TableName, tuple[DefinitionPeriod, ...]]


@dataclass(slots=True)
class DefinitionChanges:
    """The definitions in a topic of schema changes, up to its end at the last query."""

    options: DebeziumOptions
    records: Callable[[], list[bytes]]
    """Reads all records of the topic."""
    end: Callable[[], int]
    """Returns the number of offsets in the topic."""
    _end: int = 0
    _definitions: dict[TableName, list[TableDefinition]] = field(default_factory=dict)
    _found: dict[TableName, tuple[TableSchema, frozenset[str], Periods]] = field(default_factory=dict)

    def follow(self) -> None:
        """Read the topic again if it has grown."""
        end = self.end()
        if end == self._end:
            return
        self._definitions, self._found = {}, {}
        for value in self.records():
            for one in read_record(value):
                self._definitions.setdefault(one.table, []).append(one)
        self._end = end

    def periods(self, known: TableSchema, topics: Iterable[str], read: Callable[[], TableSchema]) -> Periods:
        """Return the periods of a table that these topics fill, by its name in the source; empty if no event can be misread.

        `read`: returns the table with the columns that are replicated."""
        names = frozenset(topics)
        found = self._found.get(known.name)
        if found is None or found[0] is not known or found[1] != names:
            wanted = {known.name, *(source_name(known.name, topic) for topic in names)}
            described = {name: self._definitions[name] for name in wanted if name in self._definitions}
            columns = read().columns if described else ()
            periods = {name: _periods(columns, definitions, self.options) for name, definitions in described.items()}
            found = self._found[known.name] = known, names, periods if any(periods.values()) else {}
        return found[2]


def _periods(known: Iterable[Column], definitions: Iterable[TableDefinition], options: DebeziumOptions) -> tuple[DefinitionPeriod, ...]:
    """Return the periods of a table; none if all events without a schema can be read by the known types."""
    described = [(one, {column.name: column for column in one.schema.columns}) for one in definitions if one.schema is not None]
    misread: list[set[str]] = [set() for _ in described]
    for column in (column for column in known if not is_guessed(column)):
        found = [_differs(column, there.get(column.name), options) for _, there in described]
        # A target's text holds whatever its values show, unless the source's column was such a text at some time.
        if any(found) and (_meaning(column, options) or False in found):
            for names, differs in zip(misread, found, strict=True):
                if differs:
                    names.add(column.name)
    if not any(misread):
        return ()
    pairs = zip(described, misread, strict=True)
    return tuple(DefinitionPeriod(*one.position, frozenset(names), one.ddl) for (one, _), names in pairs)


def _differs(known: Column, defined: Column | None, options: DebeziumOptions) -> bool | None:
    """Return whether a value of the defined column is misread as one of the known column; None if there is no such column."""
    if defined is None:
        return None
    if known.form is ValueForm.INTEGER and defined.form is ValueForm.INTEGER:
        # With `long`, values of BIGINT UNSIGNED from 2^63 on are negative in events.
        return _is_unsigned_bigint(known) != _is_unsigned_bigint(defined) and (known.type.signed or defined.type.signed)
    one, other = _meaning(known, options), _meaning(defined, options)
    if known.type.zoned and other.startswith("io.debezium.time") and "Timestamp" in other:
        # A number in a column of texts is read by the column's precision.
        one = _MILLIS if known.precision <= MILLIS_DIGITS else _MICROS
    return one != other and not (defined.type.zoned and known.form in _MOMENTS)


def _is_unsigned_bigint(column: Column) -> bool:
    return column.type.bits == _BIGINT_BITS and not column.type.signed


def _meaning(column: Column, options: DebeziumOptions) -> str:
    field = expected_field(column, options)
    if column.form is ValueForm.DECIMAL:
        return f"decimal with scale {column.scale}" if field.type == "bytes" else _PLAIN
    if column.form in _MOMENTS:
        return _PLAIN if field.type == "string" else field.semantic
    return "bytes" if column.form is ValueForm.BYTES else _PLAIN
