"""Recognizes JSON records: Debezium's envelope, the flat row of `ExtractNewRecordState`, or no row at all.

Each layout gives the paths of an event's parts. Flat rows may carry fields about their event: by default with two underscores before the
name (`__op`, `__deleted`, `__source_ts_ms`, `__table`, `__lsn`), with or without `source_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from headrace.sources.debezium.events.fields import ConnectField, RowFields
from headrace.sources.debezium.events.parsed_events import SOURCE
from headrace.sources.debezium.formats.json_program import ObjectMembers, Path, ScanProgram, build_program, members_of_paths
from headrace.sources.debezium.types.connect_schema import is_envelope


class RecordType(StrEnum):
    """The kind of a record."""

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
    if any(_looks_like_envelope(document) for document in documents):
        messages = all(document.get("op") == "m" and isinstance(document.get("message"), dict) for document in documents)
        return RecordType.MESSAGE if messages else RecordType.ENVELOPE
    if all(document.keys() >= _TRANSACTION and document["status"] in ("BEGIN", "END") for document in documents):
        return RecordType.TRANSACTION
    if all(document.keys() >= _SCHEMA_CHANGE and isinstance(document["source"], dict) for document in documents):
        return RecordType.SCHEMA_CHANGE
    beats = topic.startswith(_HEARTBEATS) or (isinstance(key, dict) and key.keys() == {"serverName"})
    return RecordType.HEARTBEAT if beats and all("ts_ms" in document for document in documents) else RecordType.FLAT


def _looks_like_envelope(document: dict[str, Any]) -> bool:
    return isinstance(document.get("source"), dict) and isinstance(document.get("op"), str)


def about_event(name: str, prefix: str) -> str | None:
    """Return which event property a flat row's field holds; None if it is a column."""
    if not prefix or not name.startswith(prefix):
        return None
    rest = name.removeprefix(prefix)
    short = rest.removeprefix("source_")
    return rest if rest in _ABOUT else short if short in _ABOUT else None


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
