"""Encodes splits as JSON and decodes them, and defines the splits that need no reader.

Splits exist only while their batch runs: the checkpoint stores offsets, from which a planner plans the same splits again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from headrace.errors import DefiniteError
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName
from headrace.sources.base import Json, Offset, Split

S = TypeVar("S", bound=Split)


@dataclass(frozen=True, slots=True)
class MarkSplit(JsonRecord):
    """A batch without rows, which ends at `until`."""

    split_kind: ClassVar[str] = "mark"
    once: ClassVar[bool] = False
    until: Offset


@dataclass(frozen=True, slots=True)
class StatementSplit(JsonRecord):
    """A statement in the log, which the driver processes."""

    split_kind: ClassVar[str] = "statement"
    once: ClassVar[bool] = False
    query: Json
    """The query event."""
    offset: Offset
    """The position behind it."""
    created_with_rows: TableName | None = None
    """The table that the statement creates from a SELECT: its rows are in the same transaction, and are not read from the log."""


def encode_split(split: Split) -> str:
    """Return a split as JSON."""
    return json.dumps({"split_kind": split.split_kind, **split.to_json()})


def split_kind(text: str) -> object:
    """Return the kind of an encoded split."""
    return json.loads(text).get("split_kind")


def decode_split(text: str, types: Iterable[type[S]]) -> S:
    """Return the split of one of these types that `encode_split` has encoded; raise `DefiniteError` if it is of another type."""
    raw = json.loads(text)
    kind = raw.pop("split_kind", None)
    for found in types:
        if found.split_kind == kind:
            return found.from_json(raw)
    raise DefiniteError(
        f"the task cannot run a split of kind {kind!r}", hint="run the same version of Headrace on the driver and on executors"
    )
