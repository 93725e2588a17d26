"""The reference workload and its variants as SQL.

The statements are a pure function of `Workload`: the same number of changes and the same seed give the same statements in the same order,
byte for byte, on every machine. Of N changes, exactly 60 % are inserts, 30 % updates and 10 % deletes. Exactly half are in large
transactions and half in small ones. Both kinds alternate along the whole log, so that every part of the log has the same mix. The
exception is the first tenth: it only inserts, because there must be rows before rows can change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.generated_table import COLOURS, Table, Transaction, format_moment, join
from bench.many_tables import Counters, Crowd, Entries, Readings, Settings, copies
from bench.target import DATABASE
from bench.wide_tables import Documents, Wide
from headrace.errors import DefiniteError

REFERENCE, SHAPES, CROWD = "reference", ("wide", "json"), "tables"
"""The reference workload, its variants with other tables, and the one of a hundred tables."""

REVISION = 1
"""Increase it when the statements change: cached servers of another revision are not used."""

SMALLEST = 1_000
LARGE_ROWS = 8_000
SMALL_ROWS = 10

INSERT, UPDATE, DELETE = 0, 1, 2

STATUSES = ("new", "paid", "packed", "shipped", "returned")


@dataclass(frozen=True, slots=True)
class Workload:
    """Describes what to generate."""

    changes: int
    seed: int = 20_26
    shape: str = REFERENCE

    @property
    def name(self) -> str:
        """The part of a directory's name that distinguishes workloads."""
        return f"{'' if self.shape == REFERENCE else self.shape + '-'}{self.changes}-{self.seed}-r{REVISION}"

    @property
    def tables(self) -> tuple[type[Table], ...]:
        return {REFERENCE: (_Sbtest, _Orders), "wide": (Wide,), "json": (Documents,), CROWD: copies(_CROWD)}[self.shape]

    @property
    def schema(self) -> tuple[str, ...]:
        return (f"CREATE DATABASE {DATABASE} DEFAULT CHARACTER SET utf8mb4", *(table.schema for table in self.tables))

    def __post_init__(self) -> None:
        if self.changes < SMALLEST:
            raise DefiniteError(
                f"a workload of {self.changes} changes is too small to hold its mix", hint=f"ask for at least {SMALLEST} changes"
            )


def generate_transactions(workload: Workload) -> Iterator[Transaction]:
    """Yield the workload's transactions in order."""
    draw = random.Random(workload.seed)
    sizes = _plan_sizes(workload.changes, draw)
    deck = _deal_operations(workload, sizes)
    tables = [table(workload.seed) for table in workload.tables]
    crowd = Crowd(tables)
    start = 0
    for ordinal, size in enumerate(sizes):
        if workload.shape == CROWD:
            yield crowd.transact(deck[start : start + size].tolist(), draw, large=size > SMALL_ROWS)
            start += size
            continue
        counts = np.bincount(deck[start : start + size], minlength=3)
        start += size
        # Large transactions are few: alternating the tables keeps them equally full at any scale.
        table = tables[ordinal % len(tables)] if size > SMALL_ROWS else draw.choice(tables)
        yield table.transact(int(counts[INSERT]), int(counts[UPDATE]), int(counts[DELETE]), draw)


def _plan_sizes(changes: int, draw: random.Random) -> list[int]:
    """Return the rows of each transaction: half of all changes in small ones, with the large ones distributed evenly between them."""
    large_limit = min(LARGE_ROWS, changes // 20)
    large = _cut(changes // 2, large_limit // 4, large_limit, draw)
    small = _cut(changes - changes // 2, 1, SMALL_ROWS, draw)
    sizes: list[int] = []
    for ordinal, size in enumerate(large):
        sizes.append(size)
        sizes.extend(small[len(small) * ordinal // len(large) : len(small) * (ordinal + 1) // len(large)])
    return sizes


def _cut(total: int, low: int, high: int, draw: random.Random) -> list[int]:
    parts: list[int] = []
    while total:
        part = min(draw.randint(low, high), total)
        parts.append(part)
        total -= part
    return parts


def _deal_operations(workload: Workload, sizes: list[int]) -> np.ndarray:
    """Return one operation per change, exactly 60 : 30 : 10. The first tenth, at least two of the largest transactions, are inserts."""
    changes = workload.changes
    updates, deletes = changes * 3 // 10, changes // 10
    head = max(changes // 10, 2 * max(sizes))
    rest = np.full(changes - head, INSERT, dtype=np.uint8)
    rest[:updates] = UPDATE
    rest[updates : updates + deletes] = DELETE
    np.random.Generator(np.random.PCG64(workload.seed)).shuffle(rest)
    return np.concatenate((np.full(head, INSERT, dtype=np.uint8), rest))


class _Sbtest(Table):
    """sysbench's table: groups of random digits, joined by dashes."""

    name = "sbtest"
    schema = f"""CREATE TABLE {DATABASE}.sbtest (
  id INT NOT NULL PRIMARY KEY,
  k INT NOT NULL DEFAULT 0,
  c CHAR(120) NOT NULL DEFAULT '',
  pad CHAR(60) NOT NULL DEFAULT '',
  KEY k_1 (k)
) ENGINE=InnoDB"""

    def _rows(self, ids: range) -> list[str]:
        keys = self._values.integers(0, 1_000_000, len(ids)).tolist()
        texts = _dashed_digits(self._values, len(ids), 10)
        pads = _dashed_digits(self._values, len(ids), 5)
        return [f"({i},{k},'{c}','{pad}')" for i, k, c, pad in zip(ids, keys, texts, pads, strict=True)]

    def _update(self, ids: list[int], draw: random.Random) -> str:
        step = draw.randint(1, 1_000)
        # REVERSE gives every row a different text without sending one for each row.
        return f"UPDATE {DATABASE}.{self.name} SET k = k + {step}, c = REVERSE(c) WHERE id IN ({join(ids)})"


class _Orders(Table):
    """A shop's orders: decimals, microseconds, an enum, JSON, and columns that are often NULL."""

    name = "orders"
    schema = f"""CREATE TABLE {DATABASE}.orders (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  customer_id INT UNSIGNED NOT NULL,
  status ENUM('new','paid','packed','shipped','returned') NOT NULL,
  amount DECIMAL(12,2) NOT NULL,
  tax DECIMAL(10,4) NULL,
  quantity SMALLINT NOT NULL,
  express TINYINT(1) NOT NULL,
  created_at DATETIME(6) NOT NULL,
  shipped_at DATETIME(6) NULL,
  note VARCHAR(200) NULL,
  attributes JSON NOT NULL
) ENGINE=InnoDB"""

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, (len(ids), 6)).tolist()
        return [self._row(i, *row) for i, row in zip(ids, numbers, strict=True)]

    @staticmethod
    def _row(key: int, customer: int, cents: int, moment: int, choice: int, quantity: int, weight: int) -> str:
        created = format_moment(moment)
        tax = "NULL" if choice % 3 == 0 else f"{cents % 10_000_000 / 700:.4f}"
        shipped = "NULL" if choice % 2 else f"'{format_moment(moment + 86_400 + choice % 200_000)}'"
        note = "NULL" if choice % 5 < 3 else f"'leave at door {choice % 1000}, {COLOURS[choice % 7]}'"
        attributes = (
            f'{{"colour": "{COLOURS[weight % 7]}", "weight": {weight % 50_000 / 1000}, "gift": {"true" if choice % 4 == 0 else "false"}, '
            f'"tags": ["t{choice % 9}", {weight % 300}], "ref": {{"campaign": {customer % 90}, "source": null}}}}'
        )
        return (
            f"({key},{customer % 200_000},'{STATUSES[choice % 5]}',{cents % 9_000_000 / 100:.2f},{tax},{quantity % 100},{choice % 2},"
            f"'{created}',{shipped},{note},'{attributes}')"
        )

    def _update(self, ids: list[int], draw: random.Random) -> str:
        status = draw.choice(STATUSES)
        shipped = format_moment(draw.randrange(1 << 31))
        return (
            f"UPDATE {DATABASE}.{self.name} SET status = '{status}', amount = amount + {draw.randint(1, 999)} / 100, "
            f"shipped_at = '{shipped}', attributes = JSON_SET(attributes, '$.weight', id % {draw.randint(7, 999)}) "
            f"WHERE id IN ({join(ids)})"
        )


_CROWD = ((_Sbtest, 20), (_Orders, 20), (Counters, 20), (Entries, 15), (Readings, 15), (Settings, 10))
assert sum(count for _, count in _CROWD) == 100


def _dashed_digits(values: np.random.Generator, rows: int, groups: int) -> list[str]:
    width = groups * 12 - 1
    digits = values.integers(ord("0"), ord("9") + 1, (rows, width), dtype=np.uint8)
    digits[:, 11::12] = ord("-")
    return [text.decode() for text in digits.view(f"S{width}").ravel().tolist()]
