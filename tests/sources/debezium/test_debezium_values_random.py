"""Columns of base64, hexadecimal digits, decimals, bits and ISO texts, compared with Python's conversions."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.model.schema import Column, Kind
from headrace.sources.debezium.events.parsed_events import ConnectField, WireFormat
from headrace.sources.debezium.types.binary import ParsedColumn, bits, from_base64, from_hex, whole_numbers
from headrace.sources.debezium.types.values import convert_column

pytestmark = pytest.mark.scaled

_EXACT = Context(prec=200)
_texts = st.lists(
    st.one_of(
        st.none(),
        st.binary(max_size=20).map(lambda raw: base64.b64encode(raw).decode()),
        st.text(alphabet="AZaz09+/=-_*\n", max_size=9),
    ),
    max_size=12,
)


def _bad(found: ParsedColumn) -> list[bool]:
    return [False] * len(found.array) if found.bad is None else found.bad.tolist()


def _base64(text: str) -> bytes | None:
    if not re.fullmatch(r"[A-Za-z0-9+/_-]*={0,2}", text) or len(text) % 4:
        return None
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        return None


@given(_texts, st.integers(0, 3))
@example(["AAAA", "AA==AAAA", "A===", "====", None, "AA=A"], 0)
def test_base64(texts: list[str | None], start: int) -> None:
    array = pa.array(texts, pa.string())[start:]
    expected = [None if text is None else _base64(text) for text in texts[start:]]
    found = from_base64(array)
    assert found.array.to_pylist() == expected
    assert _bad(found) == [text is not None and value is None for text, value in zip(texts[start:], expected, strict=True)]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9).map(bytes.hex), st.text(alphabet="0aAfFgG ", max_size=5)), max_size=12))
def test_hexadecimal_digits(texts: list[str | None]) -> None:
    good = [text is not None and len(text) % 2 == 0 and re.fullmatch("[0-9A-Fa-f]*", text) is not None for text in texts]
    found = from_hex(pa.array(texts, pa.string()))
    assert found.array.to_pylist() == [bytes.fromhex(text or "") if fine else None for text, fine in zip(texts, good, strict=True)]
    assert _bad(found) == [text is not None and not fine for text, fine in zip(texts, good, strict=True)]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=34)), max_size=12), st.integers(0, 2))
def test_numbers_of_any_length(raws: list[bytes | None], start: int) -> None:
    def number(raw: bytes | None) -> int | None:
        value = int.from_bytes(raw, "big", signed=True) if raw and len(raw) <= 32 else None
        return value if value is not None and abs(value) < 10**76 else None

    expected = [number(raw) for raw in raws[start:]]
    found = whole_numbers(pa.array(raws, pa.binary())[start:])
    assert found.array.to_pylist() == expected
    assert _bad(found) == [raw is not None and value is None for raw, value in zip(raws[start:], expected, strict=True)]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=10)), max_size=12))
def test_bits_with_the_least_significant_byte_first(raws: list[bytes | None]) -> None:
    numbers = [None if raw is None else int.from_bytes(raw, "little") for raw in raws]
    assert bits(pa.array(raws, pa.binary())).array.to_pylist() == [n if n is not None and n < 2**64 else None for n in numbers]


@given(
    st.lists(st.one_of(st.none(), st.decimals(allow_nan=False, allow_infinity=False)), max_size=12), st.integers(1, 76), st.integers(0, 40)
)
def test_decimals_in_text(numbers: list[Decimal | None], precision: int, scale: int) -> None:
    column = Column("c", Kind.DECIMAL, precision=max(precision, scale), scale=scale)
    numbers = [number for number in numbers if number is None or abs(number.adjusted()) < 70]

    def fits(number: Decimal) -> bool:
        shifted = number.scaleb(scale, _EXACT)
        return shifted == shifted.to_integral_value(context=_EXACT) and abs(shifted) < 10**column.precision

    found = convert_column(
        pa.array([None if n is None else str(n) for n in numbers], pa.string()), ConnectField("c", "string"), column, WireFormat.JSON
    )
    assert found.array.to_pylist() == [n if n is not None and fits(n) else None for n in numbers]


_SPELLED = re.compile(r"[+-]?([0-9]+(\.[0-9]+)?|\.[0-9]+)")


@given(st.lists(st.text(alphabet="0019.-+", max_size=9), max_size=12), st.integers(1, 20), st.integers(0, 4))
@example(["", "-", ".", "1.", ".5", "+1", "0001", "1.500", "-0", "00.10", "1-", "--1", "1.2.3", ".0", "-.0"], 4, 1)
def test_texts_that_may_be_decimals(texts: list[str], precision: int, scale: int) -> None:
    column = Column("c", Kind.DECIMAL, precision=max(precision, scale), scale=scale)

    def expected(text: str) -> Decimal | None:
        number = Decimal(text) if _SPELLED.fullmatch(text) else None
        shifted = None if number is None else number.scaleb(scale, _EXACT)
        fine = shifted is not None and shifted == shifted.to_integral_value() and abs(shifted) < 10**column.precision
        return number if fine else None

    found = convert_column(pa.array(texts, pa.string()), ConnectField("c", "string"), column, WireFormat.JSON)
    assert found.array.to_pylist() == [expected(text) for text in texts]
    mixed = convert_column(pa.array([*texts, "1e0", "9" * 30], pa.string()), ConnectField("c", "string"), column, WireFormat.JSON)
    assert mixed.array.to_pylist()[: len(texts)] == [expected(text) for text in texts]


@given(st.lists(st.decimals(-(10**9), 10**9, places=4), min_size=1, max_size=12))
def test_decimals_in_doubles_are_the_digits_that_the_source_had(numbers: list[Decimal]) -> None:
    column = Column("c", Kind.DECIMAL, precision=14, scale=4)
    assert (
        convert_column(pa.array([float(n) for n in numbers]), ConnectField("c", "float64"), column, WireFormat.JSON).array.to_pylist()
        == numbers
    )


_moments = st.datetimes(
    datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
)


@given(st.lists(st.one_of(st.none(), _moments), max_size=12), st.booleans())
def test_instants_in_text(moments: list[datetime | None], zulu: bool) -> None:
    def spelled(moment: datetime) -> str:
        moment = moment.astimezone(UTC) if zulu else moment
        # As Java's formatter: without trailing zeros.
        text = re.sub(r"(\.\d*?)0+(?=[+-])", r"\1", moment.isoformat())
        return text.replace("+00:00", "Z")

    texts = [None if moment is None else spelled(moment) for moment in moments]
    found = convert_column(
        pa.array(texts, pa.string()), ConnectField("c", "string"), Column("c", Kind.TIMESTAMP, precision=6), WireFormat.JSON
    )
    assert found.bad is None
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert found.array.cast(pa.int64()).to_pylist() == [None if m is None else (m - epoch) // timedelta(microseconds=1) for m in moments]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=12), st.sampled_from([1, 1000, 1_000_000]))
def test_counts_of_parts_of_seconds(counts: list[int | None], nanos: int) -> None:
    semantic = {1: "Nano", 1000: "Micro", 1_000_000: ""}[nanos]
    field = ConnectField("c", "int64", f"io.debezium.time.{semantic}Timestamp")
    found = convert_column(pa.array(counts, pa.int64()), field, Column("c", Kind.DATETIME, precision=6), WireFormat.JSON)
    for place, count in enumerate(counts):
        micros, rest = divmod((count or 0) * nanos, 1000)
        fine = count is not None and rest == 0 and -(2**63) <= micros < 2**63
        assert found.array.cast(pa.int64())[place].as_py() == (micros if fine else None)
        assert count is None or bool(found.bad is not None and np.asarray(found.bad)[place]) == (not fine)


@given(st.lists(st.integers(-(2**127), 2**127 - 1), max_size=8), st.integers(-5, 38), st.integers(1, 76), st.integers(0, 76))
def test_decimals_in_bytes_of_another_scale(numbers: list[int], sent: int, precision: int, scale: int) -> None:
    column = Column("c", Kind.DECIMAL, precision=max(precision, scale), scale=scale)
    raws = [number.to_bytes(16, "big", signed=True) for number in numbers]
    field = ConnectField("c", "bytes", "org.apache.kafka.connect.data.Decimal", {"scale": str(sent)})

    def expected(number: int) -> Decimal | None:
        digits = Decimal(number).scaleb(scale - sent, _EXACT)
        fine = digits == digits.to_integral_value(context=_EXACT) and abs(digits) < 10**column.precision
        return Decimal(number).scaleb(-sent, _EXACT) if fine else None

    assert convert_column(pa.array(raws, pa.binary()), field, column, WireFormat.AVRO).array.to_pylist() == [
        expected(number) for number in numbers
    ]
