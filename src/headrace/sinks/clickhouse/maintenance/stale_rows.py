"""SQL that deletes rows which the source no longer has, and tombstones that are no longer needed.

Invariant: deleting stale rows may be interrupted and repeated. Where rows merge by version, or in a history, it appends deletions with the
position as version, only for rows whose last image is older. Where images are summed, it deletes all images older than the position.
"""

from __future__ import annotations

from typing import Final

from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sinks.clickhouse.tables.views import current_rows_sql, live_condition

DELETE_STALE_SETTINGS: Final = {
    "mutations_sync": "2",
    "lightweight_deletes_sync": "2",
    "distributed_foreground_insert": "1",
    "max_partitions_per_insert_block": "0",
    # A row policy that hides tombstones before FINAL would make deleted rows visible again.
    "apply_row_policy_after_final": "1",
}
_TIMES: Final = quote_name("__headrace_times")


def delete_stale_sql(target_table: TargetTable, before: int) -> str:
    """Return the statement that deletes rows whose last image has a version below `before`; empty where no column tells."""
    version = target_table.metadata_column(MetadataRole.VERSION)
    if version is None or (target_table.family is EngineFamily.COALESCING):
        return ""
    older = f"{quote_name(version.name)} < {before}"
    match target_table.family:
        case EngineFamily.COLLAPSING | EngineFamily.VERSIONED:
            return _delete(target_table, older)
        case EngineFamily.REPLACING if not target_table.has_key:
            return _delete(target_table, older)
        case EngineFamily.HISTORY if not target_table.has_key:
            return _retract_history_rows(target_table, before)
    if not live_condition(target_table):
        return ""
    columns = [quote_name(column.name) for column in target_table.columns]
    names, values = _deletion(target_table, before)
    source = current_rows_sql(target_table, versions=True)
    into, taken = ", ".join([*columns, *names]), ", ".join([*columns, *values])
    return f"INSERT INTO {target_table.qualified} ({into}) SELECT {taken} FROM ({source}) WHERE {older}"


def can_purge_tombstones(target_table: TargetTable) -> bool:
    """Whether the engine itself can purge tombstones."""
    return target_table.family is EngineFamily.REPLACING and target_table.final_hides_deleted and target_table.has_key


def allow_cleanup_sql(target_table: TargetTable) -> str:
    """Return the ALTER that lets merges purge tombstones (see `tombstone_cleanup`); empty if it is allowed or not possible."""
    allowed = dict(target_table.storage.settings).get("allow_experimental_replacing_merge_with_cleanup") in ("1", "true")
    if allowed or not can_purge_tombstones(target_table):
        return ""
    return f"ALTER TABLE {_local_table_sql(target_table)} MODIFY SETTING allow_experimental_replacing_merge_with_cleanup = 1"


def _local_table_sql(target_table: TargetTable) -> str:
    held = target_table.qualified if target_table.local_table is None else ".".join(map(quote_name, target_table.local_table))
    return f"{held} ON CLUSTER {quote_name(target_table.storage.cluster)}" if target_table.storage.cluster else held


def _delete(target_table: TargetTable, condition: str) -> str:
    return f"DELETE FROM {_local_table_sql(target_table)} WHERE {condition}"


def _deletion(target_table: TargetTable, before: int) -> tuple[list[str], list[str]]:
    """Return the metadata columns, and their values in a deletion."""
    values = {
        MetadataRole.SIGN: "-1",
        MetadataRole.DELETED: "1",
        MetadataRole.VERSION: str(before),
        MetadataRole.OPERATION: quote_text("delete"),
        MetadataRole.COMMIT_TIME: "now64(6)",
    }
    metadata_columns = [mark for mark in target_table.metadata_columns if mark.role in values]
    return [quote_name(mark.name) for mark in metadata_columns], [values[mark.role] for mark in metadata_columns]


def _retract_history_rows(target_table: TargetTable, before: int) -> str:
    """In a history without keys: append a deletion for each older row, minus those that were appended before."""
    version = target_table.metadata_column(MetadataRole.VERSION)
    assert version is not None
    name = quote_name(version.name)
    listed = ", ".join(quote_name(column.name) for column in target_table.columns)
    names, values = _deletion(target_table, before)
    live = live_condition(target_table)
    # No log change has the bare position as version, so such a deletion was appended here.
    counted = f"{name} < {before} OR ({name} = {before} AND NOT ({live}))"
    grouped = f"SELECT {listed}, sum(if({live}, 1, -1)) AS {_TIMES} FROM {target_table.qualified} WHERE {counted} GROUP BY {listed}"
    return (
        f"INSERT INTO {target_table.qualified} ({listed}, {', '.join(names)}) SELECT {listed}, {', '.join(values)} FROM ({grouped})"
        f" ARRAY JOIN range(toUInt64(greatest({_TIMES}, 0)))"
    )
