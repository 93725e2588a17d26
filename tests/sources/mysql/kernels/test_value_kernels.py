"""Raw bytes give the same values as Python's decimal and datetime, also at the end of the buffer."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import njit

from headrace.kernels import memory
from headrace.kernels.pointers import pointer_to
from headrace.sources.mysql.kernels import values as v
from testkit.faults.fences import Fenced

EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
DIGITS_TO_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
MEMORY = Fenced(4_096)
TRAILING = (b"", b"\x00", b"\xff" * 40)
"""Bytes after a value, which must not matter."""

# Wrappers: kernels on pointers cannot be called from Python.


@njit
def packed_decimal(buf, precision, scale, out, count):  # type: ignore[no-untyped-def]
    v.store_packed_decimal(pointer_to(buf), 0, precision, scale, pointer_to(out), 0, count, len(buf))


@njit
def text_decimal(buf, size, scale, out, count):  # type: ignore[no-untyped-def]
    return v.store_text_decimal(pointer_to(buf), 0, size, scale, pointer_to(out), 0, count)


@njit
def date(buf):  # type: ignore[no-untyped-def]
    return v.read_date(pointer_to(buf), 0, len(buf))


@njit
def datetime2(buf, digits):  # type: ignore[no-untyped-def]
    return v.read_datetime2(pointer_to(buf), 0, digits, len(buf))


@njit
def timestamp2(buf, digits):  # type: ignore[no-untyped-def]
    return v.read_timestamp2(pointer_to(buf), 0, digits, len(buf))


@njit
def time2(buf, digits):  # type: ignore[no-untyped-def]
    return v.read_time2(pointer_to(buf), 0, digits, len(buf))


@njit
def days(year, month, day):  # type: ignore[no-untyped-def]
    return v.days_from_civil(year, month, day)


@njit
def little(buf, size):  # type: ignore[no-untyped-def]
    return memory.load_le(pointer_to(buf), 0, size, len(buf))


@njit
def big(buf, size):  # type: ignore[no-untyped-def]
    return memory.load_be(pointer_to(buf), 0, size, len(buf))


@njit
def copy(buf, out, size):  # type: ignore[no-untyped-def]
    memory.copy_run(pointer_to(buf), 0, len(buf), pointer_to(out), 0, len(out), size)


@njit
def same(buf, one, other, size):  # type: ignore[no-untyped-def]
    return memory.same_bytes(pointer_to(buf), one, other, size, len(buf))


def placed(data: bytes, trailing: bytes = b"") -> npt.NDArray[np.uint8]:
    return MEMORY.before_end(data + trailing)


def pack_decimal(digits: str, scale: int, *, negative: bool) -> bytes:
    """Encode MySQL's packed decimal: nine digits in four bytes, the remaining ones at the outer ends."""
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    odd = len(whole) % 9
    groups = ([whole[:odd]] if odd else []) + [whole[i : i + 9] for i in range(odd, len(whole), 9)]
    groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    packed = bytearray(b"".join(int(group).to_bytes(DIGITS_TO_BYTES[len(group)], "big") for group in groups))
    packed[0] ^= 0x80
    return bytes(byte ^ 0xFF for byte in packed) if negative else bytes(packed)


def as_decimal(out: npt.NDArray[np.uint8], precision: int, scale: int) -> Decimal:
    decimal_type = pa.decimal256(precision, scale) if precision > 38 else pa.decimal128(precision, scale)
    return pa.Array.from_buffers(decimal_type, 1, [None, pa.py_buffer(out)])[0].as_py()


@st.composite
def numbers(draw: st.DrawFn) -> tuple[str, int, bool]:
    """The digits of a value of DECIMAL(precision, scale), its scale and its sign."""
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(30, precision)))
    digits = draw(
        st.one_of(st.text("0123456789", min_size=precision, max_size=precision), st.just("9" * precision), st.just("0" * precision))
    )
    return digits, scale, draw(st.booleans())


def exact(digits: str, scale: int, negative: bool) -> Decimal:
    with localcontext(prec=100):
        return Decimal(("-" if negative else "") + digits).scaleb(-scale)


@given(numbers(), st.sampled_from(TRAILING))
@example(("9" * 65, 30, True), b"")
@example(("9" * 18, 9, True), b"")
@example(("9" * 38, 0, True), b"")
def test_packed_decimals(number: tuple[str, int, bool], trailing: bytes) -> None:
    digits, scale, negative = number
    packed = pack_decimal(digits, scale, negative=negative)
    assert v.decimal_size(len(digits), scale) == len(packed)
    count = 4 if len(digits) > 38 else 2
    out = np.full(8 * count, 0xAA, np.uint8)
    packed_decimal(placed(packed, trailing), len(digits), scale, out, count)
    assert as_decimal(out, len(digits), scale) == exact(digits, scale, negative)


@given(numbers(), st.booleans())
def test_text_decimals(number: tuple[str, int, bool], bare: bool) -> None:
    digits, scale, negative = number
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    if bare:
        whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    text = f"{'-' if negative else ''}{whole or '0'}{'.' + fraction if fraction else ''}".encode()
    count = 4 if len(digits) > 38 else 2
    out = np.full(8 * count, 0xAA, np.uint8)
    assert text_decimal(placed(text), len(text), scale, out, count) == 0
    assert as_decimal(out, len(digits), scale) == exact(digits, scale, negative)


@pytest.mark.parametrize("text", [b"1.2.3", b"1e5", b"12a", b" 1", b"--1", b"1.234", b"9" * 40, b"-" + b"1" * 39 + b".5"])
def test_decimals_of_another_scale_are_rejected(text: bytes) -> None:
    assert text_decimal(placed(text), len(text), 2, np.zeros(16, np.uint8), 2) == -1


@pytest.mark.parametrize("text", [b"", b"-", b"0", b"000000000000000000000000000000000000000000000000.00"])
def test_zero_however_written(text: bytes) -> None:
    out = np.full(16, 0xAA, np.uint8)
    assert text_decimal(placed(text), len(text), 2, out, 2) == 0
    assert not out.any()


def pack_date(year: int, month: int, day: int) -> bytes:
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


def pack_fraction(micros: int, digits: int) -> bytes:
    size = (digits + 1) // 2
    return (micros // 10 ** (6 - 2 * size)).to_bytes(size, "big")


def cut(micros: int, digits: int) -> int:
    return micros // 10 ** (6 - digits) * 10 ** (6 - digits)


@given(st.dates(), st.sampled_from(TRAILING))
@example(dt.date(1, 1, 1), b"")
@example(dt.date(9999, 12, 31), b"")
@example(dt.date(2000, 2, 29), b"")
def test_dates(day: dt.date, trailing: bytes) -> None:
    assert date(placed(pack_date(day.year, day.month, day.day), trailing)) == (day - EPOCH.date()).days


def test_every_day_of_four_centuries_and_no_other() -> None:
    for year in (*range(1, 5), 1600, 1700, 1900, 1999, 2000, 2004, 2023, 2024, 2100, 9996, 9999):
        for month in range(16):
            for day in range(32):
                try:
                    expected = (dt.date(year, month, day) - EPOCH.date()).days
                except ValueError:
                    expected = v.NO_DATE
                assert days(year, month, day) == expected, (year, month, day)


def test_the_year_zero_is_a_leap_year_before_the_year_one() -> None:
    first = (dt.date(1, 1, 1) - EPOCH.date()).days
    assert days(0, 12, 31) == first - 1
    assert days(0, 2, 29) == days(0, 3, 1) - 1
    assert days(0, 1, 1) == first - 366
    assert days(0, 0, 0) == v.NO_DATE


@given(st.datetimes(), st.integers(0, 6), st.sampled_from(TRAILING))
def test_datetimes(moment: dt.datetime, digits: int, trailing: bytes) -> None:
    moment = moment.replace(microsecond=cut(moment.microsecond, digits))
    packed = ((moment.year * 13 + moment.month) << 5 | moment.day) << 17 | moment.hour << 12 | moment.minute << 6 | moment.second
    data = (packed + 0x8000000000).to_bytes(5, "big") + pack_fraction(moment.microsecond, digits)
    assert datetime2(placed(data, trailing), digits) == (moment - EPOCH) // MICROSECOND


@pytest.mark.parametrize("data", [b"\x80\0\0\0\0", b"\0\0\0\0\0", b"\x7f\xff\xff\xff\xff"])
def test_a_datetime_that_no_calendar_has(data: bytes) -> None:
    assert datetime2(placed(data), 0) == v.NO_DATE


@given(st.integers(0, (1 << 32) - 1), st.integers(0, 999_999), st.integers(0, 6), st.sampled_from(TRAILING))
@example(0, 0, 6, b"")
@example(0, 1, 6, b"")
def test_timestamps(seconds: int, micros: int, digits: int, trailing: bytes) -> None:
    micros = cut(micros, digits)
    data = seconds.to_bytes(4, "big") + pack_fraction(micros, digits)
    expected = seconds * 1_000_000 + micros
    assert timestamp2(placed(data, trailing), digits) == (expected or v.NO_DATE)


@given(
    st.integers(-(838 * 3600 + 59 * 60 + 59), 838 * 3600 + 59 * 60 + 59),
    st.integers(0, 999_999),
    st.integers(0, 6),
    st.sampled_from(TRAILING),
)
def test_times(seconds: int, micros: int, digits: int, trailing: bytes) -> None:
    micros = cut(micros, digits)
    size = (digits + 1) // 2
    hours, rest = divmod(abs(seconds), 3600)
    packed = (hours << 12 | rest // 60 << 6 | rest % 60) << 8 * size | int.from_bytes(pack_fraction(micros, digits), "big")
    sign = -1 if seconds < 0 else 1
    data = (sign * packed + (0x800000 << 8 * size)).to_bytes(3 + size, "big")
    assert time2(placed(data, trailing), digits) == sign * (abs(seconds) * 1_000_000 + micros)


@given(st.binary(min_size=1, max_size=8), st.sampled_from(TRAILING))
def test_integers_of_any_size(data: bytes, trailing: bytes) -> None:
    mask = (1 << 64) - 1
    assert int(little(placed(data, trailing), len(data))) & mask == int.from_bytes(data, "little")
    assert int(big(placed(data, trailing), len(data))) & mask == int.from_bytes(data, "big")


@pytest.mark.parametrize("slack", [0, 1, 31, 32, 100])
def test_copies_of_any_length_stay_within_both_buffers(slack: int) -> None:
    target = Fenced(4_096)
    for size in (*range(140), 511, 512, 513, 1_000):
        data = bytes(range(256)) * 4
        out = target.before_end(bytes(size + slack))
        copy(placed(data[:size], b"\xee" * slack), out, size)
        assert out[:size].tobytes() == data[:size]


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_runs_are_compared_whole(one: bytes, other: bytes) -> None:
    size = min(len(one), len(other))
    assert same(placed(one + other), 0, len(one), size) == (one[:size] == other[:size])
    assert same(placed(one + one), 0, len(one), len(one))
