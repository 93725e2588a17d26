"""Finishers on raw columns: exact values, or a definite error that names the column."""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind
from headrace.sources.mysql.events import table_map
from headrace.sources.mysql.rows.column_finish import finisher

PLACE = "log.000001:4"


def finished(column: Column, raw: list[bytes | None], stored: int | None = table_map.STRING) -> pa.Array:
    finish = finisher(column, stored, 0, PLACE)
    assert finish is not None
    array = finish(pa.array(raw, pa.binary()))
    array.validate(full=True)
    assert array.type == column.arrow_type
    return array


@pytest.mark.parametrize("kind", [Kind.INT32, Kind.BYTES, Kind.JSON, Kind.GEOMETRY, Kind.DATETIME])
def test_most_columns_need_none(kind: Kind) -> None:
    assert finisher(Column("c", kind), table_map.BLOB, 2, PLACE) is None


def test_text_is_in_its_own_character_set_in_the_log_and_in_utf8_in_results() -> None:
    column = Column("c", Kind.STRING, charset="latin1")
    assert finished(column, [b"\xe9", None]).to_pylist() == ["é", None]
    assert finished(column, ["é".encode(), None], stored=None).to_pylist() == ["é", None]
    with pytest.raises(DefiniteError, match="character set ebcdic") as caught:
        finished(Column("c", Kind.STRING, charset="ebcdic"), [])
    assert caught.value.place == f"{PLACE}, column c"


@pytest.mark.parametrize(("kind", "width"), [(Kind.UUID, 16), (Kind.INET4, 4), (Kind.INET6, 16)])
def test_bytes_of_one_size(kind: Kind, width: int) -> None:
    column = Column("c", kind)
    one, other = bytes(range(width)), b"\xff" * width
    assert finished(column, []).to_pylist() == []
    assert finished(column, [one, other]).to_pylist() == [one, other]
    assert finished(column, [None, one, None, other, None]).to_pylist() == [None, one, None, other, None]
    assert finished(column, [None]).to_pylist() == [None]
    for wrong in ([one[:-1]], [one, b""], [None, other + b"x"], [one[:-1], other + b"x"]):
        with pytest.raises(DefiniteError, match=r"column c .* not of") as caught:
            finished(column, wrong)
        assert caught.value.place == f"{PLACE}, column c"


def test_vectors() -> None:
    column = Column("v", Kind.VECTOR)
    raw = [struct.pack("<3f", 1, -2, 0.5), None, b"", struct.pack("<f", 7)]
    assert finished(column, raw).to_pylist() == [[1, -2, 0.5], None, [], [7]]
    assert finished(column, []).to_pylist() == []
    with pytest.raises(DefiniteError, match="broken number"):
        finished(column, [b"\0\0\0\0", b"\0\0\0"])


def packed(text: bytes, width: int = 2, bare: bool = True) -> bytes:
    squeeze = zlib.compressobj(wbits=-15 if bare else 15)
    return bytes([0x80 | bare << 3 | width]) + len(text).to_bytes(width, "big") + squeeze.compress(text) + squeeze.flush()


@pytest.mark.parametrize("stored", [table_map.BLOB_COMPRESSED, table_map.VARCHAR_COMPRESSED])
def test_compressed_values(stored: int) -> None:
    raw = [b"", b"\0plain", None, packed(b"a" * 300), packed(b"b" * 70000, 3, bare=False), b"\0"]
    expected = [b"", b"plain", None, b"a" * 300, b"b" * 70000, b""]
    assert finished(Column("c", Kind.BYTES), raw, stored).to_pylist() == expected
    texts = [None if value is None else value.decode() for value in expected]
    assert finished(Column("c", Kind.STRING, charset="utf8mb4"), raw, stored).to_pylist() == texts


def test_damaged_compressed_values() -> None:
    """Every truncation and every changed byte of the head gives an error, or the same value."""
    column, text = Column("c", Kind.BYTES), bytes(range(256)) * 3
    whole = packed(text)
    broken = [whole[:end] for end in range(1, len(whole))] + [whole + b"\0", packed(text + b"x")[:3] + whole[3:], b"\x90" + whole[1:]]
    broken += [bytes([head]) + whole[1:] for head in range(1, 256) if head != whole[0]]
    for value in broken:
        with pytest.raises(DefiniteError, match=r"column c .* cannot be read"):
            finished(column, [value], table_map.BLOB_COMPRESSED)
