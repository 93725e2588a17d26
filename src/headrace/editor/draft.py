"""Drafts: a pipe, or an alert rule, as a person enters it in the dashboard, before it is in the file.

Invariant: a draft is checked before it is used. A text that the person enters is data: a reference (`${…}`) in it is refused, because it
could send any variable or file of this machine to any server. References that the file has already stay there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.document import references_in
from headrace.errors import DefiniteError

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_MAX_TEXT: Final = 4096


@dataclass(frozen=True, slots=True)
class EndpointDraft:
    """A source or a sink."""

    name: str
    """Of its section, which may exist."""
    url: str = ""
    """Its address, without a password; empty: as in the file."""
    password: str = field(default="", repr=False)
    """A new password; empty: as in the file."""


@dataclass(frozen=True, slots=True)
class TableDraft:
    """What a person chose for the columns of the tables that a glob matches."""

    drop: tuple[str, ...] = ()
    mask: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipeDraft:
    name: str
    source: EndpointDraft
    sink: EndpointDraft
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tables: Mapping[str, TableDraft] = field(default_factory=dict)
    enabled: bool = True
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class AlertDraft:
    """An alert rule."""

    name: str
    kind: str
    """`e-mail`, or the format of a webhook."""
    url: str = ""
    """The address of the receiver; empty, or as it is shown: as in the file."""
    secret: str = field(default="", repr=False)
    """A new token of a webhook, or password of a mail server; empty: as in the file."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the section, as a file has them: receivers, events, pipes and limits."""
    is_new: bool = False


def parse_alert_draft(raw: Any) -> AlertDraft:
    """Parse a draft from JSON; raise `DefiniteError` that names the wrong field."""
    texts, numbers = ("to", "events", "pipes"), ("lag_seconds", "lag_for_seconds", "away_seconds")
    fields = _object(raw, "draft", {"name", "is_new", "kind", "url", "secret", "sender", "low_disk", *texts, *numbers})
    values: dict[str, Any] = {name: list(_texts(fields[name], name)) for name in texts if name in fields}
    values |= {name: _number(fields[name], name) for name in numbers if name in fields}
    values |= {name: _text(fields[name], name).strip() for name in ("sender", "low_disk") if name in fields}
    return AlertDraft(
        _name(fields.get("name"), "name"),
        _text(fields.get("kind", ""), "kind"),
        _text(fields.get("url", ""), "url").strip(),
        _text(fields.get("secret", ""), "secret"),
        values,
        _flag(fields.get("is_new", False), "is_new"),
    )


def parse_draft(raw: Any) -> PipeDraft:
    """Parse a draft from JSON; raise `DefiniteError` that names the wrong field."""
    fields = _object(raw, "draft", {"name", "source", "sink", "include", "exclude", "tables", "enabled", "is_new"})
    tables = {
        _text(glob, "tables"): _table(own, f"tables.{glob}") for glob, own in _object(fields.get("tables", {}), "tables", None).items()
    }
    unclear = next((glob for glob in tables if "." not in glob), None)
    if unclear is not None:
        raise _wrong("tables", f"{unclear!r} has no database", "write database.table")
    return PipeDraft(
        _name(fields.get("name"), "name"),
        _endpoint(fields.get("source"), "source"),
        _endpoint(fields.get("sink"), "sink"),
        _texts(fields.get("include", []), "include"),
        _texts(fields.get("exclude", []), "exclude"),
        tables,
        _flag(fields.get("enabled", True), "enabled"),
        _flag(fields.get("is_new", False), "is_new"),
    )


def _endpoint(raw: Any, place: str) -> EndpointDraft:
    fields = _object(raw, place, {"name", "url", "password"})
    password = fields.get("password", "")
    if not isinstance(password, str) or len(password) > _MAX_TEXT:
        raise _wrong(f"{place}.password", "the password must be a text", "write it as it is")
    return EndpointDraft(_name(fields.get("name"), f"{place}.name"), _text(fields.get("url", ""), f"{place}.url").strip(), password)


def _table(raw: Any, place: str) -> TableDraft:
    fields = _object(raw, place, {"drop", "mask"})
    masks = _object(fields.get("mask", {}), f"{place}.mask", None)
    return TableDraft(
        _texts(fields.get("drop", []), f"{place}.drop"),
        {_text(column, f"{place}.mask"): _text(mask, f"{place}.mask.{column}") for column, mask in masks.items()},
    )


def _object(raw: Any, place: str, allowed: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise _wrong(place, "it must be an object", "send {…}")
    unknown = next((key for key in raw if allowed is not None and key not in allowed), None)
    if unknown is not None:
        raise _wrong(place, f"{unknown!r} means nothing here", f"allowed: {', '.join(sorted(allowed or ()))}")
    return raw


def _name(raw: Any, place: str) -> str:
    if not isinstance(raw, str) or not _NAME.fullmatch(raw):
        raise _wrong(place, f"{raw!r} cannot be a name here", "names have letters, digits, _ and -")
    return raw


def _texts(raw: Any, place: str) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise _wrong(place, "it must be a list of texts", "send […]")
    return tuple(_text(one, place) for one in raw)


def _text(raw: Any, place: str) -> str:
    if not isinstance(raw, str) or len(raw) > _MAX_TEXT:
        raise _wrong(place, f"it must be a text of at most {_MAX_TEXT} characters", "shorten it")
    return raw


def _number(raw: Any, place: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise _wrong(place, "it must be a number", "send a number of seconds")
    return raw


def _flag(raw: Any, place: str) -> bool:
    if not isinstance(raw, bool):
        raise _wrong(place, "it must be true or false", "send true or false")
    return raw


def check_no_references(text: str, place: str) -> None:
    """Raise `DefiniteError` if a text that a person entered contains `${…}`."""
    if references_in(text) or "${" in text:
        raise _wrong(
            place, "a reference ${…} cannot be entered here", "write it into the file by hand, then choose the section by its name"
        )


def _wrong(place: str, message: str, hint: str) -> DefiniteError:
    return DefiniteError(message, place=place, hint=hint)
