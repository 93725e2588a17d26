"""The keys of `headrace.toml` that are about the file itself: which sources, sinks and pipes there are. What a source's or sink's own
classes let a user choose (`[sink]`, `[kafka]`, `[debezium]`, `[scylla]`, `[replay]` of a settings file) is taken from those classes.

Invariant: every key is a field of one class here or there, and what stands under the field is its documentation. A kind of source or sink
knows just the keys that it heeds; any other is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.model.schema import ZeroDates
from headrace.settings.dataclass_fields import Field, Size, setting_fields
from headrace.settings.pipe_settings import SnapshotMode
from headrace.sources.debezium.events.options import DebeziumChoices
from headrace.sources.mysql.limits import CHUNK_ROWS, BatchLimits
from headrace.sources.scylla.snapshot.options import ScyllaChoices

_FLUSH_BYTES: Final = Size(BatchLimits().flush_bytes)
_FLUSH_S: Final = BatchLimits().flush_seconds
_RELAY_BYTES: Final = Size(1 << 30)


class SourceKind(StrEnum):
    """What a source is, as its address says."""

    MYSQL = "mysql"
    FILES = "binlog"
    TOPICS = "kafka"
    SCYLLA = "scylla"


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """Of every source."""

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
    """Globs of tables to leave out."""


@dataclass(frozen=True, slots=True)
class ColumnKeys:
    """Of sources whose columns may be chosen."""

    columns: tuple[str, ...] = ()
    """Globs over `database.table.column`: of tables that one is about, only these columns (and the key)."""
    exclude_columns: tuple[str, ...] = ()
    """Globs of columns to leave out."""


@dataclass(frozen=True, slots=True)
class StartKeys:
    """Of servers' logs."""

    start_at: str = ""
    """No snapshot: follow the log from here on. `now`, `oldest`, `FILE:OFFSET` or a GTID set; of ScyllaDB `now`, `oldest` or a moment."""


@dataclass(frozen=True, slots=True)
class SnapshotKeys:
    """Of servers whose rows can be read."""

    snapshot: SnapshotMode = SnapshotMode.LOCK_FREE
    """How the rows that are there at the start come over; `none`: not at all."""
    chunk_rows: int = CHUNK_ROWS
    """Rows per chunk of a snapshot."""


@dataclass(frozen=True, slots=True)
class BinlogKeys:
    """Of binary logs."""

    zero_dates: ZeroDates = ZeroDates.HALT
    flush_bytes: Size = _FLUSH_BYTES
    """A batch is cut after this much log."""
    flush_rows: int = 0
    """A batch is cut after this many changes; 0: no such limit."""
    flush_seconds: float = _FLUSH_S
    """How long a batch may gather."""


@dataclass(frozen=True, slots=True)
class RelayKeys:
    """Of a server's binary log."""

    relay_bytes: Size = _RELAY_BYTES
    """The most log that is kept on local disk."""
    relay: str = ""
    """Where the log is mirrored, instead of in the state directory. On a cluster, one that all machines share saves tasks the fetching."""


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """Of topics that Debezium fills."""

    topics: tuple[str, ...] = ()
    """Globs of topics to read, such as `shop.inventory.*`."""
    topic_pattern: str = ""
    """Topics to read, by a regular expression over whole names."""
    start: str = "earliest"
    """Where a new pipe begins: `earliest`, `latest`, a moment (`2024-05-01T12:00:00Z`), or offsets as JSON."""
    max_offsets: int = 500_000
    """The most records of one batch; 0: no limit."""
    min_partitions: int = 0
    """A batch is cut into this many tasks at least; 0: one for each partition."""
    kafka_jars: str = ""
    """A folder with Spark's Kafka connector, or its Maven coordinates, if it is not where it is looked for."""


@dataclass(frozen=True, slots=True)
class SinkKeys:
    """Of every sink."""

    url: str = ""
    """Where it is: `clickhouse://user@host:port/database`, `clickhouses://…` for TLS, `chdb:PATH` for an embedded one,
    `kafka://host:port,host:port`, `stdout:`, or (from ScyllaDB) `cql://user@host,host:port/keyspace`."""
    password: str = ""
    """The account's password: `"${NAME}"` from the environment, `"${file:PATH}"` from a file."""
    password_file: str = ""
    """A file with the password, which may end with a newline."""


class LineFormat(StrEnum):
    """What a line says: `json` an object for programs, `text` a line for people; `auto`: `text` on a terminal."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


class Colour(StrEnum):
    """Whether lines for people have colours; `auto`: on a terminal."""

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
    """Of a producer of one's own; any other key is a setting of the class."""

    producer: str = ""
    """The class, as `module:Class` (see producers.md)."""


@dataclass(frozen=True, slots=True)
class PipeKeys:
    """Of a pipe."""

    source: str = ""
    """The source, by its name in `[sources.NAME]`."""
    sources: tuple[str, ...] = ()
    """Instead of `source`: several, each of which is followed on its own (fan-in)."""
    sink: str = ""
    """The sink, by its name in `[sinks.NAME]`."""
    enabled: bool = True
    """Whether it is run."""
    include: tuple[str, ...] = ()
    """Globs of tables, instead of the source's `tables`."""
    exclude: tuple[str, ...] = ()
    """Globs of tables to leave out, beside the source's `exclude`."""
    prefix: str = ""
    """What the names of target tables (or topics) begin with; `{source}` stands for the source's name."""
    merge: bool = False
    """Of several sources: whether their rows are seen together. In ClickHouse each source has tables of its own (`prefix`, by default
    `{source}_`), and a table without the prefix shows them all; in Kafka all write to the same topics."""
    shared_target: bool = False
    """Whether the pipe may write to tables or topics that another pipe writes to. Otherwise that is an error."""
    patience: float = 600.0
    """Seconds for which a task waits for a sink that is away or busy (15 at most: pipes share the tasks). After that the pipe ends and is
    started again, for as long as it takes (`retry_seconds`)."""


TOPIC_TABLES: Final = {"topic_tables": "topics", "topic_table_patterns": "topic_patterns"}
"""Keys of topics' sources by the names that the same settings have under `[debezium]`, where they mean something else here."""
_DEBEZIUM_FIELDS: Final[dict[str, Field]] = {
    **{name: one for name, one in setting_fields(DebeziumChoices).items() if name not in TOPIC_TABLES.values()},
    **{ours: setting_fields(DebeziumChoices)[theirs] for ours, theirs in TOPIC_TABLES.items()},
}
SOURCE_KEYS: Final[Mapping[SourceKind, tuple[type, ...]]] = {
    SourceKind.MYSQL: (SourceKeys, ColumnKeys, StartKeys, SnapshotKeys, BinlogKeys, RelayKeys),
    SourceKind.FILES: (SourceKeys, ColumnKeys, StartKeys, BinlogKeys),
    SourceKind.TOPICS: (SourceKeys, ColumnKeys, TopicKeys),
    SourceKind.SCYLLA: (SourceKeys, StartKeys, SnapshotKeys),
}
SOURCE_OPTIONS: Final[Mapping[SourceKind, tuple[str, Mapping[str, Field]]]] = {
    SourceKind.TOPICS: ("debezium", _DEBEZIUM_FIELDS),
    SourceKind.SCYLLA: ("scylla", setting_fields(ScyllaChoices)),
}
"""Of kinds of sources with choices of their own: the section in which these are kept, and their keys in this file."""


CLASS: Final = "class"
PRODUCER_FIELDS: Final[dict[str, Field]] = {CLASS: setting_fields(ProducerKeys)["producer"]}
"""A word that no field of Python's can have."""


def merge_fields(*classes: type) -> dict[str, Field]:
    """All fields of these classes."""
    return {name: one for each in classes for name, one in setting_fields(each).items()}
