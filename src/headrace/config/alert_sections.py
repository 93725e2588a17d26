"""Reads and validates the sections `[alerts.NAME]`.

Invariant: no error repeats an address, which may be a secret itself. The sections need none of the secrets of sources and sinks, so that
`headrace alerts test` runs without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from headrace.alerts.detector import dashboard_link
from headrace.alerts.rules import FORMS, MAIL_SCHEMES, AlertRule, parse_rule
from headrace.config.document import ALERTS, PIPES, Document, Problems, dotted_key, parse_keys
from headrace.config.key_catalog import ALERT_FIELDS, ReceiverKind, alert_title
from headrace.config.misspellings import check_any_kind, correct_address, correct_sections, filter_known
from headrace.config.sections import named_sections, read_process
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import closest_match


def read_receivers(document: Document) -> tuple[tuple[AlertRule, ...], str]:
    """Return the rules of a file, and the link to its dashboard, for test alerts; raise the errors of these sections."""
    problems = Problems()
    document = correct_sections(document, problems)
    process, rules = read_process(document, problems), read_alerts(document, problems)
    problems.raise_any(document.file)
    return rules, dashboard_link(process.address or (f"http://{process.listen}" if process.listen else ""), "")


def read_alerts(document: Document, problems: Problems) -> tuple[AlertRule, ...]:
    """Return the rules of a file; collect the errors of the others."""
    found: list[AlertRule] = []
    for name, raw in named_sections(document, ALERTS, problems).items():
        with problems.collect((ALERTS, name)):
            rule = _read_alert(document, name, raw, problems)
            found += [rule] if rule is not None else []
    return tuple(found)


def _read_alert(document: Document, name: str, raw: Mapping[str, Any], problems: Problems) -> AlertRule | None:
    path = (ALERTS, name)
    raw = correct_address(document, path, raw, problems)
    try:
        kind = _kind(document, path, raw)
    except DefiniteError:
        check_any_kind(document, path, raw, problems)
        raise
    known = filter_known(document, path, ALERT_FIELDS[kind], raw, problems, alert_title(kind))
    before, settled = len(problems.errors), {}
    for key, value in known.items():
        with problems.collect(path):
            settled[key] = document.resolve((*path, key), value)
    values = parse_keys(document, path, ALERT_FIELDS[kind], settled, problems)
    with problems.collect(path):
        _check_pipes(document, path, values["pipes"])
    if len(problems.errors) > before:
        return None
    if values["ca"]:
        values["ca"] = str(document.directory / values["ca"])

    def report(key: str, message: str, hint: str) -> None:
        problems.add(message, document.place((*path, key) if key in raw else path), hint)

    return parse_rule(name, values, report)


def _kind(document: Document, path: tuple[str, ...], raw: Mapping[str, Any]) -> ReceiverKind:
    """Return the kind of receiver, by its address."""
    url = raw.get("url")
    if not isinstance(url, str) or not url:
        place = document.place((*path, "url") if "url" in raw else path)
        raise DefiniteError(f"[{dotted_key(path)}] needs a url", place=place, hint=FORMS)
    scheme = str(document.resolve((*path, "url"), url)).partition("://")[0].lower()
    if scheme in MAIL_SCHEMES:
        return ReceiverKind.MAIL
    if scheme in ("http", "https"):
        return ReceiverKind.WEBHOOK
    raise DefiniteError("the receiver's address cannot be read", place=document.place((*path, "url")), hint=FORMS)


def _check_pipes(document: Document, path: tuple[str, ...], globs: tuple[str, ...]) -> None:
    """Raise `DefiniteError` for a glob that matches no pipe: its alerts would never come."""
    pipes = document.content.get(PIPES, {})
    names = list(pipes) if isinstance(pipes, dict) else []
    place = document.place((*path, "pipes"))
    if not globs:
        raise DefiniteError("the rule has no pipes, so nothing would be sent", place=place, hint='write pipes = ["*"], or leave it out')
    for glob in globs:
        if names and not any(fnmatchcase(name, glob) for name in names):
            near = closest_match(glob, names)
            hint = f'did you mean "{near}"?' if near else f"pipes of this file: {', '.join(sorted(names))}"
            raise DefiniteError(f"no pipe matches {glob!r}", place=place, hint=hint)
