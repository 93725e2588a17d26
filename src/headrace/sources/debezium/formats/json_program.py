"""What is wanted of a JSON text, as the tables that the compiled scan reads."""

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
    """Whether a member that is not listed is noted."""
    passed: frozenset[str] = frozenset()
    """Members that are only expected, so that the next one is found at once: their values are checked and not noted."""


@dataclass(frozen=True, slots=True)
class ScanProgram:
    """A shape as tables, and where each of its values is noted."""

    names: Bytes
    nodes: Table
    members: Table
    slots: Mapping[Path, int]
    longest_name: int


def members_of_paths(fields: tuple[ConnectField, ...], *, strict: bool = False) -> ObjectMembers:
    """Structs are objects; what is in arrays and maps is read later, from their text."""
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
            # Nodes come in the order in which they wait.
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
