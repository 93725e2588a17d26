"""Refuses settings that have no effect for a pipe from ScyllaDB's log, such as column exclusion, instead of ignoring them."""

from __future__ import annotations

from typing import Final

from headrace.errors import DefiniteError
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import SCHEMA_CHANGES, SINK, TABLES, UserSettings

_PLACES: Final = frozenset({"database", "target"})
"""Settings of target tables that concern their location, not their columns."""


def check_chosen(settings: PipeSettings, chosen: UserSettings) -> None:
    """Raise `DefiniteError` for settings that have no meaning here."""
    if settings.projection.include or settings.projection.exclude:
        raise DefiniteError(
            "the log of ScyllaDB is read with all columns",
            place="--columns, --exclude-columns",
            hint="leave the table out with --exclude, or keep readers from the column in ClickHouse (GRANT SELECT of the others)",
        )
    chosen.check_sections(
        (SCHEMA_CHANGES,), "tables of ScyllaDB are followed as they are altered, and a table that is dropped halts the pipe"
    )
    written = dict(chosen.plain.get(SINK, {}))
    for place, own in (("[sink]", written), *((f'[sink.tables."{glob}"]', one) for glob, one in written.pop(TABLES, {}).items())):
        for name in own:
            if name not in _PLACES:
                raise DefiniteError(
                    f"{name}: what cells of ScyllaDB's are kept in is not of one's choice",
                    place=place,
                    hint=f"leave it out; {' and '.join(sorted(_PLACES))} may be chosen",
                )
