"""The log is complete: applied, it gives the statements' result, for random tables and histories."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cql.log import END, SEQUENCE, TIME
from headrace.sources.scylla.capture.partition_state_loader import replay_log
from headrace.sources.scylla.capture.statement_capture import Capture
from headrace.sources.scylla.capture.storage_model import CapturedTables
from testkit.generators.cql_histories import History, histories, random_history

pytestmark = pytest.mark.scaled

NOW = 1_800_000_000


def _check(history: History, shuffle: int) -> None:
    capture = Capture([history.table], lambda: NOW * 1_000_000, seed=7)
    batches = [capture.log(statement.text) for statement in history.statements]
    rows = [row for batch in batches for row in batch]
    times = [row.values[TIME] for row in rows]
    for row, time in zip(rows, times, strict=True):
        of_time = [one for one in rows if one.values[TIME] == time]
        assert [int.from_bytes(one.values[SEQUENCE], "big") for one in of_time] == list(range(len(of_time)))
        assert [END in one.values for one in of_time] == [False] * (len(of_time) - 1) + [True]
        assert row.timestamp == of_time[0].timestamp
    Random(shuffle).shuffle(rows)
    again = CapturedTables()
    again.merge(history.table.name, replay_log(history.table, [row.values for row in rows], NOW))
    assert again.rows(history.table, NOW) == capture.state.rows(history.table, NOW)


@settings(max_examples=60, deadline=None)
@given(histories(25), st.integers(0, 1000))
def test_the_log_says_all_that_statements_do(history: History, shuffle: int) -> None:
    _check(history, shuffle)


def test_generated_histories_equal_their_statements() -> None:
    """Some hundred statements cover all kinds, and tables are not empty at the end."""
    texts = [statement.text for seed in range(40) for statement in random_history(seed, 10).statements]
    for part in (
        "INSERT INTO",
        "UPDATE",
        "DELETE FROM",
        "BEGIN BATCH",
        "BEGIN UNLOGGED",
        "USING TTL",
        " IN (",
        " + ",
        " - {",
        " > ",
        "] =",
        "null",
    ):
        assert any(part in text for text in texts), part
    assert str(random_history(3, 20)) == str(random_history(3, 20))
