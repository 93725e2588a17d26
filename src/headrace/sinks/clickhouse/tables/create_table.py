"""Plans the tables that Headrace creates, and renders their CREATE statements.

Invariant: a created table stores every row image of its schema exactly. After merges, its view or `FINAL` shows the source's rows.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.server.identifiers import check_name_lengths, quote_name, quote_text
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, DeleteAs, Deletes, TableOptions, TargetEngine
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.engine_parser import check_expression, plain_columns, source_columns
from headrace.sinks.clickhouse.tables.idle_merges import idle_merge_settings
from headrace.sinks.clickhouse.tables.target_table import (
    ROWS_SUFFIX,
    ComputedColumn,
    EngineFamily,
    MetadataColumn,
    MetadataRole,
    Place,
    Storage,
    StoredColumn,
    TargetTable,
    target_name,
)
from headrace.sinks.clickhouse.types.type_mapping import OCCURRENCE, ROW, storage_type

LOCAL_SUFFIX: Final = "_local"
VERSION_COLUMN_COMMENT: Final = "Headrace: place in the source's log"
"""Comment of the version column in created tables; `is_created_by_headrace` looks for it."""
# Engines that count duplicates get each block with a deduplication token; these settings make the server keep tokens.
_WINDOW: Final = {"non_replicated_deduplication_window": "10000"}
_REPLICATED_WINDOW: Final = {"replicated_deduplication_window": "10000", "replicated_deduplication_window_seconds": "2592000"}
_MIN_WINDOW_S: Final = 7 * 86_400
# Names of ClickHouse's own columns in MergeTree tables.
_RESERVED: Final = ("_row_exists", "_block_number", "_block_offset")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")
_ENGINES: Final = {
    TargetEngine.REPLACING: (EngineFamily.REPLACING, "ReplacingMergeTree"),
    TargetEngine.COLLAPSING: (EngineFamily.COLLAPSING, "CollapsingMergeTree"),
    TargetEngine.VERSIONED: (EngineFamily.VERSIONED, "VersionedCollapsingMergeTree"),
    TargetEngine.HISTORY: (EngineFamily.HISTORY, "MergeTree"),
}
# MaterializeMySQL divides the range of the key's type into a thousand partitions.
_CUTS: Final = 1000
_BITS: Final = {f"{sign}Int{bits}": bits for sign in ("", "U") for bits in (8, 16, 32, 64)}


def plan_tables(schemas: Iterable[TableSchema], target: ClickHouseTarget, options: ClickHouseOptions) -> tuple[TargetTable, ...]:
    """Plan the target tables of all schemas; raise `DefiniteError` if two schemas share a target or a schema cannot be stored."""
    target_tables = tuple(plan_table(schema, target, options) for schema in schemas)
    taken: dict[Place, TableName] = {}
    named = [(target_table.place, target_table) for target_table in target_tables]
    named += [(target_table.view_place, target_table) for target_table in target_tables if target_table.view_table]
    for place, target_table in named:
        other = taken.setdefault(place, target_table.source)
        if other != target_table.source:
            raise DefiniteError(
                f"{other} and {target_table.source} would both be written to {'.'.join(place)}",
                place=f"table {target_table.source}",
                hint="leave the database out of the sink's URL (each source database then gets its own), or choose with --tables",
            )
    return target_tables


def plan_table(schema: TableSchema, target: ClickHouseTarget, options: ClickHouseOptions) -> TargetTable:
    chosen = options.of(schema.name)
    database, table = target_name(schema.name, target, options)
    family, engine = _ENGINES[chosen.engine]
    view_table = table if chosen.keyless_views and not schema.row_key and family is EngineFamily.REPLACING else ""
    table += ROWS_SUFFIX if view_table else ""
    check_name_lengths(database, table + (LOCAL_SUFFIX if options.cluster else ""))
    columns = plan_columns(schema, chosen)
    metadata_columns = _metadata_columns(schema, family, chosen)
    computed = _computed(schema, family, columns, chosen)
    _check_names(schema, columns, (*(mark.name for mark in metadata_columns), *(one.name for one in computed)))
    sort_key = _sort_key(schema, family, columns, chosen)
    partition_by = _partition(schema, columns, chosen)
    if family is EngineFamily.COLLAPSING:
        # FINAL collapses rows across partitions without regard to insertion order, so equal sort keys must not span partitions.
        apart = [quote_name(column.name) for column in columns if column.source.name in source_columns([partition_by], columns, {})]
        sort_key = tuple(dict.fromkeys((*sort_key, *apart)))
    shard_by = _shard_key(columns, schema, chosen) if options.cluster else ""
    for what, expression in [("sort key", one) for one in sort_key] + [("partition key", partition_by), ("shard key", shard_by)]:
        check_expression(schema.name, what, expression)
    storage = Storage(
        engine,
        _arguments(family, metadata_columns, computed, chosen),
        sort_key,
        partition_by,
        _settings(schema, family, columns, sort_key, chosen, clustered=bool(options.cluster)),
        computed,
        options.cluster,
        (options.replica_path, options.replica_name) if options.cluster and options.replica_path else (),
        shard_by,
        _additions(schema, columns, chosen),
        # In the order that ClickHouse expects between ORDER BY and SETTINGS.
        tuple(
            (clause, text)
            for clause, text in (("PRIMARY KEY", chosen.primary_key), ("SAMPLE BY", chosen.sample_by), ("TTL", chosen.ttl))
            if text
        ),
    )
    _check_sort_key(schema, family, columns, storage)
    depends = source_columns((*sort_key, partition_by, shard_by), columns, {})
    local_table = (database, table + LOCAL_SUFFIX) if options.cluster else None
    moving = tuple(dict.fromkeys((*schema.row_key, *depends))) if schema.row_key else ()
    ignores = chosen.deletes == Deletes.IGNORE
    return TargetTable(
        schema, database, table, family, columns, metadata_columns, moving, True, local_table, ignores, storage, view_table=view_table
    )


def plan_columns(schema: TableSchema, options: TableOptions) -> tuple[StoredColumn, ...]:
    """Return name, type, compression codec and TTL of each source column in a created table."""
    renamed = dict(options.rename)
    return tuple(
        StoredColumn(
            column,
            renamed.get(column.name, column.name),
            storage_type(schema, column, options),
            next((codec for glob, codec in options.codecs if fnmatch.fnmatchcase(column.name, glob)), ""),
            column.comment,
            dict(options.column_ttls).get(column.name, ""),
        )
        for column in schema.columns
    )


def _metadata_columns(schema: TableSchema, family: EngineFamily, options: TableOptions) -> tuple[MetadataColumn, ...]:
    # Readers of the others need the columns: a sign to sum up rows (FINAL does not hide deletions of rows without a key), an operation to
    # read a history.
    hidden = options.hidden_columns and family is EngineFamily.REPLACING and bool(schema.row_key)
    version = MetadataColumn(options.version_column, MetadataRole.VERSION, "UInt64", hidden)
    sign = MetadataColumn(options.sign_column, MetadataRole.SIGN, "Int8", hidden)
    if family is EngineFamily.HISTORY:
        operation = MetadataColumn(options.operation_column, MetadataRole.OPERATION, "LowCardinality(String)")
        return operation, version, MetadataColumn(options.time_column, MetadataRole.COMMIT_TIME, "DateTime64(6, 'UTC')")
    if family is not EngineFamily.REPLACING:
        return sign, version
    mark = sign
    if options.delete_column:
        role, kind = (MetadataRole.SIGN, "Int8") if options.delete_type == DeleteAs.INT8 else (MetadataRole.DELETED, "UInt8")
        mark = MetadataColumn(options.delete_column, role, kind, hidden)
    if schema.row_key:
        return mark, version
    return mark, version, MetadataColumn(OCCURRENCE, MetadataRole.OCCURRENCE, "UInt64")


def _computed(
    schema: TableSchema, family: EngineFamily, columns: tuple[StoredColumn, ...], options: TableOptions
) -> tuple[ComputedColumn, ...]:
    content = f"cityHash64(tuple({', '.join(quote_name(column.name) for column in columns)}))"
    if family is EngineFamily.VERSIONED:
        return (ComputedColumn(options.content_column, "UInt64", content),)
    if family is not EngineFamily.REPLACING:
        return ()
    if not schema.row_key:
        return (ComputedColumn(ROW, "UInt64", content),)
    if options.delete_column and options.delete_type == DeleteAs.UINT8:
        return ()
    # FINAL hides rows by an UInt8 only.
    return (ComputedColumn(options.tombstone_column, "UInt8", f"{quote_name(options.delete_column or options.sign_column)} = -1"),)


def _arguments(
    family: EngineFamily, metadata_columns: tuple[MetadataColumn, ...], computed: tuple[ComputedColumn, ...], options: TableOptions
) -> tuple[str, ...]:
    match family:
        case EngineFamily.COLLAPSING:
            return (options.sign_column,)
        case EngineFamily.VERSIONED:
            return options.sign_column, options.content_column
        case EngineFamily.HISTORY:
            return ()
    if any(mark.role is MetadataRole.OCCURRENCE for mark in metadata_columns):
        return (options.version_column,)
    return options.version_column, (computed[0].name if computed else options.delete_column)


def _check_names(schema: TableSchema, columns: tuple[StoredColumn, ...], own: tuple[str, ...]) -> None:
    taken: dict[str, str] = {}
    for column in columns:
        whose = "Headrace" if column.name in own else "ClickHouse" if column.name in _RESERVED else ""
        if whose:
            raise DefiniteError(
                f"column {column.name} has a name that {whose} uses for itself in the target table",
                place=f"table {schema.name}, column {column.name}",
                hint="rename the column, in the source or for the target by `rename`, choose other names for the columns of Headrace,"
                " or leave the table out with --exclude",
            )
        if column.name in taken:
            raise DefiniteError(
                f"columns {taken[column.name]} and {column.source.name} would both be kept in column {column.name}",
                place=f"table {schema.name}, column {column.source.name}",
                hint="give each source column its own target column in `rename`",
            )
        taken[column.name] = column.source.name


def _sort_key(schema: TableSchema, family: EngineFamily, columns: tuple[StoredColumn, ...], options: TableOptions) -> tuple[str, ...]:
    stored = {column.source.name: quote_name(column.name) for column in columns}
    if isinstance(options.sort_key, tuple):
        key = resolve_expressions(options.sort_key, columns)
    elif options.sort_key == "materialize":
        key = tuple(stored[name] for name in materialize_key(schema))
    elif options.sort_key == "primary":
        key = tuple(stored[name] for name in schema.row_key)
    else:
        raise DefiniteError(
            f"{options.sort_key!r} is no sort key", place=f"table {schema.name}", hint="primary, materialize, or a list of expressions"
        )
    if family is EngineFamily.HISTORY:
        return tuple(dict.fromkeys((*key, quote_name(options.version_column))))
    return key if schema.row_key or family is EngineFamily.VERSIONED else (*key, quote_name(ROW), quote_name(OCCURRENCE))


def _check_sort_key(schema: TableSchema, family: EngineFamily, columns: tuple[StoredColumn, ...], storage: Storage) -> None:
    if family is EngineFamily.COLLAPSING and not schema.row_key:
        raise DefiniteError(
            "a CollapsingMergeTree keeps one row of each key, and nothing tells this table's rows apart",
            place=f"table {schema.name}",
            hint="choose the engine versioned (or replacing) for it, or give it a primary key in the source",
        )
    if family is EngineFamily.HISTORY:
        return
    plain = plain_columns(storage.sort_key)
    for column in columns:
        if column.source.name in schema.row_key and column.name not in plain:
            raise DefiniteError(
                f"the sort key ({', '.join(storage.sort_key)}) does not hold the key's column {column.name}: different rows would merge",
                place=f"table {schema.name}",
                hint=f"add {quote_name(column.name)} to the sort key",
            )


def materialize_key(schema: TableSchema) -> tuple[str, ...]:
    """Return MaterializeMySQL's sort key: indexed columns first, auto-increment columns last, each column once."""
    primary = schema.row_key
    keys = [name for index in schema.indexes if not index.unique for name in index.columns]
    unique = [name for index in schema.indexes if index.unique for name in index.columns]
    carried = {column.name for column in schema.columns}
    counting = {column.name for column in schema.columns if column.auto_increment}
    ranked = (
        *(name for name in (*primary, *keys, *unique) if name not in counting),
        *(name for name in (*keys, *unique, *primary) if name in counting),
    )
    return tuple(dict.fromkeys(name for name in ranked if name in carried))


def materialize_partition(key: Iterable[StoredColumn]) -> str:
    """Return MaterializeMySQL's partition key: the month of a date in the key, else a thousandth of the range of its narrowest integer."""
    narrowest: tuple[int, StoredColumn] | None = None
    for column in key:
        if column.type.startswith(("Date", "DateTime")):
            return f"toYYYYMM({quote_name(column.name)})"
        bits = _BITS.get(column.type)
        if bits is not None and (narrowest is None or bits < narrowest[0]):
            narrowest = (bits, column)
    if narrowest is None:
        return ""
    bits, column = narrowest
    step = ((1 << bits) - 1) // _CUTS
    return f"intDiv({quote_name(column.name)}, {step})" if step else quote_name(column.name)


def resolve_expressions(given: Sequence[str], columns: Iterable[StoredColumn]) -> tuple[str, ...]:
    """Return the user's key expressions as SQL; a source or target column name is quoted."""
    names = {column.source.name: column.name for column in columns}
    names.update({column.name: column.name for column in columns})
    return tuple(quote_name(names[one]) if one in names else one for one in given)


def _partition(schema: TableSchema, columns: tuple[StoredColumn, ...], options: TableOptions) -> str:
    if options.partition_by == "primary":
        key = [column for name in schema.row_key for column in columns if column.source.name == name]
        return materialize_partition(key)
    return resolve_expressions([options.partition_by], columns)[0]


def _additions(schema: TableSchema, columns: tuple[StoredColumn, ...], options: TableOptions) -> tuple[str, ...]:
    """Return SQL for the extra columns and indexes of the table's options."""
    taken = {column.name for column in columns} & {name for name, _ in options.extra_columns}
    if taken:
        name = min(taken)
        raise DefiniteError(
            f"the extra column {name} has the name of a column of the source",
            place=f"table {schema.name}, column {name}",
            hint="give the extra column another name, or the source's column another one in the target by `rename`",
        )
    columns_sql = [f"{quote_name(name)} {text}" for name, text in options.extra_columns]
    return (*columns_sql, *(f"INDEX {quote_name(name)} {text}" for name, text in options.indexes))


def _shard_key(columns: tuple[StoredColumn, ...], schema: TableSchema, options: TableOptions) -> str:
    if options.shard_by:
        return resolve_expressions([options.shard_by], columns)[0]
    # Without a key, all values of a row decide its shard.
    key = [quote_name(column.name) for column in columns if column.source.name in schema.row_key or not schema.row_key]
    return f"cityHash64({', '.join(key)})" if schema.row_key else f"cityHash64(tuple({', '.join(key)}))"


def _settings(
    schema: TableSchema,
    family: EngineFamily,
    columns: tuple[StoredColumn, ...],
    sort_key: tuple[str, ...],
    options: TableOptions,
    *,
    clustered: bool,
) -> tuple[tuple[str, str], ...]:
    settings: dict[str, str] = {}
    if family is EngineFamily.REPLACING and schema.row_key:
        settings.update(idle_merge_settings(options))
    if family is not EngineFamily.REPLACING:
        settings.update(_REPLICATED_WINDOW if clustered else _WINDOW)
    # An expression over nullable columns may be NULL.
    keyed = source_columns(sort_key, columns, {})
    if any("Nullable(" in column.type for column in columns if column.source.name in keyed):
        settings["allow_nullable_key"] = "1"
    settings.update(options.settings)
    return tuple(settings.items())


def create_statements(target_table: TargetTable) -> tuple[str, ...]:
    """Return the CREATE TABLE statements: on a cluster the local table, then the Distributed table over it."""
    made = create_sql(target_table)
    if target_table.local_table is None:
        return (made,)
    over = f"CREATE TABLE IF NOT EXISTS {target_table.qualified}{target_table.on_cluster} AS {target_table.storage_name}"
    return made, f"{over} ENGINE = {distributed_engine_sql(target_table)}"


def create_sql(target_table: TargetTable) -> str:
    """Return CREATE TABLE IF NOT EXISTS for the table that stores the rows."""
    storage = target_table.storage
    _check_own_names(target_table)
    defined = [define_column(column) for column in target_table.columns]
    defined += [_define_metadata_column(mark) for mark in target_table.metadata_columns]
    defined += [f"{quote_name(one.name)} {one.type} MATERIALIZED {one.expression}" for one in storage.computed]
    defined += storage.additions
    clauses = [f"ENGINE = {engine_sql(storage)}"]
    if storage.partition_by:
        clauses.append(f"PARTITION BY {storage.partition_by}")
    clauses.append(f"ORDER BY ({', '.join(storage.sort_key)})" if storage.sort_key else "ORDER BY tuple()")
    clauses += [f"{word} {text}" for word, text in storage.clauses]
    if storage.settings:
        clauses.append(
            "SETTINGS "
            + ", ".join(f"{name} = {value if _NUMBER.fullmatch(value) else quote_text(value)}" for name, value in storage.settings)
        )
    if target_table.schema.comment:
        clauses.append(f"COMMENT {quote_text(target_table.schema.comment)}")
    table = f"{target_table.storage_name}{target_table.on_cluster}"
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(defined)}) {' '.join(clauses)}"


def _check_own_names(target_table: TargetTable) -> None:
    """Raise if two columns of Headrace have one name. An existing table may have only one of them, so plans are not checked."""
    own = [*(mark.name for mark in target_table.metadata_columns), *(one.name for one in target_table.storage.computed)]
    twice = next((name for name in own if own.count(name) > 1), None)
    if twice is not None:
        raise DefiniteError(
            f"two columns that Headrace adds to the table would both have the name {twice}",
            place=f"table {target_table.source}, column {twice}",
            hint='choose another name for one of them, such as tombstone_column = "_hidden" next to delete_column or sign_column',
        )


def define_column(column: StoredColumn) -> str:
    comment = f" COMMENT {quote_text(column.comment)}" if column.comment else ""
    codec = f" CODEC({column.codec})" if column.codec else ""
    ttl = f" TTL {column.ttl}" if column.ttl else ""
    return f"{quote_name(column.name)} {column.type}{comment}{codec}{ttl}"


def _define_metadata_column(mark: MetadataColumn) -> str:
    hidden = f" MATERIALIZED {hidden_default(mark.role)}" if mark.hidden else ""
    comment = f" COMMENT {quote_text(VERSION_COLUMN_COMMENT)}" if mark.role is MetadataRole.VERSION else ""
    return f"{quote_name(mark.name)} {mark.type}{hidden}{comment}"


def hidden_default(role: MetadataRole) -> str:
    """Return the constant of a hidden column. Only rows that others insert get it: a live row, older than all versions of the log."""
    return "1" if role is MetadataRole.SIGN else "0"


def distributed_engine_sql(target_table: TargetTable) -> str:
    assert target_table.local_table is not None
    places = ", ".join(map(quote_text, (target_table.storage.cluster, *target_table.local_table)))
    return f"Distributed({places}, {target_table.storage.shard_by})"


def engine_sql(storage: Storage) -> str:
    words = [quote_text(part) for part in storage.replica] + [quote_name(name) for name in storage.arguments]
    name = f"Replicated{storage.engine}" if storage.cluster else storage.engine
    return f"{name}({', '.join(words)})" if words else name


def extend_dedup_window_sql(target_table: TargetTable) -> str:
    """Return the ALTER that makes an existing replicated table keep deduplication tokens for at least a week; empty if it does.

    The number of tokens is handled in `write.deduplication`.
    """
    name = "replicated_deduplication_window_seconds"
    known = int(dict(target_table.storage.settings).get(name, "0"))
    if not target_table.storage.replication or not target_table.needs_ordered_writes or known >= _MIN_WINDOW_S:
        return ""
    return f"ALTER TABLE {target_table.storage_name}{target_table.on_cluster} MODIFY SETTING {name} = {_REPLICATED_WINDOW[name]}"
