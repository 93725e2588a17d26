"""GTID sets are values: parsed, merged and written in the servers' own notation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DefiniteError
from headrace.sources.mysql.server.gtid import MariaDBGtidPosition, MySQLGtidSet, parse_gtid_set, tag_number

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "ffffffff-0000-0000-ffff-000000000001"


def lines(*groups: tuple[int, int, int]) -> np.ndarray:
    return np.array(groups, dtype=np.int64).reshape(-1, 3)


def halves(source: str) -> tuple[int, int]:
    """A UUID as the scan gives it: two signed 64-bit numbers."""
    number = int(source.replace("-", ""), 16)
    return tuple(int(np.uint64(half).astype(np.int64)) for half in (number >> 64, number & (1 << 64) - 1))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", ""),
        (f"{A}:1", f"{A}:1"),
        (f"{A}:1-5", f"{A}:1-5"),
        (f"{A}:1-5:7:9-10", f"{A}:1-5:7:9-10"),
        (f"{A}:9-10:1-5:6", f"{A}:1-6:9-10"),
        (f"{A.upper()}:1-3,\n{B}:2", f"{A}:1-3,{B}:2"),
        (f"{B}:2,{A}:1,{A}:2-3", f"{A}:1-3,{B}:2"),
        (f"{A}:1-5:tag:1-3", f"{A}:1-5:tag:1-3"),
        (f"{A}:Red:2 : _b1 : 4-5:7,{A}:1,{B}:zz:9", f"{A}:1:_b1:4-5:7:red:2,{B}:zz:9"),
        (f"{A}:t:1,{A}:t:2", f"{A}:t:1-2"),
    ],
)
def test_mysql_sets_are_read_and_written(text: str, written: str) -> None:
    assert str(MySQLGtidSet.parse(text)) == written
    assert MySQLGtidSet.parse(written) == MySQLGtidSet.parse(text)


def test_tagged_groups_are_sets_of_their_own() -> None:
    start = MySQLGtidSet.parse(f"{A}:1-5:red:1-3")
    tagged = np.array([(*halves(A), 4, tag_number("red")), (*halves(A), 6, 0), (*halves(A), 1, tag_number("blue"))], dtype=np.int64)
    added = start.add_groups(tagged)
    assert str(added) == f"{A}:1-6:blue:1:red:1-4"
    assert added.holds(tagged).all()
    assert start.holds(tagged).tolist() == [False, False, False]
    assert start.holds(np.array([(*halves(A), 3, tag_number("red")), (*halves(A), 5, tag_number("red"))])).tolist() == [True, False]
    assert str(added.minus(start)) == f"{A}:6:blue:1:red:4"


def test_groups_fill_gaps_and_open_sources() -> None:
    start = MySQLGtidSet.parse(f"{A}:1-5:8")
    added = start.add_groups(lines((*halves(A), 7), (0, 0, 0), (*halves(A), 6), (*halves(B), 3), (*halves(A), 11)))
    assert str(added) == f"{A}:1-8:11,{B}:3"
    assert str(start) == f"{A}:1-5:8", "a set is a value"
    assert start.add_groups(lines()) is start
    assert start.add_groups(lines((0, 0, 0))) is start


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 40))), st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 40))))
def test_adding_is_a_union_in_any_order(first: list[tuple[str, int]], second: list[tuple[str, int]]) -> None:
    one, two = (lines(*((*halves(source), number) for source, number in groups)) for groups in (first, second))
    both = MySQLGtidSet().add_groups(one).add_groups(two)
    assert both == MySQLGtidSet().add_groups(two).add_groups(one).add_groups(one)
    members = {(source, number) for source, spans in both.intervals for start, end in spans for number in range(start, end)}
    assert members == set(first) | set(second)
    assert MySQLGtidSet.parse(str(both)) == both


def test_mariadb_positions_keep_the_last_of_each_domain() -> None:
    start = MariaDBGtidPosition.parse("0-1-100, 7-2-5")
    added = start.add_groups(lines((0, 1, 101), (7, 3, 6), (0, 0, 0), (0, 2, 102), (9, 1, 1)))
    assert str(added) == "0-2-102,7-3-6,9-1-1"
    assert str(start) == "0-1-100,7-2-5"
    assert MariaDBGtidPosition.parse("") == MariaDBGtidPosition()
    assert start.add_groups(lines()) == start


def test_the_last_is_the_last_in_the_log_not_the_highest() -> None:
    """Without strict mode a lower number may follow; the server's position is the last one."""
    assert str(MariaDBGtidPosition().add_groups(lines((0, 1, 500), (0, 1, 3)))) == "0-1-3"


@pytest.mark.parametrize("text", ["nonsense", "1-2", "1-2-3-4", "0-1-x"])
def test_a_damaged_mariadb_position_is_named(text: str) -> None:
    with pytest.raises(DefiniteError, match="cannot be read"):
        MariaDBGtidPosition.parse(text)


@pytest.mark.parametrize("text", ["nonsense", f"{A}", f"{A}:", f"{A}:5-1", f"{A}:0-3", f"{A}:1-2-3", "xyz:1"])
def test_a_damaged_mysql_set_is_named(text: str) -> None:
    with pytest.raises(DefiniteError, match="GTID set"):
        MySQLGtidSet.parse(text)


def test_the_family_decides_the_notation() -> None:
    assert parse_gtid_set("0-1-2", mariadb=True) == MariaDBGtidPosition(((0, 1, 2),))
    assert parse_gtid_set(f"{A}:4", mariadb=False) == MySQLGtidSet(((A, ((4, 5),)),))
