"""Debezium events as single changes.

Values stay as the event has them: a base64 decimal stays base64. (`headrace replicate` converts columns to their types.)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.kafka.avro.decoder import Decoder
from headrace.kafka.consumers.row_changes import What
from headrace.kafka.schema_repository import SchemaRepository

CONFLUENT_HEAD: Final = 5
_WHAT: Final = {"c": What.INSERT, "r": What.INSERT, "u": What.UPDATE, "d": What.DELETE}
_NO_ROWS: Final = ({"status", "id"}, {"ddl", "databaseName"})
"""Fields of messages that describe no rows: transaction boundaries and schema changes."""
_FLAT: Final = ("__op", "__deleted", "__table", "__db", "__source_ts_ms")


@dataclass(frozen=True, slots=True)
class Event:
    """The row change in an event."""

    what: What
    database: str
    table: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    is_snapshot: bool
    transaction: str | None
    committed_ms: int | None
    source_ms: int | None = None
    """The source's commit time; equal when the event is sent again."""


class EventReader:
    """Reads JSON (with or without a schema) and Avro with registry ids; caches schemas."""

    def __init__(self, repository: SchemaRepository | None = None) -> None:
        self._repository = repository
        self._decoders: dict[int, Decoder] = {}

    def tree(self, value: bytes) -> Any:
        """Return the event as plain values; raise `DefiniteError` if the bytes are not an event."""
        if value[:1] != b"\0":
            try:
                found = orjson.loads(value)
            except orjson.JSONDecodeError as error:
                raise DefiniteError(f"it is neither JSON nor Avro: {error}") from error
            return found["payload"] if isinstance(found, dict) and found.keys() == {"schema", "payload"} else found
        if len(value) < CONFLUENT_HEAD:
            raise DefiniteError("it is too short for a message in Avro")
        if self._repository is None:
            raise DefiniteError("it is Avro, and no registry is given", hint="give the address of the registry: registry=http://…")
        (number,) = struct.unpack(">i", value[1:CONFLUENT_HEAD])
        if number not in self._decoders:
            self._decoders[number] = Decoder(self._repository.by_id(number))
        decoded = self._decoders[number].decode(pa.array([value], pa.binary()), skip=CONFLUENT_HEAD)
        if decoded.bad:
            raise DefiniteError(f"its Avro body cannot be read: {decoded.bad[0].reason}")
        return decoded.values[0].as_py()

    def event(self, value: bytes) -> Event | None:
        """Return the change of a row; None for other events: truncation, message, heartbeat, transaction boundary, schema change."""
        found = self.tree(value)
        if found is None:
            # Connect's JSON converter writes some tombstones like this.
            return None
        if not isinstance(found, dict):
            raise DefiniteError("it is not a change event")
        if "op" in found and ("after" in found or "before" in found):
            return _from_envelope(found)
        if any(name in found for name in ("__op", "__deleted")):
            return _from_flat(found)
        if "op" in found or {"ts_ms"} == found.keys() or any(names <= found.keys() for names in _NO_ROWS):
            return None
        raise DefiniteError("it is not a change event: it has neither `op` nor `__op` nor `__deleted`")


def _from_envelope(found: Mapping[str, Any]) -> Event | None:
    what = _WHAT.get(found["op"])
    if what is None:
        return None
    source = found.get("source") or {}
    transaction = (found.get("transaction") or {}).get("id")
    return Event(
        what,
        source.get("db") or "",
        source.get("table") or source.get("collection") or "",
        found.get("before"),
        found.get("after"),
        found["op"] == "r",
        transaction if transaction is not None else source.get("gtid"),
        source.get("ts_ms") or found.get("ts_ms"),
        source.get("ts_ms"),
    )


def _from_flat(found: Mapping[str, Any]) -> Event | None:
    op = found.get("__op") or ("d" if str(found.get("__deleted")).lower() == "true" else "u")
    what = _WHAT.get(op)
    if what is None:
        return None
    row = {name: value for name, value in found.items() if name not in _FLAT}
    is_deletion = what is What.DELETE
    return Event(
        what,
        found.get("__db") or "",
        found.get("__table") or "",
        row if is_deletion else None,
        None if is_deletion else row,
        op == "r",
        None,
        found.get("__source_ts_ms"),
        found.get("__source_ts_ms"),
    )
