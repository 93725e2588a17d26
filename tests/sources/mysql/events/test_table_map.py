"""TABLE_MAP events of the recordings in tests/golden, and damaged ones."""

from __future__ import annotations

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.mysql.events import table_map as tablemap
from headrace.sources.mysql.events.table_map import parse_table_map, parse_table_name
from testkit.faults.damage import split_events
from testkit.recordings.recordings import Recording, load_recording

RECORDINGS = ("mariadb-plain", "mysql-plain")


def bodies(recording: Recording) -> dict[str, bytes]:
    """The table maps of a recording by table, without table id, flags and checksum."""
    found = {}
    for event in split_events(recording.log, recording.checksum):
        if event[4] == 19:
            found[parse_table_name(event[27:], "log:1").table] = event[27:]
    return found


@pytest.mark.parametrize("name", RECORDINGS)
def test_types_metadata_and_names(name: str) -> None:
    numbers = parse_table_map(bodies(load_recording(name))["numbers"], "log:1")
    assert numbers.name == TableName("golden", "numbers")
    assert numbers.names == ("id", "tiny", "medium", "f", "d", "small", "wide", "bits")
    kinds = "LONGLONG TINY INT24 FLOAT DOUBLE NEWDECIMAL NEWDECIMAL BIT".split()  # noqa: SIM905
    assert [tablemap.TYPE_NAMES[kind] for kind in numbers.types] == kinds
    assert numbers.metadata == (0, 0, 0, 4, 8, 9 << 8 | 4, 65 << 8 | 30, 13)
    assert numbers.unsigned == (True, *[False] * 7)
    assert numbers.members == (None,) * 8


@pytest.mark.parametrize("name", RECORDINGS)
def test_strings_times_and_members(name: str) -> None:
    words = parse_table_map(bodies(load_recording(name))["words"], "log:1")
    json_type = "BLOB" if name == "mariadb-plain" else "JSON"
    kinds = ["STRING", "DATE", "DATETIME2", "TIMESTAMP2", "TIME2", "YEAR", "VARCHAR", "BLOB", "STRING", "BLOB", "ENUM", "SET", json_type]
    assert [tablemap.TYPE_NAMES[kind] for kind in words.types] == kinds
    assert words.metadata == (16, 0, 3, 6, 2, 0, 1200, 2, 6, 2, 1, 1, 4)
    assert words.members[10:12] == ((b"red", b"green", "🚰".encode()), (b"a", b"b", b"c"))
    # The year after five columns that are no numbers is the first numeric one, and it is unsigned.
    assert words.unsigned == tuple(kind == "YEAR" for kind in kinds)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_truncation_is_an_error_or_a_map_with_less_metadata(name: str) -> None:
    """Optional fields may be absent, but not incomplete; the mandatory part must be complete."""
    for body in bodies(load_recording(name)).values():
        whole = parse_table_map(body, "log:7")
        for end in range(len(body)):
            try:
                cut = parse_table_map(body[:end], "log:7")
            except DefiniteError as error:
                assert error.place == "log:7"  # noqa: PT017
                continue
            assert (cut.name, cut.types, cut.metadata) == (whole.name, whole.types, whole.metadata)
            assert cut.names in (None, whole.names)
            assert cut.unsigned in (None, whole.unsigned)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_flipped_byte_is_a_map_or_a_definite_error(name: str) -> None:
    for body in bodies(load_recording(name)).values():
        for at in range(len(body)):
            for bits in (0xFF, 0x80, 0x01):
                broken = bytearray(body)
                broken[at] ^= bits
                try:
                    parse_table_map(bytes(broken), "log:7")
                except DefiniteError as error:
                    assert error.place == "log:7"  # noqa: PT017


def test_a_map_without_optional_metadata() -> None:
    body = b"\x02db\x00\x01t\x00\x03\x03\xfe\x0f\x04\xee\xfc\x90\x01\x06"
    table_map = parse_table_map(body, "log:1")
    assert table_map.name == TableName("db", "t")
    # CHAR(255) of four-byte characters stores two bits of its 1020 bytes in the type.
    assert (table_map.types, table_map.metadata) == ((tablemap.LONG, tablemap.STRING, tablemap.VARCHAR), (0, 508, 400))
    assert (table_map.names, table_map.unsigned) == (None, None)


def test_only_the_name_is_read() -> None:
    assert parse_table_name(b"\x02db\x00\x05table\x00\x01\x8c???", "log:1") == TableName("db", "table")
    with pytest.raises(DefiniteError, match="TABLE_MAP"):
        parse_table_name(b"\x02db\x00\x05tab", "log:1")
    with pytest.raises(DefiniteError, match="TABLE_MAP"):
        parse_table_name(b"", "log:1")
