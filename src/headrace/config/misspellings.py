"""Names in a file that do not exist: sections, and keys of a section. Each is an error with its line and the most similar valid name.

Invariant: one misspelt name is one error. Its value is read under the right name, so that it has no errors as a consequence, and the errors
inside a misspelt section are found. If the value does not fit the right name, the value is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from headrace.config.document import HEADRACE, PIPES, TOP, Document, Problems, UnknownName, dotted_key, parse_keys, unknown_key
from headrace.config.key_catalog import CLASS, Section, hint_for, list_sections
from headrace.settings.dataclass_fields import Field, closest_match, is_valid
from headrace.settings.settings_file import SECTIONS, TABLES
from headrace.settings.toml_text import Keys

URL: Final = "url"


def correct_sections(document: Document, problems: Problems) -> Document:
    """Report top-level names other than the five kinds of sections; return the document with misspelt sections under their right names."""
    content = {name: raw for name, raw in document.content.items() if name in TOP}
    for name, raw in document.content.items():
        if name in TOP:
            continue
        right = closest_match(name, TOP)
        if not isinstance(raw, dict | list):
            hint = hint_for(name, raw, "") or f"write it below {_headers(right)}"
            problems.errors.append(UnknownName(f"{name} stands in no section", place=document.place((name,)), hint=hint))
        elif right == HEADRACE and isinstance(raw, dict):
            problems.errors.append(_unknown_section(document, (name,), (right,)))
            _read_as(document, content, (name,), (right,))
        elif right and _has_named_sections(name, raw):
            for inner in raw:
                problems.errors.append(_unknown_section(document, (name, inner), (right, inner)))
                _read_as(document, content, (name, inner), (right, inner))
        else:
            hint = f"write {_headers(right)}"
            if name in SECTIONS:
                hint += "; [sink] and so on are for --settings of headrace replicate"
            elif not right:
                hint = hint_for(name, raw, "") or hint
            message = f"there is no section [{dotted_key((name,))}] in a file of pipes"
            problems.errors.append(UnknownName(message, place=document.place((name,)), hint=hint))
    return replace(document, content=content)


def has_pipes(document: Document) -> bool:
    """Return whether the file has pipes, also under a misspelt name."""
    return bool(document.content.get(PIPES)) or any(name not in TOP and closest_match(name, TOP) == PIPES for name in document.content)


def _headers(kind: str) -> str:
    """Return how to write the header of a section of this kind; of every kind if it is empty."""
    if kind == HEADRACE:
        return f"[{HEADRACE}]"
    return f"[{kind}.NAME]" if kind else "[headrace], [sources.NAME], [sinks.NAME], [pipes.NAME] or [alerts.NAME]"


def _has_named_sections(name: str, raw: Any) -> bool:
    """Return whether the value is a table of tables, and not a section of settings files."""
    return (
        isinstance(raw, dict)
        and bool(raw)
        and all(isinstance(one, dict) for one in raw.values())
        and not (name in SECTIONS and TABLES in raw)
    )


def _unknown_section(document: Document, written: Keys, right: Keys) -> UnknownName:
    return UnknownName(
        f"there is no section [{dotted_key(written)}]", place=document.place(written), hint=f"did you mean [{dotted_key(right)}]?"
    )


def _read_as(document: Document, content: dict[str, Any], written: Keys, right: Keys) -> None:
    """Add a section to the content under its right name, unless the file has that name, too."""
    raw: Any = document.content
    for name in written:
        raw = raw[name]
    if len(right) == 1:
        content.setdefault(right[0], raw)
    else:
        there = content.get(right[0], {})
        if not isinstance(there, dict) or right[1] in there:
            return
        content[right[0]] = {**there, right[1]: raw}
    if right[0] not in document.content or len(right) > 1:
        document.misspelt[right] = written


def filter_known(
    document: Document, path: Keys, known: Mapping[str, Field | None], raw: Mapping[str, Any], problems: Problems, here: str
) -> dict[str, Any]:
    """Return the known keys, and misspelt ones under their right names; report the misspelt ones and all others. `here` is the title of the
    section. A key without a field is a table.
    """
    values = {name: value for name, value in raw.items() if name in known}
    for name, value in raw.items():
        if name in known:
            continue
        elsewhere = hint_for(name, value, here)
        problems.errors.append(unknown_key(document, (*path, name), known, elsewhere))
        right = "" if elsewhere else closest_match(name, known)
        if right and right not in values and _fits(known[right], value):
            values[right] = value
            document.misspelt[*path, right] = (*path, name)
    return values


def correct_address(document: Document, path: Keys, raw: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Return a source's or sink's keys, with its address under the right name. The address decides which keys the section can have."""
    values = dict(raw)
    if URL in values or CLASS in values:
        return values
    known = {name for section in _sections_of(path) for name in section.fields}
    for name, value in raw.items():
        right = closest_match(name, known) if name not in known and isinstance(value, str) else ""
        if right in (URL, CLASS):
            problems.errors.append(unknown_key(document, (*path, name), known))
            document.misspelt[*path, right] = (*path, name)
            values[right] = values.pop(name)
            break
    return values


def check_any_kind(document: Document, path: Keys, raw: Mapping[str, Any], problems: Problems) -> None:
    """Report keys and values that no kind of source, or of sink, has. The kind is unknown without an address that can be read."""
    sections = _sections_of(path)
    known = {name: one for section in reversed(sections) for name, one in section.fields.items()}
    keys = {**known, TABLES: known.get(TABLES)}
    for name, value in filter_known(document, path, keys, raw, problems, "").items():
        kinds = [section.fields[name] for section in sections if name in section.fields]
        with problems.collect(path):
            settled = None if name == URL else document.resolve((*path, name), value)
            if settled is not None and kinds and not any(is_valid(one, settled) for one in kinds):
                parse_keys(document, path, {name: kinds[0]}, {name: settled}, problems)


def _sections_of(path: Keys) -> list[Section]:
    """Return the sections of all kinds of sources, or of all kinds of sinks."""
    return [section for section in list_sections() if section.header == f"{path[0]}.NAME"]


def _fits(one: Field | None, value: Any) -> bool:
    return isinstance(value, dict) if one is None else is_valid(one, value)
