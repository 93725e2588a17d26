"""Loads a pipe file: reads or translates it, and resolves its sections into runnable pipes.

Invariant: every error that a pipe's start would raise and that can be found without a server is raised here, with its place in the file. No
two sources write to the same target by accident.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.config.alert_sections import read_alerts
from headrace.config.configuration import Configuration, ConfiguredPipe, ProcessSettings
from headrace.config.document import HEADRACE, PIPES, SINKS, SOURCES, Document, Problems, parse_document
from headrace.config.importers.connectors import translate_connector
from headrace.config.importers.flat_files import SUFFIXES
from headrace.config.importers.mypipe import translate_mypipe
from headrace.config.importers.translation import Translation
from headrace.config.key_catalog import rephrase_for_file
from headrace.config.misspellings import correct_sections, has_pipes
from headrace.config.sections import (
    PipeSection,
    SinkSection,
    SourceSection,
    named_sections,
    read_pipe,
    read_process,
    read_sink,
    read_source,
    read_table_settings,
)
from headrace.config.target_names import apply_prefix, check_target_overlaps
from headrace.errors import DefiniteError
from headrace.pipes.factory import check_here, check_sections, selected
from headrace.pipes.source_registry import source_connector
from headrace.pipes.spec import PipeSpec
from headrace.pipes.state.stored_settings import stored_settings
from headrace.settings.dataclass_fields import closest_match, select_values
from headrace.settings.pipe_keys import TopicKeys
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import KAFKA, SINK, PlainSettings, UserSettings
from headrace.sinks.registry import sink_connector

DEFAULT_FILE: Final = Path("headrace.toml")


def load(path: Path = DEFAULT_FILE, only: Sequence[str] = ()) -> Configuration:
    """Load the pipes of a file, or those named in `only`. Relative paths are relative to the file's directory."""
    return resolve(read_document(path), only)


def reload(document: Document, only: Sequence[str], state: Path) -> Configuration:
    """Resolve a document for a process that runs on a state directory, and check that its pipes can run on this machine.

    The pipes keep their directories, whatever the file says now; `process.state` of the result is what the file says.
    """
    configuration = _check_runnable(document, only)
    if configuration.process.state == state:
        return configuration
    return replace(configuration, pipes=resolve(with_state(document, state), only).pipes)


def with_state(document: Document, state: Path) -> Document:
    """Return the document with another state directory."""
    section = {**document.content.get(HEADRACE, {}), "state": str(state.absolute())}
    return replace(document, content={**document.content, HEADRACE: section})


def _check_runnable(document: Document, only: Sequence[str]) -> Configuration:
    """Resolve a document as a process would run it: at least one pipe is enabled, and each of these can run on this machine."""
    problems = Problems()
    configuration = resolve_valid(document, only, problems)
    for spec in (spec for pipe in configuration.pipes if pipe.enabled for spec in pipe.specs):
        with problems.collect():
            check_here(spec)
    problems.raise_any(document.file)
    if not any(pipe.enabled for pipe in configuration.pipes):
        raise DefiniteError("no pipe is to run", place=document.file, hint="add one ([pipes.NAME]), or set enabled = true")
    return configuration


def read_document(path: Path) -> Document:
    """Read a file as a document with the keys of `headrace.toml`; its suffix determines its format."""
    translation = translate(path)
    directory = path.resolve().parent
    return parse_document(read_text(path), str(path), directory) if translation is None else translation.document(directory)


def translate(path: Path) -> Translation | None:
    """Translate a file of another tool; None for `headrace.toml`."""
    suffix, text = path.suffix.lower(), read_text(path)
    if suffix in (".conf", ".hocon"):
        return translate_mypipe(text, str(path))
    if suffix in SUFFIXES:
        return translate_connector(text, str(path))
    return None


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DefiniteError("there is no such file", place=str(path), hint="write one (docs/pipes.md), or name another") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DefiniteError(
            f"the file cannot be read: {error}", place=str(path), hint="give a text in UTF-8 that this user may read"
        ) from error


log = logging.getLogger("headrace")
T = TypeVar("T")
R = TypeVar("R")


def resolve(document: Document, only: Sequence[str] = ()) -> Configuration:
    """Resolve a document; with `only`, just the pipes of these names and the sections that they use."""
    problems = Problems()
    configuration = resolve_valid(document, only, problems)
    problems.raise_any(document.file)
    return configuration


def resolve_valid(document: Document, only: Sequence[str], problems: Problems) -> Configuration:
    """Resolve the parts of a document that are valid, and collect the errors of the others."""
    if not has_pipes(document):
        problems.add("the file has no pipes", document.file, "write [pipes.NAME] with source and sink")
    document = correct_sections(document, problems)
    process = ProcessSettings()
    with problems.collect():
        process = read_process(document, problems)
    raw_pipes = _select_pipes(document, named_sections(document, PIPES, problems), only, problems)
    pipes = _check_each(PIPES, raw_pipes, lambda name, raw: read_pipe(document, name, raw, problems), problems)
    used = {SOURCES: {name for pipe in pipes.values() for name in pipe.sources}, SINKS: {pipe.values["sink"] for pipe in pipes.values()}}
    raw_sources, raw_sinks = (
        {name: raw for name, raw in named_sections(document, kind, problems).items() if name in used[kind] or not only} for kind in used
    )
    resolved = _PipeResolver(
        document,
        process,
        problems,
        _check_each(SOURCES, raw_sources, lambda name, raw: read_source(document, name, raw, problems), problems),
        _check_each(SINKS, raw_sinks, lambda name, raw: read_sink(document, name, raw, problems), problems),
    )
    found = _check_each(PIPES, pipes, lambda _, pipe: resolved.pipe(pipe), problems)
    check_target_overlaps(document, found.values(), problems)
    alerts = read_alerts(document, problems)
    if not problems.errors:
        for path in [(kind, name) for kind, raw in ((SOURCES, raw_sources), (SINKS, raw_sinks)) for name in raw if name not in used[kind]]:
            log.warning("%s: no pipe uses it", document.place(path))
    return Configuration(document.file, process, tuple(found.values()), alerts)


class _PipeResolver:
    def __init__(
        self,
        document: Document,
        process: ProcessSettings,
        problems: Problems,
        sources: Mapping[str, SourceSection],
        sinks: Mapping[str, SinkSection],
    ) -> None:
        self._document, self._process, self._problems = document, process, problems
        self._sources, self._sinks = sources, sinks

    def pipe(self, pipe: PipeSection) -> ConfiguredPipe:
        """Resolve a pipe into one spec per source; into none if its sections have errors, which are collected."""
        several = bool(pipe.values["sources"])
        sink: SinkSection | None = None
        sources: list[SourceSection] = []
        tables: PlainSettings = {}
        with self._problems.collect((PIPES, pipe.name)):
            if several and pipe.values["source"]:
                self._problems.errors.append(self._error_at(pipe, "sources", "source and sources are both given", "give one of the two"))
            for name in dict.fromkeys((*pipe.sources, *pipe.values["sources"])):
                if pipe.values["sources"].count(name) > 1:
                    self._problems.errors.append(self._error_at(pipe, "sources", f"the source {name} is named twice", "name it once"))
                with self._problems.collect():
                    key = "sources" if name in pipe.values["sources"] else "source"
                    source = self._find_section(pipe, key, name, SOURCES, self._sources)
                    sources += [source] if source is not None else []
            with self._problems.collect():
                sink = self._find_section(pipe, "sink", pipe.values["sink"], SINKS, self._sinks) if pipe.values["sink"] else None
            tables = read_table_settings(self._document, pipe, sink, self._problems)
        sections = {(PIPES, pipe.name), (SINKS, pipe.values["sink"]), *((SOURCES, name) for name in pipe.sources)}
        if sink is None or not sources or sections & self._problems.incomplete:
            return ConfiguredPipe(pipe.name, ())
        prefix, parts = self._prefix(pipe, sink), []
        for source in sources:
            with self._problems.collect((PIPES, pipe.name)):
                parts.append(self._resolve_source(pipe, source, sink, tables, several))
        return ConfiguredPipe(pipe.name, tuple(parts), pipe.values["enabled"], pipe.values["merge"], prefix)

    def _resolve_source(
        self, pipe: PipeSection, source: SourceSection, sink: SinkSection, tables: PlainSettings, several: bool
    ) -> PipeSpec:
        path = (PIPES, pipe.name)
        name = f"{pipe.name}/{source.name}" if several else pipe.name
        values = source.values
        chosen = (
            UserSettings(pipe.schema_changes).over(UserSettings(tables)).over(UserSettings(source.chosen)).over(UserSettings(sink.chosen))
        )
        include, exclude = pipe.values["include"] or values["tables"], (*values["exclude"], *pipe.values["exclude"])
        try:
            state = self._state_directory(pipe, source, several)
            chosen = apply_prefix(self._without_new_keys(chosen, sink, state), self._prefix(pipe, sink), source.name, sink.url)
            settings = replace(
                PipeSettings.from_values({**values, **pipe.values}, chosen, selection=selected(source.url, include, exclude), state=state),
                name=name,
                master=self._process.master,
                spark=self._process.spark,
                spark_log=self._process.spark_log,
                # Merged sources write to the same topics on purpose.
                shared_target=pipe.values["shared_target"] or (pipe.values["merge"] and sink.section == KAFKA),
            )
            spec = PipeSpec(source.url, sink.url, settings, chosen, TopicKeys(**select_values(source.values, TopicKeys)))
            _check_spec(spec)
        except DefiniteError as error:
            where = f"{self._document.place(path)}, from [sources.{source.name}] to [sinks.{sink.name}]"
            raise DefiniteError(
                error.message, place=f"{where}: {error.place}" if error.place else where, hint=rephrase_for_file(error.hint)
            ) from error
        return spec

    def _without_new_keys(self, chosen: UserSettings, sink: SinkSection, state: Path) -> UserSettings:
        """Leave out keys of a translated file with which the state did not begin: its tables exist without them."""
        new = {path[-1] for path in self._document.new_pipes_only if path[:-1] == (SINKS, sink.name)}
        if not new or not (state / "pipe.json").exists():
            return chosen
        left_out = new - stored_settings(state).plain.get(sink.section, {}).keys()
        kept = {key: value for key, value in chosen.plain.get(sink.section, {}).items() if key not in left_out}
        return UserSettings({**chosen.plain, sink.section: kept})

    def _prefix(self, pipe: PipeSection, sink: SinkSection) -> str:
        """Return the prefix of target names, with `{source}` not yet replaced."""
        prefix: str = pipe.values["prefix"]
        if not pipe.values["merge"]:
            return prefix
        if len(pipe.sources) < 2:
            raise self._error_at(pipe, "merge", "there is nothing to merge with one source", "leave merge out, or name several sources")
        if sink.section == KAFKA:
            if "{source}" in prefix:
                raise self._error_at(pipe, "prefix", "merged sources write to the same topics", "leave {source} out of the prefix")
            return prefix
        if sink.section != SINK:
            raise self._error_at(pipe, "merge", "this sink cannot merge sources", "leave merge out")
        if prefix and "{source}" not in prefix:
            raise self._error_at(
                pipe, "prefix", "each source needs tables of its own under the merged ones", 'put {source} into it: prefix = "{source}_"'
            )
        return prefix or "{source}_"

    def _state_directory(self, pipe: PipeSection, source: SourceSection, several: bool) -> Path:
        """Return the state directory of one source; an error if the pipe was started with another one, whose progress would be lost."""
        alone, apart = self._process.state / pipe.name, self._process.state / pipe.name / source.name
        wanted, other = (apart, alone) if several else (alone, apart)
        if (other / "pipe.json").exists() and not (wanted / "pipe.json").exists():
            key, before = ("sources", "source") if several else ("source", "sources")
            raise self._error_at(
                pipe,
                key,
                f"the pipe was begun with {before} = …, and its progress is in {other}",
                f"write {before} as it was, or move that directory to {wanted} while nothing runs",
            )
        return wanted

    def _find_section(self, pipe: PipeSection, key: str, name: str, kind: str, known: Mapping[str, T]) -> T | None:
        """Return a section by its name; None if it, or the section of all, has errors."""
        if name in known:
            return known[name]
        there = self._document.content.get(kind, {})
        if not isinstance(there, dict) or name in there:
            return None
        near = closest_match(name, there)
        hint = f"did you mean {near}?" if near else f"write [{kind}.{name}]" + (f"; there are {', '.join(sorted(there))}" if there else "")
        raise self._error_at(pipe, key, f"there is no section [{kind}.{name}]", hint)

    def _error_at(self, pipe: PipeSection, key: str, message: str, hint: str) -> DefiniteError:
        return DefiniteError(message, place=self._document.place((PIPES, pipe.name, key)), hint=hint)


def _select_pipes(
    document: Document, pipes: dict[str, dict[str, Any]], only: Sequence[str], problems: Problems
) -> dict[str, dict[str, Any]]:
    for name in only:
        if name not in pipes:
            near = closest_match(name, pipes)
            hint = f"did you mean {near}?" if near else f"pipes of this file: {', '.join(sorted(pipes)) or 'none'}"
            problems.add(f"there is no pipe {name!r}", document.file, hint)
    return {name: raw for name, raw in pipes.items() if not only or name in only}


def _check_each(kind: str, sections: Mapping[str, T], check: Callable[[str, T], R], problems: Problems) -> dict[str, R]:
    """Return the result for each valid section; collect the errors of the others."""
    found = {}
    for name, raw in sections.items():
        with problems.collect((kind, name)):
            found[name] = check(name, raw)
    return found


def _check_spec(spec: PipeSpec) -> None:
    """Raise `DefiniteError` for settings that would make the pipe fail at its start."""
    check_sections(spec)
    chosen = spec.chosen
    # Building the options validates their combination.
    connector, source = sink_connector(spec.sink), source_connector(spec.source)
    chosen.section_options(connector.section)
    if connector.open is None and not source.is_cdc_log:
        raise DefiniteError(f"{connector.label} takes ScyllaDB's log only", hint="choose ClickHouse or Kafka for other sources")
    source.check(spec)
