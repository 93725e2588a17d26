"""Edits the pipes of a running process's file: shows a pipe, checks a draft, previews what it does, writes it and reloads.

Invariant: every check and preview works on the very text that would be written, resolved as the process would resolve it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.config.document import HEADRACE, PIPES, SINKS, SOURCES, Document, dotted_key
from headrace.config.load import resolve, with_state
from headrace.editor import source_tables
from headrace.editor.accounts import endpoint_changes, shown_address
from headrace.editor.alert_editor import AlertEditor
from headrace.editor.draft import EndpointDraft, PipeDraft, TableDraft, check_no_references
from headrace.editor.file_changes import Edit, FileChanges
from headrace.editor.file_edit import edit_text, remove_section, section_text
from headrace.editor.masked_text import mask_text
from headrace.editor.pipe_file import PipeFile, read_pipe_file
from headrace.editor.secret_files import NewSecrets
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import TableName
from headrace.pipes.commands.sink_check import check_sink
from headrace.pipes.source_registry import source_connector
from headrace.pipes.spec import PipeSpec
from headrace.service.status import ReloadResult
from headrace.settings.settings_file import TABLES
from headrace.settings.toml_text import Keys
from headrace.sources.preflight import Finding, failure

_EVERYTHING = ("*.*",)
_CHOSEN = ("drop", "mask")
"""The keys of a table that a draft has; others stay as they are."""


class EditRefused(DefiniteError):
    """This process does not let the dashboard edit its file."""


class Editor:
    """Thread-safe."""

    def __init__(
        self, path: Path, state: Path, only: Sequence[str], is_enabled: Callable[[], bool], reload: Callable[[], ReloadResult]
    ) -> None:
        self.path, self.is_enabled = path, is_enabled
        self._changes = FileChanges(path, state, only, reload)
        self.alerts = AlertEditor(self._changes)

    def require_enabled(self) -> None:
        if not self.is_enabled():
            raise EditRefused(
                "the file cannot be edited in the dashboard of this process",
                place=f"[{HEADRACE}] edit",
                hint=f"write edit = true below [{HEADRACE}] in {self.path}, and run headrace reload",
            )

    # -- what the file has

    def read(self, name: str = "") -> dict[str, Any]:
        """Return a pipe as a draft with its text; without a name, what a new pipe can choose from."""
        file = read_pipe_file(self.path)
        document = file.document()
        found = {"file": str(self.path), "digest": file.digest, **self._endpoints(document), "pipe": None, "toml": ""}
        if not name:
            return found
        pipe = document.content.get(PIPES, {}).get(name)
        if not isinstance(pipe, dict):
            raise DefiniteError(f"the file has no pipe {name!r}", place=str(self.path), hint="it may have been renamed or removed")
        if pipe.get("sources"):
            raise DefiniteError(
                f"{name} has several sources", place=f"[{PIPES}.{name}]", hint="change the file by hand, and run headrace reload"
            )
        return {**found, "pipe": _draft_of(name, pipe), "toml": _section_text(file.text, name)}

    def _endpoints(self, document: Document) -> dict[str, Any]:
        def listed(kind: str) -> list[dict[str, Any]]:
            sections = document.content.get(kind, {})
            return [
                {
                    "name": name,
                    "url": shown_address(document, (kind, name), raw.get("url", "")),
                    "tables": raw.get("tables", []) if kind == SOURCES else [],
                    "exclude": raw.get("exclude", []) if kind == SOURCES else [],
                }
                for name, raw in sections.items()
                if isinstance(raw, dict)
            ]

        return {SOURCES: listed(SOURCES), SINKS: listed(SINKS), PIPES: list(document.content.get(PIPES, {}))}

    # -- a draft

    def check(self, draft: PipeDraft) -> dict[str, Any]:
        """Check the source and the sink of a draft, as `headrace check` and `headrace init` do."""
        spec = self._spec(draft)
        source = _findings(lambda: source_connector(spec.source).preflight(spec))
        sink = _findings(lambda: check_sink(spec))
        return {"source": [one.to_json() for one in source], "sink": [one.to_json() for one in sink]}

    def tables(self, draft: PipeDraft) -> dict[str, Any]:
        return source_tables.list_tables(self._spec(replace(draft, include=_EVERYTHING, exclude=(), tables={})))

    def columns(self, draft: PipeDraft, table: str) -> dict[str, Any]:
        return source_tables.list_columns(self._spec(replace(draft, include=_EVERYTHING, exclude=())), _table_name(table))

    def preview(self, draft: PipeDraft, table: str) -> dict[str, Any]:
        return source_tables.preview(self._spec(replace(draft, include=_EVERYTHING, exclude=())), _table_name(table))

    def plan(self, draft: PipeDraft) -> dict[str, Any]:
        """Return what writing the draft would change in the file."""
        return self._changes.plan((PIPES, draft.name), _edit(draft))

    def save(self, draft: PipeDraft, digest: str) -> dict[str, Any]:
        """Write the draft into the file, and reload."""
        return self._changes.save((PIPES, draft.name), digest, _edit(draft))

    def delete(self, name: str, digest: str) -> dict[str, Any]:
        """Remove a pipe from the file, and reload. Its source, its sink and its state stay."""
        return self._changes.save((PIPES, name), digest, lambda file, _: _without_pipe(file, name))

    # -- implementation

    def _spec(self, draft: PipeDraft) -> PipeSpec:
        document = with_state(self._changes.draft(_edit(draft)).document(), self._changes.state)
        specs = resolve(document, (draft.name,)).pipes[0].specs
        return specs[0]


def _edit(draft: PipeDraft) -> Edit:
    """Return the edit that puts a draft into the file."""

    def edit(file: PipeFile, secrets: NewSecrets) -> str:
        document = file.document()
        changes: list[tuple[Keys, Any]] = []
        for kind, endpoint in ((SOURCES, draft.source), (SINKS, draft.sink)):
            if draft.is_new:
                _check_existing(document, kind, endpoint)
            changes += endpoint_changes(document, kind, endpoint, secrets)
        changes += _pipe_changes(document, draft)
        return edit_text(file.text, changes)

    return edit


def _check_existing(document: Document, kind: str, endpoint: EndpointDraft) -> None:
    """Raise `DefiniteError` if a new pipe would change a section that other pipes may use."""
    stored = document.content.get(kind, {}).get(endpoint.name)
    if stored is not None and (
        endpoint.password or endpoint.url not in ("", shown_address(document, (kind, endpoint.name), stored.get("url")))
    ):
        raise DefiniteError(
            f"there is a section [{kind}.{endpoint.name}] already, with another address",
            place=dotted_key((kind, endpoint.name)),
            hint="choose it as it is, or give the new one another name",
        )


def _pipe_changes(document: Document, draft: PipeDraft) -> list[tuple[Keys, Any]]:
    path = (PIPES, draft.name)
    stored = document.content.get(PIPES, {}).get(draft.name)
    if draft.is_new and stored is not None:
        raise DefiniteError(f"there is a pipe {draft.name} already", place=dotted_key(path), hint="choose another name, or edit that one")
    if not draft.is_new and stored is None:
        raise DefiniteError(f"the file has no pipe {draft.name}", place=dotted_key(path), hint="it may have been renamed or removed")
    stored = stored or {}
    wanted: dict[str, Any] = {
        "source": draft.source.name,
        "sink": draft.sink.name,
        "include": list(draft.include) or None,
        "exclude": list(draft.exclude) or None,
        "enabled": None if draft.enabled and "enabled" not in stored else draft.enabled,
    }
    for glob in (glob for key in ("include", "exclude") for glob in wanted[key] or () if glob not in stored.get(key, ())):
        check_no_references(glob, dotted_key(path))
    changes: list[tuple[Keys, Any]] = [((*path, key), value) for key, value in wanted.items() if value != stored.get(key)]
    return [*changes, *_table_changes((*path, TABLES), stored.get(TABLES, {}), draft.tables)]


def _table_changes(path: Keys, stored: dict[str, Any], drafts: Mapping[str, TableDraft]) -> list[tuple[Keys, Any]]:
    changes: list[tuple[Keys, Any]] = []
    left = dict(stored)
    for glob, draft in drafts.items():
        before = stored.get(glob, {})
        chosen = {"drop": list(draft.drop) or None, "mask": dict(draft.mask) or None}
        for key, value in chosen.items():
            if value is not None and value != before.get(key):
                check_no_references("".join((glob, *draft.drop, *draft.mask, *draft.mask.values())), dotted_key((*path, glob)))
        after = {
            **{key: value for key, value in before.items() if key not in _CHOSEN},
            **{k: v for k, v in chosen.items() if v is not None},
        }
        if after:
            left[glob] = after
            changes += [((*path, glob, key), value) for key, value in chosen.items() if value != before.get(key)]
        elif glob in left:
            del left[glob]
            changes.append(((*path, glob), None))
    return changes if left or not stored else [(path, None)]


def _draft_of(name: str, pipe: dict[str, Any]) -> dict[str, Any]:
    tables = pipe.get(TABLES, {})
    return {
        "name": name,
        "source": pipe.get("source", ""),
        "sink": pipe.get("sink", ""),
        "include": pipe.get("include", []),
        "exclude": pipe.get("exclude", []),
        "enabled": pipe.get("enabled", True),
        "tables": {
            glob: {"drop": own.get("drop", []), "mask": own.get("mask", {})} for glob, own in tables.items() if isinstance(own, dict)
        },
    }


def _without_pipe(file: PipeFile, name: str) -> str:
    pipes = file.document().content.get(PIPES, {})
    if name not in pipes:
        raise DefiniteError(f"the file has no pipe {name!r}", place=str(file.path), hint="it may have been renamed or removed")
    if len(pipes) == 1:
        raise DefiniteError(
            f"{name} is the only pipe of the file, and headrace run needs one",
            place=str(file.path),
            hint="pause it, or stop headrace run and remove the file",
        )
    return remove_section(file.text, (PIPES, name))


def _section_text(text: str, name: str) -> str:
    """Return the lines of a pipe in the masked text of a file."""
    return section_text(mask_text(text), (PIPES, name))


def _findings(check: Callable[[], Sequence[Finding]]) -> Sequence[Finding]:
    try:
        return check()
    except HeadraceError as error:
        return (failure("answer", "none", error.message, error.hint),)


def _table_name(text: str) -> TableName:
    database, dot, table = text.partition(".")
    if not dot or not database or not table:
        raise DefiniteError(f"{text!r} is no name of a table", place="table", hint="write database.table")
    return TableName(database, table)
