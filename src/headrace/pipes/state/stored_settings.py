"""The settings that a state directory stores, which of them may change, and which match nothing.

Invariant: an existing table is written as it was started. A setting that needs another table is refused, with the table and the reason.
Settings that only affect the future, or tables that do not exist yet, are accepted.

A pattern of tables without a match is a warning: tables that are created later are replicated, so the pipe waits for them. A table that is
selected by name is probably misspelt if it does not exist when the pipe first starts: that is an error. Later it is a warning, because the
table may have been dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection, is_pattern
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.pipes.state.resync_requests import resync_command
from headrace.settings.dataclass_fields import setting_fields, to_plain
from headrace.settings.pipe_settings import RESHAPED_TABLES, SALTS
from headrace.settings.settings_file import PlainSettings, UserSettings, load_stored, read_settings
from headrace.sinks.clickhouse.server.options import CHANGEABLE, ClickHouseOptions, TableOptions
from headrace.sinks.registry import SINK_CONNECTORS
from headrace.transforms.options import Transforms, read_salts

log = logging.getLogger("headrace")
_OPTION = "settings"


def settings_in(state: PipeState, place: str) -> UserSettings:
    """Return the settings of the state's last run."""
    stored: PlainSettings = state.options.get(_OPTION, {})
    return load_stored(stored, place)


def stored_settings(directory: Path) -> UserSettings:
    """Return the settings of a state directory's pipe; defaults if there is no pipe."""
    state = StateDirectory(directory, make=False).load()
    return UserSettings() if state is None else settings_in(state, str(directory / "pipe.json"))


def chosen_for(directory: Path, file: str, flags: Iterable[UserSettings]) -> UserSettings:
    """Return a run's settings: from the file, or else from the state, overridden by flags."""
    chosen = read_settings(Path(file)) if file else stored_settings(directory)
    for flag in flags:
        chosen = flag.over(chosen)
    return chosen


def store_settings(state: PipeState, written: PlainSettings, place: str, read_again: Callable[[TableName], bool] = lambda _: False) -> None:
    """Store a run's settings in the state; raise if existing tables would need to differ.

    `read_again`: which tables are about to be read again and may be transformed differently.
    """
    _check_messages(state, load_stored(written, place), place)
    _check_transforms(state, load_stored(written, place).transforms, place, read_again)
    before, after = settings_in(state, place).sink, load_stored(written, place).sink
    for one in setting_fields(ClickHouseOptions).values():
        was, wanted = getattr(before, one.name), getattr(after, one.name)
        if state.tables and was != wanted and one.name not in CHANGEABLE | {"all_tables", "tables"}:
            raise _refused(one.name, was, wanted, "the tables were", place)
    for name in state.tables:
        old, new = before.of(name), after.of(name)
        for one in setting_fields(TableOptions).values():
            was, wanted = getattr(old, one.name), getattr(new, one.name)
            if was != wanted and one.name not in CHANGEABLE:
                raise _refused(one.name, to_plain(one.kind, was), to_plain(one.kind, wanted), f"the table {name} was", place)
    state.options[_OPTION] = written


def _check_transforms(state: PipeState, after: Transforms, place: str, read_again: Callable[[TableName], bool]) -> None:
    """Raise if transforms of a table with rows changed: other transforms would have made other rows."""
    before, known, salts = settings_in(state, place).transforms, state.options.get(SALTS, {}), read_salts(after).fingerprints()
    refused: dict[TableName, str] = {}
    for name in state.tables:
        was, wanted = before.of(name), after.of(name)
        salted = bool(wanted.hash) and known.get(was.hash_salt) != salts.get(wanted.hash_salt)
        # The secret may be stored elsewhere now; it is the same one.
        alike = was.makes_the_same(wanted)
        if alike and not salted:
            continue
        if name in state.awaiting_resync or read_again(name):
            # Old and new rows may have the same position, so the old ones must be deleted first.
            state.options[RESHAPED_TABLES] = sorted({*state.options.get(RESHAPED_TABLES, ()), str(name)})
        else:
            refused[name] = "another salt" if alike else "other transforms"
    if refused:
        first = min(refused)
        raise DefiniteError(
            f"the rows of {first} in the sink were made with {refused[first]} than are chosen now",
            place=f"{place}, transforms of {', '.join(map(str, sorted(refused)))}",
            hint=f"give them as they were, or have the tables read again by the new ones: {resync_command(refused, place)}, then "
            "start again (a source in Kafka: start over with another --state)",
        )
    if salts or known:
        state.options[SALTS] = salts


def _check_messages(state: PipeState, chosen: UserSettings, place: str) -> None:
    """Raise if a sink without tables would write other content than before: readers would find two formats."""
    before = settings_in(state, place)
    for connector in SINK_CONNECTORS:
        if connector.options is None or connector.changeable is None:
            continue
        old, new = (one.section_options(connector.section) for one in (before, chosen))
        for one in setting_fields(connector.options).values():
            was, wanted = (to_plain(one.kind, getattr(choices, one.name)) for choices in (old, new))
            if was != wanted and one.name not in connector.changeable:
                raise DefiniteError(
                    f"the pipe began with {one.name} = {json.dumps(was)}, and {json.dumps(wanted)} would make other {connector.content}",
                    place=f"{place}, {connector.section}.{one.name}",
                    hint=f"give it as it was, or start over: {connector.new_target} and a new --state",
                )


def warn_of_unmatched(choices: ClickHouseOptions, tables: Iterable[TableName]) -> None:
    """Warn of globs that match no table: they are probably misspelt."""
    names = tuple(tables)
    for glob in choices.unmatched(names):
        log.warning("no chosen table matches the settings for %s", glob)


def _refused(name: str, was: Any, wanted: Any, what: str, place: str) -> DefiniteError:
    return DefiniteError(
        f"{what} begun with {name} = {json.dumps(was)}; {name} = {json.dumps(wanted)} would need another table",
        place=f"{place}, {name}",
        hint="give it as it was, or start over: drop the tables in ClickHouse and use a new --state",
    )


def check_unmatched(selection: Selection, known: Collection[TableName], place: str, *, is_new: bool) -> None:
    """Warn of every pattern without a match; raise if a new pipe names a table that does not exist."""
    unmatched = selection.unmatched(known)
    named = [chosen for chosen in unmatched if not is_pattern(chosen)]
    if named and is_new:
        raise DefiniteError(
            f"the source has no table {', '.join(named)}, or the user may not see it",
            place=place,
            hint="correct --tables, create the table, or check the user's rights (GRANT SELECT); to wait for a table that is created "
            f"later, choose it by a pattern: --tables '{named[0][:-1]}[{named[0][-1]}]'",
        )
    for chosen in unmatched:
        log.warning("no table of %s matches %s; a table that is created later will be replicated", place, chosen)
