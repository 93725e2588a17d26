"""After any sequence of DDL, the followed schema equals the recaptured one, on both servers."""

from __future__ import annotations

import os

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.generators.ddl_random import run_random
from testkit.oracles.binlogs import open_logbook

pytestmark = pytest.mark.scaled

SEEDS, STATEMENTS = (24, 60) if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else (4, 60)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_followed_equals_recaptured(server: PrivateServer, database: str, seed: int) -> None:
    aside = f"{database}_aside"
    with open_logbook(server, database, sql_mode="") as book:
        book.run(f"CREATE DATABASE {aside} CHARACTER SET latin1")
        try:
            taken, differences = run_random(book, (database, aside), seed, STATEMENTS, every=2)
        finally:
            book.run(f"DROP DATABASE {aside}")
    assert differences == []
    assert taken > STATEMENTS // 5
