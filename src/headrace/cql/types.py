"""CQL's types as values: parsed from text, printed as CQL spells them.

A type is *atomic* if a column of it is one cell: everything but collections and user types that are not frozen. What lies inside a
collection, a tuple, a user type or a vector is frozen whether it is spelled so or not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.json_record import JsonRecord

_NUMBERS: Final = frozenset({"bigint", "counter", "decimal", "double", "float", "int", "smallint", "tinyint", "varint"})
_TIMES: Final = frozenset({"date", "duration", "time", "timestamp"})
NATIVE: Final = _NUMBERS | _TIMES | {"ascii", "blob", "boolean", "inet", "text", "timeuuid", "uuid"}
COLLECTIONS: Final = frozenset({"list", "set", "map"})
_TOKEN: Final = re.compile(r'\s*("(?:[^"]|"")+"|\w+|[<>,.])')
_PLAIN: Final = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED: Final = re.compile(
    r"add|allow|alter|and|apply|asc|authorize|batch|begin|by|columnfamily|create|default|delete|desc|describe|drop|entries|execute"
    r"|from|full|grant|if|in|index|infinity|insert|into|is|keyspace|limit|mbean|mbeans|modify|nan|norecursive|not|null|of|on|or"
    r"|order|password|primary|rename|replace|revoke|schema|scylla_counter_shard_list|scylla_timeuuid_list_index|select|set|table|to"
    r"|token|truncate|unlogged|unset|update|use|using|view|where|with"
)
"""Words that no name may be without quotes, in Apache Cassandra or ScyllaDB."""


@dataclass(frozen=True, slots=True)
class CqlType(JsonRecord):
    """One type. `name` is a native type's, "list", "set", "map", "tuple", "vector" or "udt"."""

    name: str
    args: tuple[CqlType, ...] = ()
    """Component types: a list's or set's element, a map's key and value, a tuple's parts, a user type's fields, a vector's element."""
    frozen: bool = False
    """Collections and user types: whether they are one cell. (Tuples and vectors always are.)"""
    keyspace: str = ""
    udt: str = ""
    """A user type's name."""
    fields: tuple[str, ...] = ()
    """Field names of a user type, in the order of DESCRIBE TYPE; a field's index is its position here."""
    size: int = 0
    """A vector's number of elements."""

    @property
    def is_atomic(self) -> bool:
        return self.frozen or (self.name not in COLLECTIONS and self.name != "udt")

    def as_frozen(self) -> CqlType:
        """The same type as one cell."""
        return self if self.is_atomic else replace(self, frozen=True)

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.args))
        if self.name == "udt":
            plain = quoted(self.udt)
        elif self.name == "vector":
            plain = f"vector<{inner}, {self.size}>"
        else:
            plain = f"{self.name}<{inner}>" if self.args else self.name
        return f"frozen<{plain}>" if self.frozen and (self.name in COLLECTIONS or self.name == "udt") else plain


def quoted(name: str) -> str:
    """Return a name as CQL accepts it: in double quotes if it is not plain, or a reserved word."""
    return name if _PLAIN.fullmatch(name) and not _RESERVED.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def parse_type(text: str, udts: Mapping[str, CqlType] | None = None) -> CqlType:
    """A type from CQL's spelling (`map<int, frozen<ut>>`); `udts` are the keyspace's user types by name, not frozen."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+", "", text) and '"' not in text:
        raise _unknown(text, text)
    found, rest = _parse(tokens, udts or {}, text)
    if rest:
        raise _unknown(text, rest[0])
    return found


def _parse(tokens: list[str], udts: Mapping[str, CqlType], text: str) -> tuple[CqlType, list[str]]:
    if not tokens:
        raise _unknown(text, "")
    word, rest = tokens[0], tokens[1:]
    if rest and rest[0] == ".":
        word, rest = rest[1], rest[2:]
    name = word[1:-1].replace('""', '"') if word.startswith('"') else word.lower()
    if rest and rest[0] == "<" and not word.startswith('"'):
        return _parse_composite(name, rest[1:], udts, text)
    if not word.startswith('"') and name in NATIVE | {"varchar"}:
        return CqlType("text" if name == "varchar" else name), rest
    if name in udts:
        return udts[name], rest
    raise _unknown(text, name)


def _parse_composite(name: str, tokens: list[str], udts: Mapping[str, CqlType], text: str) -> tuple[CqlType, list[str]]:
    """Parse a composite type; `tokens` begin after its opening bracket."""
    args: list[CqlType] = []
    size = 0
    while True:
        if name == "vector" and args and tokens and tokens[0].isdigit():
            size, tokens = int(tokens[0]), tokens[1:]
        else:
            found, tokens = _parse(tokens, udts, text)
            args.append(found)
        if not tokens or tokens[0] not in {",", ">"}:
            raise _unknown(text, tokens[0] if tokens else "")
        end, tokens = tokens[0], tokens[1:]
        if end == ">":
            break
    if name == "frozen" and len(args) == 1:
        return args[0].as_frozen(), tokens
    wanted = {"list": 1, "set": 1, "map": 2, "vector": 1}.get(name)
    if (name != "tuple" and wanted is None) or (wanted is not None and len(args) != wanted):
        raise _unknown(text, name)
    return CqlType(name, tuple(arg.as_frozen() for arg in args), size=size), tokens


def unsupported_type(kind: CqlType) -> DefiniteError:
    return DefiniteError(f"CQL type {kind} is not supported here", hint="this is a defect of Headrace; please report it")


def _unknown(text: str, part: str) -> DefiniteError:
    return DefiniteError(f"unknown CQL type {part or 'at the end'!r}", place=f"type {text}", hint="check its spelling, or report it")
