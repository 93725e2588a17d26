"""Conversions of whole columns equal those of single values, for any slice and any bytes."""

from __future__ import annotations

import codecs

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sources.mysql.charsets import (
    TABLES,
    NotUnicode,
    UnknownCharset,
    charset_of_collation,
    decode_text,
    load_tables,
    transcoder,
)
from headrace.sources.mysql.kernels import charsets

CHARSETS = sorted({*load_tables().directory, "ucs2", "utf16", "utf16le", "utf32", "utf8mb4"})
PYTHON = {"koi8r": "koi8-r", "cp1251": "cp1251", "gbk": "gbk", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}


def test_the_tables_are_small_and_cover_what_servers_have() -> None:
    assert TABLES.stat().st_size < 100_000
    assert len(CHARSETS) == 39
    assert [charset_of_collation(number) for number in (8, 33, 45, 63, 255, 2048)] == [
        "latin1",
        "utf8mb3",
        "utf8mb4",
        "binary",
        "utf8mb4",
        "utf8mb3",
    ]


@settings(max_examples=4 * settings.default.max_examples)
@given(charset=st.sampled_from(CHARSETS), values=st.lists(st.none() | st.binary(max_size=12), max_size=12), data=st.data())
def test_a_column_is_its_values_and_a_slice_its_part(charset: str, values: list[bytes | None], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values)))
    last = data.draw(st.integers(first, len(values)))
    convert = transcoder(charset)
    expected: list[str | None] = []
    for value in values[first:last]:
        try:
            expected.append(None if value is None else convert(pa.array([value])).to_pylist()[0])
        except NotUnicode:
            with pytest.raises(NotUnicode) as caught:
                convert(pa.array(values, pa.binary()).slice(first, last - first))
            assert caught.value.index == len(expected)
            return
    found = convert(pa.array(values, pa.binary()).slice(first, last - first))
    found.validate(full=True)
    assert found.type == pa.string()
    assert found.to_pylist() == expected


@pytest.mark.parametrize(("charset", "codec"), PYTHON.items())
@given(texts=st.lists(st.text(max_size=20), max_size=8))
def test_text_that_python_spells_alike(charset: str, codec: str, texts: list[str]) -> None:
    spelled = [codecs.encode(text, codec, "ignore") for text in texts]
    kept = [raw.decode(codec) for raw in spelled]
    assert transcoder(charset)(pa.array(spelled, pa.binary())).to_pylist() == kept
    assert [decode_text(charset, raw) for raw in spelled] == kept


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf8", "surrogatepass")))
def test_utf8_is_what_python_takes_for_it(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        with pytest.raises(NotUnicode):
            transcoder("utf8mb4")(pa.array([b"fine", raw, b"\x80"]))
    else:
        assert transcoder("utf8mb4")(pa.array([b"fine", raw, b"fine"]))[1].as_py() == raw.decode()


@given(st.text(min_size=1, max_size=30), st.integers(0, 60))
def test_a_character_does_not_reach_into_the_next_value(text: str, at: int) -> None:
    raw = text.encode()
    parts = [raw[:at], raw[at:]]
    if raw[at : at + 1] and raw[at] >> 6 == 2:
        with pytest.raises(NotUnicode):
            transcoder("utf8mb4")(pa.array(parts))
    else:
        assert "".join(transcoder("utf8mb4")(pa.array(parts)).to_pylist()) == text


def test_every_lead_and_second_byte_of_utf8() -> None:
    tails = [b"", b"\x80", b"\xbf", b"\x80\x80", b"\xbf\xbf", b"\x80\x7f", b"\x80\xc0", b"\x80\x80\x80"]
    for lead in range(0x80, 0x100):
        for second in range(256):
            for tail in tails if second in (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0) else tails[:4]:
                raw = bytes([lead, second]) + tail
                data, bounds = np.frombuffer(raw, np.uint8), np.array([0, len(raw)], np.int32)
                expected = raw.decode("utf8", "ignore").encode() == raw
                assert charsets.is_utf8(data, bounds) == expected, raw.hex()
                assert (charsets.find_bad_utf8(data, bounds) < 0) == expected, raw.hex()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 255, 256, 257, 1000])
def test_a_high_byte_is_found_wherever_it_is(size: int) -> None:
    data = np.zeros(size + 2, dtype=np.uint8)
    data[0] = data[-1] = 255
    assert charsets.is_ascii(data, 1, size + 1)
    for at in {0, size // 2, size - 1} if size else ():
        data[at + 1] = 0x80
        assert not charsets.is_ascii(data, 1, size + 1)
        data[at + 1] = 0


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("latin1", b"\x80\x81\xff", "€\x81ÿ"),
        ("swe7", b"[\\]\x80", "ÄÖÅ?"),
        ("sjis", b"\x81\x61\x81\x7f\x81", "‖?\x7f?"),
        ("gb18030", b"\x81\x30\x81\x30\xe3\x32\x9a\x35\xe3\x32\x9a\x36\x81\x30", "\x80\U0010ffff??0"),
        ("ucs2", b"\x00a\xd8\x00\x00", "a??"),
        ("utf32", b"\x00\x00\x00a\x00\x01\xf6\xb0", "a🚰"),
        ("binary", b"a\xff", "a?"),
        ("utf8mb4", b"a\xff", "a?"),
    ],
)
def test_names_one_by_one(charset: str, raw: bytes, text: str) -> None:
    assert decode_text(charset, raw) == text


def test_unknown_values_are_errors() -> None:
    with pytest.raises(UnknownCharset, match="ebcdic"):
        transcoder("ebcdic")
    with pytest.raises(UnknownCharset, match="65000"):
        charset_of_collation(65_000)
