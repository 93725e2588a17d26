"""A hundred tables with mixed traffic. They have six schemas, few tables get most changes, and transactions have one row to thousands, in
one to three tables.

The log has the order in which many concurrent writers commit: adjacent transactions change different tables. One connection writes the
log, so that it is the same in every run, byte for byte.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

from bench.generated_table import COLOURS, Table, Transaction, format_moment, join
from bench.target import DATABASE

TABLES_PER_TRANSACTION = 3
SKEW = 0.8
"""Table number n gets changes in proportion to n^-SKEW: the busiest ten of a hundred get about half."""


class Counters(Table):
    """Three narrow columns."""

    name = "counters"
    schema = f"CREATE TABLE {DATABASE}.counters (id BIGINT NOT NULL PRIMARY KEY, hits INT NOT NULL, total BIGINT NOT NULL) ENGINE=InnoDB"

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, (len(ids), 2)).tolist()
        return [f"({i},{hits},{total * 1_000_003})" for i, (hits, total) in zip(ids, numbers, strict=True)]

    def _update(self, ids: list[int], draw: random.Random) -> str:
        return f"UPDATE {DATABASE}.{self.name} SET hits = hits ^ {draw.randint(1, 999)}, total = total + 1 WHERE id IN ({join(ids)})"


class Entries(Table):
    """A key of two columns, the first of which is not the one that counts up; decimals, dates, text that is often NULL."""

    name = "entries"
    schema = f"""CREATE TABLE {DATABASE}.entries (
  region SMALLINT NOT NULL,
  id INT NOT NULL,
  account VARCHAR(40) NOT NULL,
  amount DECIMAL(18,4) NOT NULL,
  booked_on DATE NOT NULL,
  memo VARCHAR(200) NULL,
  PRIMARY KEY (region, id),
  KEY by_id (id)
) ENGINE=InnoDB"""

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, (len(ids), 2)).tolist()
        return [self._row(i, *row) for i, row in zip(ids, numbers, strict=True)]

    @staticmethod
    def _row(key: int, cents: int, choice: int) -> str:
        memo = "NULL" if choice % 3 else f"'{COLOURS[choice % 7]}, {choice}'"
        return f"({key % 16},{key},'account {choice % 5_000}',{cents / 1000:.4f},'{format_moment(choice)[:10]}',{memo})"

    def _update(self, ids: list[int], draw: random.Random) -> str:
        step = draw.randint(1, 9_999) / 100
        return f"UPDATE {DATABASE}.{self.name} SET amount = amount + {step}, memo = 'corrected by {step}' WHERE id IN ({join(ids)})"


_READINGS, _LABELS = 16, 12


class Readings(Table):
    """30 columns: numbers and short text, a fifth of them NULL."""

    name = "readings"
    schema = (
        f"CREATE TABLE {DATABASE}.readings (id INT UNSIGNED NOT NULL PRIMARY KEY, taken_at DATETIME(6) NOT NULL, "
        + ", ".join(f"r{n} {'BIGINT' if n % 2 else 'DECIMAL(14,3)'} NULL" for n in range(_READINGS))
        + ", "
        + ", ".join(f"l{n} VARCHAR(40) NULL" for n in range(_LABELS))
        + ") ENGINE=InnoDB"
    )

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, (len(ids), 1 + _READINGS + _LABELS)).tolist()
        return [self._row(i, *row) for i, row in zip(ids, numbers, strict=True)]

    @staticmethod
    def _row(key: int, moment: int, *numbers: int) -> str:
        readings = (f"{n * 31}" if place % 2 else f"{n / 1000:.3f}" for place, n in enumerate(numbers[:_READINGS]))
        labels = (f"'{COLOURS[n % 7]} {n % 1000}'" for n in numbers[_READINGS:])
        cells = ("NULL" if n % 5 == 0 else cell for n, cell in zip(numbers, (*readings, *labels), strict=True))
        return f"({key},'{format_moment(moment)}',{','.join(cells)})"

    def _update(self, ids: list[int], draw: random.Random) -> str:
        moment = format_moment(draw.randrange(1 << 31))
        return (
            f"UPDATE {DATABASE}.{self.name} SET taken_at = '{moment}', r1 = COALESCE(r1, 0) + {draw.randint(1, 99)}, l3 = l4 "
            f"WHERE id IN ({join(ids)})"
        )


class Settings(Table):
    """Small JSON documents under a name."""

    name = "settings"
    schema = (
        f"CREATE TABLE {DATABASE}.settings (id INT NOT NULL PRIMARY KEY, name VARCHAR(60) NOT NULL, content JSON NOT NULL, "
        "revision INT NOT NULL) ENGINE=InnoDB"
    )

    def _rows(self, ids: range) -> list[str]:
        numbers = self._values.integers(0, 1 << 31, len(ids)).tolist()
        return [f"({i},'setting {n % 900}',{_document(n)},1)" for i, n in zip(ids, numbers, strict=True)]

    def _update(self, ids: list[int], draw: random.Random) -> str:
        return (
            f"UPDATE {DATABASE}.{self.name} SET content = JSON_SET(content, '$.level', {draw.randint(1, 99)}), revision = revision + 1 "
            f"WHERE id IN ({join(ids)})"
        )


def _document(number: int) -> str:
    words = ", ".join(f'"{colour}"' for colour in COLOURS[: number % 5])
    return (
        f'\'{{"level": {number % 100}, "limits": [{number}, {-number}], "words": [{words}], "on": {"true" if number & 1 else "false"}}}\''
    )


def copies(kinds: Sequence[tuple[type[Table], int]]) -> tuple[type[Table], ...]:
    """Create the given number of tables of each kind, numbered, and alternate the kinds."""
    made: list[tuple[float, type[Table]]] = []
    for kind, count in kinds:
        for n in range(count):
            name = f"{kind.name}_{n:02d}"
            schema = kind.schema.replace(f" {DATABASE}.{kind.name} ", f" {DATABASE}.{name} ", 1)
            made.append(((n + 0.5) / count, type(f"{kind.__name__}{n:02d}", (kind,), {"name": name, "schema": schema})))
    return tuple(table for _, table in sorted(made, key=lambda pair: pair[0]))


class Crowd:
    """Distributes transactions over tables."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._weights = list(accumulate((n + 1) ** -SKEW for n in range(len(tables))))

    def transact(self, operations: list[int], draw: random.Random, *, large: bool) -> Transaction:
        """Build a transaction of operations (0 insert, 1 update, 2 delete). A large one changes one table, a small one up to three."""
        shares = 1 if large else draw.randint(1, min(TABLES_PER_TRANSACTION, len(operations)))
        parts = [
            self._choose(share.count(1) + share.count(2), draw).transact(share.count(0), share.count(1), share.count(2), draw)
            for share in (operations[n::shares] for n in range(shares))
        ]
        return Transaction(
            tuple(statement for part in parts for statement in part.statements),
            *(sum(getattr(part, kind) for part in parts) for kind in ("inserts", "updates", "deletes")),
        )

    def _choose(self, rows_needed: int, draw: random.Random) -> Table:
        """Draw a table with enough rows to change, busy tables more often. If no draw finds one, return the one with most rows."""
        for table in draw.choices(self._tables, cum_weights=self._weights, k=8):
            if table.rows >= rows_needed:
                return table
        return max(self._tables, key=lambda table: table.rows)
