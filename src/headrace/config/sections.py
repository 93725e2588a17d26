"""Reads and validates the sections of a file: `[headrace]`, `[sources.NAME]`, `[sinks.NAME]`, `[pipes.NAME]`.

Invariant: a key has an effect or is an error. Options are validated by the same code as a settings file, so a pipe's state stores them in
one form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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
from headrace.config.document.document import (
    HEADRACE,
    PIPES,
    SINKS,
    SOURCES,
    TOP,
    Document,
    dotted_key,
    parse_keys,
    require_table,
    unknown_key,
)
from headrace.config.document.problems import Problems
from headrace.config.document.substitution import is_secret_name, references_in
from headrace.config.file_keys import (
    CLASS,
    PIPE_FIELDS,
    PRODUCER_FIELDS,
    SOURCE_KEYS,
    SOURCE_OPTIONS,
    TOPIC_TABLES,
    SinkKeys,
    SourceKind,
)
from headrace.config.key_catalog import sink_address_fields, sink_option_fields, sink_title, source_title
from headrace.config.key_hints import hint_for
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import merge_fields, setting_fields
from headrace.settings.settings_file import (
    KAFKA,
    PRODUCER,
    REPLAY,
    SCHEMA_CHANGES,
    SINK,
    TABLES,
    TRANSFORMS,
    PlainSettings,
    UserSettings,
    validate,
)
from headrace.settings.toml_lines import Keys
from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.producer_address import CLASS as PRODUCER_SCHEME
from headrace.sinks.producer_sink import parse_producer
from headrace.sinks.registry import find_sink_connector
from headrace.transforms.options import TransformOptions

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
    """`[headrace]`."""
    path = (HEADRACE,)
    raw = require_table(document, path, document.content.get(HEADRACE, {}))
    known = setting_fields(ProcessSettings)
    settled = _resolve_references(document, path, _filter_known(document, path, known, raw, problems, "[headrace]"), problems)
    values = parse_keys(document, path, known, settled, problems)
    values["state"] = document.directory / values["state"]
    return ProcessSettings(**values)


def iter_sections(document: Document, kind: str, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and tables of all sections of a kind."""
    for name, raw in require_table(document, (kind,), document.content.get(kind, {})).items():
        with problems.collect():
            if not _NAME.fullmatch(name):
                raise DefiniteError(
                    f"{name!r} cannot be a name here", place=document.place((kind, name)), hint="names have letters, digits, _ and -"
                )
            yield name, require_table(document, (kind, name), raw)


def check_top(document: Document, problems: Problems) -> None:
    """Report top-level keys other than the four kinds of sections."""
    for name in document.content:
        if name not in TOP:
            problems.errors.append(_unknown_at_top(document, name))


def read_source(document: Document, name: str, raw: Mapping[str, Any], problems: Problems) -> SourceSection:
    """`[sources.NAME]`."""
    path = (SOURCES, name)
    url = _url(document, path, raw, SOURCE_FORMS)
    kind = source_kind(url, document.place((*path, "url")))
    own = merge_fields(*SOURCE_KEYS[kind])
    section, choices = SOURCE_OPTIONS.get(kind, ("", {}))
    known = _filter_known(document, path, {**own, **choices}, raw, problems, source_title(kind))
    settled = _resolve_references(document, path, known, problems)
    values = parse_keys(document, path, own, {key: value for key, value in settled.items() if key in own}, problems)
    whole = _address_with_password(document, path, url, values)
    with _locate_errors(document, (*path, "url")):
        check_source(whole, kind)
    chosen: PlainSettings = {}
    for key in (key for key in settled if key in choices):
        with problems.collect():
            at = _locate_below(document, (*path, key), 2)
            _validate_into(chosen, section, {TOPIC_TABLES.get(key, key): settled[key]}, at)
    return SourceSection(name, whole, kind, values, chosen)


def read_sink(document: Document, name: str, raw: Mapping[str, Any], problems: Problems) -> SinkSection:
    """`[sinks.NAME]`."""
    path = (SINKS, name)
    if CLASS in raw:
        return _read_producer(document, name, raw, problems)
    url = _url(document, path, raw, SINK_FORMS)
    connector = find_sink_connector(url)
    section = "" if connector is None else connector.section
    if section == PRODUCER:
        return _read_producer(document, name, raw, problems, url)
    in_address = sink_address_fields(connector)
    own = {**setting_fields(SinkKeys), **in_address}
    tables = {TABLES: None} if section == SINK else {}
    known = _filter_known(document, path, {**own, **sink_option_fields(connector), **tables}, raw, problems, sink_title(connector))
    settled = _resolve_references(document, path, known, problems)
    values = parse_keys(document, path, own, {key: value for key, value in settled.items() if key in own}, problems)
    whole = _address_with_password(document, path, url, values)
    with _locate_errors(document, (*path, "url")):
        whole = add_query_settings(whole, {key: str(values[key]) for key in in_address if key in raw})
        check_sink(whole)
    chosen: PlainSettings = {}
    for key, value in settled.items():
        if key not in own:
            with problems.collect():
                _validate_into(chosen, section, {key: value}, _locate_below(document, path, 1))
    return SinkSection(name, whole, section, chosen)


def _read_producer(document: Document, name: str, raw: Mapping[str, Any], problems: Problems, url: str = "") -> SinkSection:
    """Read a custom producer: all keys but `class` are its settings. Secrets and values from `${…}` are never stored."""
    path = (SINKS, name)
    settled = _resolve_references(document, path, raw, problems)
    settled.pop("url" if url else CLASS, None)
    file = settled.pop("password_file", "")
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
    """`[pipes.NAME]`."""
    path = (PIPES, name)
    known = _filter_known(document, path, {**PIPE_FIELDS, TABLES: None, SCHEMA_CHANGES: None}, raw, problems, "[pipes.NAME]")
    settled = _resolve_references(document, path, known, problems)
    values = parse_keys(document, path, PIPE_FIELDS, {key: value for key, value in settled.items() if key in PIPE_FIELDS}, problems)
    policies: PlainSettings = {}
    for kind, word in require_table(document, (*path, SCHEMA_CHANGES), settled.get(SCHEMA_CHANGES, {})).items():
        with problems.collect():
            _validate_into(policies, SCHEMA_CHANGES, {kind: word}, _locate_below(document, path, 0))
    if isinstance(settled.get(TABLES), list):
        raise DefiniteError(
            f"{TABLES} of a pipe are settings of tables, by their names",
            place=document.place((*path, TABLES)),
            hint="select tables by include = […], or by tables of the source",
        )
    tables = require_table(document, (*path, TABLES), settled.get(TABLES, {}))
    return PipeSection(name, values, policies, tables)


def read_table_settings(document: Document, pipe: PipeSection, sink: SinkSection, problems: Problems) -> PlainSettings:
    """Return the settings of `[pipes.NAME.tables."GLOB"]`, by the section that stores them."""
    found: PlainSettings = {}
    for glob, raw in pipe.tables.items():
        path = (PIPES, pipe.name, TABLES, glob)
        with problems.collect():
            own = require_table(document, path, raw)
            of_sink = setting_fields(TableOptions) if sink.section == SINK else {}
            known = {**setting_fields(TransformOptions), **of_sink}
            for key, value in own.items():
                with problems.collect():
                    if key not in known:
                        raise unknown_key(document, (*path, key), known, hint_for(key, value, ""))
                    if key in of_sink:
                        _validate_into(found, SINK, {TABLES: {glob: {key: value}}}, _locate_below(document, (PIPES, pipe.name), 1))
                    else:
                        _validate_into(found, TRANSFORMS, {glob: {key: value}}, _locate_below(document, (PIPES, pipe.name, TABLES), 1))
    return found


def _validate_into(chosen: PlainSettings, section: str, content: PlainSettings, place: Callable[[Keys], str]) -> None:
    """Validate settings and merge them over the ones so far."""
    merged = UserSettings(validate({section: content}, place)).over(UserSettings(chosen))
    chosen.clear()
    chosen.update(merged.plain)


def _locate_below(document: Document, path: Keys, cut: int) -> Callable[[Keys], str]:
    """Return a locator that maps setting paths, without their first `cut` names, to keys below `path`."""
    return lambda inner: document.place((*path, *inner[cut:]))


def _filter_known(
    document: Document,
    path: Keys,
    known: Mapping[str, Any],
    raw: Mapping[str, Any],
    problems: Problems,
    here: str,
) -> dict[str, Any]:
    """Return the known keys; report the others."""
    for name in raw:
        if name not in known:
            problems.errors.append(unknown_key(document, (*path, name), known, hint_for(name, raw[name], here)))
    return {name: value for name, value in raw.items() if name in known}


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


class _locate_errors:
    """Sets the place of errors raised inside to a key."""

    def __init__(self, document: Document, path: Keys) -> None:
        self._place = document.place(path)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DefiniteError):
            raise DefiniteError(error.message, place=self._place, hint=error.hint) from error


def _unknown_at_top(document: Document, name: str) -> DefiniteError:
    if name in (SINK, KAFKA, "source", "pipe", "debezium", "scylla", REPLAY, SCHEMA_CHANGES):
        return DefiniteError(
            f"there is no section [{name}] in a file of pipes",
            place=document.place((name,)),
            hint="write [sources.NAME], [sinks.NAME] and [pipes.NAME]; [sink] and so on are for --settings of headrace replicate",
        )
    return unknown_key(document, (name,), TOP)
