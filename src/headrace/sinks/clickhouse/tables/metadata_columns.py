"""Headrace's metadata columns (version, sign, operation and so on): their values in a block, and how they are found in an existing table.

Invariant: the values are a pure function of the block, so a replay gives the same ones. The columns of an existing table are found from
engine arguments, options, then naming convention, and give the engine all it needs to show the source's rows. A table that lacks one, or
has one of a wrong type, is rejected with the types that would do.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.clickhouse_lexer import content_of
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.server.options import DeleteAs, Deletes
from headrace.sinks.clickhouse.tables.engine_parser import is_name, nondeterministic_function, parse_tokens, referenced_names
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn
from headrace.sinks.clickhouse.tables.table_inspection import MAKE_OTHER, START_OVER, InspectedTable
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataColumn, MetadataRole
from headrace.sinks.clickhouse.types.row_hash import content_hash
from headrace.sinks.clickhouse.types.type_mapping import OCCURRENCE, ROW

OPERATION_NAMES: Final = ("snapshot", "insert", "update", "delete", "before")
"""Values of an operation column. `before` is the old image of an update; it is written only where the update changed the row's key, or
where the table has no key."""
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
    match mark.role:
        case MetadataRole.SIGN:
            return pa.array(_signs(block))
        case MetadataRole.DELETED:
            return pa.array(_signs(block) < 0).cast(_arrow_type(mark))
        case MetadataRole.VERSION:
            # Int64 holds the versions of the first 32 servers; beyond that the cast fails instead of wrapping.
            return block.version if mark.type == "UInt64" else block.version.cast(pa.int64())
        case MetadataRole.OPERATION:
            named = pa.DictionaryArray.from_arrays(block.op.cast(pa.int32()), pa.array(OPERATION_NAMES))
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


_NUMBER: Final = re.compile(r"-?\d+")


def find_metadata_columns(inspected: InspectedTable) -> tuple[MetadataColumn, ...]:
    match inspected.family:
        case EngineFamily.REPLACING:
            metadata_columns = _replacing_metadata(inspected)
        case EngineFamily.COLLAPSING:
            if not inspected.plan.has_key:
                raise inspected.mismatch(
                    f"its engine is {inspected.engine.full_name}, which keeps one row of each key, and nothing tells the source's rows"
                    " apart",
                    "use a VersionedCollapsingMergeTree, or let Headrace make the table; or give the source's table a primary key",
                )
            metadata_columns = (
                _require_metadata(inspected, inspected.argument(0), MetadataRole.SIGN),
                *_optional_metadata(inspected, inspected.options.version_column, MetadataRole.VERSION),
            )
        case EngineFamily.VERSIONED:
            metadata_columns = _versioned_metadata(inspected)
        case EngineFamily.HISTORY:
            metadata_columns = _history_metadata(inspected)
        case EngineFamily.COALESCING:
            _check_coalescing(inspected)
            metadata_columns = _optional_metadata(inspected, inspected.options.version_column, MetadataRole.VERSION)
    if inspected.options.deletes == Deletes.IGNORE and inspected.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED):
        raise inspected.mismatch(
            f"its engine {inspected.engine.full_name} adds up what was put and taken away: deletions cannot be left out",
            "choose deletes = apply for it",
        )
    used = {mark.name for mark in metadata_columns}
    if inspected.family is not EngineFamily.HISTORY:
        extra = (
            *_optional_metadata(inspected, inspected.options.sign_column, MetadataRole.SIGN),
            *_optional_metadata(inspected, inspected.options.operation_column, MetadataRole.OPERATION),
            *_optional_metadata(inspected, inspected.options.time_column, MetadataRole.COMMIT_TIME),
        )
        metadata_columns = (*metadata_columns, *(mark for mark in extra if mark.name not in used))
    return metadata_columns


def _replacing_metadata(inspected: InspectedTable) -> tuple[MetadataColumn, ...]:
    version = inspected.argument(0)
    if version is None:
        raise inspected.mismatch(
            "its engine is ReplacingMergeTree without a version column: which of two rows stays would depend on the order of writing",
            "make it ReplacingMergeTree(version, is_deleted)",
        )
    metadata_columns = (*_find_delete_column(inspected), _require_metadata(inspected, version, MetadataRole.VERSION))
    if inspected.plan.has_key:
        return metadata_columns
    if inspected.table.column(OCCURRENCE) is None or inspected.table.column(ROW) is None:
        raise inspected.mismatch(
            "nothing tells the source's rows apart, and the table would merge those that are equal in its sort key",
            "let Headrace make the table, or use a VersionedCollapsingMergeTree; or give the source's table a primary key",
        )
    return (*metadata_columns, _require_metadata(inspected, OCCURRENCE, MetadataRole.OCCURRENCE))


def _find_delete_column(inspected: InspectedTable) -> tuple[MetadataColumn, ...]:
    """Return the column that marks deletions: the engine's argument, else the option `delete_column`, else the sign column."""
    by_engine = inspected.argument(1)
    if by_engine is not None:
        column = inspected.require_column(by_engine)
        sign = _sign_behind(inspected, column)
        return (_require_metadata(inspected, sign, MetadataRole.SIGN) if sign else _delete_column(inspected, column),)
    for name in filter(None, (inspected.options.delete_column, inspected.options.sign_column)):
        found = inspected.table.column(name)
        if found is not None and not inspected.is_source_column(name):
            return (_delete_column(inspected, found),)
        if name == inspected.options.delete_column:
            raise inspected.mismatch(
                f"it has no column {name}, in which deletions were to be marked",
                f"choose another delete_column, or missing_columns = add, or: ALTER TABLE {inspected.local_table_sql()} ADD COLUMN"
                f" {quote_name(name)} {'Int8 DEFAULT 1' if inspected.options.delete_type == DeleteAs.INT8 else 'UInt8'}",
            )
    if inspected.options.deletes == Deletes.IGNORE:
        return ()
    raise inspected.mismatch(
        f"nothing in it can say that a row was deleted: its engine is ReplacingMergeTree({inspected.argument(0)}) without is_deleted,"
        f" and it has no column {inspected.options.sign_column}",
        "choose the column that marks deletions (delete_column), have one added (missing_columns = add), or leave deletions out"
        " (deletes = ignore)",
    )


def _delete_column(inspected: InspectedTable, column: ExistingColumn) -> MetadataColumn:
    return _require_metadata(inspected, column.name, MetadataRole.SIGN if column.type == "Int8" else MetadataRole.DELETED)


def _sign_behind(inspected: InspectedTable, column: ExistingColumn) -> str:
    """Return the sign column from which the engine's delete column is computed, as in tables that Headrace creates; else empty."""
    if column.default_kind != "MATERIALIZED" or _is_hidden(column):
        return ""
    words = [token for token in parse_tokens(column.default_expression) if token.value not in ("(", ")")]
    comparison = "".join(token.value for token in words[1:])
    if words and is_name(words[0]) and comparison in ("=-1", "<0"):
        return content_of(words[0])
    raise inspected.mismatch(
        f"its column {column.name} is {column.default_expression}, not {quote_name(inspected.options.sign_column)} = -1", START_OVER
    )


def _versioned_metadata(inspected: InspectedTable) -> tuple[MetadataColumn, ...]:
    sign, version = inspected.argument(0), inspected.argument(1)
    metadata_columns: tuple[MetadataColumn, ...] = (_require_metadata(inspected, sign, MetadataRole.SIGN),)
    column = inspected.require_column(version) if version is not None and not inspected.is_source_column(version) else None
    if column is not None:
        if column.default_kind in ("MATERIALIZED", "DEFAULT"):
            _check_content(inspected, column)
        else:
            metadata_columns = (*metadata_columns, _require_metadata(inspected, column.name, MetadataRole.CONTENT))
    optional = _optional_metadata(inspected, inspected.options.version_column, MetadataRole.VERSION)
    return (*metadata_columns, *(mark for mark in optional if mark.name != version))


def _check_content(inspected: InspectedTable, column: ExistingColumn) -> None:
    """Check that a computed version column hashes the whole row."""
    names = set(referenced_names(column.default_expression))
    lacking = [one.name for one in inspected.plan.columns if one.name not in names]
    nondeterministic = nondeterministic_function(column.default_expression)
    if "hash" not in column.default_expression.lower() or lacking or nondeterministic:
        raise inspected.mismatch(
            f"its version column {column.name} is {column.default_expression}, which is no hash of the whole row"
            f"{f' (without {lacking[0]})' if lacking else ''}: what is taken away must carry the version of what was put",
            f"make it {column.name} UInt64 MATERIALIZED cityHash64(tuple(...)) over all columns, or an ordinary UInt64",
        )


def _history_metadata(inspected: InspectedTable) -> tuple[MetadataColumn, ...]:
    version = _require_metadata(inspected, inspected.options.version_column, MetadataRole.VERSION)
    operation = _optional_metadata(inspected, inspected.options.operation_column, MetadataRole.OPERATION)
    if not operation:
        names = filter(None, (inspected.options.delete_column, inspected.options.sign_column))
        found = next((column for column in map(inspected.table.column, names) if column is not None), None)
        operation = (_delete_column(inspected, found),) if found is not None and not inspected.is_source_column(found.name) else ()
    if not operation:
        raise inspected.mismatch(
            f"its engine is {inspected.engine.full_name}, which keeps every change, and it has no column"
            f" {inspected.options.operation_column} that says what happened",
            f"ALTER TABLE {inspected.local_table_sql()} ADD COLUMN {quote_name(inspected.options.operation_column)}"
            " LowCardinality(String), choose another operation_column, or missing_columns = add",
        )
    return (*operation, version, *_optional_metadata(inspected, inspected.options.time_column, MetadataRole.COMMIT_TIME))


def _check_coalescing(inspected: InspectedTable) -> None:
    """CoalescingMergeTree keeps the last non-NULL value: usable only without nullable columns and without deletions."""
    nullable = next((c for c in inspected.plan.schema.columns if c.nullable and c.name not in inspected.plan.schema.row_key), None)
    listed = {name for argument in inspected.engine.arguments for name in referenced_names(argument.sql)}
    left = next(
        (c.name for c in inspected.plan.columns if listed and c.name not in listed and c.source.name not in inspected.plan.schema.row_key),
        "",
    )
    why = ""
    if not inspected.plan.has_key:
        why = "nothing tells the source's rows apart"
    elif inspected.options.deletes != Deletes.IGNORE:
        why = "it cannot take away a row"
    elif nullable is not None:
        why = f"a NULL in {nullable.name} would not cover the value before it"
    elif left:
        why = f"of its column {left} it keeps any value, not the last"
    if why:
        raise inspected.mismatch(
            f"its engine is {inspected.engine.full_name}, and {why}",
            "a CoalescingMergeTree fits where no column may be NULL and deletions are left out (deletes = ignore); else " + MAKE_OTHER,
        )


def missing_metadata_columns(inspected: InspectedTable) -> list[ExistingColumn]:
    chosen = inspected.options
    wanted: list[ExistingColumn] = []
    if inspected.family is EngineFamily.REPLACING and inspected.argument(1) is None and chosen.deletes == Deletes.APPLY:
        # Existing rows count as present.
        if chosen.delete_column and chosen.delete_type == DeleteAs.UINT8:
            wanted.append(ExistingColumn(chosen.delete_column, "UInt8"))
        elif chosen.delete_column:
            wanted.append(ExistingColumn(chosen.delete_column, "Int8", "DEFAULT", "1"))
        elif inspected.table.column(chosen.sign_column) is None:
            wanted.append(ExistingColumn(chosen.sign_column, "Int8", "DEFAULT", "1"))
    if inspected.family is EngineFamily.HISTORY:
        wanted += [
            ExistingColumn(chosen.operation_column, "LowCardinality(String)", "DEFAULT", "'snapshot'"),
            ExistingColumn(chosen.version_column, "UInt64"),
            ExistingColumn(chosen.time_column, "DateTime64(6, 'UTC')"),
        ]
    return wanted


def _require_metadata(inspected: InspectedTable, name: str | None, role: MetadataRole) -> MetadataColumn:
    if name is None:
        raise inspected.mismatch(f"its engine {inspected.engine.full_name} does not name its columns", MAKE_OTHER)
    if inspected.is_source_column(name):
        raise inspected.mismatch(
            f"its column {name}, which its engine needs, is a column of the source as well",
            "keep the source's column under another name (`rename`)",
        )
    column = inspected.require_column(name)
    hidden = _is_hidden(column)
    if column.default_kind not in ("", "DEFAULT") and not hidden:
        raise inspected.mismatch(f"its column {name} is computed ({column.default_kind}), not stored", START_OVER)
    if not can_hold(role, column.type):
        raise inspected.mismatch(
            f"its column {name} is {column.type} and cannot hold what Headrace writes there ({role})",
            f"make it {accepted_types(role)}",
        )
    return MetadataColumn(name, role, column.type, hidden)


def _is_hidden(column: ExistingColumn) -> bool:
    """Whether `SELECT *` omits a column that an INSERT can name: MATERIALIZED with a number, not computed from the row."""
    return column.default_kind == "MATERIALIZED" and _NUMBER.fullmatch(column.default_expression) is not None


def _optional_metadata(inspected: InspectedTable, name: str, role: MetadataRole) -> tuple[MetadataColumn, ...]:
    column = inspected.column(name)
    if column is None or inspected.is_source_column(name) or column.default_kind not in ("", "DEFAULT") or not can_hold(role, column.type):
        return ()
    return (MetadataColumn(name, role, column.type),)
