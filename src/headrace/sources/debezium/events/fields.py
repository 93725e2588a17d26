"""Fields of events, as Kafka Connect's schemas describe them, independent of the wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class WireFormat(StrEnum):
    """The form in which a format's parser returns values."""

    JSON = "json"
    """JSON numbers, strings and booleans; bytes as base64; structs as structs."""
    AVRO = "avro"
    """Avro values; bytes as bytes."""


@dataclass(frozen=True, slots=True)
class ConnectField:
    """One field."""

    name: str
    type: str
    """Connect's type: int8, int16, int32, int64, float32 (in JSON: float), float64 (double), boolean, string, bytes, array, map, struct."""
    semantic: str = ""
    """The schema's name, such as `io.debezium.time.MicroTimestamp`; empty for a plain value."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True
    default: Any = None
    fields: tuple[ConnectField, ...] = ()
    """The fields of a struct."""
    items: ConnectField | None = None
    """The items of an array."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """A table's row as events describe it."""

    row: tuple[ConnectField, ...]
    key: tuple[str, ...]
    """The names of the key's fields, in order; empty for a table without a key."""
