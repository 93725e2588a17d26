"""The keys of `headrace.toml` that belong to the file itself. The options of a source or sink (`[sink]`, `[kafka]`, `[debezium]`,
`[scylla]`, `[replay]` of a settings file) come from the classes that use them.

Invariant: every key is a field of a class, and the string below the field is its documentation. A kind of source or sink only has the keys
that it uses; any other key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.model.schema import ZeroDates
from headrace.settings.dataclass_fields import Field, Size, setting_fields
from headrace.settings.pipe_settings import SnapshotMode
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.mysql.limits import CHUNK_ROWS, BatchLimits
from headrace.sources.scylla.snapshot.options import ScyllaOptions

_FLUSH_BYTES: Final = Size(BatchLimits().flush_bytes)
_FLUSH_S: Final = BatchLimits().flush_seconds
_RELAY_BYTES: Final = Size(1 << 30)


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
class ColumnKeys:
    """Keys of sources with column selection."""

    columns: tuple[str, ...] = ()
    """Globs over `database.table.column`: from the tables that a glob names, only these columns and the key are taken."""
    exclude_columns: tuple[str, ...] = ()
    """Globs of columns to exclude."""


@dataclass(frozen=True, slots=True)
class StartKeys:
    """Keys of sources with a log."""

    start_at: str = ""
    """Start at this position of the log, without a snapshot: `now`, `oldest`, `FILE:OFFSET` or a GTID set; for ScyllaDB `now`, `oldest`
    or a timestamp."""


@dataclass(frozen=True, slots=True)
class SnapshotKeys:
    """Keys of sources that support snapshots."""

    snapshot: SnapshotMode = SnapshotMode.LOCK_FREE
    """How the existing rows are copied at the start; `none`: not at all."""
    chunk_rows: int = CHUNK_ROWS
    """Rows per chunk of a snapshot."""


@dataclass(frozen=True, slots=True)
class BinlogKeys:
    """Keys of sources with a binary log."""

    zero_dates: ZeroDates = ZeroDates.HALT
    flush_bytes: Size = _FLUSH_BYTES
    """A batch ends after this much log."""
    flush_rows: int = 0
    """A batch ends after this many changes; 0: no limit."""
    flush_seconds: float = _FLUSH_S
    """The longest time to collect a batch."""


@dataclass(frozen=True, slots=True)
class RelayKeys:
    """Keys of sources with a relay log."""

    relay_bytes: Size = _RELAY_BYTES
    """The maximum size of the relay log on local disk."""
    relay: str = ""
    """The directory of the relay log, instead of the state directory. On a cluster, a shared one saves tasks from fetching the log."""


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """Keys of Debezium topics."""

    topics: tuple[str, ...] = ()
    """Globs of topics to read, such as `shop.inventory.*`."""
    topic_pattern: str = ""
    """Topics to read, by a regular expression over whole names."""
    start: str = "earliest"
    """Where a new pipe starts: `earliest`, `latest`, a timestamp (`2024-05-01T12:00:00Z`), or offsets as JSON."""
    max_offsets: int = 500_000
    """The maximum number of records in a batch; 0: no limit."""
    min_partitions: int = 0
    """The minimum number of tasks per batch; 0: one per partition."""
    kafka_jars: str = ""
    """A folder with Spark's Kafka connector, or its Maven coordinates, if it is not in the default place."""


@dataclass(frozen=True, slots=True)
class SinkKeys:
    """Keys of every sink."""

    url: str = ""
    """Where it is: `clickhouse://user@host:port/database`, `clickhouses://…` for TLS, `chdb:PATH` for an embedded one,
    `kafka://host:port,host:port`, `stdout:`, or (from ScyllaDB) `cql://user@host,host:port/keyspace`."""
    password: str = ""
    """The account's password: `"${NAME}"` from the environment, `"${file:PATH}"` from a file."""
    password_file: str = ""
    """A file with the password, which may end with a newline."""


class LineFormat(StrEnum):
    """The format of a line: a `json` object, or `text` for people; `auto`: `text` on a terminal."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


class Colour(StrEnum):
    """Whether text lines have colours; `auto`: on a terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class BigNumbers(StrEnum):
    """How numbers that not every reader of JSON keeps exactly are written."""

    NUMBER = "number"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class StdoutKeys:
    """Of the standard output."""

    format: LineFormat = LineFormat.AUTO
    colour: Colour = Colour.AUTO
    big: BigNumbers = BigNumbers.NUMBER


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
    shared_target: bool = False
    """Whether the pipe may write to tables or topics of another pipe; otherwise that is an error."""
    patience: float = 600.0
    """How many seconds a task waits for a sink that is away or busy (at most 15, because pipes share task slots). After that the pipe
    restarts, as often as necessary (`retry_seconds`)."""


TOPIC_TABLES: Final = {"topic_tables": "topics", "topic_table_patterns": "topic_patterns"}
"""Keys of topic sources, with their names under `[debezium]`; those names have another meaning here."""
_DEBEZIUM_FIELDS: Final[dict[str, Field]] = {
    **{name: one for name, one in setting_fields(DebeziumOptions).items() if name not in TOPIC_TABLES.values()},
    **{ours: setting_fields(DebeziumOptions)[theirs] for ours, theirs in TOPIC_TABLES.items()},
}
SOURCE_KEYS: Final[Mapping[SourceKind, tuple[type, ...]]] = {
    SourceKind.MYSQL: (SourceKeys, ColumnKeys, StartKeys, SnapshotKeys, BinlogKeys, RelayKeys),
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


def merge_fields(*classes: type) -> dict[str, Field]:
    """Return the fields of all classes."""
    return {name: one for each in classes for name, one in setting_fields(each).items()}
