"""Where a key that stands in the wrong place belongs, and what to write for keys that users of other tools know. Only for messages."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.config.resolved import ProcessSettings
from headrace.config.words import CHOICES_OF_SOURCES, OWN_OF_SOURCES, PipeWords, SinkWords, SourceKind, own_fields
from headrace.pipes.fields import fields_of
from headrace.pipes.policy import ChangeKind
from headrace.pipes.settings_file import KAFKA, REPLAY
from headrace.pipes.settings_names import ELSEWHERE
from headrace.sinks.clickhouse.choices import SinkChoices, TableChoices
from headrace.sinks.cql.choices import ReplayChoices
from headrace.sinks.kafka.choices import KafkaChoices

_KINDS: Final = {
    SourceKind.MYSQL: "a MySQL server",
    SourceKind.FILES: "log files",
    SourceKind.TOPICS: "Debezium's topics",
    SourceKind.SCYLLA: "ScyllaDB",
}
_SINKS: Final = {"sink": "ClickHouse", KAFKA: "Kafka", REPLAY: "a CQL cluster"}
_WORDS: Final = (
    (re.compile(r"use --([a-z-]+)( '[^']*')?( or --([a-z-]+))?"), lambda found: f"write {found[1].replace('-', '_')} of the source"),
    (re.compile(r"under \[(sink|kafka|debezium)\]"), lambda found: f"under [{'sources' if found[1] == 'debezium' else 'sinks'}.NAME]"),
    (re.compile(r" under \[kafka\] or \[debezium\]"), lambda _: " under [sinks.NAME], or [sources.NAME] of topics"),
    (re.compile(r"\[sink\.tables\."), lambda _: "[pipes.NAME.tables."),
    (re.compile(r"under \[schema_changes\]"), lambda _: "under [pipes.NAME.schema_changes]"),
    (re.compile(r"write master of the source"), lambda _: "write master = 'local[N]' under [headrace]"),
)
"""From the words of a settings file and of flags to those of a file of pipes."""


def hint_for(name: str, raw: Any, here: str) -> str:
    """Where the key belongs, or what to write instead; empty if nobody knows. `here` is the kind of section that it stands in."""
    places = [place for place, names in _places().items() if name in names and place != here]
    if places:
        return f"it is a setting of {' and of '.join(places)}"
    for known in _dotted(name, raw):
        if known in ELSEWHERE:
            return in_words_of_the_file(ELSEWHERE[known])
    return ""


def in_words_of_the_file(hint: str) -> str:
    """A hint about flags and settings files, said of a file of pipes."""
    for pattern, words in _WORDS[2:3] + _WORDS[:2] + _WORDS[3:]:
        hint = pattern.sub(words, hint)
    return hint


def source_section(kind: SourceKind) -> str:
    """How messages call the section of such a source."""
    return f"[sources.NAME] of {_KINDS[kind]}"


def sink_section(section: str) -> str:
    """How messages call the section of a sink, by where its choices are kept."""
    return f"[sinks.NAME] of {_SINKS[section]}" if section in _SINKS else "[sinks.NAME]"


@functools.cache
def _places() -> Mapping[str, frozenset[str]]:
    found = {"[pipes.NAME]": frozenset({*fields_of(PipeWords), "tables", "schema_changes"})}
    for kind, own in OWN_OF_SOURCES.items():
        choices = CHOICES_OF_SOURCES.get(kind, ("", {}))[1]
        found[source_section(kind)] = frozenset({*own_fields(*own), *choices})
    of_tables = frozenset(fields_of(TableChoices))
    found[sink_section("sink")] = of_tables | (frozenset(fields_of(SinkChoices)) - {"all_tables"}) | frozenset(fields_of(SinkWords))
    found[sink_section(KAFKA)] = frozenset(fields_of(KafkaChoices))
    found[sink_section(REPLAY)] = frozenset(fields_of(ReplayChoices))
    found["[headrace]"] = frozenset(fields_of(ProcessSettings))
    found["[pipes.NAME.schema_changes]"] = frozenset(ChangeKind)
    return found


def _dotted(name: str, raw: Any) -> list[str]:
    """The name, and the longer ones that a dotted key of another tool is read as."""
    if not isinstance(raw, dict):
        return [name]
    return [f"{name}.{rest}" for inner, value in raw.items() for rest in _dotted(inner, value)] + [name]
