"""Pages cut a log anywhere; the assembler returns complete batches, in the order of each stream, and no incomplete batch."""

from __future__ import annotations

import random
from itertools import pairwise
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cql.blocks import BatchPosition
from headrace.cql.log import END, OPERATION, SEQUENCE, STREAM, TIME
from headrace.cql.timeuuid import make
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.batch_assembler import BatchAssembler, BatchSkipper, BlockBuffer, check_operations, is_passed
from headrace.sources.scylla.position import LogPosition, StreamPosition

Row = tuple[bytes, bytes, int, bool | None]
"""Stream, time, number in its batch, end."""
ANY = random.Random(6)


def stream(number: int) -> bytes:
    return number.to_bytes(16, "big")


def batch(of: int, micros: int, rows: int, *, ends: bool = True) -> list[Row]:
    """Rows of one cdc$time; the other half of a timeuuid is random, so that times within a microsecond differ."""
    time = make(micros, ANY.getrandbits(64)).bytes
    return [(stream(of), time, number, True if ends and number == rows - 1 else None) for number in range(rows)]


def page(rows: list[Row], operations: list[int | None] | None = None) -> pa.RecordBatch:
    codes = operations if operations is not None else [1] * len(rows)
    return pa.RecordBatch.from_pydict(
        {
            STREAM: pa.array([row[0] for row in rows], pa.binary()),
            TIME: pa.array([row[1] for row in rows], pa.binary()),
            SEQUENCE: pa.array([row[2].to_bytes(4, "big") for row in rows], pa.binary()),
            OPERATION: pa.array([None if code is None else code.to_bytes(1, "big", signed=True) for code in codes], pa.binary()),
            END: pa.array([None if row[3] is None else bytes([row[3]]) for row in rows], pa.binary()),
        }
    )


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[bytes, bytes, int]]:
    found = []
    for one in batches:
        found += [(row[STREAM], row[TIME], int.from_bytes(row[SEQUENCE], "big")) for row in one.to_pylist()]
    return found


def assembled(rows: list[Row], cuts: list[int]) -> tuple[list[pa.RecordBatch], BatchAssembler]:
    assembler, given_on, bounds = BatchAssembler("here"), [], [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for first, last in pairwise(bounds):
        given_on.append(assembler.feed(page(rows[first:last])))
    rest = assembler.finish()
    return [*given_on, *([] if rest is None else [rest])], assembler


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_whole_batches_and_nothing_else(streams: list[list[tuple[int, bool]]], cuts: list[int]) -> None:
    rows: list[Row] = []
    wanted: list[Row] = []
    broken: dict[bytes, bytes | None] = {}
    for number, batches in enumerate(streams):
        for micros, (size, ends) in enumerate(batches):
            # Several batches share a microsecond.
            made = batch(number, 1000 + micros // 2, size, ends=ends)
            rows += made
            if stream(number) in broken:
                continue
            if ends:
                wanted += made
            else:
                broken[stream(number)] = wanted[-1][1] if wanted and wanted[-1][0] == stream(number) else None
    given_on, assembler = assembled(rows, cuts)
    assert rows_of(given_on) == [row[:3] for row in wanted]
    assert assembler.broken == broken
    # No batch is cut, for any pages.
    for one in given_on:
        ends = one.column(END).to_pylist()
        assert not ends or ends[-1] == b"\x01"


def test_rows_without_end_wait_for_the_next_page() -> None:
    assembler = BatchAssembler("here")
    first, second = batch(1, 1000, 2), batch(1, 1000, 3)
    assert rows_of([assembler.feed(page([*first, *second[:2]]))]) == [row[:3] for row in first]
    assert rows_of([assembler.feed(page(second[2:]))]) == [row[:3] for row in second]
    assert (assembler.finish(), assembler.broken) == (None, {})


@pytest.mark.parametrize("code", [10, 11, -1, -2, -5, 127])
def test_an_unknown_operation_is_an_error(code: int) -> None:
    rows = [*batch(1, 1000, 1), *batch(7, 2000, 1)]
    table = TableName("ks", "t")
    check_operations(page(rows, [0, 9]), table)
    check_operations(page(rows, [-3, -4]), table)
    with pytest.raises(DefiniteError, match=f"operation {code}, which") as raised:
        check_operations(page(rows, [1, code]), table)
    assert raised.value.place.startswith(f"log of ks.t, stream 0x{stream(7).hex()}, cdc$time ")
    assert raised.value.event == raised.value.place
    with pytest.raises(DefiniteError, match="no operation"):
        check_operations(page(rows, [1, None]), table)


def test_only_the_skipped_batch_is_missing() -> None:
    place = BatchPosition("ks.t", stream(1), UUID(int=1).bytes)
    assert BatchPosition.parse(str(place)) == place
    assert BatchPosition.parse("binlog.000001:4") is None
    rows = page([*batch(1, 1000, 2), *batch(1, 2000, 1), *batch(7, 1000, 1)])
    named = str(BatchPosition.of_row("ks.t", rows, 0))
    skipping = BatchSkipper([named, "row 17"])
    assert skipping.without(rows, TableName("ks", "other")).equals(rows)
    assert rows_of([skipping.without(rows, TableName("ks", "t"))]) == rows_of([rows])[2:]
    [skip] = skipping.report()
    assert (skip["place"], skip["table"], skip["rows"]) == (named, "ks.t", "2")
    assert stream(1).hex() in skip["content"]


def test_a_batch_is_pending_until_the_second_read_has_passed_it() -> None:
    rows = page(batch(1, 1000, 1))
    place = BatchPosition.of_row("ks.t", rows, 0)
    name, at = TableName("ks", "t"), place.micros
    before, after = StreamPosition(1, at - 1), StreamPosition(1, at)
    assert not is_passed(str(place), LogPosition({name: before}))
    assert is_passed(str(place), LogPosition({name: after}))
    assert not is_passed(str(place), LogPosition({name: after}, {(name, 1): before}))
    assert is_passed(str(place), LogPosition({name: after}, {(name, 1): after}))
    assert not is_passed(str(place), LogPosition({TableName("ks", "other"): after}))


def test_ids_of_another_length_are_an_error() -> None:
    strange = page([(b"abc", make(1, 2).bytes, 0, True)])
    with pytest.raises(DefiniteError, match="16 bytes"):
        BatchAssembler("here").feed(strange)


def test_small_pieces_are_gathered() -> None:
    gathering = BlockBuffer(5, 1 << 30)
    pieces = [page(batch(1, number, 2)) for number in range(5)]
    found = [one for piece in pieces for one in gathering.add(piece)] + list(gathering.rest())
    assert [one.num_rows for one in found] == [6, 4]
    assert list(gathering.rest()) == []
    assert [one.num_rows for one in BlockBuffer(100, 1).add(pieces[0])] == [2]
