"""Tables that differ from the reference workload's: one with 60 columns of all types, one whose rows are mostly JSON.

Values are drawn as in the reference workload: the same table, number of changes and seed give the same statements.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from bench.generated_table import COLOURS, Table, format_moment, join
from bench.target import DATABASE

Render = Callable[[int], str]
"""Renders a column's value as SQL from any number below 2^31."""


def _integer(bits: int, *, unsigned: bool) -> Render:
    low = 0 if unsigned else -(1 << bits - 1)
    # An odd factor spreads the numbers over the whole range and maps no two to one.
    return lambda n: str(low + n * 0x9E3779B97F4A7C15 % (1 << bits))


def _decimal(digits: int, scale: int) -> Render:
    whole = 10 ** (digits - scale)
    return lambda n: f"{'-' if n & 1 else ''}{n * 7919 % whole}.{n * 104729 % 10**scale:0{scale}d}"


def _text(size: int) -> Render:
    return lambda n: f"'{(COLOURS[n % 7] + ' number ' + str(n)) * (1 + n % (1 + size // 24)):.{size}}'"


def _clock(n: int) -> str:
    return f"{n % 24:02d}:{n // 24 % 60:02d}:{n // 1440 % 60:02d}"


_SMALL = (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
_WIDE: tuple[tuple[str, Render], ...] = (
    *((kind, _integer(bits, unsigned=False)) for kind, bits in _SMALL),
    *((f"{kind} unsigned", _integer(bits, unsigned=True)) for kind, bits in _SMALL),
    *((f"decimal({digits},{scale})", _decimal(digits, scale)) for digits, scale in ((9, 2), (18, 6), (30, 10), (65, 30))),
    ("float", lambda n: f"{n / 1024}"),
    ("double", lambda n: f"{n * 1e-3 + 1 / (n + 1)!r}"),
    ("bit(1)", lambda n: str(n & 1)),
    ("bit(10)", lambda n: str(n & 1023)),
    ("bit(64)", lambda n: str(n << 33 | n)),
    ("date", lambda n: f"'{format_moment(n)[:10]}'"),
    *((f"datetime{form}", lambda n: f"'{format_moment(n)}'") for form in ("", "(3)", "(6)")),
    *((f"timestamp{form} null", lambda n: f"'{format_moment(n)}'") for form in ("", "(6)")),
    *((f"time{form}", lambda n: f"'{'-' if n & 1 else ''}{_clock(n)}.25'") for form in ("", "(3)")),
    ("year", lambda n: str(1950 + n % 100)),
    ("char(20)", _text(20)),
    ("varchar(40)", _text(40)),
    ("varchar(300)", _text(300)),
    ("text", _text(400)),
    ("mediumtext", _text(100)),
    ("binary(16)", lambda n: f"x'{n:08x}'"),
    ("varbinary(40)", lambda n: f"x'{n:08x}{n * 3:010x}'"),
    ("blob", lambda n: f"x'{n:08x}{'00ff' * (n % 50)}'"),
    ("varchar(40) character set latin1", _text(40)),
    ("varchar(40) character set gbk", lambda n: f"'{'水渠' * (1 + n % 8)} {n}'"),
    ("enum('red','green','blue','none')", lambda n: str(1 + n % 4)),
    ("set('a','b','c','d','e')", lambda n: str(n % 32)),
    ("json", lambda n: f'\'{{"n": {n}, "list": [{n % 9}, {n / 8}], "name": "{COLOURS[n % 7]}"}}\''),
    *((kind, _integer(32, unsigned=False)) for kind in ("int",) * 6),
    *((kind, _text(60)) for kind in ("varchar(60)",) * 6),
    *((kind, _decimal(12, 2)) for kind in ("decimal(12,2)",) * 3),
    *((kind, lambda n: f"'{format_moment(n)}'") for kind in ("datetime(6)",) * 3),
)
assert len(_WIDE) == 59, "59 columns and the key"


class Wide(Table):
    """60 columns of all types; every fifth value of every column is NULL."""

    name = "wide"
    schema = (
        f"CREATE TABLE {DATABASE}.wide (id BIGINT NOT NULL PRIMARY KEY, "
        + ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(_WIDE))
        + ") ENGINE=InnoDB"
    )

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, (len(ids), len(_WIDE))).tolist()
        return [f"({i},{','.join(self._cells(row))})" for i, row in zip(ids, numbers, strict=True)]

    @staticmethod
    def _cells(row: list[int]) -> list[str]:
        return ["NULL" if number % 5 == 0 else render(number) for number, (_, render) in zip(row, _WIDE, strict=True)]

    def _update(self, ids: list[int], draw: random.Random) -> str:
        step = draw.randint(1, 1_000)
        # c41 always changes: servers do not log a row that an update leaves unchanged.
        return (
            f"UPDATE {DATABASE}.wide SET c41 = (COALESCE(c41, 0) & 1048575) + 1, c3 = c0 + {step}, c54 = c53, "
            f"c28 = REVERSE(c28), c21 = '{format_moment(step)}', c40 = JSON_SET(c40, '$.n', {step}) WHERE id IN ({join(ids)})"
        )


class Documents(Table):
    """Rows that are mostly JSON: about 1,200 bytes of nested objects, arrays, numbers of all types and text."""

    name = "documents"
    schema = (
        f"CREATE TABLE {DATABASE}.documents (id BIGINT NOT NULL PRIMARY KEY, kind VARCHAR(20) NOT NULL, doc JSON NOT NULL, more JSON NULL)"
        " ENGINE=InnoDB"
    )

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, (len(ids), 8)).tolist()
        return [self._row(i, row) for i, row in zip(ids, numbers, strict=True)]

    @staticmethod
    def _row(key: int, numbers: list[int]) -> str:
        first, second, *_ = numbers
        document = {
            "customer": {
                "id": first,
                "name": f"{COLOURS[first % 7]} {first}",
                "tags": [f"t{n % 50}" for n in numbers],
                "vip": first % 3 == 0,
            },
            "lines": [
                {
                    "sku": f"sku-{n % 10_000:05d}",
                    "quantity": n % 90,
                    "price": n % 100_000 / 100,
                    "note": None,
                    "path": {"a": [n, -n, n / 7]},
                }
                for n in numbers
            ],
            "measured": [n * 1.1e-5 for n in numbers],
            "größe": "🚰" * (second % 5),
        }
        more = "NULL" if second % 3 else f"'{json.dumps({'k': second, 'big': second << 32})}'"
        return f"({key},'{COLOURS[second % 5]}','{json.dumps(document, ensure_ascii=False)}',{more})"

    def _update(self, ids: list[int], draw: random.Random) -> str:
        return (
            f"UPDATE {DATABASE}.documents SET doc = JSON_SET(doc, '$.customer.vip', {draw.randint(1, 9)}, "
            f"'$.lines[1].quantity', id % {draw.randint(7, 99)}, '$.revision', COALESCE(JSON_VALUE(doc, '$.revision'), 0) + 1) "
            f"WHERE id IN ({join(ids)})"
        )
