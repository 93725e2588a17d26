"""The reference workload, as SQL.

The statements are a pure function of `Workload`: the same numbers of changes and seed give the same statements in the same order, byte
for byte, on every machine. Of N changes exactly 60 % are inserts, 30 % updates and 10 % deletes; exactly half are made in large
transactions and half in small ones, and the two kinds alternate along the whole log, so that any stretch of it is like any other
(except the first tenth, which only inserts: there must be rows before rows can change).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.target import DATABASE
from headrace.errors import DefiniteError

REVISION = 1
"""Raise it when the statements change: cached servers of another revision are not used."""

SMALLEST = 1_000
LARGE_ROWS = 8_000
SMALL_ROWS = 10
ROWS_PER_INSERT = 500

INSERT, UPDATE, DELETE = 0, 1, 2

SCHEMA = (
    f"CREATE DATABASE {DATABASE} DEFAULT CHARACTER SET utf8mb4",
    f"""CREATE TABLE {DATABASE}.sbtest (
  id INT NOT NULL PRIMARY KEY,
  k INT NOT NULL DEFAULT 0,
  c CHAR(120) NOT NULL DEFAULT '',
  pad CHAR(60) NOT NULL DEFAULT '',
  KEY k_1 (k)
) ENGINE=InnoDB""",
    f"""CREATE TABLE {DATABASE}.orders (
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
) ENGINE=InnoDB""",
)
TABLES = ("sbtest", "orders")
STATUSES = ("new", "paid", "packed", "shipped", "returned")
COLOURS = ("red", "green", "blue", "black", "white", "größe", "naïve")
DAYS_SINCE_2020 = 1_800


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be generated."""

    changes: int
    seed: int = 20_26

    def __post_init__(self) -> None:
        if self.changes < SMALLEST:
            raise DefiniteError(
                f"a workload of {self.changes} changes is too small to hold its mix", hint=f"ask for at least {SMALLEST} changes"
            )


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction: its statements (without BEGIN and COMMIT) and how many rows it changes."""

    statements: tuple[str, ...]
    inserts: int
    updates: int
    deletes: int

    @property
    def changes(self) -> int:
        return self.inserts + self.updates + self.deletes

    @property
    def sql(self) -> str:
        return ";".join(("BEGIN", *self.statements, "COMMIT"))


def generate_transactions(workload: Workload) -> Iterator[Transaction]:
    """The workload's transactions, in order."""
    draw = random.Random(workload.seed)
    sizes = _plan_sizes(workload.changes, draw)
    deck = _deal_operations(workload, sizes)
    tables = {"sbtest": _Sbtest(workload.seed), "orders": _Orders(workload.seed)}
    start = 0
    for ordinal, size in enumerate(sizes):
        counts = np.bincount(deck[start : start + size], minlength=3)
        start += size
        # Large transactions are few: taking turns keeps both tables equally full at any scale.
        name = TABLES[ordinal % 2] if size > SMALL_ROWS else draw.choice(TABLES)
        yield tables[name].transact(int(counts[INSERT]), int(counts[UPDATE]), int(counts[DELETE]), draw)


def _plan_sizes(changes: int, draw: random.Random) -> list[int]:
    """Rows of each transaction: half of all changes in small ones, with the large ones spread evenly between them."""
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
    """One operation per change, exactly 60 : 30 : 10, the first tenth (and two largest transactions) only inserts."""
    changes = workload.changes
    updates, deletes = changes * 3 // 10, changes // 10
    head = max(changes // 10, 2 * max(sizes))
    rest = np.full(changes - head, INSERT, dtype=np.uint8)
    rest[:updates] = UPDATE
    rest[updates : updates + deletes] = DELETE
    np.random.Generator(np.random.PCG64(workload.seed)).shuffle(rest)
    return np.concatenate((np.full(head, INSERT, dtype=np.uint8), rest))


class _Table:
    """A table's live keys, and the statements that change them."""

    def __init__(self, seed: int) -> None:
        self._values = np.random.Generator(np.random.PCG64(seed))
        self._live: list[int] = []
        self._next_id = 1

    def transact(self, inserts: int, updates: int, deletes: int, draw: random.Random) -> Transaction:
        gone = self._take(deletes, draw)
        changed = sorted(draw.sample(self._live, updates))
        statements: list[str] = []
        if changed:
            statements.append(self._update(changed, draw))
        if gone:
            statements.append(f"DELETE FROM {DATABASE}.{self.name} WHERE id IN ({_join(gone)})")
        statements.extend(self._insert(inserts))
        return Transaction(tuple(statements), inserts, updates, deletes)

    def _take(self, count: int, draw: random.Random) -> list[int]:
        taken = []
        for _ in range(count):
            place = draw.randrange(len(self._live))
            self._live[place], self._live[-1] = self._live[-1], self._live[place]
            taken.append(self._live.pop())
        return sorted(taken)

    def _insert(self, count: int) -> Iterator[str]:
        for start in range(0, count, ROWS_PER_INSERT):
            rows = min(ROWS_PER_INSERT, count - start)
            ids = range(self._next_id, self._next_id + rows)
            self._next_id += rows
            self._live.extend(ids)
            yield f"INSERT INTO {DATABASE}.{self.name} VALUES {','.join(self._rows(ids))}"

    name = ""

    def _rows(self, ids: range) -> list[str]:
        raise NotImplementedError

    def _update(self, ids: list[int], draw: random.Random) -> str:
        raise NotImplementedError


class _Sbtest(_Table):
    """sysbench's table: dashed groups of random digits."""

    name = "sbtest"

    def _rows(self, ids: range) -> list[str]:
        keys = self._values.integers(0, 1_000_000, len(ids)).tolist()
        texts = _dashed_digits(self._values, len(ids), 10)
        pads = _dashed_digits(self._values, len(ids), 5)
        return [f"({i},{k},'{c}','{pad}')" for i, k, c, pad in zip(ids, keys, texts, pads, strict=True)]

    def _update(self, ids: list[int], draw: random.Random) -> str:
        step = draw.randint(1, 1_000)
        # REVERSE gives every row its own new text without sending one per row.
        return f"UPDATE {DATABASE}.sbtest SET k = k + {step}, c = REVERSE(c) WHERE id IN ({_join(ids)})"


class _Orders(_Table):
    """A shop's orders: decimals, microseconds, an enum, JSON, and columns that are often NULL."""

    name = "orders"

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, (len(ids), 6)).tolist()
        return [self._row(i, *row) for i, row in zip(ids, numbers, strict=True)]

    @staticmethod
    def _row(key: int, customer: int, cents: int, moment: int, choice: int, quantity: int, weight: int) -> str:
        created = _format_moment(moment)
        tax = "NULL" if choice % 3 == 0 else f"{cents % 10_000_000 / 700:.4f}"
        shipped = "NULL" if choice % 2 else f"'{_format_moment(moment + 86_400 + choice % 200_000)}'"
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
        shipped = _format_moment(draw.randrange(1 << 31))
        return (
            f"UPDATE {DATABASE}.orders SET status = '{status}', amount = amount + {draw.randint(1, 999)} / 100, shipped_at = '{shipped}', "
            f"attributes = JSON_SET(attributes, '$.weight', id % {draw.randint(7, 999)}) WHERE id IN ({_join(ids)})"
        )


def _format_moment(number: int) -> str:
    """A moment within five years of 2020, with microseconds, from any number."""
    second, micro = number % 86_400, number * 7 % 1_000_000
    day = np.datetime64("2020-01-01") + number // 86_400 % DAYS_SINCE_2020
    return f"{day} {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{micro:06d}"


def _dashed_digits(values: np.random.Generator, rows: int, groups: int) -> list[str]:
    width = groups * 12 - 1
    digits = values.integers(ord("0"), ord("9") + 1, (rows, width), dtype=np.uint8)
    digits[:, 11::12] = ord("-")
    return [text.decode() for text in digits.view(f"S{width}").ravel().tolist()]


def _join(ids: list[int]) -> str:
    return ",".join(map(str, ids))
