"""A block is sent exactly in the types of its table, or refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.server_limits import FIRST_DAYS, LAST_DAYS, ServerLimits, parse_limits
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import plan_table
from headrace.sinks.clickhouse.tables.target_table import TargetTable
from headrace.sinks.clickhouse.write.block_encoder import BlockEncoder

DAY = 86_400_000_000
WIDE = ServerLimits(-719_528, 2_932_896, -719_528 * DAY, 2_932_897 * DAY - 1)
NARROW = ServerLimits(-25_567, 120_529, -25_567 * DAY, 120_530 * DAY - 1)
KEY = Column("id", Kind.INT32, nullable=False)


def block_of(column: Column, values: Any, ops: list[Op] | None = None) -> ChangeBlock:
    schema = TableSchema(TableName("shop", "t"), (KEY, column), ("id",))
    rows = len(values)
    images = pa.record_batch([pa.array(range(100, 100 + rows), pa.int32()), values], names=["id", column.name])
    op = pa.array(ops if ops is not None else [Op.INSERT] * rows, pa.uint8())
    return ChangeBlock(schema, images, op, pa.array(range(1, rows + 1), pa.uint64()), pa.array([0] * rows, pa.int64()))


def layout_of(schema: TableSchema) -> TargetTable:
    return plan_table(schema, ClickHouseTarget("h"), ClickHouseOptions())


def encode(block: ChangeBlock, limits: ServerLimits = WIDE) -> pa.Table:
    return pa.ipc.open_stream(BlockEncoder(layout_of(block.schema), limits).encode(block)).read_all()


def micros(*values: int | None) -> Any:
    return pa.array(values, pa.int64())


def test_adds_sign_and_version_and_changes_nothing_else() -> None:
    block = block_of(Column("s", Kind.STRING), pa.array(["a", None, "c", "d", "e"]), list(Op))
    sent = encode(block)
    assert sent.schema.names == ["id", "s", "_sign", "_version"]
    assert [field.nullable for field in sent.schema] == [False, True, False, False]
    assert sent.column("_sign").to_pylist() == [1, 1, 1, -1, -1]
    assert sent.column("_version").to_pylist() == [1, 2, 3, 4, 5]
    assert sent.select(["id", "s"]).to_pydict() == block.images.to_pydict()


def test_encoding_is_repeatable() -> None:
    block = block_of(Column("s", Kind.STRING), pa.array(["a", None]))
    encoder = BlockEncoder(layout_of(block.schema), WIDE)
    first = bytes(encoder.encode(block))
    encoder.encode(block_of(Column("s", Kind.STRING), pa.array(["longer" * 99_999])))
    assert bytes(encoder.encode(block)) == first
    assert bytes(encoder.encode(block, b"INSERT")) == b"INSERT" + first


def test_a_null_in_a_column_without_nulls_names_the_row() -> None:
    with pytest.raises(DefiniteError, match="n = NULL is NULL") as caught:
        encode(block_of(Column("n", Kind.INT32, nullable=False), pa.array([1, None], pa.int32())))
    assert caught.value.place == "table shop.t, row id=101, column n, log file 0, offset 2"


def test_a_null_hidden_in_a_dictionary_is_found() -> None:
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["x", None]))
    with pytest.raises(DefiniteError, match="e = NULL is NULL"):
        encode(block_of(Column("e", Kind.ENUM, nullable=False), hidden))


def test_a_dictionary_with_repetitions_keeps_its_strings() -> None:
    doubled = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None], pa.int32()), pa.array(["", "x", ""]))
    sent = encode(block_of(Column("e", Kind.ENUM), doubled)).column("e")
    assert sent.to_pylist() == ["", "x", "", None]
    assert sent.chunk(0).dictionary.to_pylist() == ["", "x"]


@pytest.mark.parametrize("kind", [Kind.DATETIME, Kind.TIMESTAMP])
def test_a_datetime_outside_the_server_s_years_is_refused(kind: Kind) -> None:
    column = Column("at", kind, precision=6)
    for inside in (NARROW.first_instant_us, NARROW.last_instant_us):
        encode(block_of(column, micros(None, inside).cast(column.arrow_type)), NARROW)
    for outside, shown in (
        (NARROW.first_instant_us - 1, "1899-12-31 23:59:59.999999"),
        (NARROW.last_instant_us + 1, "2300-01-01 00:00:00"),
    ):
        with pytest.raises(DefiniteError, match=f"at = {shown}.* is outside") as caught:
            encode(block_of(column, micros(0, None, outside).cast(column.arrow_type)), NARROW)
        assert "row id=102" in caught.value.place
        assert "newer ClickHouse" in caught.value.hint


def test_a_date_outside_the_server_s_years_is_refused() -> None:
    column = Column("d", Kind.DATE)
    days = pa.array([NARROW.first_day, NARROW.last_day, None], pa.int32())
    encode(block_of(column, days.cast(pa.date32())), NARROW)
    for outside, shown in ((-719_528, "0000-01-01"), (2_932_896, "9999-12-31")):
        beyond = pa.array([0, outside], pa.int32()).cast(pa.date32())
        encode(block_of(column, beyond), WIDE)
        with pytest.raises(DefiniteError, match=f"d = {shown} is outside"):
            encode(block_of(column, beyond), NARROW)


def test_a_time_beyond_what_time64_shows_is_refused() -> None:
    column = Column("t", Kind.TIME, precision=6)
    encode(block_of(column, micros(-3_020_399_999_999, 3_020_399_999_999).view(pa.time64("us"))))
    with pytest.raises(DefiniteError, match=r"t = -1000:00:00.000000 is outside"):
        encode(block_of(column, micros(-3_600_000_000_000).view(pa.time64("us"))))


@pytest.mark.parametrize("precision", range(7))
@pytest.mark.parametrize("kind", [Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME])
def test_a_fraction_finer_than_the_column_is_refused(kind: Kind, precision: int) -> None:
    column = Column("at", kind, precision=precision)
    unit = 10 ** (6 - precision)
    encode(block_of(column, micros(unit, -unit, 0, None).view(column.arrow_type)))
    if precision < 6:
        for finer in (unit + 1, -1):
            with pytest.raises(DefiniteError, match=f"more than {precision} fractional digits"):
                encode(block_of(column, micros(0, finer).view(column.arrow_type)))


def test_a_block_that_is_not_of_its_schema_is_refused() -> None:
    """ClickHouse would accept the wider integer and wrap it."""
    with pytest.raises(DefiniteError, match="columns are not those of its schema"):
        encode(block_of(Column("n", Kind.INT8), pa.array([300], pa.int16())))


def test_an_image_without_version_is_refused() -> None:
    good = block_of(Column("n", Kind.INT8), pa.array([1], pa.int8()))
    bad = ChangeBlock(good.schema, good.images, good.op, pa.array([None], pa.uint64()), good.commit_ts)
    with pytest.raises(DefiniteError, match="without operation or version"):
        encode(bad)


def rendered(*, first: str, last: str) -> list[str]:
    """Return what a server with only those days shows for the candidates."""
    return [min(max(text, first), last) for text in (*FIRST_DAYS, *LAST_DAYS)]


def test_limits_are_what_the_server_renders_faithfully() -> None:
    wide = rendered(first="0000-01-01", last="9999-12-31")
    narrow = rendered(first="1900-01-01", last="2299-12-31")
    assert parse_limits([*wide, *(f"{day} 00:00:00.000000" for day in wide)]) == WIDE
    assert parse_limits([*narrow, *(f"{day} 00:00:00.000000" for day in narrow)]) == NARROW
    mixed = parse_limits([*wide, *(f"{day} 00:00:00.000000" for day in narrow)])
    assert (mixed.first_day, mixed.first_instant_us) == (WIDE.first_day, NARROW.first_instant_us)
