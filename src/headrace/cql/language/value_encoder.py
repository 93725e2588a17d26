"""Serializes values (native protocol, version 4): Python values, and terms of statements.

Python values are those that the driver accepts. Sets and maps are in their type's order, without duplicates, as servers store them. A term
that does not fit its type is rejected; so is a timestamp without a zone, which servers interpret differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from ipaddress import IPv4Address, IPv6Address, ip_address
from operator import index
from struct import error as PackingError
from struct import pack
from typing import Any, Final, TypeVar
from uuid import UUID

from cassandra.marshal import uvint_pack, varint_pack, vints_pack
from cassandra.util import Date, Duration, Time

from headrace.cql.decode.value_order import has_fixed_size, order_key
from headrace.cql.language.lexer import CqlTokenKind, shortened
from headrace.cql.language.terms import Braces, Brackets, Constant, Marker, Parameters, Parentheses, SerializedValue, Term
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError

V = TypeVar("V")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WIDTHS: Final = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "counter": 8}


def encode(kind: CqlType, value: object) -> bytes | None:
    """Serialise a Python value; None is null."""
    if value is None:
        return None
    if isinstance(value, SerializedValue):
        return value.value
    made = _MADE.get(kind.name)
    try:
        return made(kind, value) if made is not None else _SCALARS[kind.name](value)
    except (PackingError, OverflowError, ValueError, TypeError, AttributeError, UnicodeError) as error:
        raise _mismatch_error(kind, repr(value)) from error


def serialize(kind: CqlType, term: Term, parameters: Parameters) -> bytes | None:
    """Serialise a term of a statement; None is null."""
    if isinstance(term, Marker):
        return encode(kind, parameters.of(term))
    if isinstance(term, Constant):
        return None if term.is_null else encode(kind, _constant(kind, term))
    if isinstance(term, Brackets) and kind.name in {"list", "vector"}:
        return encode(kind, [_part(kind, kind.args[0], item, parameters) for item in term.items])
    if isinstance(term, Parentheses) and kind.name == "tuple" and len(term.items) <= len(kind.args):
        return _parts(kind, [SerializedValue(serialize(of, item, parameters)) for of, item in zip(kind.args, term.items, strict=False)])
    if isinstance(term, Braces):
        return _from_braces(kind, term, parameters)
    raise _mismatch_error(kind, str(term))


def _part(kind: CqlType, inner: CqlType, term: Term, parameters: Parameters) -> SerializedValue:
    found = serialize(inner, term, parameters)
    if found is None:
        raise DefiniteError(f"null is not allowed inside of {kind}", hint="leave it out")
    return SerializedValue(found)


def _from_braces(kind: CqlType, term: Braces, parameters: Parameters) -> bytes:
    if kind.name == "udt":
        return _parts(kind, [SerializedValue(found) for found in _user_fields(kind, term, parameters)])
    if kind.name == "map" and (term.values is not None or not term.keys):
        pairs = zip(term.keys, term.values or (), strict=True)
        found = [(_part(kind, kind.args[0], key, parameters), _part(kind, kind.args[1], value, parameters)) for key, value in pairs]
        return _map(kind, found)
    if kind.name == "set" and term.values is None:
        return _set(kind, [_part(kind, kind.args[0], item, parameters) for item in term.keys])
    raise _mismatch_error(kind, str(term))


def _user_fields(kind: CqlType, term: Braces, parameters: Parameters) -> list[bytes | None]:
    """Return the fields of a user type's literal, in the type's order."""
    if term.values is None and term.keys:
        raise _mismatch_error(kind, str(term))
    given: dict[str, Term] = {}
    for key, value in zip(term.keys, term.values or (), strict=True):
        if not isinstance(key, Constant) or key.kind not in (CqlTokenKind.NAME, CqlTokenKind.QUOTED) or key.text not in kind.fields:
            raise DefiniteError(f"{kind} has no field {getattr(key, 'text', key)}", hint="check the field's name")
        given[key.text] = value
    return [serialize(of, given[name], parameters) if name in given else None for name, of in zip(kind.fields, kind.args, strict=True)]


def _mismatch_error(kind: CqlType, shown: str) -> DefiniteError:
    return DefiniteError(f"{shortened(shown)} is no value of type {kind}", hint="check the value, or the column's type")


# --- constants of statements


def _constant(kind: CqlType, term: Constant) -> object:
    reader = _READERS.get((kind.name, term.kind))
    if reader is None:
        raise _mismatch_error(kind, term.text)
    try:
        return reader(term.text)
    except (ValueError, InvalidOperation) as error:
        raise _mismatch_error(kind, term.text) from error


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(text)
    return text == "true"


def _number_name(text: str) -> float:
    if text.lstrip("-") not in {"nan", "infinity"}:
        raise ValueError(text)
    return float(text)


_MOMENT: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2})?(?:\.(\d{1,9}))?)? ?(Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)")


def _parse_timestamp(text: str) -> int:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise DefiniteError(f"{text!r} names no moment", hint="write it with its zone, as in '2020-12-31 23:59:59.999+0000'")
    day, minutes, seconds, fraction, zone = match.groups()
    digits = "" if zone in {"Z", "UTC", "GMT"} else zone.replace(":", "").ljust(5, "0")
    offset = f"{digits[:3]}:{digits[3:]}" if digits else "+00:00"
    whole = datetime.fromisoformat(f"{day}T{minutes or '00:00'}{seconds or ':00'}{offset}")
    return (whole - _EPOCH) // timedelta(milliseconds=1) + int((fraction or "0").ljust(3, "0")[:3])


def _time_of_day(text: str) -> int:
    match = re.fullmatch(r"(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?", text)
    if match is None:
        raise ValueError(text)
    hours, minutes, seconds = (int(part) for part in match.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(text)
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + int((match[4] or "0").ljust(9, "0"))


_UNITS: Final = {
    "y": (12, 0, 0),
    "mo": (1, 0, 0),
    "w": (0, 7, 0),
    "d": (0, 1, 0),
    "h": (0, 0, 3_600_000_000_000),
    "m": (0, 0, 60_000_000_000),
    "s": (0, 0, 1_000_000_000),
    "ms": (0, 0, 1_000_000),
    "us": (0, 0, 1000),
    "µs": (0, 0, 1000),
    "ns": (0, 0, 1),
}


def _duration(text: str) -> Duration:
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text)
    months, days, nanos = 0, 0, 0
    for count, unit in _duration_parts(rest):
        of_months, of_days, of_nanos = _UNITS[unit]
        months, days, nanos = months + count * of_months, days + count * of_days, nanos + count * of_nanos
    return Duration(sign * months, sign * days, sign * nanos)


def _duration_parts(text: str) -> Iterable[tuple[int, str]]:
    if not text.upper().startswith("P"):
        return [(int(count), unit) for count, unit in re.findall(r"(\d+)([a-zµ]+)", text.lower())]
    if "-" in text:
        return zip((int(part) for part in re.findall(r"\d+", text)), ("y", "mo", "d", "h", "m", "s"), strict=True)
    of_days, _, of_time = text.upper()[1:].partition("T")
    names = {"Y": "y", "M": "mo", "W": "w", "D": "d"}
    days = [(int(count), names[unit]) for count, unit in re.findall(r"(\d+)([YMWD])", of_days)]
    return days + [(int(count), unit.lower()) for count, unit in re.findall(r"(\d+)([HMS])", of_time)]


_READERS: Final[Mapping[tuple[str, CqlTokenKind], Callable[[str], object]]] = {
    **{(name, CqlTokenKind.INTEGER): int for name in (*_WIDTHS, "varint", "timestamp", "time")},
    ("date", CqlTokenKind.INTEGER): lambda text: int(text) - (1 << 31),  # (1970 is 2^31)
    **{("decimal", kind): Decimal for kind in (CqlTokenKind.INTEGER, CqlTokenKind.FLOAT)},
    **{(name, kind): float for name in ("float", "double") for kind in (CqlTokenKind.INTEGER, CqlTokenKind.FLOAT)},
    **{(name, CqlTokenKind.NAME): _number_name for name in ("float", "double")},
    ("boolean", CqlTokenKind.NAME): _boolean,
    **{(name, CqlTokenKind.STRING): str for name in ("text", "ascii", "inet")},
    ("blob", CqlTokenKind.BLOB): lambda text: bytes.fromhex(text[2:]),
    **{(name, CqlTokenKind.UUID): UUID for name in ("uuid", "timeuuid")},
    ("timestamp", CqlTokenKind.STRING): _parse_timestamp,
    ("date", CqlTokenKind.STRING): date.fromisoformat,
    ("time", CqlTokenKind.STRING): _time_of_day,
    ("duration", CqlTokenKind.DURATION): _duration,
}


# --- Python's values


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(value)
    return index(value)


def _fixed_integer(width: int) -> Callable[[Any], bytes]:
    return lambda value: _whole(value).to_bytes(width, "big", signed=True)


def _decimal(value: Any) -> bytes:
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        raise TypeError(value)
    unscaled = int("".join(map(str, digits)) or "0")
    return pack(">i", -exponent) + bytes(varint_pack(-unscaled if sign else unscaled))


def _text(encoding: str) -> Callable[[Any], bytes]:
    return lambda value: value.encode(encoding) if isinstance(value, str) else bytes(memoryview(value))


def _timestamp(value: Any) -> bytes:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return pack(">q", (moment - _EPOCH) // timedelta(milliseconds=1))
    return pack(">q", _whole(value))


def _date(value: Any) -> bytes:
    if isinstance(value, Date):
        days = value.days_from_epoch
    else:
        days = (value - date(1970, 1, 1)).days if isinstance(value, date) else _whole(value)
    return pack(">I", days + (1 << 31))


def _time(value: Any) -> bytes:
    if isinstance(value, Time):
        return pack(">q", value.nanosecond_time)
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return pack(">q", seconds * 1_000_000_000 + value.microsecond * 1000)
    return pack(">q", _whole(value))


def _inet(value: Any) -> bytes:
    return value.packed if isinstance(value, IPv4Address | IPv6Address) else ip_address(value).packed


def _timeuuid(value: Any) -> bytes:
    if value.version != 1 and (value.int >> 76) & 15 != 1:
        raise ValueError(value)
    return bytes(value.bytes)


_SCALARS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    **{name: _fixed_integer(width) for name, width in _WIDTHS.items()},
    "varint": lambda value: bytes(varint_pack(_whole(value))),
    "decimal": _decimal,
    "float": lambda value: pack(">f", float(value)),
    "double": lambda value: pack(">d", float(value)),
    "boolean": lambda value: b"\x01" if value else b"\x00",
    "text": _text("utf-8"),
    "ascii": _text("ascii"),
    "blob": lambda value: bytes(memoryview(value)),
    "uuid": lambda value: bytes(value.bytes),
    "timeuuid": _timeuuid,
    "inet": _inet,
    "timestamp": _timestamp,
    "date": _date,
    "time": _time,
    "duration": lambda value: bytes(vints_pack((value.months, value.days, value.nanoseconds))),
}


# --- composite types


def sized(value: bytes | None) -> bytes:
    """Return a part with its length prefix."""
    return b"\xff\xff\xff\xff" if value is None else pack(">i", len(value)) + value


def collection(items: Iterable[bytes], count: int) -> bytes:
    """Serialise a collection of `count` elements from its serialised parts."""
    return pack(">i", count) + b"".join(map(sized, items))


def tuple_of(items: Iterable[bytes | None]) -> bytes:
    """Serialise a tuple or user type from its serialised parts."""
    return b"".join(map(sized, items))


def _inner(kind: CqlType, value: object) -> bytes:
    found = encode(kind, value)
    if found is None:
        raise DefiniteError(f"null is not allowed inside of a collection of {kind}", hint="leave it out")
    return found


def _list(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, str | bytes):
        raise TypeError(value)
    items = [_inner(kind.args[0], item) for item in value]
    return collection(items, len(items))


def _set(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, str | bytes):
        raise TypeError(value)
    items = in_order(kind.args[0], [(_inner(kind.args[0], item), b"") for item in value])
    return collection([key for key, _ in items], len(items))


def _map(kind: CqlType, pairs: Iterable[tuple[object, object]]) -> bytes:
    """Serialize a map. A duplicate key is rejected: servers differ in which value counts."""
    given = [(_inner(kind.args[0], key), _inner(kind.args[1], item)) for key, item in pairs]
    items = in_order(kind.args[0], given)
    if len(items) != len(given):
        raise DefiniteError(f"a key is twice in a value of type {kind}", hint="leave one of them out")
    return collection([part for pair in items for part in pair], len(items))


def in_order(kind: CqlType, pairs: Iterable[tuple[bytes, V]]) -> list[tuple[bytes, V]]:
    """Sort keys with their values; of duplicate keys, the last one wins."""
    key = order_key(kind)
    last = dict(pairs)
    return sorted(last.items(), key=lambda pair: key(pair[0]))


def _parts(kind: CqlType, value: Any) -> bytes:
    """Return the parts of a tuple or user type, given as a sequence, a mapping by field, or an object with attributes."""
    if isinstance(value, Mapping):
        given = [value.get(name) for name in kind.fields]
    elif kind.name == "udt" and not isinstance(value, list | tuple):
        given = [getattr(value, name, None) for name in kind.fields]
    else:
        given = list(value)
    if len(given) > len(kind.args):
        raise ValueError(value)
    return tuple_of(encode(of, item) for of, item in zip(kind.args, given, strict=False))


def _vector(kind: CqlType, value: Any) -> bytes:
    items = [_inner(kind.args[0], item) for item in value]
    if len(items) != kind.size:
        raise ValueError(value)
    if has_fixed_size(kind.args[0]):
        return b"".join(items)
    return b"".join(uvint_pack(len(item)) + item for item in items)


_MADE: Final[Mapping[str, Callable[[CqlType, Any], bytes]]] = {
    "list": _list,
    "set": _set,
    "map": lambda kind, value: _map(kind, value.items()),
    "tuple": _parts,
    "udt": _parts,
    "vector": _vector,
}
