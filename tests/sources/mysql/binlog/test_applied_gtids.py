"""Groups that were applied before are recognised by their GTID, and skipped."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DefiniteError
from headrace.sources.mysql.failover import joined
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.group_addresses import AppliedGroups
from headrace.sources.mysql.server.gtid import MariaDBGtidPosition, MySQLGtidSet, missing_from, read_gtid_set
from headrace.sources.mysql.start_position import ServerGtids

A, B, C = (str(uuid.UUID(int=number)) for number in (0xA << 60, 2**128 - 5, 17))
spans = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=5)
sets = st.dictionaries(st.sampled_from([A, B, C]), spans)


def halves(source: str) -> tuple[int, int]:
    high, low = divmod(uuid.UUID(source).int, 1 << 64)
    return int(np.uint64(high).astype(np.int64)), int(np.uint64(low).astype(np.int64))


def members(raw: dict[str, list[tuple[int, int]]]) -> set[tuple[str, int]]:
    return {(source, number) for source, spans in raw.items() for start, more in spans for number in range(start, start + more + 1)}


def text_of(raw: dict[str, list[tuple[int, int]]]) -> str:
    return ",".join(":".join([source, *(f"{start}-{start + more}" for start, more in spans)]) for source, spans in raw.items() if spans)


@given(sets, sets)
def test_mysql_sets_subtract_and_hold_as_plain_sets_do(
    one: dict[str, list[tuple[int, int]]], other: dict[str, list[tuple[int, int]]]
) -> None:
    first, second = MySQLGtidSet.parse(text_of(one)), MySQLGtidSet.parse(text_of(other))
    left = {(source, number) for source, spans in first.minus(second).intervals for start, end in spans for number in range(start, end)}
    assert left == members(one) - members(other)
    assert (missing_from(text_of(one), text_of(other), mariadb=False) == "") == (members(one) <= members(other))
    asked = sorted({(source, number) for source in (A, B, C) for number in range(1, 50)})
    held = first.holds(np.array([(*halves(source), number) for source, number in asked], dtype=np.int64))
    assert {gtid for gtid, yes in zip(asked, held.tolist(), strict=True) if yes} == members(one)


def test_mariadb_positions_compare_domain_by_domain() -> None:
    position = MariaDBGtidPosition.parse("0-1-100,5-9-7")
    lines = np.array([(0, 1, 100), (0, 2, 99), (0, 2, 101), (5, 9, 8), (6, 1, 1), (0, 0, 0)], dtype=np.int64)
    assert position.holds(lines).tolist() == [True, True, False, False, False, False]
    assert missing_from("0-3-99,5-9-8,6-1-1", "0-1-100,5-9-7", mariadb=True) == "5-9-8,6-1-1"
    assert isinstance(read_gtid_set(f"{A}:1-5"), MySQLGtidSet)
    assert isinstance(read_gtid_set("0-1-2"), MariaDBGtidPosition)


def groups(*lines: tuple[int, tuple[int, int, int]]) -> np.ndarray:
    found = np.zeros((len(lines), scan.GROUP_COLUMNS), dtype=np.int64)
    for i, (kind, gtid) in enumerate(lines):
        found[i, scan.END], found[i, scan.KIND], found[i, scan.ROWS] = 100 + i, kind, 1
        found[i, scan.GTID0 : scan.GTID2 + 1] = gtid
    return found


def test_what_was_applied_is_skipped_and_prepared_rows_are_kept() -> None:
    found = groups(
        (scan.DATA, (0, 1, 4)),
        (scan.STATEMENT, (0, 1, 5)),
        (scan.PREPARED, (0, 1, 6)),
        (scan.XA_COMMIT, (0, 1, 7)),
        (scan.PREPARED, (0, 1, 8)),
        (scan.XA_COMMIT, (0, 1, 9)),
        (scan.DATA, (3, 1, 1)),
        (scan.FILE_END, (0, 0, 0)),
    )
    AppliedGroups(read_gtid_set("0-1-8")).mark(found, "log:4")
    kinds = [scan.SKIPPED, scan.SKIPPED, scan.PREPARED, scan.XA_ROLLBACK, scan.PREPARED, scan.XA_COMMIT, scan.DATA, scan.FILE_END]
    assert found[:, scan.KIND].tolist() == kinds
    assert found[:2, scan.ROWS].tolist() == [0, 0]
    # Skipped groups are not added to the GTID set at the end of a batch.
    after = MariaDBGtidPosition.parse("0-1-8").add_groups(found[:, scan.GTID0 : scan.GTID2 + 1])
    assert str(after) == "0-1-9,3-1-1"


def test_sequence_numbers_that_go_back_are_an_error() -> None:
    applied = AppliedGroups(read_gtid_set("0-1-8"))
    applied.mark(groups((scan.DATA, (0, 1, 8)), (scan.DATA, (0, 1, 9)), (scan.FILE_END, (0, 0, 0))), "log:4")
    applied.mark(groups((scan.DATA, (0, 1, 10))), "log:90")
    with pytest.raises(DefiniteError, match="domain 0 go back"):
        applied.mark(groups((scan.DATA, (0, 2, 7))), "log:200")
    with pytest.raises(DefiniteError, match="domain 0 go back"):
        AppliedGroups(read_gtid_set("0-1-8")).mark(groups((scan.DATA, (0, 1, 9)), (scan.DATA, (0, 2, 7))), "log:4")


def test_gtids_of_mariadb_are_compared_by_domain_and_server() -> None:
    """Two servers that diverged after 0-1-97 use the same numbers; the last GTID of a domain is not enough."""
    server = ServerGtids(mariadb=True, executed="0-1-97,0-2-105,3-1-8")
    assert server.lacks("0-1-97,3-1-8") == ""
    assert server.lacks("0-1-100") == "0-1-100"
    assert server.lacks("0-2-105,4-1-1") == "4-1-1"
    assert server.latest == "0-2-105,3-1-8"
    assert joined("0-1-97", "0-2-100,5-1-1", mariadb=True) == "0-2-100,5-1-1"
    assert joined(f"{A}:1-5", f"{A}:4-9", mariadb=False) == f"{A}:1-9"
    assert joined("", "", mariadb=True) == joined("", "", mariadb=False) == ""
