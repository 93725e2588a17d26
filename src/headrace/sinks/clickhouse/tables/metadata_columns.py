"""The columns of ours: what each says of the images of a block.

Invariant: a pure function of the block, column by column: a replay gives the same marks.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.sinks.clickhouse.tables.target_table import MetadataColumn, MetadataRole
from headrace.sinks.clickhouse.types.row_hash import content_hash

OPERATION_NAMES: Final = ("snapshot", "insert", "update", "delete", "before")
"""What an operation is called; `before` is what an update took away from where it was (only where it moved the row, or nothing tells rows
apart)."""
_OPERATION_NAMES: Final = pa.array(OPERATION_NAMES)
DELETE_OPERATIONS: Final = ("delete", "before")
_SIGN_OF: Final = np.array([-1 if op in (Op.DELETE, Op.BEFORE) else 1 for op in sorted(Op)], dtype=np.int8)
_UNITS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_MOMENT: Final = re.compile(r"DateTime64\((\d)(?:, '[^']*')?\)|DateTime(?:\('[^']*'\))?")
_TYPES: Final = {
    MetadataRole.VERSION: frozenset({"UInt64", "Int64"}),
    MetadataRole.SIGN: frozenset({"Int8"}),
    MetadataRole.DELETED: frozenset({"UInt8", "Bool"}),
    MetadataRole.OPERATION: frozenset({"String", "LowCardinality(String)"}),
    MetadataRole.CONTENT: frozenset({"UInt64"}),
    MetadataRole.OCCURRENCE: frozenset({"UInt64"}),
}


def can_hold(role: MetadataRole, kind: str) -> bool:
    """Whether a column of a ClickHouse type can hold a mark."""
    if role is MetadataRole.COMMIT_TIME:
        return _unit(kind) is not None
    if role is MetadataRole.OPERATION and kind.startswith("Enum"):
        return all(f"'{word}' = " in kind for word in OPERATION_NAMES)
    return kind in _TYPES[role]


def accepted_types(role: MetadataRole) -> str:
    """The types that can, for people."""
    if role is MetadataRole.COMMIT_TIME:
        return "DateTime64(6, 'UTC'), or with 0, 3 or 9 digits, or DateTime"
    return " or ".join(sorted(_TYPES[role], key=len))


def metadata_field(mark: MetadataColumn) -> pa.Field[Any]:
    """The Arrow field in which a mark travels."""
    return pa.field(mark.name, _arrow_type(mark), False)


def metadata_values(mark: MetadataColumn, block: ChangeBlock) -> pa.Array[Any]:
    """What a mark says of each image of a block."""
    match mark.role:
        case MetadataRole.SIGN:
            return pa.array(_signs(block))
        case MetadataRole.DELETED:
            return pa.array(_signs(block) < 0).cast(_arrow_type(mark))
        case MetadataRole.VERSION:
            # Int64 holds the versions of the first 32 servers; beyond them Arrow refuses, and nothing wraps.
            return block.version if mark.type == "UInt64" else block.version.cast(pa.int64())
        case MetadataRole.OPERATION:
            named = pa.DictionaryArray.from_arrays(block.op.cast(pa.int32()), _OPERATION_NAMES)
            return named if pa.types.is_dictionary(_arrow_type(mark)) else named.cast(pa.string())
        case MetadataRole.COMMIT_TIME:
            return block.commit_ts.cast(pa.timestamp("us", "UTC")).cast(_arrow_type(mark), safe=False)
        case MetadataRole.CONTENT:
            return pa.array(content_hash(block.images))
        case MetadataRole.OCCURRENCE:
            return _occurrences(block)


def _signs(block: ChangeBlock) -> Any:
    return _SIGN_OF[block.op.to_numpy(zero_copy_only=False)]


def _arrow_type(mark: MetadataColumn) -> pa.DataType:
    match mark.role:
        case MetadataRole.SIGN:
            return pa.int8()
        case MetadataRole.DELETED:
            return pa.bool_() if mark.type == "Bool" else pa.uint8()
        case MetadataRole.OPERATION:
            return pa.dictionary(pa.int32(), pa.string()) if mark.type.startswith("LowCardinality") else pa.string()
        case MetadataRole.COMMIT_TIME:
            return pa.timestamp(_unit(mark.type) or "us", "UTC")
        case MetadataRole.VERSION:
            return pa.uint64() if mark.type == "UInt64" else pa.int64()
    return pa.uint64()


def _unit(kind: str) -> str | None:
    """The unit of a type of moments that Arrow has as well."""
    match = _MOMENT.fullmatch(kind)
    return None if match is None else _UNITS.get(int(match.group(1) or 0))


def _occurrences(block: ChangeBlock) -> pa.Array[Any]:
    """What makes each image of a table without a key a row of its own: its version, or in a snapshot, where all have one, its number."""
    snapshot = np.equal(block.op.to_numpy(zero_copy_only=False), Op.SNAPSHOT)
    if not snapshot.any():
        return block.version
    if block.order is None or not snapshot.all():
        raise DefiniteError(
            "a snapshot block of a table without a key does not number its rows",
            place=f"table {block.schema.name}",
            hint="this is a defect of the source; please report it",
        )
    return block.order
