"""Doubles are written with the digits of Python's repr and in the layout of MySQL's JSON."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels.pointers import MALFORMED, NO_ROOM
from headrace.sources.mysql.kernels.doubles import DOUBLE_ROOM, write_double

FIXTURE = json.loads(Path(__file__).with_name("jsonb_documents.json").read_text())
DOUBLE_TYPE = "0b"
SERVERS_TEXTS = [
    (struct.unpack("<d", bytes.fromhex(case["document"][2:]))[0], case["text"])
    for case in FIXTURE["documents"]
    if case["document"].startswith(DOUBLE_TYPE)
]
"""Doubles in MySQL's log, and their text."""


def printed(value: float) -> str:
    out = np.zeros(DOUBLE_ROOM, np.uint8)
    return out[: write_double(value, out, 0)].tobytes().decode()


def of_bits(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def expected(value: float) -> str:
    """The layout rule in plain Python, over repr's digits."""
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{sign}0.0"
    _, numbers, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    padded = "".join(map(str, numbers))
    digits = padded.rstrip("0")
    places = len(padded) + exponent
    if (places > 15 and len(digits) <= places) or places <= -15:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{places - 1}"
    if places <= 0:
        return f"{sign}0.{'0' * -places}{digits}"
    return f"{sign}{digits[:places].ljust(places, '0')}.{digits[places:] or '0'}"


@pytest.mark.parametrize(("value", "text"), SERVERS_TEXTS)
def test_prints_as_the_server_does(value: float, text: str) -> None:
    assert printed(value) == text


@settings(max_examples=2000)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_double_has_the_digits_of_repr(value: float) -> None:
    assert printed(value) == expected(value)
    assert float(printed(value)) == value


@settings(max_examples=2000)
@given(st.integers(0, (1 << 64) - 1).map(of_bits).filter(math.isfinite))
def test_any_bit_pattern_has_the_digits_of_repr(value: float) -> None:
    assert printed(value) == expected(value)


def test_150_000_random_bit_patterns_have_the_digits_of_repr() -> None:
    values = np.random.default_rng(1).integers(0, 1 << 64, 150_000, dtype=np.uint64).view(np.float64)
    wrong = [value for value in values[np.isfinite(values)].tolist() if printed(value) != expected(value)]
    assert wrong == []


def test_everyday_decimals_have_the_digits_of_repr() -> None:
    rng = np.random.default_rng(2)
    values = [
        round(float(number), int(places)) for number, places in zip(rng.normal(0, 1e5, 50_000), rng.integers(0, 7, 50_000), strict=True)
    ]
    assert [value for value in values if printed(value) != expected(value)] == []


def test_every_power_of_two_and_its_neighbours_have_the_digits_of_repr() -> None:
    powers = [math.ldexp(1.0, exponent) for exponent in range(-1074, 1024)]
    values = [near for power in powers for near in (power, math.nextafter(power, 0), math.nextafter(power, math.inf))]
    assert [value for value in values if math.isfinite(value) and printed(value) != expected(value)] == []


def test_every_power_of_ten_and_its_neighbours_have_the_digits_of_repr() -> None:
    powers = [float(f"1e{exponent}") for exponent in range(-323, 309)]
    values = [near for power in powers for near in (power, math.nextafter(power, 0), math.nextafter(power, math.inf))]
    assert [value for value in values if printed(value) != expected(value)] == []


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_values_outside_json_are_malformed(value: float) -> None:
    assert write_double(value, np.zeros(DOUBLE_ROOM, np.uint8), 0) == MALFORMED


def test_needs_its_room_and_writes_nowhere_else() -> None:
    widest = -1.2345678901234567e-15
    out = np.full(DOUBLE_ROOM + 20, 7, np.uint8)
    assert write_double(widest, out[: DOUBLE_ROOM + 9], 10) == NO_ROOM
    assert write_double(widest, out, -1) == NO_ROOM
    assert (out == 7).all()
    assert write_double(widest, out[: DOUBLE_ROOM + 10], 10) == 10 + DOUBLE_ROOM
    assert (out[:10] == 7).all()
    assert (out[DOUBLE_ROOM + 10 :] == 7).all()
