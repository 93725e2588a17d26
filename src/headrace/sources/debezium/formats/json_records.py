"""Groups JSON records by the schema in the record itself, or none.

All records of a table version contain the same schema bytes, so each distinct text is parsed once and recognized by comparing bytes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.errors import DefiniteError
from headrace.sources.debezium.events.fields import ConnectField
from headrace.sources.debezium.events.parsed_events import Rows
from headrace.sources.debezium.formats.json_columns import TextColumn
from headrace.sources.debezium.kernels.json_scan import PAYLOAD_AT, PAYLOAD_END, SCHEMA_AT, SCHEMA_END, UNLIKE, WRAP_COLUMNS, Table, unwrap
from headrace.sources.debezium.types.connect_schema import field_of

_NO_SCHEMA: Final = b"null"


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """Records under one schema of the value and one of the key."""

    rows: Rows
    """Indices of the texts."""
    payloads: TextColumn
    value: ConnectField | None
    """None without a schema."""
    key: ConnectField | None
    """The key's schema, if it has one."""
    name: tuple[bytes | None, bytes | None]
    """The texts of both schemas, which identify the group."""


@functools.lru_cache(maxsize=1024)
def schema_of(text: bytes) -> ConnectField | DefiniteError:
    """The schema of a text, or its problem."""
    try:
        return field_of(json.loads(text), "value")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return DefiniteError("its schema cannot be read", hint="check the connector's value.converter")
    except DefiniteError as error:
        return error


@dataclass(frozen=True, slots=True)
class GroupedRecords:
    """The parts of texts."""

    parts: tuple[RecordGroup, ...]
    problems: Mapping[int, DefiniteError]
    """Texts whose schema cannot be read."""
    empty: Rows
    """Texts that are JSON null."""


def group_records(values: TextColumn, keys: TextColumn) -> GroupedRecords:
    """Group the texts of values by the schemas in them and in the texts of their keys."""
    of_values, of_keys = _Unwrapped(values), _Unwrapped(keys)
    problems: dict[int, DefiniteError] = {}
    empty = _nulls(of_values.payloads)
    parts = []
    pairs = of_values.ids * (len(of_keys.texts) + 1) + of_keys.ids
    pairs[empty] = -1
    for pair in np.unique(pairs[pairs >= 0]).tolist():
        rows = np.flatnonzero(pairs == pair)
        value, key = (of_values.texts[pair // (len(of_keys.texts) + 1)], of_keys.texts[pair % (len(of_keys.texts) + 1)])
        value_field = None if value is None else schema_of(value)
        key_field = None if key is None else schema_of(key)
        wrong = next((field for field in (value_field, key_field) if isinstance(field, DefiniteError)), None)
        if wrong is not None:
            problems.update(dict.fromkeys(rows.tolist(), wrong))
            continue
        assert not isinstance(value_field, DefiniteError)
        assert not isinstance(key_field, DefiniteError)
        parts.append(RecordGroup(rows, of_values.payloads.take(rows), value_field, key_field, (value, key)))
    return GroupedRecords(tuple(parts), problems, empty)


class _Unwrapped:
    """Remove the schemas from texts: `ids` is the index into `texts` of each one's schema (None: no schema)."""

    def __init__(self, whole: TextColumn) -> None:
        wraps = np.zeros((len(whole), WRAP_COLUMNS), dtype=np.int64)
        unwrap(whole.data, whole.starts, whole.stops, wraps)
        self.texts: list[bytes | None] = [None]
        self.ids = np.zeros(len(whole), dtype=np.int64)
        wrapped = wraps[:, PAYLOAD_END] > 0
        if not wrapped.any():
            self.payloads = whole
            return
        self.payloads = TextColumn(
            whole.data, np.where(wrapped, wraps[:, PAYLOAD_AT], whole.starts), np.where(wrapped, wraps[:, PAYLOAD_END], whole.stops)
        )
        self._number(whole, wraps, wrapped)

    def _number(self, whole: TextColumn, wraps: Table, wrapped: Any) -> None:
        unlike = np.flatnonzero(wraps[:, UNLIKE])
        known: dict[bytes, int] = {_NO_SCHEMA: 0}
        numbers = []
        for row in unlike.tolist():
            text = whole.data[wraps[row, SCHEMA_AT] : wraps[row, SCHEMA_END]].tobytes()
            if text not in known:
                known[text] = len(self.texts)
                self.texts.append(text)
            numbers.append(known[text])
        # A schema applies until the next one.
        latest = np.searchsorted(unlike, np.flatnonzero(wrapped), side="right") - 1
        self.ids[wrapped] = np.array(numbers, dtype=np.int64)[latest]


def _nulls(texts: TextColumn) -> Rows:
    short = np.flatnonzero(texts.stops - texts.starts <= 16)
    return np.array([row for row in short.tolist() if texts.text(row).strip(b" \t\r\n") == b"null"], dtype=np.int64)


def objects(texts: TextColumn, most: int = 4) -> Iterator[dict[str, Any]]:
    """Return samples of the texts that are JSON objects: the first ones, a middle one, the last."""
    rows = len(texts)
    for row in dict.fromkeys((*range(min(most, rows)), rows // 2, rows - 1)) if rows else ():
        found = parsed(texts.text(row))
        if isinstance(found, dict):
            yield found


def parsed(text: bytes) -> Any:
    """Parse a text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
