"""Settings by which ClickHouse merges an idle table into one part per partition, so that FINAL costs little.

Invariant: these merges remove only images that a newer image of the same key replaces, as every merge does. They keep tombstones (no
CLEANUP), so a replay, a late older image or a purge finds what it would find without them.

A partition is merged when all of its parts are older than an age. Each such merge rewrites the partition, so the age grows with its size:
whatever the size and the traffic, a table rewrites at most `LEAST_BYTES` in `LEAST_AGE_S`. A table that gets changes more often than the
age is never merged this way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.clickhouse.tables.target_table import TargetTable

_MIN_AGE: Final = "min_age_to_force_merge_seconds"
_WHOLE_PARTITIONS: Final = "min_age_to_force_merge_on_partition_only"
LEAST_AGE_S: Final = 20
LEAST_BYTES: Final = 64 << 20
"""A partition of up to this size has the least age; of twice this size, twice the age, and so on."""


def merge_age_s(partition_bytes: int) -> int:
    """Return the age for a table whose largest partition has this size: the least age times a power of two."""
    units = -(-partition_bytes // LEAST_BYTES)
    return LEAST_AGE_S << max(units - 1, 0).bit_length()


def idle_merge_settings(options: TableOptions) -> dict[str, str]:
    """Return the settings of a new table that merges by version; empty if the user has chosen any of this kind: some exclude each other."""
    return {} if _are_chosen(options) else {_MIN_AGE: str(LEAST_AGE_S), _WHOLE_PARTITIONS: "1"}


def set_age_sql(age_s: int) -> str:
    """Return the change of the age, for an ALTER TABLE."""
    return f"MODIFY SETTING {_MIN_AGE} = {age_s}"


def is_adapted(target_table: TargetTable, options: TableOptions) -> bool:
    """Whether Headrace decides the table's age."""
    return target_table.created_by_headrace and not _are_chosen(options) and find_age_s(target_table.storage.settings) is not None


def find_age_s(settings: Iterable[tuple[str, str]]) -> int | None:
    """Return the age if it is one of `merge_age_s`; None if there is none, or if someone has chosen another one."""
    found = dict(settings)
    text = found.get(_MIN_AGE, "")
    if found.get(_WHOLE_PARTITIONS) not in ("1", "true") or not text.isdecimal() or int(text) % LEAST_AGE_S:
        return None
    times = int(text) // LEAST_AGE_S
    return int(text) if times.bit_count() == 1 else None


def _are_chosen(options: TableOptions) -> bool:
    return any("force_merge" in name for name, _ in options.settings)
