"""Binary JSON is converted to the server's text; damage gives an error code without access outside of the buffers.

`jsonb_documents.json` holds documents from MySQL's log with their SQL and MySQL's text.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from headrace.kernels.pointers import MALFORMED, NO_ROOM
from headrace.sources.mysql.kernels.jsonb import MAX_DEPTH, SLACK, json_to_text, text_room

FIXTURE = json.loads(Path(__file__).with_name("jsonb_documents.json").read_text())
DOCUMENTS = [(case["sql"], bytes.fromhex(case["document"]), case["text"].encode()) for case in FIXTURE["documents"]]
SMALL = [document for _, document, _ in DOCUMENTS if len(document) < 400]


def as_array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.array(bytearray(data), np.uint8)


def render(document: bytes) -> bytes | int:
    """The text, or the code of the failure."""
    out = np.zeros(text_room(len(document)), np.uint8)
    end = json_to_text(as_array(document), 0, len(document), out, 0)
    return out[:end].tobytes() if end >= 0 else end


class Fenced:
    """Memory between two guard pages: an access outside of it ends the process."""

    def __init__(self, pages: int) -> None:
        self.size = pages * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.size + 2 * mmap.PAGESIZE)
        whole = np.frombuffer(self._map, np.uint8)
        self.bytes = whole[mmap.PAGESIZE : mmap.PAGESIZE + self.size]
        libc = ctypes.CDLL(None, use_errno=True)
        for fence in (whole.ctypes.data, whole.ctypes.data + mmap.PAGESIZE + self.size):
            if libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, data: bytes, *, at_end: bool) -> npt.NDArray[np.uint8]:
        part = self.bytes[self.size - len(data) :] if at_end else self.bytes[: len(data)]
        part[:] = as_array(data)
        return part


def encode(value: Any) -> bytes:
    """Encode a JSON document in MySQL's binary format, independently of the decoder."""
    kind, body = _encode(value)
    return bytes([kind]) + body


def _encode(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        for kind, code, low, high in ((5, "<h", -(1 << 15), 1 << 15), (7, "<i", -(1 << 31), 1 << 31), (9, "<q", -(1 << 63), 1 << 63)):
            if low <= value < high:
                return kind, struct.pack(code, value)
        return 10, struct.pack("<Q", value)
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        data = value.encode()
        return 12, _length(len(data)) + data
    small = _container(value, 2)
    return (0 if isinstance(value, dict) else 2, small) if small else (1 if isinstance(value, dict) else 3, _container(value, 4))


def _container(value: dict[str, Any] | list[Any], width: int) -> bytes:
    """Encode a container with offsets of this width; empty if they are too small."""
    offset = {2: "<H", 4: "<I"}[width]
    keys = sorted((key.encode() for key in value), key=lambda key: (len(key), key)) if isinstance(value, dict) else []
    elements = [value[key.decode()] for key in keys] if isinstance(value, dict) else value
    at = 2 * width + len(keys) * (width + 2) + len(elements) * (width + 1)
    entries = b""
    try:
        for key in keys:
            entries += struct.pack(offset, at) + struct.pack("<H", len(key))
            at += len(key)
        bodies = b""
        for kind, body in map(_encode, elements):
            if kind in (4, 5, 6) or (width == 4 and kind in (7, 8)):
                entries += bytes([kind]) + body.ljust(width, b"\0")
            else:
                entries += bytes([kind]) + struct.pack(offset, at + len(bodies))
                bodies += body
        return struct.pack(offset, len(elements)) + struct.pack(offset, at + len(bodies)) + entries + b"".join(keys) + bodies
    except struct.error:
        return b""


def _length(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _length(rest) if rest else bytes([low])


def in_stored_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_stored_order(value[key]) for key in sorted(value, key=lambda key: (len(key.encode()), key.encode()))}
    return [in_stored_order(element) for element in value] if isinstance(value, list) else value


def expected_text(value: Any) -> bytes:
    """Python's text, which equals MySQL's except for floats (see test_doubles.py)."""
    return json.dumps(in_stored_order(value), ensure_ascii=False).encode()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text('ab"\\\n\x01é漢😀', max_size=40)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-70000, 70000) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6), max_leaves=40)


@pytest.mark.parametrize(("document", "text"), [case[1:] for case in DOCUMENTS], ids=[case[0][:60] for case in DOCUMENTS])
def test_documents_of_the_server_give_its_text(document: bytes, text: bytes) -> None:
    assert render(document) == text


def test_the_fixture_has_every_type_but_the_large_containers() -> None:
    assert {document[0] for _, document, _ in DOCUMENTS} == {0x00, 0x02, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0F}


def test_an_empty_document_is_null() -> None:
    assert render(b"") == b"null"


@settings(max_examples=300)
@given(VALUES)
def test_any_value_gives_the_text_that_python_gives(value: Any) -> None:
    assert render(encode(value)) == expected_text(value)


@settings(max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_any_string_is_escaped_as_python_does(value: str) -> None:
    assert render(encode([value])) == expected_text([value])


@pytest.mark.parametrize("size", [65_520, 65_535, 65_536, 70_000, 300_000])
def test_large_containers(size: int) -> None:
    value = {"first": "x" * size, "then": [70_000, -70_000, 1 << 40, "y" * size, [], {}], "z": {str(n): n for n in range(size // 16)}}
    assert render(encode(value)) == expected_text(value)


def test_a_document_lies_anywhere_in_its_buffer_and_appends_to_the_output() -> None:
    document = encode({"k": 123, "x": "é"})
    buf = as_array(b"\xff" * 13 + document + b"\xff" * 7)
    out = np.full(200, 7, np.uint8)
    end = json_to_text(buf, 13, 13 + len(document), out, 50)
    assert out[50:end].tobytes() == '{"k": 123, "x": "é"}'.encode()
    assert (out[:50] == 7).all()


@pytest.mark.parametrize(("start", "end", "out_pos"), [(-1, 5, 0), (3, 2, 0), (0, 21, 0), (0, 5, -1)])
def test_ranges_outside_the_buffers_are_refused(start: int, end: int, out_pos: int) -> None:
    assert json_to_text(np.zeros(20, np.uint8), start, end, np.zeros(200, np.uint8), out_pos) == MALFORMED


@pytest.mark.parametrize("document", SMALL, ids=range(len(SMALL)))
def test_too_little_space_is_reported_and_respected(document: bytes) -> None:
    text = render(document)
    assert isinstance(text, bytes)
    memory = Fenced(4)
    for room in range(len(text) + SLACK + 1):
        out = memory.place(b"\x07" * room, at_end=True)
        end = json_to_text(as_array(document), 0, len(document), out, 0)
        if end == NO_ROOM:
            assert room < len(text) + SLACK
        else:
            assert out[:end].tobytes() == text


@pytest.mark.parametrize("at_end", [False, True])
def test_every_prefix_is_malformed_or_text(at_end: bool) -> None:
    memory = Fenced(2)
    for document in SMALL:
        for size in range(1, len(document)):
            check_survives(memory, document[:size], at_end=at_end)


def test_a_container_cut_short_is_malformed() -> None:
    for document in SMALL:
        if document and document[0] < 4:
            assert {render(document[:size]) for size in range(1, len(document))} == {MALFORMED}


def test_20_000_mutations_are_malformed_or_text() -> None:
    rng = random.Random(7)
    memory = Fenced(2)
    outcomes = [check_survives(memory, mutate(rng, rng.choice(SMALL)), at_end=rng.random() < 0.5) for _ in range(20_000)]
    assert 2_000 < outcomes.count(MALFORMED) < 19_000


def mutate(rng: random.Random, document: bytes) -> bytes:
    data = bytearray(document or b"\0")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at : at + 2] = rng.choice([b"\xff\xff", b"\0\0", b"\xff\x7f", b"\x01\0"])
            case _:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 3)))
    return bytes(data)


def check_survives(memory: Fenced, document: bytes, *, at_end: bool) -> int:
    """For any bytes: an error code, or valid JSON within the announced length."""
    buf = memory.place(document, at_end=at_end)
    out = np.full(text_room(len(document)) + 16, 7, np.uint8)
    end = json_to_text(buf, 0, len(document), out[:-16], 0)
    assert (out[-16:] == 7).all()
    if end < 0:
        assert end == MALFORMED
    else:
        json.loads(out[:end].tobytes().decode())
    return end


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_noise_is_malformed_or_text(noise: bytes) -> None:
    for kind in (0, 1, 2, 3, 12, 15):
        check_survives(Fenced(1), bytes([kind]) + noise, at_end=True)


def test_elements_that_share_a_value_are_no_bomb() -> None:
    # Sixty arrays, each with two elements that are both the next array: 2**60 values in 600 bytes.
    levels = 60
    document = b"\x02" + b"".join(struct.pack("<HHBHBH", 2, (levels - n) * 10 + 4, 2, 10, 2, 10) for n in range(levels)) + b"\0\0\4\0"
    assert render(document) == MALFORMED


def test_an_element_that_is_its_own_container_is_malformed() -> None:
    assert render(b"\x02" + struct.pack("<HHBH", 1, 7, 2, 0)) == MALFORMED


def test_nesting_ends_where_the_servers_does() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert render(encode(nested(MAX_DEPTH))) == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH
    assert render(encode(nested(MAX_DEPTH + 1))) == MALFORMED


@pytest.mark.parametrize(
    "document",
    [
        b"\x0d",
        b"\xff\0",
        b"\x04\x03",
        b"\x05\x01",
        b"\x0b" + struct.pack("<d", float("inf")),
        b"\x0c\x02\xff\xfe",
        b"\x0c\x03\xed\xa0\x80",
        b"\x0c\x02\xc0\x80",
        b"\x0c\x80\x80\x80\x80\x80\x01",
        b"\x0f\x0c\x07" + bytes(7),
        b"\x0f\xf6\x06\x0a\x02\x80\0\0\0",
        b"\x0f\xf6\x06\x09\x00\xff\xff\xff\xff",
        b"\x0f",
    ],
    ids=[
        "unknown-type",
        "type-beyond-the-table",
        "literal-3",
        "half-an-int16",
        "infinity",
        "not-utf8",
        "surrogate",
        "overlong-utf8",
        "endless-length",
        "short-datetime",
        "decimal-of-the-wrong-size",
        "decimal-group-over-nine-digits",
        "opaque-without-a-type",
    ],
)
def test_what_the_server_cannot_have_written_is_malformed(document: bytes) -> None:
    assert render(document) == MALFORMED


def test_other_kernels_can_call_it() -> None:
    @njit
    def twice(buf: Any, out: Any) -> Any:
        return json_to_text(buf, 0, len(buf), out, json_to_text(buf, 0, len(buf), out, 0))

    out = np.zeros(200, np.uint8)
    end = twice(as_array(encode([1])), out)
    assert out[:end].tobytes() == b"[1][1]"
