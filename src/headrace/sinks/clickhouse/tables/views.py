"""How the source's rows are read from a table: what each family of engines shows, as SQL.

Invariant: once all blocks up to a position are written, what is read here is the rows that the source had at that position, whatever has
been merged by then. Pure: layouts in, statements out.
"""

from __future__ import annotations

from headrace.sinks.clickhouse.server.quoting import quote_name, quote_text
from headrace.sinks.clickhouse.tables.metadata_columns import DELETE_OPERATIONS
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable

_TIMES, _LAST = quote_name("__headrace_times"), quote_name("__headrace_last")


def current_rows_from(target_table: TargetTable) -> str:
    """What follows FROM to read the rows that the source has: its columns, and the version where rows have one."""
    if target_table.has_key and target_table.family is not EngineFamily.HISTORY and _is_final_enough(target_table):
        return f"{target_table.qualified} FINAL"
    return f"({current_rows_sql(target_table, versions=target_table.has_key)})"


def current_rows_sql(target_table: TargetTable, *, versions: bool = False) -> str:
    """A SELECT of the rows that the source has, in the columns of the table that hold the source's."""
    columns = [quote_name(column.name) for column in target_table.columns]
    version = target_table.metadata_column(MetadataRole.VERSION)
    if versions and version is not None:
        columns.append(quote_name(version.name))
    listed = ", ".join(columns)
    match target_table.family:
        case EngineFamily.HISTORY if target_table.has_key:
            return _last_of_each(target_table, columns)
        case EngineFamily.HISTORY:
            return _multiset_sql(target_table, listed, target_table.qualified)
        case EngineFamily.REPLACING if not target_table.has_key:
            return _multiset_sql(target_table, listed, f"{target_table.qualified} FINAL")
    condition = "" if _is_final_enough(target_table) else f" WHERE {live_condition(target_table)}"
    # What was put and taken away cancels in the order of writing, which partitions do not share; a row that moves is whole in each.
    apart = (
        " SETTINGS do_not_merge_across_partitions_select_final = 1"
        if target_table.spans_partitions and target_table.family is EngineFamily.COLLAPSING
        else ""
    )
    return f"SELECT {listed} FROM {target_table.qualified} FINAL{condition}{apart}"


def create_view_sql(target_table: TargetTable) -> str:
    """What makes the view that shows the source's rows, unless it is there."""
    cluster = f" ON CLUSTER {quote_name(target_table.storage.cluster)}" if target_table.storage.cluster else ""
    return f"CREATE VIEW IF NOT EXISTS {target_table.view}{cluster} AS {current_rows_sql(target_table)}"


def live_condition(target_table: TargetTable) -> str:
    """What holds for an image that was put, not taken away; empty where nothing says it."""
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
    """What hides deleted rows from everyone who reads the table, as in the seeds; empty where nothing is to be hidden."""
    condition = live_condition(target_table)
    if not condition or target_table.family is EngineFamily.HISTORY or not target_table.has_key:
        return ""
    held = target_table.qualified if target_table.local_table is None else ".".join(map(quote_name, target_table.local_table))
    cluster = f" ON CLUSTER {quote_name(target_table.storage.cluster)}" if target_table.storage.cluster else ""
    return f"CREATE ROW POLICY IF NOT EXISTS {quote_name('headrace_live')}{cluster} ON {held} USING {condition} TO ALL"


def _is_final_enough(target_table: TargetTable) -> bool:
    """Whether FINAL alone shows the rows that are there."""
    return target_table.family is EngineFamily.COALESCING or (
        target_table.family is EngineFamily.REPLACING and (target_table.final_hides_deleted or not live_condition(target_table))
    )


def _last_of_each(target_table: TargetTable, columns: list[str]) -> str:
    """The last image of each key, if it was put."""
    version = target_table.metadata_column(MetadataRole.VERSION)
    assert version is not None  # a history without one is refused
    key = [quote_name(name) for name in target_table.key]
    others = [name for name in columns if name not in key]
    # A condition on the key goes through the grouping, so that a range of keys reads only that range.
    last = f"argMax(tuple({', '.join([f'{live_condition(target_table)}', *others])}), {quote_name(version.name)}) AS {_LAST}"
    taken = {name: f"tupleElement({_LAST}, {place}) AS {name}" for place, name in enumerate(others, 2)}
    shown = ", ".join(taken.get(name, name) for name in columns)
    grouped = f"SELECT {', '.join(key)}, {last} FROM {target_table.qualified} GROUP BY {', '.join(key)}"
    return f"SELECT {shown} FROM ({grouped}) WHERE tupleElement({_LAST}, 1)"


def _multiset_sql(target_table: TargetTable, listed: str, read: str) -> str:
    """Each row as often as it was put more than taken away. While a batch is being written a deletion may be there before its insertion;
    it then shows nothing, not an error."""
    sign = f"if({live_condition(target_table)}, 1, -1)"
    grouped = f"SELECT {listed}, sum({sign}) AS {_TIMES} FROM {read} GROUP BY {listed}"
    return f"SELECT {listed} FROM ({grouped}) ARRAY JOIN range(toUInt64(greatest({_TIMES}, 0)))"
