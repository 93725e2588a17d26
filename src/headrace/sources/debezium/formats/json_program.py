"""Compiles the requested values of a JSON text to the tables that the scan kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.errors import DefiniteError
from headrace.kernels.pointers import Bytes
from headrace.sources.debezium.events.fields import ConnectField
from headrace.sources.debezium.kernels.json_scan import MAX_LEVELS, MEMBER_COLUMNS, NODE_COLUMNS, Table

Path = tuple[str, ...]
_PADDING = 16


@dataclass(frozen=True, slots=True)
class ObjectMembers:
    """An object: its members, in the order in which they are expected, each a value or an object."""

    members: Mapping[str, ObjectMembers | None]
    strict: bool = False
    """Whether unlisted members are recorded."""
    passed: frozenset[str] = frozenset()
    """Members that are expected only to find the next one quickly: their values are checked, not recorded."""


@dataclass(frozen=True, slots=True)
class ScanProgram:
    """A shape as tables, and the slot of each value."""

    names: Bytes
    nodes: Table
    members: Table
    slots: Mapping[Path, int]
    longest_name: int


def members_of_paths(fields: tuple[ConnectField, ...], *, strict: bool = False) -> ObjectMembers:
    """Return the shape of fields. Structs are objects; arrays and maps are read later, from their text."""
    return ObjectMembers({field.name: members_of_paths(field.fields) if field.type == "struct" else None for field in fields}, strict)


def build_program(shape: ObjectMembers) -> ScanProgram:
    names = bytearray()
    nodes: list[list[int]] = []
    members: list[list[int]] = []
    slots: dict[Path, int] = {}
    waiting: list[tuple[ObjectMembers, Path]] = [(shape, ())]
    while waiting:
        shape, path = waiting.pop(0)
        if len(path) >= MAX_LEVELS:
            raise DefiniteError(f"the event's schema is nested more than {MAX_LEVELS} levels deep", place=".".join(path))
        nodes.append([len(members), len(shape.members), int(shape.strict)])
        for name, below in shape.members.items():
            text = name.encode()
            noted = name not in shape.passed
            if noted:
                slots[(*path, name)] = len(slots)
            # Breadth-first order.
            child = len(nodes) + len(waiting) if below is not None else -1
            members.append([len(names), len(text), int(_is_plain(name)), child, len(slots) - 1 if noted else -1])
            names += text
            if below is not None:
                waiting.append((below, (*path, name)))
    return ScanProgram(
        np.frombuffer(names + bytearray(_PADDING), dtype=np.uint8),
        np.array(nodes, dtype=np.int64).reshape(-1, NODE_COLUMNS),
        np.array(members, dtype=np.int64).reshape(-1, MEMBER_COLUMNS),
        slots,
        max((member[1] for member in members), default=0),
    )


def _is_plain(name: str) -> bool:
    """Whether the name needs no escapes in JSON."""
    return not any(character in '"\\' or character < " " for character in name)
