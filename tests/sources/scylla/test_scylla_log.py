"""The examples of ScyllaDB's documentation of its log: statements, and the printed table."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import pytest

from headrace.cql import timeuuid
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.log import TIME, log_table
from headrace.errors import DefiniteError
from headrace.sources.scylla.capture.statement_capture import Capture
from testkit.oracles.cql_text import Session, Transcript, shown_row, transcripts

HERE = Path(__file__).parents[2] / "golden"
PAGE = list(transcripts(HERE / "scylla_log.txt"))
RULES = list(transcripts(HERE / "scylla_log_rules.txt"))


def check(example: Transcript, given: list[list[str]] | str) -> None:
    """Compare the result with the printed rows; of `cdc$time` only the microseconds, because the rest is random."""
    if isinstance(given, str):
        pattern = r".*".join(re.escape(part) for part in "\n".join(example.printed).split("..."))
        assert re.match(pattern, given, re.DOTALL)
        return
    if not example.printed:
        return
    expected = example.cells
    if TIME in example.header:
        at = example.header.index(TIME)
        for row in (*expected, *given):
            row[at] = str(timeuuid.micros(UUID(row[at])) if "-" in row[at] else row[at])
    assert given == expected


def test_the_page_is_whole() -> None:
    assert len(PAGE) == 36
    assert sum(1 for example in PAGE if example.printed) == 35


def test_every_example_of_the_page() -> None:
    session = Session()
    for example in PAGE:
        check(example, session.run(example))


def test_every_rule() -> None:
    session = Session()
    for example in RULES:
        check(example, session.run(example))


def test_rows_of_one_timestamp_share_their_time_and_others_do_not() -> None:
    """The page's batches are rows of one `cdc$time`; each statement has its own."""
    known = CqlCatalog().apply_all("CREATE TABLE ks.t (pk int, ck int, v map<int, text>, PRIMARY KEY (pk, ck))")
    capture = Capture(known.tables.values())
    first = capture.log("INSERT INTO ks.t (pk, ck, v) VALUES (0, 0, {1: 'a'}) USING TTL 10 AND TIMESTAMP 5")
    again = capture.log("INSERT INTO ks.t (pk, ck, v) VALUES (0, 0, {1: 'a'}) USING TTL 10 AND TIMESTAMP 5")
    assert len({row.values[TIME] for row in first}) == 1
    assert {row.values[TIME] for row in first}.isdisjoint(row.values[TIME] for row in again)


def test_a_field_that_is_added_has_the_next_index() -> None:
    known = CqlCatalog().apply_all(
        "CREATE TYPE ks.ut (a int, b int, c int); CREATE TABLE ks.t (pk int, ck int, v ut, PRIMARY KEY (pk, ck));"
        "ALTER TYPE ks.ut ADD d int; ALTER TYPE ks.ut RENAME a TO first"
    )
    table = known.named("ks.t")
    capture = Capture([table])
    wanted = ["v", "cdc$deleted_v", "cdc$deleted_elements_v"]
    (row,) = capture.log("UPDATE ks.t SET v.d = null, v.first = 1 WHERE pk = 0 AND ck = 0")
    assert shown_row(log_table(table), wanted, row.values) == ["{first: 1, b: null, c: null, d: null}", "null", "{3}"]


def test_counters_are_refused_in_the_page_s_words() -> None:
    table = CqlCatalog().apply("CREATE TABLE ks.t (pk int PRIMARY KEY, c counter)").named("ks.t")
    with pytest.raises(DefiniteError, match=re.escape("Cannot create CDC log for table ks.t. Counter support not implemented.")):
        Capture([table])
