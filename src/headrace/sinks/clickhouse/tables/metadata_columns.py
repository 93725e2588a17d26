"""Values of Headrace's metadata columns (version, sign, operation and so on) for the row images of a block.

Invariant: a pure function of the block, so a replay gives the same values.
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
"""Values of an operation column. `before` is the old image of an update; it is written only where the update changed the row's key, or
where the table has no key."""
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
    """Whether a column of a ClickHouse type can store a metadata role."""
    if role is MetadataRole.COMMIT_TIME:
        return _unit(kind) is not None
    if role is MetadataRole.OPERATION and kind.startswith("Enum"):
        return all(f"'{word}' = " in kind for word in OPERATION_NAMES)
    return kind in _TYPES[role]


def accepted_types(role: MetadataRole) -> str:
    """Return the accepted types of a role, for error messages."""
    if role is MetadataRole.COMMIT_TIME:
        return "DateTime64(6, 'UTC'), or with 0, 3 or 9 digits, or DateTime"
    return " or ".join(sorted(_TYPES[role], key=len))


def metadata_field(mark: MetadataColumn) -> pa.Field[Any]:
    """Return the Arrow field in which the column is sent."""
    return pa.field(mark.name, _arrow_type(mark), False)


def metadata_values(mark: MetadataColumn, block: ChangeBlock) -> pa.Array[Any]:
    """Return the column's value for each image of a block."""
    match mark.role:
        case MetadataRole.SIGN:
            return pa.array(_signs(block))
        case MetadataRole.DELETED:
            return pa.array(_signs(block) < 0).cast(_arrow_type(mark))
        case MetadataRole.VERSION:
            # Int64 holds the versions of the first 32 servers; beyond that the cast fails instead of wrapping.
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
    """Return the Arrow unit of a DateTime or DateTime64 type; None if it has none."""
    match = _MOMENT.fullmatch(kind)
    return None if match is None else _UNITS.get(int(match.group(1) or 0))


def _occurrences(block: ChangeBlock) -> pa.Array[Any]:
    """Return what makes each image of a table without a key unique: its version, or its row number in a snapshot, where all versions are
    equal."""
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
