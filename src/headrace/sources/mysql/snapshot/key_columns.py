"""Key columns for the chunk planner: exact values, exact literals, and guesses at values between two keys.

A chunk bound is always a key that was read from the table. Its literal compares equal to itself on the server: numbers as digits, text and
bytes as the stored bytes, dates as the server prints them. A guess may be wrong: it only determines where to look for the next key, and the
server returns an existing one.
"""

from __future__ import annotations

import datetime
import decimal
import re
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.column_types import COLUMN_TYPES, ValueForm
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sources.mysql.server.connection import quote_name

_UNICODE: Final = {"utf8mb4": 0x110000, "utf16": 0x110000, "utf16le": 0x110000, "utf32": 0x110000}
_BASIC_PLANE: Final = {"utf8mb3": 0x10000, "utf8": 0x10000, "ucs2": 0x10000}
# In the order of common collations: punctuation, digits, letters without case.
_ASCII_ORDER: Final = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
_RANKS: Final = {char: rank for rank, char in enumerate(_ASCII_ORDER)}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """How one key column is read, written as a literal, and guessed at. The values compare as the server prints them."""

    name: str
    """The quoted name."""
    kind: Kind

    @property
    def expressions(self) -> tuple[str, ...]:
        """The expressions to select; `take` converts the result to a value."""
        return (f"CAST({self.name} AS CHAR)",)

    def take(self, found: Sequence[Any]) -> Any:
        return _text(found[0])

    def literal(self, value: Any) -> str:
        return f"'{value}'"

    @property
    def guard(self) -> str:
        """A condition that every row satisfies, and that is an error if the literals no longer compare as planned; empty if they do."""
        return ""

    def guesses(self, low: Any, high: Any) -> list[str]:
        """Return literals that may split the values above `low` up to `high`, the best first."""
        raise NotImplementedError


def key_column(name: str, kind: Kind, charset: str, collation: str) -> KeyColumn | None:
    """Return the key column; None if its values have no exact literals, or if their comparison differs from their order."""
    quoted = quote_name(name)
    match COLUMN_TYPES[kind].form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.DECIMAL | ValueForm.BITS:
            return Number(quoted, kind)
        case ValueForm.BYTES:
            return Binary(quoted, kind)
        case ValueForm.TEXT:
            return Text(quoted, kind, charset or "utf8mb4", collation)
        case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return Temporal(quoted, kind)
        case ValueForm.FIXED_BYTES:
            return Printed(quoted, kind)
        case ValueForm.FLOAT | ValueForm.MEMBERS | ValueForm.JSON | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return None
        case unknown:
            assert_never(unknown)


@dataclass(frozen=True, slots=True)
class Number(KeyColumn):
    """Integers, decimals, and bits as integers."""

    @property
    def expressions(self) -> tuple[str, ...]:
        return (f"{self.name} + 0" if COLUMN_TYPES[self.kind].form is ValueForm.BITS else self.name,)

    def take(self, found: Sequence[Any]) -> Any:
        return found[0]

    def literal(self, value: Any) -> str:
        return format(value, "f") if isinstance(value, decimal.Decimal) else str(int(value))

    def guesses(self, low: Any, high: Any) -> list[str]:
        if isinstance(high, decimal.Decimal):
            with decimal.localcontext(decimal.Context(prec=80)):
                middle: Any = ((low + high) / 2).quantize(high, rounding=decimal.ROUND_CEILING)
        else:
            middle = (low + high + 1) // 2
        return [self.literal(middle)]


@dataclass(frozen=True, slots=True)
class Binary(KeyColumn):
    """Bytes, compared one by one."""

    @property
    def expressions(self) -> tuple[str, ...]:
        return (f"HEX({self.name})",)

    def take(self, found: Sequence[Any]) -> Any:
        return bytes.fromhex(_text(found[0]))

    def literal(self, value: Any) -> str:
        return f"_binary X'{value.hex()}'"

    def guesses(self, low: Any, high: Any) -> list[str]:
        return [self.literal(_middle_bytes(low, high))]


@dataclass(frozen=True, slots=True)
class Text(KeyColumn):
    """Characters, compared by a collation that only the server knows."""

    charset: str
    collation: str

    @property
    def folds(self) -> bool:
        """Whether the collation ignores case."""
        return not self.collation.endswith("_bin")

    @property
    def expressions(self) -> tuple[str, ...]:
        return f"HEX({self.name})", self.name

    def take(self, found: Sequence[Any]) -> Any:
        return _text(found[0]), _text(found[1])

    def literal(self, value: Any) -> str:
        # The stored bytes, not those converted to the connection's character set. The collation is that of the plan: by another one,
        # which the column may get later, the same bounds would not divide the rows.
        collate = f" COLLATE {self.collation}" if self.collation else ""
        return f"_{self.charset} X'{value[0]}'{collate}"

    @property
    def guard(self) -> str:
        # MySQL compares literals of some character sets by the column's collation if the column has got another character set.
        return f"{self.name} COLLATE {self.collation} IS NOT NULL" if self.collation else ""

    def guesses(self, low: Any, high: Any) -> list[str]:
        small, large = low[1], high[1]
        at = next((i for i, pair in enumerate(zip(small, large, strict=False)) if self._rank(pair[0]) != self._rank(pair[1])), len(small))
        if at >= len(large):
            return []
        below = self._rank(small[at]) if at < len(small) else -1
        middle = self._char((below + self._rank(large[at]) + 1) // 2)
        found = [large[: at + 1]]
        if middle and self._rank(middle) > below + 1:
            found.insert(0, large[:at] + middle)
        return [f"_utf8mb4 X'{text.encode().hex()}'" for text in found]

    def _rank(self, char: str) -> int:
        if not self.folds:
            return ord(char)
        base = unicodedata.normalize("NFKD", char)[0].lower()[0]
        return _RANKS.get(base, len(_RANKS) + ord(base))

    def _char(self, rank: int) -> str:
        """Return a character of that rank, if the column can hold one."""
        if self.folds and rank < len(_RANKS):
            return _ASCII_ORDER[rank]
        code = rank - len(_RANKS) if self.folds else rank
        limit = _UNICODE.get(self.charset) or _BASIC_PLANE.get(self.charset) or 0x80
        return chr(code) if 0 < code < limit and not 0xD800 <= code < 0xE000 else ""


@dataclass(frozen=True, slots=True)
class Temporal(KeyColumn):
    """Dates and times, as the server prints them."""

    def guesses(self, low: Any, high: Any) -> list[str]:
        form = COLUMN_TYPES[self.kind].form
        middle = (_moment(low, form) + _moment(high, form) + 1) // 2
        return [self.literal(_print_moment(middle, form))]


@dataclass(frozen=True, slots=True)
class Printed(KeyColumn):
    """MariaDB's own types, stored as bytes and printed as text."""

    def guesses(self, low: Any, high: Any) -> list[str]:
        if self.kind is Kind.UUID:
            return [self.literal(_middle_uuid(low, high))]
        values = COLUMN_TYPES[self.kind]
        small, large = values.parse_value(low), values.parse_value(high)
        middle = (int.from_bytes(small) + int.from_bytes(large) + 1) // 2
        return [self.literal(values.print_value(middle.to_bytes(len(large))))]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _middle_bytes(low: bytes, high: bytes) -> bytes:
    """Treat the bytes as fractions to the base 256, with enough digits after the common prefix."""
    common = next((i for i, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), min(len(low), len(high)))
    size = common + 8
    numbers = [int.from_bytes(value[:size].ljust(size, b"\0"), "big") for value in (low, high)]
    return ((sum(numbers) + 1) // 2).to_bytes(size, "big")


# MariaDB orders a UUID by its last group first; from UUID version 6 on, as it is printed.
_SWAPPED: Final = ((20, 32), (16, 20), (12, 16), (8, 12), (0, 8))


def _middle_uuid(low: str, high: str) -> str:
    small, large = (value.replace("-", "") for value in (low, high))
    if small[12] >= "6" or large[12] >= "6":
        return str(uuid.UUID(int=(int(small, 16) + int(large, 16) + 1) // 2))
    numbers = [int("".join(value[start:end] for start, end in _SWAPPED), 16) for value in (small, large)]
    middle = f"{(sum(numbers) + 1) // 2:032x}"
    at, groups = 0, {}
    for start, end in _SWAPPED:
        groups[start] = middle[at : at + end - start]
        at += end - start
    text = "".join(groups[start] for start in sorted(groups))
    return str(uuid.UUID(text[:12] + large[12] + text[13:]))


_MOMENT = re.compile(r"(-?)(?:(\d+)-(\d+)-(\d+))? ?(?:(\d+):(\d+):(\d+)(?:\.(\d+))?)?")
_DAY_US: Final = 86_400_000_000


def _moment(text: str, form: ValueForm) -> int:
    """Return microseconds; for an invalid date those of a nearby day."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return 0
    sign, *parts = found.groups()
    year, month, day, hours, minutes, seconds = (int(part or 0) for part in parts[:6])
    within = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((parts[6] or "").ljust(6, "0"))
    if form is ValueForm.TIME:
        return -within if sign else within
    real = datetime.date(max(year, 1), max(month, 1), min(max(day, 1), 28))
    return (real.toordinal() + day - real.day) * _DAY_US + within


def _print_moment(moment: int, form: ValueForm) -> str:
    days, within = (0, abs(moment)) if form is ValueForm.TIME else divmod(moment, _DAY_US)
    seconds, micros = divmod(within, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"
    if form is ValueForm.TIME:
        return f"-{clock}" if moment < 0 else clock
    date = datetime.date.fromordinal(min(max(days, 1), datetime.date.max.toordinal())).isoformat()
    return date if form is ValueForm.DATE else f"{date} {clock}"


def key_condition(schema: TableSchema, keys: pa.Table) -> str:
    """Return the SQL condition for rows with one of these keys, given as a table of the key's columns.

    Every such row satisfies it. A collation may match others too (`'a'` for `'A'`), so the caller compares the keys of the result.
    """
    names = [quote_name(name) for name in schema.row_key]
    spelled = [_literals(schema.column(name), keys.column(name)) for name in schema.row_key]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join(spelled[0])})"
    # Written out, because not every server's optimiser sees a range in a list of rows.
    rows = (" AND ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)) for row in zip(*spelled, strict=True))
    return "(" + " OR ".join(f"({row})" for row in rows) + ")"


def _literals(column: Column, values: Any) -> list[str]:
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return [str(value) for value in values.to_pylist()]
        case ValueForm.FLOAT:
            return [text if "e" in text else f"{text}e0" for text in map(repr, values.to_pylist())]
        case ValueForm.DECIMAL:
            return [format(value, "f") for value in values.to_pylist()]
        case ValueForm.TEXT | ValueForm.MEMBERS | ValueForm.JSON:
            return [f"_utf8mb4 X'{value.encode().hex()}'" for value in values.to_pylist()]
        case ValueForm.BYTES | ValueForm.GEOMETRY:
            return [f"_binary X'{value.hex()}'" for value in values.to_pylist()]
        case ValueForm.DATE:
            return [f"'{text}'" for text in values.cast(pa.string()).to_pylist()]
        case ValueForm.TIMESTAMP:
            # The session's time zone is UTC, so a tick prints the same for both kinds.
            return [f"'{text}'" for text in values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string()).to_pylist()]
        case ValueForm.TIME:
            return [f"'{_print_moment(micros, column.form)}'" for micros in values.cast(pa.int64()).to_pylist()]
        case ValueForm.FIXED_BYTES:
            return [f"'{column.type.print_value(value)}'" for value in values.to_pylist()]
        case ValueForm.VECTOR:
            raise DefiniteError(f"column {column.name} is a VECTOR, which cannot be part of a key")
        case unknown:
            assert_never(unknown)
