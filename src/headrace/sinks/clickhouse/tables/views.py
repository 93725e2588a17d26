"""SQL that reads the source's current rows from a target table, for each engine family.

Invariant: once all blocks up to a position are written, these queries return the source's rows at that position, whatever ClickHouse has
merged so far. Pure: target tables in, SQL out.
"""

from __future__ import annotations

from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.metadata_columns import DELETE_OPERATIONS
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable

_TIMES, _LAST = quote_name("__headrace_times"), quote_name("__headrace_last")


def current_rows_from(target_table: TargetTable) -> str:
    """Return the FROM operand that reads the current rows: the source's columns, and the version if rows have one."""
    if target_table.has_key and target_table.family is not EngineFamily.HISTORY and _is_final_enough(target_table):
        return f"{target_table.qualified} FINAL"
    return f"({current_rows_sql(target_table, versions=target_table.has_key)})"


def current_rows_sql(target_table: TargetTable, *, versions: bool = False) -> str:
    """Return a SELECT of the current rows."""
    columns = [quote_name(column.name) for column in target_table.columns]
    version = target_table.metadata_column(MetadataRole.VERSION)
    if versions and version is not None:
        columns.append(quote_name(version.name))
    listed = ", ".join(columns)
    match target_table.family:
        case EngineFamily.HISTORY if target_table.has_key:
            return _last_of_each(target_table, columns)
        case EngineFamily.VERSIONED if not target_table.has_key:
            # FINAL cancels only some thousand equal rows.
            return _multiset_sql(target_table, listed, target_table.qualified)
        case EngineFamily.HISTORY:
            return _multiset_sql(target_table, listed, target_table.qualified)
        case EngineFamily.REPLACING if not target_table.has_key:
            return _multiset_sql(target_table, listed, f"{target_table.qualified} FINAL")
    condition = "" if _is_final_enough(target_table) else f" WHERE {live_condition(target_table)}"
    # CollapsingMergeTree cancels pairs in insertion order, which holds only within a partition; a moved row is complete in each.
    apart = (
        " SETTINGS do_not_merge_across_partitions_select_final = 1"
        if target_table.spans_partitions and target_table.family is EngineFamily.COLLAPSING
        else ""
    )
    return f"SELECT {listed} FROM {target_table.qualified} FINAL{condition}{apart}"


def create_view_sql(target_table: TargetTable) -> str:
    return f"CREATE VIEW IF NOT EXISTS {target_table.view}{target_table.on_cluster} AS {current_rows_sql(target_table)}"


def live_condition(target_table: TargetTable) -> str:
    """Return the condition of an image that is not a deletion; empty where no column tells."""
    for mark in target_table.metadata_columns:
        match mark.role:
            case MetadataRole.SIGN:
                return f"{quote_name(mark.name)} != -1"
            case MetadataRole.DELETED:
                return f"{quote_name(mark.name)} = 0"
            case MetadataRole.OPERATION if target_table.family is EngineFamily.HISTORY:
                return f"{quote_name(mark.name)} NOT IN ({', '.join(map(quote_text, DELETE_OPERATIONS))})"
    return ""


def row_policy_sql(target_table: TargetTable) -> str:
    """Return the row policy that hides deleted rows from all users; empty where there is nothing to hide."""
    condition = live_condition(target_table)
    if not condition or target_table.family is EngineFamily.HISTORY or not target_table.has_key:
        return ""
    named = f"{quote_name('headrace_live')}{target_table.on_cluster}"
    return f"CREATE ROW POLICY IF NOT EXISTS {named} ON {target_table.storage_name} USING {condition} TO ALL"


def _is_final_enough(target_table: TargetTable) -> bool:
    """Whether FINAL alone shows the current rows."""
    return target_table.family is EngineFamily.COALESCING or (
        target_table.family is EngineFamily.REPLACING and (target_table.final_hides_deleted or not live_condition(target_table))
    )


def _last_of_each(target_table: TargetTable, columns: list[str]) -> str:
    """Return a SELECT of the newest image of each key, unless that image is a deletion."""
    version = target_table.metadata_column(MetadataRole.VERSION)
    assert version is not None  # a history without one is refused
    key = [quote_name(name) for name in target_table.key]
    others = [name for name in columns if name not in key]
    # Keys are grouped unchanged, so a condition on a key range reads only that range.
    last = f"argMax(tuple({', '.join([f'{live_condition(target_table)}', *others])}), {quote_name(version.name)}) AS {_LAST}"
    taken = {name: f"tupleElement({_LAST}, {place}) AS {name}" for place, name in enumerate(others, 2)}
    shown = ", ".join(taken.get(name, name) for name in columns)
    grouped = f"SELECT {', '.join(key)}, {last} FROM {target_table.qualified} GROUP BY {', '.join(key)}"
    return f"SELECT {shown} FROM ({grouped}) WHERE tupleElement({_LAST}, 1)"


def _multiset_sql(target_table: TargetTable, listed: str, read: str) -> str:
    """Return a SELECT that repeats each row by the number of its insertions minus its deletions. During a batch a deletion may arrive
    before its insertion; the row is then not shown."""
    sign = f"if({live_condition(target_table)}, 1, -1)"
    grouped = f"SELECT {listed}, sum({sign}) AS {_TIMES} FROM {read} GROUP BY {listed}"
    return f"SELECT {listed} FROM ({grouped}) ARRAY JOIN range(toUInt64(greatest({_TIMES}, 0)))"
