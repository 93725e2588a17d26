"""Defects that random damage has found, one case each. (The seeds give other damage when recordings change.)"""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.ddl.statement_effects import interpret
from headrace.sources.mysql.events.event_types import Query, parse_rotate
from headrace.sources.mysql.rows.column_finish import check_values
from testkit.faults.damage import assemble, split_events
from testkit.oracles.chain import FIRST, Chain
from testkit.recordings.recordings import Recording, load_recording

pytestmark = pytest.mark.scaled

BOTH = pytest.mark.parametrize("name", ["mariadb-plain", "mysql-plain"])


def chain(recording: Recording, directory: Path) -> Chain:
    return Chain(directory, recording.file, mariadb=recording.flavour == "mariadb")


@BOTH
def test_damage_to_the_format_description_does_not_switch_checksums_off(name: str, tmp_path: Path) -> None:
    recording = load_recording(name)
    damaged = bytearray(recording.log)
    size = struct.unpack_from("<I", damaged, FIRST + 9)[0]
    assert damaged[FIRST + size - 5] == 1
    damaged[FIRST + size - 5] = 0
    end, fault = chain(recording, tmp_path).scan(bytes(damaged), checksum=True)
    assert end == FIRST
    assert fault is not None
    assert "checksum is wrong" in fault.message


def test_a_group_that_fails_on_a_closer_look_is_not_published(tmp_path: Path) -> None:
    recording = load_recording("mysql-tagged")
    events = split_events(recording.log, recording.checksum)
    tagged = [number for number, event in enumerate(events) if event[4] == 42]
    second = tagged[1]
    events[second] = events[second][:22]
    log = assemble(events, recording.checksum)
    at = len(assemble(events[:second], recording.checksum))
    published = chain(recording, tmp_path).publish(log, checksum=True)
    assert published.fault is not None
    assert published.fault.place == f"{recording.file}:{at}"
    assert FIRST < published.end <= at


def with_row(recording: Recording, old: bytes, new: bytes) -> bytes:
    """Replace the first occurrence of some bytes in a row event; keep checksums valid."""
    events = split_events(recording.log, recording.checksum)
    number = next(i for i, event in enumerate(events) if event[4] in (23, 30) and old in event)
    events[number] = events[number].replace(old, new, 1)
    return assemble(events, recording.checksum)


@BOTH
@pytest.mark.parametrize(
    ("old", "new"),
    [
        # DECIMAL(9,4) -12345.6789: five digits in three bytes, inverted; all bits set are far more than five nines.
        (bytes.fromhex("7fcfc6e57a"), bytes.fromhex("000000e57a")),
        # TIME(2) -838:59:58.99: 63 minutes.
        (bytes.fromhex("4b91059d"), bytes.fromhex("4b90059d")),
    ],
    ids=["decimal", "time"],
)
def test_no_value_of_its_type(name: str, old: bytes, new: bytes, tmp_path: Path) -> None:
    recording = load_recording(name)
    with pytest.raises(DefiniteError, match="not a value of its type"):
        chain(recording, tmp_path).read(with_row(recording, old, new), recording.catalog(), checksum=True)


def test_a_file_name_that_is_no_text() -> None:
    with pytest.raises(DefiniteError, match="ROTATE"):
        parse_rotate(bytes(8) + b"binlog.\xff", "here")


def test_null_bits_and_bytes_that_cannot_be() -> None:
    cases = [
        (Column("a", Kind.INT32, nullable=False), pa.array([1, None], pa.int32()), "NULL"),
        (Column("b", Kind.BIT, precision=3), pa.array([8], pa.uint64()), "3 bits"),
        (Column("y", Kind.YEAR), pa.array([2156], pa.uint16()), "year"),
        (Column("j", Kind.JSON), pa.array([b'"\xff"'], pa.binary()).view(pa.string()), "not a value"),
    ]
    for column, array, why in cases:
        with pytest.raises(DefiniteError, match=why):
            check_values(TableSchema(TableName("shop", "t"), (column,), ()), [array], frozenset({ValueForm.JSON}), "here")


def test_a_key_with_a_prefix_that_is_no_number() -> None:
    found = interpret(Query("shop", "CREATE TABLE t (a INT, KEY k (a (65,30)))"), SchemaCatalog({}, {}), Dialect.of("9.7.0"))
    assert found.unknown
