"""Values of every kind of column at their extremes, and columns that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema

_DAY_US = 86_400_000_000
_MOST = Decimal((0, (9,) * 65, -30))

VALUES: dict[Kind, list[Any]] = {
    Kind.INT8: [-128, 127],
    Kind.INT16: [-32768, 32767],
    Kind.INT32: [-(2**31), 2**31 - 1],
    Kind.INT64: [-(2**63), 2**63 - 1],
    Kind.UINT8: [0, 255],
    Kind.UINT16: [0, 65535],
    Kind.UINT32: [0, 2**32 - 1],
    Kind.UINT64: [0, 2**63, 2**64 - 1],
    Kind.FLOAT32: [3.4028234663852886e38, 1.401298464324817e-45, -0.0, float(np.float32(0.1))],
    Kind.FLOAT64: [1.7976931348623157e308, 5e-324, -0.0, 0.1],
    Kind.DECIMAL: [_MOST, _MOST.copy_negate(), Decimal("0.000000000000000000000000000001"), Decimal("-0.000000000000000000000000000001")],
    Kind.STRING: ["", "a\x00b", "\u2028漢字😀\ufffd\U0010ffff", "\"\\/'\t\n"],
    Kind.BYTES: [b"", bytes(range(256))],
    Kind.DATE: [-719_528, 2_932_896, 0, -1],
    Kind.DATETIME: [-719_528 * _DAY_US, 2_932_897 * _DAY_US - 1, 0, -1, 1],
    Kind.TIMESTAMP: [0, 1, 4_294_967_295_999_999],
    Kind.TIME: [-3_020_399_000_000, 3_020_399_000_000, 0, -1, 1],
    Kind.YEAR: [0, 1901, 2155],
    Kind.ENUM: ["", "b'c", "漢"],
    Kind.SET: ["", "a,b"],
    Kind.BIT: [0, 2**64 - 1, 256],
    Kind.JSON: ["{}", '{"a": [1, 2.50, "é\\n"]}', "null"],
    Kind.GEOMETRY: [b"\x00" * 25, b"\xff\x01"],
    Kind.VECTOR: [[], [1.5, -0.0, 3.4028234663852886e38, float(np.float32(0.1))]],
    Kind.UUID: [b"\x00" * 16, bytes(range(16))],
    Kind.INET4: [b"\x00" * 4, b"\xff\x01\x02\x03"],
    Kind.INET6: [b"\x00" * 16, b"\x00" * 10 + b"\xff\xff\x01\x02\x03\x04", bytes(range(16))],
}
_DETAILS: dict[Kind, dict[str, Any]] = {
    Kind.DECIMAL: {"precision": 65, "scale": 30},
    Kind.DATETIME: {"precision": 6},
    Kind.TIMESTAMP: {"precision": 6},
    Kind.TIME: {"precision": 6},
    Kind.BIT: {"precision": 64},
    Kind.ENUM: {"members": ("b'c", "漢")},
    Kind.SET: {"members": ("a", "b")},
    Kind.STRING: {"source_type": "varchar(255)", "charset": "utf8mb4"},
}
COLUMNS = [Column(f"c_{kind.value}", kind, **_DETAILS.get(kind, {})) for kind in Kind]


def array_of(column: Column, values: list[Any]) -> Any:
    """Values as an array of the column's own type; instants and times are given in microseconds, dates in days."""
    match column.kind:
        case Kind.ENUM | Kind.SET:
            return pa.array(values, pa.string()).dictionary_encode()
        case Kind.DATE:
            return pa.array(values, pa.int32()).view(pa.date32())
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return pa.array(values, pa.int64()).view(column.arrow_type)
    return pa.array(values, column.arrow_type)


def plain_of(array: Any) -> list[Any]:
    """An array's values as given to `array_of`."""
    if pa.types.is_dictionary(array.type):
        return list(array.cast(pa.string()).to_pylist())
    if pa.types.is_date32(array.type):
        return list(array.view(pa.int32()).to_pylist())
    if pa.types.is_timestamp(array.type) or pa.types.is_time64(array.type):
        return list(array.view(pa.int64()).to_pylist())
    return list(array.to_pylist())


def block_of_rows(
    schema: TableSchema,
    rows: Sequence[Sequence[Any]],
    ops: Sequence[Op] | None = None,
    *,
    versions: Sequence[int],
    commit_us: Sequence[int] | None = None,
    transactions: Sequence[str] | None = None,
    order: bool = False,
) -> ChangeBlock:
    """A block of rows whose values have the form of `array_of`; inserts if no operations are given. `order`: rows are numbered from 0."""
    count = len(rows)
    arrays = [array_of(column, [row[place] for row in rows]) for place, column in enumerate(schema.columns)]
    return ChangeBlock(
        schema,
        pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema),
        pa.array([Op.INSERT] * count if ops is None else ops, pa.uint8()),
        pa.array(versions, pa.uint64()),
        pa.array([0] * count if commit_us is None else commit_us, pa.int64()),
        None if transactions is None else pa.array(transactions).dictionary_encode(),
        pa.array(range(count), pa.uint64()) if order else None,
    )


def table_of_all(rows: int) -> tuple[TableSchema, pa.RecordBatch]:
    """A table with an `id` and a column of every kind: rows of their values in turn, every third of a column NULL."""
    schema = TableSchema(TableName("shop", "all_kinds"), (Column("id", Kind.INT32, False, source_type="int(11)"), *COLUMNS), ("id",))
    arrays = [pa.array(range(rows), pa.int32())]
    for place, column in enumerate(COLUMNS):
        values = VALUES[column.kind]
        arrays.append(array_of(column, [None if (row + place) % 3 == 0 else values[row % len(values)] for row in range(rows)]))
    return schema, pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema)
