"""Groups JSON records by their schema, and recognizes them: Debezium's envelope, the flat row of `ExtractNewRecordState`, or no row at all.

All records of a table version contain the same schema bytes, so each distinct text is parsed once and recognized by comparing bytes. Each
layout gives the paths of an event's parts. Flat rows may carry fields about their event: by default with two underscores before the name
(`__op`, `__deleted`, `__source_ts_ms`, `__table`, `__lsn`), with or without `source_`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from headrace.errors import DefiniteError
from headrace.sources.debezium.events.parsed_events import SOURCE, ConnectField, RowFields, Rows
from headrace.sources.debezium.formats.json_columns import ObjectMembers, Path, ScanProgram, TextColumn, build_program, members_of_paths
from headrace.sources.debezium.kernels.json_scan import PAYLOAD_AT, PAYLOAD_END, SCHEMA_AT, SCHEMA_END, UNLIKE, WRAP_COLUMNS, Table, unwrap
from headrace.sources.debezium.types.connect_schema import field_of, is_envelope

_TRANSACTION: Final = frozenset({"status", "id", "event_count", "data_collections"})
_SCHEMA_CHANGE: Final = frozenset({"source", "ddl", "databaseName"})
"""Members that identify such records without a schema name. (A row mistaken for one would be lost.)"""
_HEARTBEATS: Final = "__debezium-heartbeat"
# In the order in which connectors write them: the scan follows it.
_SOURCE_MEMBERS: Final = (
    *("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema", "table"),
    *("server_id", "gtid", "file", "pos", "row", "thread", "query", "txId", "lsn", "xmin"),
)
_PASSED: Final = frozenset({"transaction", "ts_ms", "ts_us", "ts_ns"})
"""Unused members of an envelope."""
_ABOUT: Final = frozenset({*_SOURCE_MEMBERS, "op", "deleted", "ts_ms", "transaction_id"})
"""Event fields of flat rows, after the prefix and an optional `source_`."""
_DELETED: Final = "__deleted"
"""The field of a rewritten deletion. The connector's prefix (`add.fields.prefix`) does not apply to it."""
_NO_SCHEMA: Final = b"null"


class RecordType(StrEnum):
    ENVELOPE = "envelope"
    FLAT = "flat"
    HEARTBEAT = "heartbeat"
    TRANSACTION = "transaction"
    SCHEMA_CHANGE = "schema change"
    MESSAGE = "message"
    """Of PostgreSQL's pg_logical_emit_message."""


NO_ROWS: Final = frozenset({RecordType.HEARTBEAT, RecordType.TRANSACTION, RecordType.SCHEMA_CHANGE, RecordType.MESSAGE})

_SCHEMA_NAMES: Final = {
    "Heartbeat": RecordType.HEARTBEAT,
    "TransactionMetadataValue": RecordType.TRANSACTION,
    "SchemaChangeValue": RecordType.SCHEMA_CHANGE,
    "MessageValue": RecordType.MESSAGE,
}


@dataclass(frozen=True, slots=True)
class EventLayout:
    """Paths of an event's parts in a text. A missing path means that the text does not contain the part."""

    program: ScanProgram
    fields: RowFields
    op: Path
    deleted: Path | None
    after: Path
    before: Path | None
    source: Mapping[str, Path]
    """By the names in `SOURCE`, and `ts_ms`."""
    silent: frozenset[str] = frozenset()
    """Fields that had no value so far, so their type is unknown."""


def classify_record(value: ConnectField | None, documents: list[dict[str, Any]], topic: str, key: Any = None) -> RecordType:
    """Return the kind of records by their schema; without one, by samples and the key of one."""
    if value is not None:
        named = _SCHEMA_NAMES.get(value.semantic.rpartition(".")[2])
        return named or (RecordType.ENVELOPE if is_envelope(value) else RecordType.FLAT)
    if not documents:
        return RecordType.FLAT
    if any(isinstance(document.get("source"), dict) and isinstance(document.get("op"), str) for document in documents):
        messages = all(document.get("op") == "m" and isinstance(document.get("message"), dict) for document in documents)
        return RecordType.MESSAGE if messages else RecordType.ENVELOPE
    if all(document.keys() >= _TRANSACTION and document["status"] in ("BEGIN", "END") for document in documents):
        return RecordType.TRANSACTION
    if all(document.keys() >= _SCHEMA_CHANGE and isinstance(document["source"], dict) for document in documents):
        return RecordType.SCHEMA_CHANGE
    beats = topic.startswith(_HEARTBEATS) or (isinstance(key, dict) and key.keys() == {"serverName"})
    return RecordType.HEARTBEAT if beats and all("ts_ms" in document for document in documents) else RecordType.FLAT


def about_event(names: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the fields of a flat row that are not columns, and the event property that each holds."""
    found = {}
    for name in names:
        if prefix and name.startswith(prefix):
            rest = name.removeprefix(prefix)
            said = rest if rest in _ABOUT else rest.removeprefix("source_")
            if said in _ABOUT:
                found[name] = said
        if name == _DELETED:
            found[name] = "deleted"
    return found


def envelope_layout(fields: RowFields, silent: frozenset[str] = frozenset()) -> EventLayout:
    """`silent`: fields of rows without any value so far."""
    row = ObjectMembers({**members_of_paths(fields.row).members, **dict.fromkeys(sorted(silent))}, strict=True)
    paths = {name: ("source", name) for name in (*SOURCE.names, "ts_ms")}
    source = ObjectMembers(dict.fromkeys(_SOURCE_MEMBERS), passed=frozenset(_SOURCE_MEMBERS) - paths.keys())
    members = {"before": row, "after": row, "source": source, "transaction": None, "op": None, "ts_ms": None, "ts_us": None, "ts_ns": None}
    return EventLayout(build_program(ObjectMembers(members, passed=_PASSED)), fields, ("op",), None, ("after",), ("before",), paths, silent)


def flat_layout(fields: RowFields, about: Mapping[str, str], silent: frozenset[str] = frozenset()) -> EventLayout:
    """`about`: the event properties of fields that are not columns."""
    row = members_of_paths(fields.row)
    members = {**row.members, **dict.fromkeys(about), **dict.fromkeys(sorted(silent))}
    paths: dict[str, Path] = {}
    for name, said in about.items():
        # The row's source fields take precedence over its event fields (`__source_ts_ms`, `__ts_ms`).
        if said not in paths or "source_" in name:
            paths[said] = (name,)
    deleted = paths.get("deleted")
    return EventLayout(build_program(ObjectMembers(members, strict=True)), fields, paths.get("op", ()), deleted, (), None, paths, silent)


def presence_program() -> ScanProgram:
    """Return a minimal program that checks a whole text."""
    return build_program(ObjectMembers({}))


def names_program() -> ScanProgram:
    """Return the fields that name the table of an envelope."""
    return build_program(ObjectMembers({"source": ObjectMembers({"db": None, "schema": None, "table": None})}))


def names_of_key(key: Any) -> tuple[str, ...]:
    """Return the field names of a key in JSON, with or without its schema; none for a key that is no object."""
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        key = key["payload"]
    return tuple(key) if isinstance(key, dict) else ()


@dataclass(frozen=True, slots=True)
class RecordGroup:
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
    try:
        return field_of(json.loads(text), "value")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return DefiniteError("its schema cannot be read", hint="check the connector's value.converter")
    except DefiniteError as error:
        return error


@dataclass(frozen=True, slots=True)
class GroupedRecords:
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
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
