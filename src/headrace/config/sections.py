"""Reads and validates the sections of a file: `[headrace]`, `[sources.NAME]`, `[sinks.NAME]`, `[pipes.NAME]`.

Invariant: a key has an effect or is an error. Options are validated by the same code as a settings file, so a pipe's state stores them in
one form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from headrace.config.addresses import (
    SINK_FORMS,
    SOURCE_FORMS,
    add_password,
    add_query_settings,
    check_sink,
    check_source,
    resolve_path,
    source_kind,
)
from headrace.config.configuration import ProcessSettings
from headrace.config.document import (
    HEADRACE,
    PIPES,
    SINKS,
    SOURCES,
    Document,
    Problems,
    dotted_key,
    is_secret_name,
    parse_keys,
    references_in,
    require_table,
    unknown_key,
)
from headrace.config.key_catalog import (
    CLASS,
    PIPE_FIELDS,
    PRODUCER_FIELDS,
    SOURCE_KEYS,
    SOURCE_OPTIONS,
    TOPIC_TABLES,
    SinkKeys,
    SourceKind,
    hint_for,
    sink_address_fields,
    sink_option_fields,
    sink_title,
    source_title,
)
from headrace.config.misspellings import check_any_kind, correct_address, filter_known
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import TEXT_PAIRS, Field, merge_fields, setting_fields
from headrace.settings.settings_file import (
    PRODUCER,
    SCHEMA_CHANGES,
    SINK,
    TABLES,
    TRANSFORMS,
    PlainSettings,
    UserSettings,
    validate,
)
from headrace.settings.toml_text import Keys
from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.producer import parse_producer
from headrace.sinks.producer_address import CLASS as PRODUCER_SCHEME
from headrace.sinks.registry import sink_connector
from headrace.transforms.options import TransformOptions

_PASSWORD_FILE: Final = {"password_file": setting_fields(SinkKeys)["password_file"]}
_WEB_ADDRESS: Final = re.compile(r"https?://[^\s#@]+")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class SourceSection:
    """A validated `[sources.NAME]`."""

    name: str
    url: str
    """With its password: never print it."""
    kind: SourceKind
    values: Mapping[str, Any]
    chosen: PlainSettings


@dataclass(frozen=True, slots=True)
class SinkSection:
    """A validated `[sinks.NAME]`."""

    name: str
    url: str
    """With its password: never print it."""
    section: str
    """The settings section that stores its options."""
    chosen: PlainSettings


@dataclass(frozen=True, slots=True)
class PipeSection:
    """A validated `[pipes.NAME]`; its table settings are validated later, because they depend on the sink."""

    name: str
    values: Mapping[str, Any]
    schema_changes: PlainSettings
    tables: Mapping[str, Any]

    @property
    def sources(self) -> tuple[str, ...]:
        single: str = self.values["source"]
        several: tuple[str, ...] = self.values["sources"]
        return (single,) if single else several


def read_process(document: Document, problems: Problems) -> ProcessSettings:
    path = (HEADRACE,)
    raw = require_table(document, path, document.content.get(HEADRACE, {}))
    known = setting_fields(ProcessSettings)
    settled = _resolve_references(document, path, filter_known(document, path, known, raw, problems, "[headrace]"), problems)
    values = parse_keys(document, path, known, settled, problems)
    values["state"] = document.directory / values["state"]
    if values["address"] and not _WEB_ADDRESS.fullmatch(values["address"]):
        hint = 'write address = "https://headrace.example.com", without a token'
        problems.add("address is no address of a web page", document.place((*path, "address")), hint)
    return ProcessSettings(**values)


def named_sections(document: Document, kind: str, problems: Problems) -> dict[str, dict[str, Any]]:
    """Return the sections of a kind by their names."""
    content = document.content.get(kind, {})
    if not isinstance(content, dict):
        problems.add(f"[{kind}] is not one section", document.place((kind,)), f"write [{kind}.NAME] above the keys of each")
        return {}
    found = {}
    nameless = [name for name, raw in content.items() if not isinstance(raw, dict)]
    if nameless:
        message = f"{', '.join(nameless)}: the section [{kind}] has no name"
        problems.add(message, document.place((kind, nameless[0])), f"write [{kind}.NAME] above its keys")
    for name, raw in content.items():
        if name in nameless:
            continue
        if not _NAME.fullmatch(name):
            problems.add(f"{name!r} cannot be a name here", document.place((kind, name)), "names have letters, digits, _ and -")
        else:
            found[name] = raw
    return found


def read_source(document: Document, name: str, raw: Mapping[str, Any], problems: Problems) -> SourceSection:
    path = (SOURCES, name)
    raw = correct_address(document, path, raw, problems)
    try:
        url = _url(document, path, raw, SOURCE_FORMS)
        kind = source_kind(url, document.place((*path, "url")))
    except DefiniteError:
        check_any_kind(document, path, raw, problems)
        raise
    own = merge_fields(*SOURCE_KEYS[kind])
    section, choices = SOURCE_OPTIONS.get(kind, ("", {}))
    known = filter_known(document, path, {**own, **choices}, raw, problems, source_title(kind))
    settled = _resolve_references(document, path, known, problems)
    values = parse_keys(document, path, own, {key: value for key, value in settled.items() if key in own}, problems)
    chosen: PlainSettings = {}
    for key in (key for key in settled if key in choices):
        with problems.collect():
            at = _locate_below(document, (*path, key), 2)
            _validate_into(chosen, section, {TOPIC_TABLES.get(key, key): settled[key]}, at)
    whole = url
    with problems.collect():
        whole = _address_with_password(document, path, url, values)
    with _locate_errors(document, (*path, "url")):
        check_source(whole, kind)
    return SourceSection(name, whole, kind, values, chosen)


def read_sink(document: Document, name: str, raw: Mapping[str, Any], problems: Problems) -> SinkSection:
    path = (SINKS, name)
    raw = correct_address(document, path, raw, problems)
    if CLASS in raw:
        return _read_producer(document, name, raw, problems)
    try:
        url = _url(document, path, raw, SINK_FORMS)
        with _locate_errors(document, (*path, "url")):
            connector = sink_connector(url)
    except DefiniteError:
        check_any_kind(document, path, raw, problems)
        raise
    section = connector.section
    if section == PRODUCER:
        return _read_producer(document, name, raw, problems, url)
    in_address = sink_address_fields(connector)
    own = {**setting_fields(SinkKeys), **in_address}
    tables = {TABLES: None} if section == SINK else {}
    known = filter_known(document, path, {**own, **sink_option_fields(connector), **tables}, raw, problems, sink_title(connector))
    settled = _resolve_references(document, path, known, problems)
    values = parse_keys(document, path, own, {key: value for key, value in settled.items() if key in own}, problems)
    chosen: PlainSettings = {}
    for key, value in settled.items():
        with problems.collect():
            if key == TABLES and section == SINK:
                tables_of_sink = _read_tables(document, (*path, TABLES), value, setting_fields(TableOptions), problems)
                chosen = UserSettings(tables_of_sink).over(UserSettings(chosen)).plain
            elif key not in own:
                _validate_into(chosen, section, {key: value}, _locate_below(document, path, 1))
    whole = url
    with problems.collect():
        whole = _address_with_password(document, path, url, values)
    with _locate_errors(document, (*path, "url")):
        whole = add_query_settings(whole, {key: str(values[key]) for key in in_address if key in known})
        check_sink(whole)
    return SinkSection(name, whole, section, chosen)


def _read_producer(document: Document, name: str, raw: Mapping[str, Any], problems: Problems, url: str = "") -> SinkSection:
    """Read a custom producer: all keys but `class` are its settings. Secrets and values from `${…}` are never stored."""
    path = (SINKS, name)
    settled = _resolve_references(document, path, raw, problems)
    settled.pop("url" if url else CLASS, None)
    if "password_file" in settled:
        file = parse_keys(document, path, _PASSWORD_FILE, {"password_file": settled.pop("password_file")}, problems)["password_file"]
        if file:
            settled["password"] = document.read_secret_file(file, (*path, "password_file"))
    if not url:
        values = parse_keys(document, path, PRODUCER_FIELDS, {CLASS: raw[CLASS]}, problems)
        url = f"{PRODUCER_SCHEME}{values[CLASS]}"
    led_to = {key for key, value in raw.items() if isinstance(value, str) and references_in(value)}
    secrets = {key: value for key, value in settled.items() if isinstance(value, str) and (is_secret_name(key) or key in led_to)}
    with _locate_errors(document, (*path, "url" if "url" in raw else CLASS)):
        url = add_query_settings(url, secrets)
        parse_producer(url, {})
    chosen: PlainSettings = {}
    for key, value in settled.items():
        if key not in secrets:
            with problems.collect():
                _validate_into(chosen, PRODUCER, {key: value}, _locate_below(document, path, 1))
    return SinkSection(name, url, PRODUCER, chosen)


def read_pipe(document: Document, name: str, raw: Mapping[str, Any], problems: Problems) -> PipeSection:
    path = (PIPES, name)
    known = filter_known(document, path, {**PIPE_FIELDS, TABLES: None, SCHEMA_CHANGES: None}, raw, problems, "[pipes.NAME]")
    for key, needed in (("source", known.get("source") or known.get("sources")), ("sink", known.get("sink"))):
        if not needed:
            problems.add(f"the pipe {name} has no {key}", document.place(path), f'write {key} = "NAME"')
    settled = _resolve_references(document, path, known, problems)
    values = parse_keys(document, path, PIPE_FIELDS, {key: value for key, value in settled.items() if key in PIPE_FIELDS}, problems)
    policies: PlainSettings = {}
    with problems.collect():
        for kind, word in require_table(document, (*path, SCHEMA_CHANGES), settled.get(SCHEMA_CHANGES, {})).items():
            with problems.collect():
                _validate_into(policies, SCHEMA_CHANGES, {kind: word}, _locate_below(document, path, 0))
    tables = settled.get(TABLES, {})
    if not isinstance(tables, dict):
        message = f"{TABLES} of a pipe are settings of tables, by their names"
        problems.add(message, document.place((*path, TABLES)), "select tables by include = […], or by tables of the source")
        tables = {}
    return PipeSection(name, values, policies, tables)


def read_table_settings(document: Document, pipe: PipeSection, sink: SinkSection | None, problems: Problems) -> PlainSettings:
    """Return the settings of `[pipes.NAME.tables."GLOB"]`, by the section that stores them. The sink is None if it has errors itself."""
    of_sink = setting_fields(TableOptions) if sink is None or sink.section == SINK else {}
    return _read_tables(document, (PIPES, pipe.name, TABLES), pipe.tables, of_sink, problems)


def _read_tables(
    document: Document, path: Keys, tables: Mapping[str, Any], of_sink: Mapping[str, Field], problems: Problems
) -> PlainSettings:
    """Return the settings of tables by their globs; report each wrong key and value. Transforms are settings of a pipe's tables only."""
    found: PlainSettings = {}
    known = {**(setting_fields(TransformOptions) if path[0] == PIPES else {}), **of_sink}
    for glob, own in _iter_globs(document, path, require_table(document, path, tables), known, problems):
        for key, value in own.items():
            at = (*path, glob, key)
            if key not in known:
                problems.errors.append(unknown_key(document, at, known, hint_for(key, value, "")))
                continue
            # Each entry of a table is validated by itself: one wrong entry does not hide the others.
            is_table = known[key].kind == TEXT_PAIRS and isinstance(value, dict) and value
            for one in [{name: entry} for name, entry in value.items()] if is_table else [value]:
                with problems.collect():
                    if key in of_sink:
                        _validate_into(found, SINK, {TABLES: {glob: {key: one}}}, _locate_below(document, path[:-1], 1))
                    else:
                        _validate_into(found, TRANSFORMS, {glob: {key: one}}, _locate_below(document, path, 1))
    return found


def _iter_globs(
    document: Document, path: Keys, tables: Mapping[str, Any], known: Mapping[str, Field], problems: Problems
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings of each glob over `database.table`; report other names, and yield their settings under a glob."""
    for name, raw in tables.items():
        if "." in name:
            with problems.collect():
                yield name, require_table(document, (*path, name), raw)
            continue
        # Without quotes, the dot of a name divides tables. Some settings are tables, too.
        divided = isinstance(raw, dict) and bool(raw) and all(isinstance(one, dict) and key not in known for key, one in raw.items())
        meant = {f"{name}.{inner}": ((name, inner), raw[inner]) for inner in raw} if divided else {f"*.{name}": ((name,), raw)}
        for glob, (written, own) in meant.items():
            hint = f"write [{dotted_key((*path, glob if divided else f'DATABASE.{name}'))}], with the quotes"
            problems.add("settings for some tables need a glob over database.table", document.place((*path, *written)), hint)
            document.misspelt[*path, glob] = (*path, *written)
            yield glob, own if isinstance(own, dict) else {}


def _validate_into(chosen: PlainSettings, section: str, content: PlainSettings, place: Callable[[Keys], str]) -> None:
    """Validate settings and merge them over the ones so far."""
    merged = UserSettings(validate({section: content}, place)).over(UserSettings(chosen))
    chosen.clear()
    chosen.update(merged.plain)


def _locate_below(document: Document, path: Keys, cut: int) -> Callable[[Keys], str]:
    """Return a locator that maps setting paths, without their first `cut` names, to keys below `path`."""
    return lambda inner: document.place((*path, *inner[cut:]))


def _resolve_references(document: Document, path: Keys, raw: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    settled = {}
    for name, value in raw.items():
        with problems.collect():
            settled[name] = document.resolve((*path, name), value)
    return settled


def _url(document: Document, path: Keys, raw: Mapping[str, Any], forms: str) -> str:
    url = raw.get("url")
    if not isinstance(url, str) or not url:
        place = (*path, "url") if "url" in raw else path
        raise DefiniteError(f"[{dotted_key(path)}] needs a url", place=document.place(place), hint=forms)
    settled: str = document.resolve((*path, "url"), url)
    return resolve_path(settled, document.directory)


def _address_with_password(document: Document, path: Keys, url: str, values: Mapping[str, Any]) -> str:
    password, file = values["password"], values["password_file"]
    if password and file:
        raise DefiniteError("the password is given twice", place=document.place((*path, "password_file")), hint="give one of the two")
    place = (*path, "password_file" if file else "password")
    if file:
        password = document.read_secret_file(file, place)
    return add_password(url, password, document.place(place)) if password else url


@contextmanager
def _locate_errors(document: Document, path: Keys) -> Iterator[None]:
    """Set the place of errors raised inside to a key."""
    try:
        yield
    except DefiniteError as error:
        raise DefiniteError(error.message, place=document.place(path), hint=error.hint) from error
