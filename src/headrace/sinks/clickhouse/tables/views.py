"""How the source's rows are read from a table: what each family of engines shows, as SQL.

Invariant: once all blocks up to a position are written, what is read here is the rows that the source had at that position, whatever has
been merged by then. Pure: layouts in, statements out.
"""

from __future__ import annotations

from headrace.sinks.clickhouse.server.quoting import quote_name, quote_text
from headrace.sinks.clickhouse.tables.metadata_columns import GONE
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable

_TIMES, _LAST = quote_name("__headrace_times"), quote_name("__headrace_last")


def shown_from(layout: TargetTable) -> str:
    """What follows FROM to read the rows that the source has: its columns, and the version where rows have one."""
    if layout.has_key and layout.family is not EngineFamily.HISTORY and _is_final_enough(layout):
        return f"{layout.qualified} FINAL"
    return f"({current_sql(layout, versions=layout.has_key)})"


def current_sql(layout: TargetTable, *, versions: bool = False) -> str:
    """A SELECT of the rows that the source has, in the columns of the table that hold the source's."""
    columns = [quote_name(column.name) for column in layout.columns]
    version = layout.mark(MetadataRole.VERSION)
    if versions and version is not None:
        columns.append(quote_name(version.name))
    listed = ", ".join(columns)
    match layout.family:
        case EngineFamily.HISTORY if layout.has_key:
            return _last_of_each(layout, columns)
        case EngineFamily.HISTORY:
            return _summed(layout, listed, layout.qualified)
        case EngineFamily.REPLACING if not layout.has_key:
            return _summed(layout, listed, f"{layout.qualified} FINAL")
    condition = "" if _is_final_enough(layout) else f" WHERE {live_condition(layout)}"
    # What was put and taken away cancels in the order of writing, which partitions do not share; a row that moves is whole in each.
    apart = (
        " SETTINGS do_not_merge_across_partitions_select_final = 1" if layout.scattered and layout.family is EngineFamily.COLLAPSING else ""
    )
    return f"SELECT {listed} FROM {layout.qualified} FINAL{condition}{apart}"


def create_view_sql(layout: TargetTable) -> str:
    """What makes the view that shows the source's rows, unless it is there."""
    cluster = f" ON CLUSTER {quote_name(layout.storage.cluster)}" if layout.storage.cluster else ""
    return f"CREATE VIEW IF NOT EXISTS {layout.view}{cluster} AS {current_sql(layout)}"


def live_condition(layout: TargetTable) -> str:
    """What holds for an image that was put, not taken away; empty where nothing says it."""
    for mark in layout.marks:
        match mark.meaning:
            case MetadataRole.SIGN:
                return f"{quote_name(mark.name)} != -1"
            case MetadataRole.DELETED:
                return f"{quote_name(mark.name)} = 0"
            case MetadataRole.OPERATION if layout.family is EngineFamily.HISTORY:
                return f"{quote_name(mark.name)} NOT IN ({', '.join(map(quote_text, GONE))})"
    return ""


def row_policy_sql(layout: TargetTable) -> str:
    """What hides deleted rows from everyone who reads the table, as in the seeds; empty where nothing is to be hidden."""
    condition = live_condition(layout)
    if not condition or layout.family is EngineFamily.HISTORY or not layout.has_key:
        return ""
    held = layout.qualified if layout.holder is None else ".".join(map(quote_name, layout.holder))
    cluster = f" ON CLUSTER {quote_name(layout.storage.cluster)}" if layout.storage.cluster else ""
    return f"CREATE ROW POLICY IF NOT EXISTS {quote_name('headrace_live')}{cluster} ON {held} USING {condition} TO ALL"


def _is_final_enough(layout: TargetTable) -> bool:
    """Whether FINAL alone shows the rows that are there."""
    return layout.family is EngineFamily.COALESCING or (
        layout.family is EngineFamily.REPLACING and (layout.hides_deleted or not live_condition(layout))
    )


def _last_of_each(layout: TargetTable, columns: list[str]) -> str:
    """The last image of each key, if it was put."""
    version = layout.mark(MetadataRole.VERSION)
    assert version is not None  # a history without one is refused
    key = [quote_name(name) for name in layout.key]
    others = [name for name in columns if name not in key]
    # A condition on the key goes through the grouping, so that a range of keys reads only that range.
    last = f"argMax(tuple({', '.join([f'{live_condition(layout)}', *others])}), {quote_name(version.name)}) AS {_LAST}"
    taken = {name: f"tupleElement({_LAST}, {place}) AS {name}" for place, name in enumerate(others, 2)}
    shown = ", ".join(taken.get(name, name) for name in columns)
    grouped = f"SELECT {', '.join(key)}, {last} FROM {layout.qualified} GROUP BY {', '.join(key)}"
    return f"SELECT {shown} FROM ({grouped}) WHERE tupleElement({_LAST}, 1)"


def _summed(layout: TargetTable, listed: str, read: str) -> str:
    """Each row as often as it was put more than taken away. While a batch is being written a deletion may be there before its insertion;
    it then shows nothing, not an error."""
    sign = f"if({live_condition(layout)}, 1, -1)"
    grouped = f"SELECT {listed}, sum({sign}) AS {_TIMES} FROM {read} GROUP BY {listed}"
    return f"SELECT {listed} FROM ({grouped}) ARRAY JOIN range(toUInt64(greatest({_TIMES}, 0)))"
