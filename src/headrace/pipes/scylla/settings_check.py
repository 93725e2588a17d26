"""What may not be chosen for a pipe from ScyllaDB's log: it would be left out silently, and a column that was to stay out would not."""

from __future__ import annotations

from typing import Final

from headrace.errors import DefiniteError
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import SCHEMA_CHANGES, SINK, TABLES, UserSettings

_PLACES: Final = frozenset({"database", "target"})
"""Settings of target tables that say where they are, and nothing about what they are made of."""


def check_chosen(settings: PipeSettings, chosen: UserSettings) -> None:
    """Raise `DefiniteError` for what has no meaning here."""
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
