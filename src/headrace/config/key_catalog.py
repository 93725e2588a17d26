"""All sections of `headrace.toml` with their keys: one list for messages, the JSON schema and the reference page."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.config.configuration import ProcessSettings
from headrace.config.file_keys import (
    PIPE_FIELDS,
    PRODUCER_FIELDS,
    SOURCE_KEYS,
    SOURCE_OPTIONS,
    SinkKeys,
    SourceKind,
    StdoutKeys,
)
from headrace.settings.dataclass_fields import Field, merge_fields, setting_fields
from headrace.settings.pipe_keys import FIXED
from headrace.settings.settings_file import KAFKA, PLAIN_SECTIONS, REPLAY, SINK
from headrace.sinks.clickhouse.server.options import CHANGEABLE, ClickHouseOptions, TableOptions
from headrace.sinks.kafka.messages.options import CHANGEABLE as KAFKA_CHANGEABLE
from headrace.sinks.stdout.connector import STDOUT_ADDRESS
from headrace.sources.debezium.events.options import FIXED as DEBEZIUM_FIXED
from headrace.sources.scylla.snapshot.options import FIXED as SCYLLA_FIXED
from headrace.transforms.options import TransformOptions

_KINDS: Final = {
    SourceKind.MYSQL: ("a MySQL or MariaDB server", "^(mysql|mariadb)://"),
    SourceKind.FILES: ("binary log files", "^binlog:"),
    SourceKind.TOPICS: ("Debezium's topics", "^kafka://"),
    SourceKind.SCYLLA: ("ScyllaDB", "^scylla://"),
}
_SINKS: Final = {
    SINK: ("ClickHouse", "^(clickhouses?://|chdb:)"),
    KAFKA: ("Kafka", "^kafka://"),
    REPLAY: ("a CQL cluster", "^cql://"),
    STDOUT_ADDRESS: ("the standard output", "^stdout:"),
}
_ADDRESS_KEYS: Final = frozenset({"url", "password", "password_file"})


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of section."""

    header: str
    """The text between the brackets."""
    subject: str
    """The kind of source or sink, if the header does not determine it."""
    fields: Mapping[str, Field]
    changeable: frozenset[str]
    """The keys that may change when a pipe restarts."""
    url: str = ""
    """A regular expression that addresses of this kind match."""

    @property
    def title(self) -> str:
        return f"[{self.header}] of {self.subject}" if self.subject else f"[{self.header}]"


def source_title(kind: SourceKind) -> str:
    """Return the name of a source's section in messages."""
    return f"[sources.NAME] of {_KINDS[kind][0]}"


def sink_title(section: str) -> str:
    """Return the name of a sink's section in messages, by the section that stores its options."""
    return f"[sinks.NAME] of {_SINKS[section][0]}" if section in _SINKS else "[sinks.NAME]"


@functools.cache
def list_sections() -> tuple[Section, ...]:
    """Return all sections, in the order of a file."""
    process = setting_fields(ProcessSettings)
    return (
        Section("headrace", "", process, frozenset(process) - {"state"}),
        *(_source(kind) for kind in SOURCE_KEYS),
        *(_sink(section) for section in _SINKS),
        Section("sinks.NAME", "a class of your own", PRODUCER_FIELDS, frozenset()),
        Section("pipes.NAME", "", PIPE_FIELDS, frozenset({"enabled", "include", "exclude", "shared_target", "patience"})),
        Section('pipes.NAME.tables."GLOB"', "ClickHouse", setting_fields(TableOptions), CHANGEABLE),
        Section('pipes.NAME.tables."GLOB"', "every sink", setting_fields(TransformOptions), frozenset()),
    )


def _source(kind: SourceKind) -> Section:
    own, choices = merge_fields(*SOURCE_KEYS[kind]), SOURCE_OPTIONS.get(kind, ("", {}))[1]
    fixed = FIXED | DEBEZIUM_FIXED | SCYLLA_FIXED
    return Section("sources.NAME", _KINDS[kind][0], {**own, **choices}, frozenset({**own, **choices}) - fixed, _KINDS[kind][1])


def _sink(section: str) -> Section:
    subject, url = _SINKS[section]
    fields = {**setting_fields(SinkKeys), **sink_option_fields(section)}
    return Section("sinks.NAME", subject, fields, _changeable_keys(section), url)


def sink_option_fields(section: str) -> dict[str, Field]:
    """Return the option keys of a sink, without those of single tables."""
    if section == SINK:
        of_sink = {name: one for name, one in setting_fields(ClickHouseOptions).items() if name not in ("all_tables", "tables")}
        return {**of_sink, **setting_fields(TableOptions)}
    if section == STDOUT_ADDRESS:
        return setting_fields(StdoutKeys)
    return dict(setting_fields(PLAIN_SECTIONS[section])) if section in PLAIN_SECTIONS else {}


def _changeable_keys(section: str) -> frozenset[str]:
    kept = {SINK: CHANGEABLE, KAFKA: KAFKA_CHANGEABLE, REPLAY: frozenset(setting_fields(PLAIN_SECTIONS[REPLAY]))}
    return kept.get(section, frozenset(setting_fields(StdoutKeys))) | _ADDRESS_KEYS
