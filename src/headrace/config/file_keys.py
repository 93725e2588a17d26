"""The keys of `headrace.toml` that belong to the file itself. Keys that are also flags are in `settings.pipe_keys`. The options of a source
or sink (`[sink]`, `[kafka]`, `[debezium]`, `[scylla]`, `[replay]` of a settings file) come from the classes that use them.

Invariant: every key is a field of a class, and the string below the field is its documentation. A kind of source or sink only has the keys
that it uses; any other key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.settings.dataclass_fields import Field, merge_fields, setting_fields
from headrace.settings.pipe_keys import BinlogKeys, CascadeKeys, ColumnKeys, RelayKeys, SnapshotKeys, StartKeys, TargetKeys, TopicKeys
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.scylla.snapshot.options import ScyllaOptions


class SourceKind(StrEnum):
    """The kind of a source, from its address."""

    MYSQL = "mysql"
    FILES = "binlog"
    TOPICS = "kafka"
    SCYLLA = "scylla"


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """Keys of every source."""

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
    """Keys of every sink."""

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
    """Keys of a pipe."""

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
    SourceKind.MYSQL: (SourceKeys, ColumnKeys, StartKeys, SnapshotKeys, BinlogKeys, CascadeKeys, RelayKeys),
    SourceKind.FILES: (SourceKeys, ColumnKeys, StartKeys, BinlogKeys),
    SourceKind.TOPICS: (SourceKeys, ColumnKeys, TopicKeys),
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
