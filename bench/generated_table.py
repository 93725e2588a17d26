"""Base of the workload's tables: the live keys of a table and the statements that change them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.target import DATABASE

ROWS_PER_INSERT = 500
COLOURS = ("red", "green", "blue", "black", "white", "größe", "naïve")
DAYS_SINCE_2020 = 1_800


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction: its statements, without BEGIN and COMMIT, and the number of rows that it changes."""

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


class Table:
    """A table's live keys and the statements that change them."""

    def __init__(self, seed: int) -> None:
        self._values = np.random.Generator(np.random.PCG64(seed))
        self._live: list[int] = []
        self._next_id = 1

    @property
    def rows(self) -> int:
        """The number of live rows."""
        return len(self._live)

    def transact(self, inserts: int, updates: int, deletes: int, draw: random.Random) -> Transaction:
        gone = self._take(deletes, draw)
        changed = sorted(draw.sample(self._live, updates))
        statements: list[str] = []
        if changed:
            statements.append(self._update(changed, draw))
        if gone:
            statements.append(f"DELETE FROM {DATABASE}.{self.name} WHERE id IN ({join(gone)})")
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

    name: ClassVar[str] = ""
    schema: ClassVar[str] = ""
    """The CREATE TABLE statement."""

    def _rows(self, ids: range) -> list[str]:
        raise NotImplementedError

    def _update(self, ids: list[int], draw: random.Random) -> str:
        raise NotImplementedError


def format_moment(number: int) -> str:
    """Derive a time with microseconds, within five years from 2020, from any number."""
    second, micro = number % 86_400, number * 7 % 1_000_000
    day = np.datetime64("2020-01-01") + number // 86_400 % DAYS_SINCE_2020
    return f"{day} {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{micro:06d}"


def join(ids: list[int]) -> str:
    return ",".join(map(str, ids))
