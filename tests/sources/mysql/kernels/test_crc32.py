"""Both CRC-32 implementations equal zlib's, for every length and start, and read no other bytes."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from headrace.kernels.pointers import pointer_to
from headrace.sources.mysql.kernels import crc32 as checksum
from headrace.sources.mysql.kernels.crc32 import crc32, crc32_by_tables
from testkit.faults.fences import Fenced


@njit
def by_tables(buf, start, end):  # type: ignore[no-untyped-def]
    return crc32_by_tables(pointer_to(buf), start, end)


WAYS = pytest.mark.parametrize("way", [crc32, by_tables], ids=["chosen", "tables"])
SAMPLE = random.Random(1).randbytes(5_000)


@WAYS
def test_every_length_from_several_starts(way) -> None:  # type: ignore[no-untyped-def]
    buf = np.frombuffer(bytearray(SAMPLE), np.uint8)
    for start in (0, 1, 7, 8, 15, 16, 33):
        for size in (*range(400), 1_023, 1_024, 4_096, 4_900):
            assert way(buf, start, start + size) == zlib.crc32(SAMPLE[start : start + size]), (start, size)


@WAYS
@given(st.binary(max_size=1_500))
def test_any_bytes(way, data: bytes) -> None:  # type: ignore[no-untyped-def]
    assert way(np.frombuffer(bytearray(data), np.uint8), 0, len(data)) == zlib.crc32(data)


@WAYS
def test_reads_only_its_bytes(way) -> None:  # type: ignore[no-untyped-def]
    fenced = Fenced(1_000)
    for size in range(300):
        data = SAMPLE[:size]
        for buf in (fenced.before_end(data), fenced.after_start(data)):
            assert way(buf, 0, size) == zlib.crc32(data)


def test_a_single_flipped_bit_is_seen() -> None:
    for bit in range(0, 8 * 700, 13):
        damaged = bytearray(SAMPLE[:700])
        damaged[bit // 8] ^= 1 << bit % 8
        assert crc32(np.frombuffer(damaged, np.uint8), 0, 700) != zlib.crc32(SAMPLE[:700])


def test_the_multiplying_way_is_taken_where_the_processor_has_it() -> None:
    assert (checksum.crc32_at is not crc32_by_tables) == checksum._multiplies_without_carry()
