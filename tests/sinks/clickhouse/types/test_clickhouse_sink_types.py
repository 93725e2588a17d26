"""Every kind of value is stored unchanged by the real engine, or refused."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from hypothesis import given
from hypothesis import strategies as st

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.client import INSERT_SETTINGS, connect, disconnect
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.write.block_encoder import BlockEncoder
from headrace.verify.row_compare import compare
from testkit.generators.type_cases import schema_of, to_array
from testkit.pipelines.embedded_access import target_of

FIRST_DAY, LAST_DAY, DAY_US = -719_528, 2_932_896, 86_400_000_000
FIRST_US, LAST_US = FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1
MOST_TIME_US = (838 * 3600 + 59 * 60 + 59) * 1_000_000


@pytest.fixture(scope="module")
def sink(clickhouse: EmbeddedServer) -> Iterator[ClickHouseSink]:
    target = target_of(clickhouse, database="types")
    yield ClickHouseSink(target)
    disconnect(target)


def insert_block(schema: TableSchema, images: pa.RecordBatch) -> ChangeBlock:
    rows = images.num_rows
    return ChangeBlock(
        schema,
        images,
        pa.array([Op.INSERT] * rows, pa.uint8()),
        pa.array(range(1, rows + 1), pa.uint64()),
        pa.array([0] * rows, pa.int64()),
    )


def store(sink: ClickHouseSink, schema: TableSchema, values: list[list[Any]]) -> pa.Table:
    """Write columns of values; return the written rows."""
    arrays = [to_array(column, cells) for column, cells in zip(schema.columns[1:], values, strict=True)]
    images = pa.record_batch([pa.array(range(len(values[0])), pa.uint32()), *arrays], schema=schema.arrow_schema)
    sink.prepare([schema])
    writer = sink.writer()
    writer.write(insert_block(schema, images))
    writer.close()
    return pa.Table.from_batches([images])


def shown(sink: ClickHouseSink, schema: TableSchema, expression: str) -> list[Any]:
    _, rows = sink.reader().query(f"SELECT {expression} FROM types.{quote_name(schema.name.table)} FINAL ORDER BY id")
    return [row[0] for row in rows]


def digits(precision: int, scale: int) -> Decimal:
    return Decimal((0, (9,) * precision, -scale))


def extremes(kind: Kind, precision: int, scale: int) -> list[Any]:
    unit = 10 ** (6 - precision) if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME) else 1
    most = digits(precision, scale) if kind is Kind.DECIMAL else Decimal(0)
    by_kind: dict[Kind, list[Any]] = {
        Kind.INT8: [-128, 127, 0, -1],
        Kind.INT16: [-32768, 32767, 0, -1],
        Kind.INT32: [-(2**31), 2**31 - 1, 0, -1],
        Kind.INT64: [-(2**63), 2**63 - 1, 0, -1],
        Kind.UINT8: [0, 255],
        Kind.UINT16: [0, 65535],
        Kind.UINT32: [0, 2**32 - 1],
        Kind.UINT64: [0, 2**64 - 1],
        Kind.FLOAT32: [3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45, -0.0, 0.0, 0.1],
        Kind.FLOAT64: [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, -0.0, 0.0, 0.1],
        Kind.DECIMAL: [most, most.copy_negate(), Decimal((0, (0,), -scale)), Decimal((0, (1,), -scale)), Decimal((1, (1,), -scale))],
        Kind.STRING: ["", " trailing  ", "a\x00b", "tab\tnew\nline\\'\"`", "\u2028漢字😀", "x" * 70_000, "\ufffd\U0010ffff"],
        Kind.BYTES: [b"", b"\x00", bytes(range(256)), b"\xff\xfe\xc3\x28", b"z" * 70_000],
        Kind.DATE: [FIRST_DAY, LAST_DAY, 0, -1, -25_567, 120_529],
        Kind.DATETIME: [FIRST_US, LAST_US // unit * unit, 0, -unit, unit, -2_208_988_800_000_000, 10_413_792_000_000_000],
        Kind.TIMESTAMP: [unit, 1_000_000, 2_147_483_647_000_000 + (1_000_000 - unit), 4_294_967_295_000_000],
        Kind.TIME: [-MOST_TIME_US - (1_000_000 - unit) * (precision > 0), MOST_TIME_US, 0, -unit, unit, DAY_US, -DAY_US],
        Kind.YEAR: [0, 1901, 2155],
        Kind.ENUM: ["", "a", "b'c", "漢"],
        Kind.SET: ["", "a", "a,b", "a,b,c"],
        Kind.BIT: [0, 1, 2**64 - 1],
        Kind.JSON: ["{}", '{"a": [1, 2.50, "é\\n"]}', "null"],
        Kind.GEOMETRY: [bytes.fromhex("e61000000101000000") + bytes(16), bytes.fromhex("00000000010700000000000000"), b""],
        Kind.VECTOR: [[1.5], [0.0, -0.0, 1.401298464324817e-45], [3.4028234663852886e38] * 2048],
        Kind.UUID: [bytes(16), b"\xff" * 16, bytes(range(16)), UUID("123e4567-e89b-12d3-a456-426655440000").bytes],
        Kind.INET4: [bytes(4), b"\xff" * 4, b"\x01\x02\x03\x04"],
        Kind.INET6: [bytes(16), b"\xff" * 16, bytes(range(16)), bytes(10) + b"\xff\xff\x01\x02\x03\x04"],
    }
    return by_kind[kind]


VARIANTS = [
    (kind, precision, scale)
    for kind in Kind
    for precision, scale in (
        [(1, 0), (9, 9), (18, 5), (19, 0), (38, 30), (39, 30), (65, 0), (65, 30)]
        if kind is Kind.DECIMAL
        else [(p, 0) for p in range(7)]
        if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
        else [(0, 0)]
    )
]


@pytest.mark.parametrize(("kind", "precision", "scale"), VARIANTS)
def test_extremes_come_back_unchanged(sink: ClickHouseSink, kind: Kind, precision: int, scale: int) -> None:
    plain, nullable = Column("v", kind, False, precision, scale), Column("n", kind, True, precision, scale)
    values = extremes(kind, precision, scale)
    schema = schema_of(plain, nullable)
    written = store(sink, schema, [values, [None, *values[1:]]])
    read = sink.reader().read_range(schema)
    assert read.schema.equals(schema.arrow_schema)
    found = compare(schema, written, read)
    assert (found.total, found.differences) == (0, ())
    assert sink.reader().count(schema) == len(values)


@pytest.mark.parametrize("precision", range(7))
def test_the_engine_shows_datetimes_and_times_as_the_source_would(sink: ClickHouseSink, precision: int) -> None:
    """Return ClickHouse's text of the stored values."""
    schema = schema_of(Column("at", Kind.DATETIME, False, precision), Column("t", Kind.TIME, False, precision))
    unit = 10 ** (6 - precision)
    store(sink, schema, [[FIRST_US, LAST_US // unit * unit, -unit], [-MOST_TIME_US, -unit, MOST_TIME_US]])
    cut = 20 + precision if precision else 19
    last = "9999-12-31 23:59:59.999999"[:cut]
    before = str(datetime(1970, 1, 1) - timedelta(microseconds=unit)).ljust(26, "0")[:cut]
    zeros = "." + "0" * precision if precision else ""
    assert shown(sink, schema, "toString(at)") == [f"0000-01-01 00:00:00{zeros}", last, before]
    tick = f"-00:00:00.{'1'.zfill(precision)}" if precision else "-00:00:01"
    assert shown(sink, schema, "toString(t)") == [f"-838:59:59{zeros}", tick, f"838:59:59{zeros}"]


def test_the_engine_shows_numbers_strings_and_dates_as_the_source_would(sink: ClickHouseSink) -> None:
    schema = schema_of(
        Column("d", Kind.DECIMAL, False, 65, 30),
        Column("b", Kind.BYTES, False),
        Column("day", Kind.DATE, False),
        Column("u", Kind.BIT, False, 64),
    )
    big = digits(65, 30)
    store(sink, schema, [[big, big.copy_negate()], [b"\x00\xff", b""], [FIRST_DAY, LAST_DAY], [2**64 - 1, 0]])
    assert shown(sink, schema, "toString(d)") == [f"{big:f}", f"-{big:f}"]
    assert shown(sink, schema, "hex(b)") == ["00FF", ""]
    assert shown(sink, schema, "toString(day)") == ["0000-01-01", "9999-12-31"]
    assert shown(sink, schema, "toString(u)") == [str(2**64 - 1), "0"]


def test_the_engine_shows_addresses_uuids_and_vectors_as_the_source_would(sink: ClickHouseSink) -> None:
    schema = schema_of(
        Column("u", Kind.UUID, False), Column("un", Kind.UUID), Column("a", Kind.INET4), Column("i", Kind.INET6), Column("v", Kind.VECTOR)
    )
    one, other = "123e4567-e89b-12d3-a456-426655440000", "ffffffff-0000-0000-0000-000000000001"
    six = b" \x01\r\xb8" + bytes(11) + b"\x01"
    uuids = [UUID(one).bytes, UUID(other).bytes]
    written = store(sink, schema, [uuids, [None, uuids[0]], [b"\xc0\xa8\x00\x01", None], [None, six], [None, [1.5, -0.25]]])
    assert shown(sink, schema, "toString(u)") == [one, other]
    assert shown(sink, schema, "toString(un)") == [None, one]
    assert shown(sink, schema, "toString(a)") == ["192.168.0.1", None]
    assert shown(sink, schema, "toString(i)") == [None, "2001:db8::1"]
    assert shown(sink, schema, "v") == [[], [1.5, -0.25]]
    assert compare(schema, written, sink.reader().read_range(schema)).total == 0


def test_the_limits_of_this_engine_are_mysql_s_own(sink: ClickHouseSink) -> None:
    limits = connect(sink.target).limits
    assert (limits.first_day, limits.last_day) == (FIRST_DAY, LAST_DAY)
    assert (limits.first_instant_us, limits.last_instant_us) == (FIRST_US, LAST_US)


def test_the_engine_clips_silently_just_beyond_the_limits_we_keep(sink: ClickHouseSink) -> None:
    """Without the writer's check the server accepts and alters the same bytes."""
    schema = schema_of(Column("at", Kind.DATETIME, False, 6), Column("t", Kind.TIME, False, 3))
    sink.prepare([schema])
    raw_insert(sink, schema, [pa.array([LAST_US + 1], pa.timestamp("us")), pa.array([1], pa.int64()).view(pa.time64("us"))])
    assert shown(sink, schema, "toString(at)") == ["9999-12-31 23:59:59.000000"]
    assert shown(sink, schema, "toString(t)") == ["00:00:00.000"]


def raw_insert(sink: ClickHouseSink, schema: TableSchema, arrays: list[Any], names: list[str] | None = None, settings: bool = True) -> None:
    """An insert with the sink's settings but without its checks."""
    columns = names or [c.name for c in schema.columns[1:]]
    batch = pa.record_batch(
        [pa.array([1], pa.uint32()), *arrays, pa.array([1], pa.int8()), pa.array([1], pa.uint64())],
        names=["id", *columns, "_sign", "_version"],
    )
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    connection = connect(sink.target)
    connection.client.raw_insert(
        f"types.{quote_name(schema.name.table)}",
        ["id", *(c.name for c in schema.columns[1:]), "_sign", "_version"],
        out.getvalue().to_pybytes(),
        settings=connection.supported(INSERT_SETTINGS) if settings else {},
        fmt="ArrowStream",
    )


def test_the_settings_make_the_engine_refuse_what_it_would_otherwise_fill_in(sink: ClickHouseSink) -> None:
    schema = schema_of(Column("n", Kind.INT32, False), Column("e", Kind.ENUM, False))
    sink.prepare([schema])
    good, null = pa.array([5], pa.int32()), pa.array([None], pa.int32())
    word, no_word = pa.array(["a"]).dictionary_encode(), pa.array([None], pa.string()).dictionary_encode()
    for arrays, names in (
        ([null, word], None),
        ([good, no_word], None),
        ([good, word], ["n", "other"]),
        ([good, word], ["N", "e"]),
        ([good], ["n"]),
    ):
        with pytest.raises(DatabaseError):
            raw_insert(sink, schema, arrays, names)
    assert sink.reader().count(schema) == 0
    raw_insert(sink, schema, [null, no_word], settings=False)
    assert shown(sink, schema, "tuple(n, e)") == [[0, ""]]


def test_a_compressed_stream_is_understood(sink: ClickHouseSink) -> None:
    """Remote servers get LZ4 inside the Arrow stream."""
    schema = schema_of(Column("s", Kind.STRING, False), Column("e", Kind.ENUM))
    sink.prepare([schema])
    images = pa.record_batch(
        [pa.array([1, 2], pa.uint32()), pa.array(["x" * 9999, ""]), pa.array(["a", None]).dictionary_encode()], schema=schema.arrow_schema
    )
    connection = connect(sink.target)
    encoder = BlockEncoder(sink.target_table(schema), connection.limits, compression="lz4")
    payload = encoder.encode(insert_block(schema, images))
    assert len(payload) < 9999
    connection.client.raw_insert(f"types.{schema.name.table}", list(encoder.columns), bytes(payload), fmt="ArrowStream")
    assert compare(schema, pa.Table.from_batches([images]), sink.reader().read_range(schema)).total == 0


RANDOM: list[tuple[Column, st.SearchStrategy[Any]]] = [
    (Column("i8", Kind.INT8), st.integers(-128, 127)),
    (Column("u64", Kind.UINT64), st.integers(0, 2**64 - 1)),
    (Column("i64", Kind.INT64), st.integers(-(2**63), 2**63 - 1)),
    (Column("f32", Kind.FLOAT32), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (Column("f64", Kind.FLOAT64), st.floats(allow_nan=False, allow_infinity=False)),
    (
        Column("dec", Kind.DECIMAL, True, 65, 30),
        st.integers(-(10**65) + 1, 10**65 - 1).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -30))),
    ),
    (
        Column("d2", Kind.DECIMAL, True, 10, 2),
        st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -2))),
    ),
    (Column("s", Kind.STRING), st.text(st.characters(exclude_categories=["Cs"]))),
    (Column("b", Kind.BYTES), st.binary()),
    (Column("day", Kind.DATE), st.integers(FIRST_DAY, LAST_DAY)),
    (Column("dt", Kind.DATETIME, True, 6), st.integers(FIRST_US, LAST_US)),
    (Column("dt3", Kind.DATETIME, True, 3), st.integers(FIRST_US // 1000, LAST_US // 1000).map(lambda n: n * 1000)),
    (Column("ts", Kind.TIMESTAMP, True, 6), st.integers(1_000_000, 4_294_967_295_999_999)),
    (Column("t", Kind.TIME, True, 6), st.integers(-MOST_TIME_US, MOST_TIME_US)),
    (Column("e", Kind.ENUM), st.sampled_from(["", "a", "漢"])),
]


@given(st.lists(st.tuples(*(st.none() | strategy for _, strategy in RANDOM)), min_size=1, max_size=40))
def test_random_rows_come_back_unchanged(sink: ClickHouseSink, rows: list[tuple[Any, ...]]) -> None:
    schema = schema_of(*(column for column, _ in RANDOM))
    written = store(sink, schema, [list(cells) for cells in zip(*rows, strict=True)])
    found = compare(schema, written, sink.reader().read_range(schema))
    assert (found.total, found.differences) == (0, ())


KEYS: list[tuple[Column, list[Any]]] = [
    (Column("k", Kind.INT64, False), [-(2**63), -1, 0, 1, 2**63 - 1]),
    (Column("k", Kind.UINT64, False), [0, 1, 2**63, 2**64 - 1]),
    (Column("k", Kind.FLOAT64, False), [-1e300, -0.1, 0.1, 0.30000000000000004, 1e300]),
    (Column("k", Kind.FLOAT32, False), [-1.5, 0.10000000149011612, 3.0]),
    (Column("k", Kind.DECIMAL, False, 65, 30), [digits(65, 30).copy_negate(), Decimal("0.000000000000000000000000000001"), digits(65, 30)]),
    (Column("k", Kind.DECIMAL, False, 9, 2), [Decimal("-9999999.99"), Decimal("0.00"), Decimal("0.01")]),
    (Column("k", Kind.BYTES, False), [b"", b"\x00", b"'\\", b"\x7f\xff", b"\xff"]),
    (Column("k", Kind.STRING, False), ["", "'", "A", "\\", "a", "a b", "é", "😀"]),
    (Column("k", Kind.DATE, False), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    (Column("k", Kind.DATETIME, False, 0), [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59), datetime(9999, 12, 31)]),
    (Column("k", Kind.DATETIME, False, 6), [datetime(1000, 1, 1, 0, 0, 0, 1), datetime(2000, 1, 1), datetime(2000, 1, 1, 0, 0, 0, 1)]),
    (
        Column("k", Kind.TIMESTAMP, False, 3),
        [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 7, 999000, tzinfo=UTC)],
    ),
    (Column("k", Kind.TIME, False, 2), [-timedelta(hours=838), -timedelta(milliseconds=10), timedelta(0), timedelta(hours=30)]),
    (Column("k", Kind.YEAR, False), [0, 1901, 2155]),
    (Column("k", Kind.ENUM, False), ["", "a", "b"]),
    (Column("k", Kind.UUID, False), [bytes(16), bytes(15) + b"\x01", bytes(15) + b"\xff"]),
    (Column("k", Kind.INET4, False), [bytes(4), b"\x00\x00\x00\x01", b"\x01\x00\x00\x00", b"\xff" * 4]),
    (Column("k", Kind.INET6, False), [bytes(16), bytes(15) + b"\x01", b"\x01" + bytes(15), b"\xff" * 16]),
]


@pytest.mark.parametrize(("column", "values"), KEYS, ids=[f"{c.kind}-{c.precision}" for c, _ in KEYS])
def test_ranges_are_cut_exactly_on_every_kind_of_key(sink: ClickHouseSink, column: Column, values: list[Any]) -> None:
    schema = TableSchema(TableName("any", f"t_{secrets.token_hex(6)}"), (column,), ("k",))
    if column.kind is Kind.TIME:
        array = pa.array([v // timedelta(microseconds=1) for v in values], pa.int64()).view(pa.time64("us"))
    else:
        array = pa.array(values, pa.string()).dictionary_encode() if column.kind is Kind.ENUM else pa.array(values, column.arrow_type)
    sink.prepare([schema])
    sink.writer().write(insert_block(schema, pa.record_batch([array], schema=schema.arrow_schema)))
    reader, keys = sink.reader(), [None, *values]
    for low in range(len(keys)):
        for high in range(low, len(keys)):
            lower = None if low == 0 else (keys[low],)
            upper = None if high == 0 else (keys[high],)
            expected = len(values) - low if upper is None else high - low
            assert reader.read_range(schema, lower, upper).num_rows == expected, (lower, upper)


def test_ranges_of_a_key_of_several_columns_are_lexicographic(sink: ClickHouseSink) -> None:
    columns = (Column("v", Kind.INT32), Column("b", Kind.BYTES, False), Column("a", Kind.INT32, False), Column("c", Kind.DATE, False))
    schema = TableSchema(TableName("any", f"t_{secrets.token_hex(6)}"), columns, ("a", "b", "c"))
    keys = [(a, b, date(2000, 1, c)) for a in (1, 2, 3) for b in (b"", b"x") for c in (1, 2)]
    images = pa.record_batch(
        [
            pa.array([i for i, _ in enumerate(keys)], pa.int32()),
            pa.array([k[1] for k in keys]),
            pa.array([k[0] for k in keys], pa.int32()),
            pa.array([k[2] for k in keys]),
        ],
        schema=schema.arrow_schema,
    )
    sink.prepare([schema])
    sink.writer().write(insert_block(schema, images))
    read: Callable[..., pa.Table] = sink.reader().read_range
    for low in range(-1, len(keys)):
        for high in range(low, len(keys) + 1):
            lower = None if low < 0 else keys[low]
            upper = None if high in (-1, len(keys)) else keys[high]
            last = len(keys) if upper is None else high + 1
            assert sorted(read(schema, lower, upper).column("v").to_pylist()) == list(range(low + 1, last)), (lower, upper)
    assert sorted(read(schema, (1,), (2,)).column("v").to_pylist()) == [4, 5, 6, 7]
    assert sorted(read(schema, (1, b""), (2, b"")).column("v").to_pylist()) == [2, 3, 4, 5]
    assert sorted(read(schema, None, (1,)).column("v").to_pylist()) == [0, 1, 2, 3]
    with pytest.raises(DefiniteError, match="a bound of 4 values for a key of 3"):
        read(schema, (1, b"", date(2000, 1, 1), 1), None)
