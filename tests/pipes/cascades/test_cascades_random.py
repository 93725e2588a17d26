"""Cascades over text keys of every collation, and random histories over random constraints."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from pymysql.err import IntegrityError

from headrace.sinks.clickhouse.cascades.store import ClickHouseCascadeStore
from testkit.generators.cascades_random import RandomTables
from testkit.pipelines.cascade_replica import Replica
from testkit.pipelines.driven_pipe import Crash

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")
MORE = pytest.mark.slow(because="the first cases of the test; test_random_histories[mariadb-0]")


COLLATIONS = ("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb4_danish_ci", "latin1_swedish_ci")
TEXTS = ("abc", "ABC", "aBc", "abc ", "x y", "X Y  ", "grün", "GRÜN", "grun", "aa", "å", "AA", "plain", "last", "LAST")


@ON_MYSQL
@pytest.mark.parametrize("collation", [COLLATIONS[0], *(pytest.param(one, marks=MORE) for one in COLLATIONS[1:])])
def test_text_keys_are_compared_by_their_collation(replica: Replica, collation: str) -> None:
    kind = f"VARCHAR(20) CHARACTER SET {collation.split('_', maxsplit=1)[0]} COLLATE {collation}"
    replica.begin(
        f"CREATE TABLE p (k {kind} PRIMARY KEY, v INT)",
        f"CREATE TABLE m (id INT, k {kind}, PRIMARY KEY (k, id), FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k {kind}, i INT, FOREIGN KEY (k, i) REFERENCES m (k, id) ON DELETE CASCADE)",
        "INSERT INTO p VALUES ('abc', 1), ('x y', 2), ('grün', 3), ('aa', 4), ('plain', 5), ('last', 6)",
    )
    for number, text in enumerate(TEXTS):
        for statement in (f"INSERT INTO m VALUES ({number}, '{text}')", f"INSERT INTO c VALUES ({number}, '{text.swapcase()}', {number})"):
            with suppress(IntegrityError):
                replica.book.run(statement)
    replica.step()
    replica.step("UPDATE p SET v = 9 WHERE v = 5", "DELETE FROM p WHERE k = 'abc'")
    replica.step("UPDATE p SET v = 10 WHERE k = 'plain'", "DELETE FROM p WHERE v = 2", "DELETE FROM p WHERE k LIKE 'gr%'")
    replica.step("DELETE FROM p WHERE k = 'aa'", "DELETE FROM p WHERE k = 'last'")


def seeds() -> list[Any]:
    if chosen := os.environ.get("HEADRACE_SEEDS"):
        return list(range(*map(int, chosen.split(":"))))
    return [0, 1, *(pytest.param(seed, marks=MORE) for seed in range(2, 6))]


@ON_MYSQL
@pytest.mark.parametrize("seed", seeds())
def test_random_histories(replica: Replica, seed: int) -> None:
    """After every batch the sink equals the source. Some batches are interrupted in the middle of the cascades."""
    rng = random.Random(seed)
    tables = RandomTables(replica.book, rng)
    tables.create()
    tables.change(30)
    replica.begin()
    for step in range(8):
        tables.executed.clear()
        tables.change(rng.randint(1, 12))
        tables.transact(rng.randint(2, 8))
        if rng.random() < 0.4:
            interrupt(replica, rng.randint(0, 25))
        replica.pipe.catch_up()
        try:
            replica.compare()
        except AssertionError as error:
            shown = "\n".join([*(str(replica.book.fetch(f"SHOW CREATE TABLE {name}")[0][1]) for name in tables.columns), *tables.executed])
            raise AssertionError(f"step {step}: {error}\n{shown}") from error


def interrupt(replica: Replica, statement: int) -> None:
    """End the process before the given statement of the cascades, if there are as many, and continue as another one."""
    left = [statement]
    real = ClickHouseCascadeStore._run

    def run(store: ClickHouseCascadeStore, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash
        real(store, *arguments)

    with mock.patch.object(ClickHouseCascadeStore, "_run", run), suppress(Crash):
        replica.pipe.catch_up()
    replica.restart()
