"""Positions have the order of the log, and give versions below those of all later changes."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest

from headrace.errors import DefiniteError
from headrace.model.version import unpack_version
from headrace.sources.mysql.server.position import BinlogPosition, file_number


def test_order_is_epoch_file_number_offset() -> None:
    places = [
        BinlogPosition("binlog.000002", 900),
        BinlogPosition("binlog.000010", 4),
        BinlogPosition("binlog.000010", 5),
        BinlogPosition("binlog.999999", 4),
        BinlogPosition("binlog.1000000", 4),
        BinlogPosition("binlog.000001", 4, epoch=1),
    ]
    shuffled = [places[n] for n in (3, 0, 5, 1, 4, 2)]
    assert sorted(shuffled) == places
    assert [place.version for place in places] == sorted({place.version for place in places})
    assert all(one < other and other > one and one <= other and one != other for one, other in pairwise(places))


def test_the_gtid_does_not_matter_to_equality() -> None:
    one, other = BinlogPosition("binlog.000001", 4, "0-1-1"), BinlogPosition("binlog.000001", 4)
    assert one == other
    assert hash(one) == hash(other)
    assert one != "binlog.000001:4"


def test_json_and_pickle_keep_everything() -> None:
    place = BinlogPosition("host-bin.000042", 1 << 33, "0-1-7", 3)
    again = BinlogPosition.from_json(json.loads(json.dumps(place.to_json())))
    for copy in (again, pickle.loads(pickle.dumps(place))):
        assert (copy.file, copy.offset, copy.gtid, copy.epoch) == (place.file, place.offset, place.gtid, place.epoch)
    assert str(place) == f"host-bin.000042:{1 << 33}"
    assert unpack_version(place.version) == (3, 42, 1 << 33)


def test_old_offsets_without_gtid_and_epoch_are_read() -> None:
    assert BinlogPosition.from_json({"file": "binlog.000001", "pos": 4}) == BinlogPosition("binlog.000001", 4)


@pytest.mark.parametrize(("name", "number"), [("binlog.000042", 42), ("a.b-c.1234567", 1_234_567), ("binlog.000000", 0)])
def test_file_numbers(name: str, number: int) -> None:
    assert file_number(name) == number


@pytest.mark.parametrize("name", ["binlog", "binlog.", "binlog.index", "binlog.00x", ""])
def test_a_name_without_a_number_is_refused(name: str) -> None:
    with pytest.raises(DefiniteError, match="has no number"):
        file_number(name)


@pytest.mark.parametrize("place", [BinlogPosition("b.1", 1 << 36), BinlogPosition(f"b.{1 << 22}", 4), BinlogPosition("b.1", 4, epoch=64)])
def test_what_does_not_fit_a_version_is_refused(place: BinlogPosition) -> None:
    with pytest.raises(DefiniteError, match="does not fit a version"):
        _ = place.version


def test_a_position_noted_during_a_stream_is_between_read_and_unread_changes() -> None:
    reached = BinlogPosition("binlog.000003", 1000, shift=500)
    noted = BinlogPosition("binlog.000003", 1200)
    assert noted.version < reached.version
    assert reached.version < noted.with_version_after(reached).version < BinlogPosition("binlog.000003", 1201, shift=500).version
    assert noted.with_version_after(reached) == noted
    for elsewhere in (None, replace(reached, file="binlog.000002"), replace(reached, epoch=1), replace(reached, offset=1201)):
        assert noted.with_version_after(elsewhere).version == noted.version
