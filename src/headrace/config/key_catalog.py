"""All sections of `headrace.toml` with their keys: one list for validation, messages, the JSON schema and the reference page.

The classes below define the keys that belong to the file itself. Keys that are also flags are in `settings.pipe_keys`; the options of a
source or sink (`[sink]`, `[kafka]`, `[debezium]`, `[scylla]`, `[replay]` of a settings file) come from the classes that use them.

Invariant: every key is a field of a class, and the string below the field is its documentation. A kind of source or sink only has the keys
that it uses; any other key is an error.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from headrace.alerts.rules import MailKeys, RuleKeys, WebhookKeys
from headrace.config.configuration import ProcessSettings
from headrace.settings.dataclass_fields import Field, merge_fields, setting_fields
from headrace.settings.foreign_names import REPLACEMENTS
from headrace.settings.pipe_keys import (
    FIXED,
    BinlogKeys,
    CascadeKeys,
    ColumnKeys,
    LatencyKeys,
    RelayKeys,
    SnapshotKeys,
    StartKeys,
    TargetKeys,
    TopicKeys,
)
from headrace.settings.schema_policy import ChangeKind
from headrace.settings.settings_file import PRODUCER, SINK
from headrace.sinks.clickhouse.server.options import CHANGEABLE, ClickHouseOptions, TableOptions
from headrace.sinks.connector import SinkConnector
from headrace.sinks.registry import SINK_CONNECTORS
from headrace.sources.debezium.events.options import FIXED as DEBEZIUM_FIXED
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.scylla.snapshot.options import FIXED as SCYLLA_FIXED
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.transforms.options import TransformOptions


class SourceKind(StrEnum):
    """The kind of a source, from its address."""

    MYSQL = "mysql"
    FILES = "binlog"
    TOPICS = "kafka"
    SCYLLA = "scylla"


@dataclass(frozen=True, slots=True)
class SourceKeys:
    url: str = ""
    """Where it is: `mysql://user@host:port/database?SETTING=VALUE`, `binlog:DIR`, `kafka://host:port,host:port`, or
    `scylla://user@host,host:port/keyspace`."""
    password: str = ""
    """The account's password: `"${NAME}"` from the environment, `"${file:PATH}"` from a file."""
    password_file: str = ""
    """A file with the password, which may end with a newline."""
    tables: tuple[str, ...] = ()
    """Globs over `database.table` (over `table` where the address names the database); if none are given, all tables of that database."""
    exclude: tuple[str, ...] = ()
    """Globs of tables to exclude."""


@dataclass(frozen=True, slots=True)
class SinkKeys:
    url: str = ""
    """The sink's address, such as `clickhouse://user@host:port/database`, `clickhouses://…` for TLS, `chdb:PATH` for an embedded one,
    `kafka://host:port,host:port`, `stdout:`, or (from ScyllaDB) `cql://user@host,host:port/keyspace`."""
    password: str = ""
    """The account's password: `"${NAME}"` from the environment, `"${file:PATH}"` from a file."""
    password_file: str = ""
    """A file with the password, which may end with a newline."""


@dataclass(frozen=True, slots=True)
class ProducerKeys:
    """Keys of a custom producer; any other key is a setting of its class."""

    producer: str = ""
    """The class, as `module:Class` (see producers.md)."""


@dataclass(frozen=True, slots=True)
class PipeKeys:
    source: str = ""
    """The source, by its name in `[sources.NAME]`."""
    sources: tuple[str, ...] = ()
    """Instead of `source`: several sources, each read independently (fan-in)."""
    sink: str = ""
    """The sink, by its name in `[sinks.NAME]`."""
    enabled: bool = True
    """Whether the pipe runs."""
    include: tuple[str, ...] = ()
    """Globs of tables, instead of the source's `tables`."""
    exclude: tuple[str, ...] = ()
    """Globs of tables to exclude, in addition to the source's `exclude`."""
    prefix: str = ""
    """A prefix for the names of target tables or topics; `{source}` stands for the source's name."""
    merge: bool = False
    """With several sources: whether their rows are shown together. In ClickHouse each source has its own tables (`prefix`, by default
    `{source}_`), and a table without the prefix shows all rows; in Kafka all sources write to the same topics."""


TOPIC_TABLES: Final = {"topic_tables": "topics", "topic_table_patterns": "topic_patterns"}
"""Keys of topic sources, with their names under `[debezium]`; those names have another meaning here."""
_DEBEZIUM_FIELDS: Final[dict[str, Field]] = {
    **{name: one for name, one in setting_fields(DebeziumOptions).items() if name not in TOPIC_TABLES.values()},
    **{ours: setting_fields(DebeziumOptions)[theirs] for ours, theirs in TOPIC_TABLES.items()},
}
SOURCE_KEYS: Final[Mapping[SourceKind, tuple[type, ...]]] = {
    SourceKind.MYSQL: (SourceKeys, ColumnKeys, StartKeys, SnapshotKeys, BinlogKeys, LatencyKeys, CascadeKeys, RelayKeys),
    SourceKind.FILES: (SourceKeys, ColumnKeys, StartKeys, BinlogKeys, LatencyKeys),
    SourceKind.TOPICS: (SourceKeys, ColumnKeys, TopicKeys, LatencyKeys),
    SourceKind.SCYLLA: (SourceKeys, StartKeys, SnapshotKeys),
}
SOURCE_OPTIONS: Final[Mapping[SourceKind, tuple[str, Mapping[str, Field]]]] = {
    SourceKind.TOPICS: ("debezium", _DEBEZIUM_FIELDS),
    SourceKind.SCYLLA: ("scylla", setting_fields(ScyllaOptions)),
}
"""For kinds of sources with options: the section that stores them, and their keys in this file."""


CLASS: Final = "class"
PRODUCER_FIELDS: Final[dict[str, Field]] = {CLASS: setting_fields(ProducerKeys)["producer"]}
"""`class` cannot be a field name in Python."""
PIPE_FIELDS: Final[dict[str, Field]] = merge_fields(PipeKeys, TargetKeys)


_KINDS: Final = {
    SourceKind.MYSQL: ("a MySQL or MariaDB server", "^(mysql|mariadb)://"),
    SourceKind.FILES: ("binary log files", "^binlog:"),
    SourceKind.TOPICS: ("Debezium's topics", "^kafka://"),
    SourceKind.SCYLLA: ("ScyllaDB", "^scylla://"),
}


class ReceiverKind(StrEnum):
    """The kind of a receiver of alerts, from its address."""

    WEBHOOK = "a webhook"
    MAIL = "e-mail"


ALERT_FIELDS: Final[Mapping[ReceiverKind, Mapping[str, Field]]] = {
    ReceiverKind.WEBHOOK: merge_fields(RuleKeys, WebhookKeys),
    ReceiverKind.MAIL: merge_fields(RuleKeys, MailKeys),
}
_RECEIVER_URLS: Final = {ReceiverKind.WEBHOOK: "^https?://", ReceiverKind.MAIL: "^smtps?://"}
_FILE_SINKS: Final = [one for one in SINK_CONNECTORS if one.section != PRODUCER]
"""A custom producer has keys that only its class knows."""
_ADDRESS_KEYS: Final = frozenset({"url", "password", "password_file"})


@dataclass(frozen=True, slots=True)
class Section:
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
    return f"[sources.NAME] of {_KINDS[kind][0]}"


def sink_title(connector: SinkConnector | None) -> str:
    return f"[sinks.NAME] of {connector.label}" if connector is not None else "[sinks.NAME]"


def alert_title(kind: ReceiverKind) -> str:
    return f"[alerts.NAME] of {kind}"


@functools.cache
def list_sections() -> tuple[Section, ...]:
    """Return all sections, in the order of a file."""
    process = setting_fields(ProcessSettings)
    return (
        Section("headrace", "", process, frozenset(process) - {"state"}),
        *(_source(kind) for kind in SOURCE_KEYS),
        *(_sink([*same]) for _, same in itertools.groupby(_FILE_SINKS, lambda one: one.label)),
        Section("sinks.NAME", "a class of your own", PRODUCER_FIELDS, frozenset()),
        Section("pipes.NAME", "", PIPE_FIELDS, frozenset({"enabled", "include", "exclude", "shared_target", "patience"})),
        Section('pipes.NAME.tables."GLOB"', "ClickHouse", setting_fields(TableOptions), CHANGEABLE),
        Section('pipes.NAME.tables."GLOB"', "every sink", setting_fields(TransformOptions), frozenset()),
        *(Section("alerts.NAME", kind, fields, frozenset(fields), _RECEIVER_URLS[kind]) for kind, fields in ALERT_FIELDS.items()),
    )


def _source(kind: SourceKind) -> Section:
    own, choices = merge_fields(*SOURCE_KEYS[kind]), SOURCE_OPTIONS.get(kind, ("", {}))[1]
    fixed = FIXED | DEBEZIUM_FIXED | SCYLLA_FIXED
    return Section("sources.NAME", _KINDS[kind][0], {**own, **choices}, frozenset({**own, **choices}) - fixed, _KINDS[kind][1])


def _sink(connectors: Sequence[SinkConnector]) -> Section:
    """Return the section of sinks that differ by their addresses only."""
    first = connectors[0]
    fields = {**setting_fields(SinkKeys), **sink_address_fields(first), **sink_option_fields(first)}
    schemes = "|".join(scheme for one in connectors for scheme in one.schemes)
    changeable = _ADDRESS_KEYS | frozenset(sink_address_fields(first))
    changeable |= frozenset(sink_option_fields(first)) if first.changeable is None else first.changeable
    return Section("sinks.NAME", first.label, fields, changeable, f"^({schemes})")


def sink_address_fields(connector: SinkConnector | None) -> dict[str, Field]:
    """Return the keys that become part of a sink's address."""
    return {} if connector is None or connector.address_options is None else dict(setting_fields(connector.address_options))


def sink_option_fields(connector: SinkConnector | None) -> dict[str, Field]:
    """Return the option keys of a sink, without those of single tables."""
    if connector is None:
        return {}
    if connector.section == SINK:
        of_sink = {name: one for name, one in setting_fields(ClickHouseOptions).items() if name not in ("all_tables", "tables")}
        return {**of_sink, **setting_fields(TableOptions)}
    return {} if connector.options is None else dict(setting_fields(connector.options))


_REPHRASINGS: Final[tuple[tuple[str, Callable[[re.Match[str]], str]], ...]] = (
    (r" under \[kafka\] or \[debezium\]", lambda _: " under [sinks.NAME], or [sources.NAME] of topics"),
    (r"use --([a-z-]+)( '[^']*')?( or --[a-z-]+)?", lambda found: f"write {found[1].replace('-', '_')} of the source"),
    (r"under \[(sink|kafka|debezium)\]", lambda found: f"under [{'sources' if found[1] == 'debezium' else 'sinks'}.NAME]"),
    (r"\[sink\.tables\.", lambda _: "[pipes.NAME.tables."),
    (r"under \[schema_changes\]", lambda _: "under [pipes.NAME.schema_changes]"),
    (r"write master of the source", lambda _: 'write master = "local[N]" under [headrace]'),
    (r"--([a-z]+(?:-[a-z]+)*)", lambda found: found[1].replace("-", "_")),
)
"""Replacements from terms of settings files and flags to terms of a pipe file."""
_FLAG: Final = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])")
_SETTING: Final = re.compile(r"--set [a-z]+\.([a-z_]+)")
_SCHEMA_CHANGES: Final = "schema_changes"
_AMBIGUOUS_KEYS: Final = frozenset({"set", "state"})
"""Keys with the name of a flag and another meaning."""


def hint_for(name: str, raw: Any, here: str) -> str:
    """Return where the key belongs or what to write instead; empty if unknown. `here` is the title of the section with the key."""
    places = [section.title for section in list_sections() if name in section.fields and section.title != here]
    if name in set(ChangeKind):
        places = ["[pipes.NAME.schema_changes]"]
    if places:
        return f"it is a setting of {' and of '.join(places)}"
    for known in _dotted(name, raw):
        if known in REPLACEMENTS:
            return rephrase_for_file(REPLACEMENTS[known])
    return ""


def rephrase_for_file(hint: str) -> str:
    """Rephrase a hint about flags and settings files for a pipe file."""
    for pattern, words in _REPHRASINGS:
        hint = re.sub(pattern, words, hint)
    return hint


def _dotted(name: str, raw: Any) -> list[str]:
    """Return the name, and the longer names that a dotted key of another tool stands for."""
    if not isinstance(raw, dict):
        return [name]
    return [f"{name}.{rest}" for inner, value in raw.items() for rest in _dotted(inner, value)] + [name]


def add_file_keys(hint: str) -> str:
    """Add to a hint about flags the corresponding keys and sections of a pipe file."""
    flags = (*_FLAG.findall(hint), *_SETTING.findall(hint))
    keys = dict.fromkeys(flag.replace("-", "_") for flag in flags)
    headers = {key: section.header for section in reversed(list_sections()) for key in section.fields.keys() - _AMBIGUOUS_KEYS}
    places = [f"{key} in [{headers[key]}]" for key in keys if key in headers]
    if _SCHEMA_CHANGES in keys:
        places.append(f"[pipes.NAME.{_SCHEMA_CHANGES}]")
    return f"{hint} (in the file: {', '.join(places)})" if places else hint
