"""Refuses settings that have no effect for a pipe from ScyllaDB's log, such as column exclusion, instead of ignoring them.

Loading a file of pipes imports this module, so it opens no sink.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import DefiniteError
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import SCHEMA_CHANGES, SINK, TABLES, TRANSFORMS, UserSettings
from headrace.sinks.registry import find_sink_connector
from headrace.sources.scylla.snapshot.options import MergeTime, StoredForm

_PLACES: Final = frozenset({"database", "target"})
"""Settings of target tables that concern their location, not their columns."""


_UNSUPPORTED: Final = {
    "filter": "a filter would have to be evaluated for each merged row",
    "computed": "an expression would have to be evaluated for each merged row",
    "hash": "the salt would be readable in ClickHouse, which merges the rows",
}


def check_transforms(sink: str, chosen: UserSettings) -> None:
    """Raise `DefiniteError` for transforms that merged rows of this sink cannot have."""
    connector = find_sink_connector(sink)
    if connector is None or not connector.merges_cells or chosen.scylla.kept is StoredForm.IMAGES:
        why = "ScyllaDB's log holds single cells, not rows: only rows that ClickHouse merges from cells can be transformed"
        chosen.check_sections((TRANSFORMS,), f"{why}; use a view in the sink")
        return
    if chosen.transforms.tables and chosen.scylla.merge is MergeTime.READ:
        hint = "choose scylla.merge = write, or leave the transforms out"
        raise DefiniteError("transforms apply to merged rows, and scylla.merge = read stores none", place="[scylla] merge", hint=hint)
    for glob, own in chosen.transforms.tables:
        for option, value in own:
            if value and option in _UNSUPPORTED:
                message = f"{option} cannot be applied to tables of ScyllaDB: {_UNSUPPORTED[option]}"
                hint = "use a view in ClickHouse that reads the table; rename, drop and mask can be chosen here"
                raise DefiniteError(message, place=f'transforms."{glob}".{option}', hint=hint)


def check_chosen(settings: PipeSettings, chosen: UserSettings) -> None:
    """Raise `DefiniteError` for settings that have no meaning here."""
    if settings.projection.include or settings.projection.exclude:
        hint = "leave the table out with --exclude, or keep readers from the column in ClickHouse (GRANT SELECT of the others)"
        raise DefiniteError("the log of ScyllaDB is read with all columns", place="--columns, --exclude-columns", hint=hint)
    why = "tables of ScyllaDB are followed as they are altered, and a table that is dropped halts the pipe"
    chosen.check_sections((SCHEMA_CHANGES,), why)
    written = dict(chosen.plain.get(SINK, {}))
    for place, own in (("[sink]", written), *((f'[sink.tables."{glob}"]', one) for glob, one in written.pop(TABLES, {}).items())):
        for name in own:
            if name not in _PLACES:
                hint = f"leave it out; {' and '.join(sorted(_PLACES))} may be chosen"
                raise DefiniteError(f"{name}: what cells of ScyllaDB's are kept in is not of one's choice", place=place, hint=hint)
