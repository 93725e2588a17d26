"""Target names: applies the prefix of each source, and checks that two pipes, or two sources of one pipe, do not share a target.

Rows of two sources in one table would replace each other (their versions are positions in different logs), and a DROP or TRUNCATE of one
source would remove the other's rows. Only globs are known here, so a *possible* overlap is rejected; the user can narrow the globs, set a
prefix, or merge on purpose.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

from headrace.config.configuration import ConfiguredPipe
from headrace.config.document import PIPES, Document, Problems
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.model.schema import TableName
from headrace.pipes.source_registry import DEBEZIUM, source_connector
from headrace.pipes.spec import PipeSpec
from headrace.settings.settings_file import KAFKA, SINK, TABLES, PlainSettings, UserSettings
from headrace.sinks.clickhouse.connector import CLICKHOUSE
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.tables.target_table import target_name
from headrace.sinks.kafka.options import TOPIC_FORMATS
from headrace.sinks.registry import find_sink_connector, has_table_store, is_topics
from headrace.sources.debezium.events.options import TableNaming

_SOURCE: Final = "{source}"
_NAME_KEYS: Final = ("database", "target")


def apply_prefix(chosen: UserSettings, prefix: str, source: str, sink: str) -> UserSettings:
    """Return the settings for one source of a pipe."""
    if is_topics(sink):
        return UserSettings({**chosen.plain, KAFKA: _topics(chosen, prefix.replace(_SOURCE, source), sink)}) if prefix else chosen
    if not has_table_store(sink):
        if prefix:
            raise DefiniteError("targets of this sink have no names to put a prefix to", place="prefix", hint="leave it out")
        return chosen
    tables = dict(chosen.plain.get(SINK, {}))
    if prefix and tables.get("target"):
        raise DefiniteError("prefix and target say both how tables are called", place="prefix", hint="put the prefix into target")
    if prefix:
        tables["target"] = f"{prefix}{{table}}"
    named = _substitute_source(tables, source)
    return UserSettings({**chosen.plain, SINK: named}) if named else chosen


def _topics(chosen: UserSettings, prefix: str, sink: str) -> PlainSettings:
    if parse_kafka_url(sink).topic:
        raise DefiniteError("the sink's address names the topic", place="prefix", hint="leave the topic out of the address, or the prefix")
    pattern = chosen.kafka.topic or TOPIC_FORMATS[chosen.kafka.format]
    return {**chosen.plain.get(KAFKA, {}), "topic": f"{prefix}{pattern}"}


def _substitute_source(choices: PlainSettings, source: str) -> PlainSettings:
    found: dict[str, Any] = {}
    for name, value in choices.items():
        if name in _NAME_KEYS:
            found[name] = value.replace(_SOURCE, source)
        elif name == TABLES:
            found[name] = {glob: _substitute_source(own, source) for glob, own in value.items()}
        else:
            found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class _Target:
    """A source glob and the target glob that its tables go to."""

    source: str
    """Over `database.table` of the source."""
    target: str
    renamed: bool = False

    def sources_of(self, target: str) -> str:
        """Return a glob of the source tables that may go to targets that match a glob."""
        return self.source if self.renamed else f"{self.source.partition('.')[0]}.{target.partition('.')[2]}"


def check_target_overlaps(document: Document, pipes: Iterable[ConfiguredPipe], problems: Problems) -> None:
    """Report pipes that may write to the same table or topic as an earlier source or pipe, each once."""
    reported: set[str] = set()
    parts = [(pipe, spec) for pipe in pipes if pipe.enabled for spec in (*pipe.specs, *_merge_specs(pipe))]
    for (one, first), (other, second) in combinations(parts, 2):
        # Within one pipe, merged topics are shared on purpose, and Merge tables are recognized by their engine.
        is_allowed = (one is other and one.merged) or first.settings.shared_target or second.settings.shared_target
        shared = "" if is_allowed else _shared_target(first, second)
        if not shared or other.name in reported:
            continue
        reported.add(other.name)
        what = "topic" if is_topics(first.sink) else "table"
        within = one is other
        problems.add(
            f"{first.name} and {second.name} may both write to the {what} {shared}",
            document.place((PIPES, other.name, "sources" if within else "sink")),
            'give a prefix, such as prefix = "{source}_" (and merge = true to see all sources\' rows in one)'
            if within
            else "leave those out of one (exclude), give one a prefix or another sink, make it one pipe whose sources are merged, or "
            "allow it: shared_target = true",
        )


def _merge_specs(pipe: ConfiguredPipe) -> Iterator[PipeSpec]:
    """Yield a spec that stands for the pipe's `Merge` tables, as if a source wrote them."""
    if pipe.merged and pipe.specs and not is_topics(pipe.specs[0].sink):
        part = pipe.specs[0]
        tables = {name: value for name, value in part.chosen.plain.get(SINK, {}).items() if name != "target"}
        settings = replace(part.settings, name=pipe.name)
        yield replace(part, settings=settings, chosen=UserSettings({**part.chosen.plain, SINK: tables}))


def _shared_target(first: PipeSpec, second: PipeSpec) -> str:
    """Return a glob of targets that both may write to; empty if there is none."""
    if not (_servers(first.sink) & _servers(second.sink)):
        return ""
    for one in _targets(first):
        for other in _targets(second):
            left_out = (
                _covered(one.sources_of(other.target), first.settings.selection.exclude)
                or _covered(other.sources_of(one.target), second.settings.selection.exclude)
                or not globs_overlap(one.target, other.target)
            )
            if not left_out:
                return one.target if "*" in other.target else other.target
    return ""


def _covered(glob: str, by: Iterable[str]) -> bool:
    # The text of a glob matches a wider glob: `shop.or*` matches `shop.*`.
    return any(fnmatch.fnmatchcase(glob, one) for one in by)


def _servers(sink: str) -> frozenset[object]:
    """Return identifiers of the sink's servers, to detect that two sinks are the same."""
    connector = find_sink_connector(sink)
    return connector.servers(sink) if connector is not None else frozenset()


def _targets(spec: PipeSpec) -> Iterator[_Target]:
    for glob in _source_globs(spec):
        database, _, table = glob.partition(".")
        name = TableName(database, table or "*")
        if is_topics(spec.sink):
            yield _Target(glob, _topic_glob(spec, name), renamed=True)
        elif has_table_store(spec.sink):
            yield from _table_targets(spec, glob, name)
        else:
            yield _Target(glob, glob)


def _source_globs(spec: PipeSpec) -> Iterable[str]:
    """Return globs of the source tables: the selection, or for topics with all tables, globs derived from the topic names."""
    include, choices = spec.settings.selection.include, spec.chosen.debezium
    if source_connector(spec.source) is not DEBEZIUM or include != ("*.*",):
        return include
    if spec.topics.topic_pattern or choices.topic_patterns or choices.naming is not TableNaming.TOPIC:
        return (f"{choices.database or '*'}.*",)
    named = [name for name in parse_kafka_url(spec.source).topic.split(",") if name]
    mapped = dict(choices.topics)
    parts = [glob.rsplit(".", 2) for glob in (*spec.topics.topics, *named) if glob not in mapped]
    return {
        *mapped.values(),
        *(f"{choices.database or part[1]}.{part[2]}" if len(part) == 3 else f"{choices.database or '*'}.*" for part in parts),
    }


def _table_targets(spec: PipeSpec, glob: str, name: TableName) -> Iterator[_Target]:
    choices = spec.chosen.sink
    target = parse_target(spec.sink) if CLICKHOUSE.is_address(spec.sink) else ClickHouseTarget("")
    own = [one for one, fields in choices.tables if {"database", "target"} & dict(fields).keys() and globs_overlap(one, glob)]
    if not _covered(glob, own):
        database, table = target_name(name, target, choices)
        yield _Target(glob, f"{database}.{table}", table != name.table)
    for one in own:
        database, _, table = one.partition(".")
        yield _Target(one, ".".join(target_name(TableName(database, table or "*"), target, choices)), renamed=True)


def _topic_glob(spec: PipeSpec, name: TableName) -> str:
    choices, named = spec.chosen.kafka, parse_kafka_url(spec.sink).topic
    choices = replace(choices, topic=named) if named else choices
    # A topic name may not contain a star, so it is inserted afterwards.
    topic = choices.topic_of(TableName(name.database.replace("*", "0STAR0"), name.table.replace("*", "0STAR0")))
    return topic.replace("0STAR0", "*")


def globs_overlap(one: str, other: str) -> bool:
    """Return whether a name may match both globs; a character set counts as any character."""
    first, second = _glob_characters(one), _glob_characters(other)
    reached = {(0, 0)}
    seen = set(reached)
    while reached:
        at, to = reached.pop()
        if at == len(first) and to == len(second):
            return True
        for step in _steps(first, second, at, to):
            if step not in seen:
                seen.add(step)
                reached.add(step)
    return False


def _steps(first: list[str], second: list[str], at: int, to: int) -> Iterator[tuple[int, int]]:
    here, there = (first[at] if at < len(first) else ""), (second[to] if to < len(second) else "")
    if here == "*":
        yield at + 1, to
        if there:
            yield at, to + 1
    if there == "*":
        yield at, to + 1
        if here:
            yield at + 1, to
    if here and there and (here == there or "?" in (here, there)) and "*" not in (here, there):
        yield at + 1, to + 1


def _glob_characters(glob: str) -> list[str]:
    found, at = [], 0
    while at < len(glob):
        end = glob.find("]", at + 2) if glob[at] == "[" else -1
        found.append("?" if end > 0 else glob[at])
        at = end + 1 if end > 0 else at + 1
    return found
