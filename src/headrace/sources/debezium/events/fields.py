"""Fields of events, as Kafka Connect's schemas describe them, independent of the wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class WireFormat(StrEnum):
    """In what form values of a format come out of its parser."""

    JSON = "json"
    """Numbers, texts and booleans as JSON has them; bytes as base64; structs as structs."""
    AVRO = "avro"
    """As Avro has them; bytes as bytes."""


@dataclass(frozen=True, slots=True)
class ConnectField:
    """One field."""

    name: str
    type: str
    """Connect's word: int8, int16, int32, int64, float32 (in JSON: float), float64 (double), boolean, string, bytes, array, map, struct."""
    semantic: str = ""
    """The schema's name, such as `io.debezium.time.MicroTimestamp`; empty for a plain value."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True
    default: Any = None
    fields: tuple[ConnectField, ...] = ()
    """Of a struct."""
    items: ConnectField | None = None
    """Of an array."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """A table's row as events describe it."""

    row: tuple[ConnectField, ...]
    key: tuple[str, ...]
    """The names of the key's fields, in order; none for a table without a key."""
