"""Keys of Debezium and of Altinity's sink connector that Headrace does not need, each with the reason."""

from __future__ import annotations

import re
from typing import Final

_OFFSETS: Final = "the state directory stores the progress ([headrace] state)"
_HISTORY: Final = "the state directory stores table definitions, which come from the log"
_BY_ITSELF: Final = "unavailable servers are retried automatically (patience of a pipe)"
_MEMORY: Final = "memory use is bounded automatically"
_METRICS: Final = "metrics are at /metrics of [headrace] listen"
_THREADS: Final = '[headrace] master = "local[N]" sets the number of concurrent tasks'
_BATCHES: Final = "batches are limited by flush_bytes, flush_rows or max_offsets of a source"
_SNAPSHOT: Final = "snapshots take no locks, and read in chunks"
_TYPES: Final = "values are stored exactly, in the types of docs/types.md"
_TIMES: Final = "times are stored as the source has them, in UTC"
_INSERTS: Final = "rows are sent as Arrow, with the settings that they need"
_CONNECT: Final = "there is no Kafka Connect here"
_VERSIONS: Final = "versions are log positions, which are unique"
_EVENTS: Final = "the log is read as it is, without events in between"

REASONS: Final[dict[str, str]] = {
    "tasks.max": _THREADS,
    "thread.pool.size": _THREADS,
    "single.threaded": _THREADS,
    "database.server.id": "Headrace chooses a free id",
    "database.server.id.offset": "Headrace chooses a free id",
    "database.server.name": "only Kafka's topics have such a prefix",
    "topic.prefix": "only Kafka's topics have such a prefix",
    "database.allowPublicKeyRetrieval": "the server's key is requested automatically, over TLS if available",
    "database.connectionTimeZone": _TIMES,
    "database.serverTimezone": _TIMES,
    "database.server.timezone": _TIMES,
    "database.protocol": _CONNECT,
    "database.jdbc.driver": _CONNECT,
    "database.initial.statements": _EVENTS,
    "database.query.timeout.ms": _BY_ITSELF,
    "database.useSSL": "give database.ssl.mode",
    "snapshot.locking.mode": _SNAPSHOT,
    "snapshot.isolation.mode": _SNAPSHOT,
    "snapshot.fetch.size": _SNAPSHOT,
    "snapshot.delay.ms": _SNAPSHOT,
    "snapshot.max.threads": _THREADS,
    "snapshot.lock.timeout.ms": _SNAPSHOT,
    "snapshot.new.tables": "new tables are copied and followed automatically",
    "min.row.count.to.stream.results": _SNAPSHOT,
    "enable.snapshot.ddl": _HISTORY,
    "enable.ddl.snapshot": _HISTORY,
    "auto.create.tables": "missing tables are created, existing ones are used as they are",
    "schema.evolution": "tables follow their source (schema_changes of a pipe)",
    "snowflake.id": _VERSIONS,
    "time.precision.mode": _TYPES,
    "bigint.unsigned.handling.mode": _TYPES,
    "geometry.handling.mode": _TYPES,
    "enable.time.adjuster": _TYPES,
    "converters": "",
    "persist.raw.bytes": "bytes are always stored as they are",
    "non.default.value": "NULL stays NULL",
    "include.schema.changes": _HISTORY,
    "include.schema.comments": _HISTORY,
    "include.query": _EVENTS,
    "provide.transaction.metadata": _EVENTS,
    "tombstones.on.delete": "a deletion is one change",
    "max.batch.size": _MEMORY,
    "max.queue.size": _MEMORY,
    "max.queue.size.in.bytes": _MEMORY,
    "sink.connector.max.queue.size": _MEMORY,
    "poll.interval.ms": "changes come as the server sends them",
    "connect.keep.alive": _BY_ITSELF,
    "connect.keep.alive.interval.ms": _BY_ITSELF,
    "connect.max.attempts": _BY_ITSELF,
    "connect.backoff.initial.delay.ms": _BY_ITSELF,
    "connect.backoff.max.delay.ms": _BY_ITSELF,
    "connect.timeout.ms": "put ?connect-timeout=SECONDS into the address",
    "database.keep.alive.interval.ms": _BY_ITSELF,
    "database.connection.reconnect.backoff.ms": _BY_ITSELF,
    "database.connection.reconnect.backoff.max.ms": _BY_ITSELF,
    "retriable.restart.connector.wait.ms": _BY_ITSELF,
    "restart.event.loop": _BY_ITSELF,
    "restart.event.loop.timeout.period.secs": _BY_ITSELF,
    "use.nongraceful.disconnect": _BY_ITSELF,
    "connection.pool.disable": _INSERTS,
    "connection.pool.max.size": _INSERTS,
    "connection.pool.min.idle": _INSERTS,
    "connection.pool.timeout": _INSERTS,
    "connection.pool.max.lifetime": _INSERTS,
    "clickhouse.jdbc.params": _INSERTS,
    "clickhouse.jdbc.settings": _INSERTS,
    "clickhouse.table.name": "tables are named as the source's, or by target",
    "metrics.enable": _METRICS,
    "metrics.port": _METRICS,
    "metrics.endpoint.port": _METRICS,
    "cli.port": "headrace status, pause and resume ask the process itself",
    "replica.status.view": "see headrace.lag in the sink",
    "enable.kafka.offset": _OFFSETS,
    "kafka.offset.metadata.table": _OFFSETS,
    "store.kafka.metadata": "topic, partition and offset are not stored; _version is the log position of a change",
    "store.raw.data.column": "raw events are not stored",
    "task_id": "Headrace numbers its tasks",
    "provider": "brokers of all providers are read alike",
    "ddl.retry": _BY_ITSELF,
    "gtid.source.filter.dml.events": "failover uses GTIDs",
    "read.only": _EVENTS,
    "event.deserialization.failure.handling.mode": "",
    "inconsistent.schema.handling.mode": "",
    "event.processing.failure.handling.mode": "",
    "header.converter": _CONNECT,
    "producer.override.compression.type": _CONNECT,
    "custom.metric.tags": _METRICS,
    "advanced.metrics.enable": _METRICS,
    "executor.shutdown.timeout.ms": _CONNECT,
    "offset.flush.interval.ms": _OFFSETS,
    "offset.flush.timeout.ms": _OFFSETS,
    "key.converter": "keys and values are distinguished automatically",
    "fetch.max.wait.ms": _CONNECT,
    "fetch.min.bytes": _CONNECT,
    "metadata.max.age.ms": _CONNECT,
    "schemas.enable": "events with and without a schema are distinguished automatically",
    "converter.schemas.enable": "events with and without a schema are distinguished automatically",
}
"""Keys with an empty reason are handled by their value."""
TRANSLATED: Final = (
    "name",
    "connector.class",
    "topics",
    "topics.regex",
    "bootstrap.servers",
    "database.hostname",
    "database.port",
    "database.user",
    "database.password",
    "database.ssl.mode",
    "database.include.list",
    "database.exclude.list",
    "table.include.list",
    "table.exclude.list",
    "column.include.list",
    "column.exclude.list",
    "snapshot.mode",
    "skipped.operations",
    "decimal.handling.mode",
    "binary.handling.mode",
    "clickhouse.server.url",
    "clickhouse.server.port",
    "clickhouse.server.user",
    "clickhouse.server.password",
    "clickhouse.server.database",
    "clickhouse.datetime.timezone",
    "clickhouse.database.override.map",
    "clickhouse.topic2table.map",
    "replacingmergetree.delete.column",
    "ignore_delete",
    "disable.ddl",
    "disable.drop.truncate",
    "ignore.ddl.regex",
    "skip_replica_start",
    "store.raw.data",
    "auto.create.tables",
    "auto.create.tables.replicated",
    "deduplication.policy",
    "value.converter",
    "transforms",
)
"""Keys that `connectors` translates or checks by their value."""
_FAMILIES: Final = (
    (r"offset\.storage(\..*)?", _OFFSETS),
    (r"(schema\.history\.internal|database\.history)(\..*)?", _HISTORY),
    (r"errors\..*", "an error halts the pipe, or stores a dead letter (on_refused_row, on_malformed)"),
    (r"heartbeat\..*", "lag is known without heartbeats"),
    (r"(signal|incremental\.snapshot|notification)\..*", "headrace resync reads tables again"),
    (r"(topic\.creation|producer|consumer)\..*", _CONNECT),
    (r"(key|value)\.converter\..*", _CONNECT),
    (r"(buffer|batch)\.(flush\.time(out)?(\.ms)?|count(\.records)?|max\.records)", _BATCHES),
    (r"quarkus\..*", "there is no Quarkus here"),
)


def reason_for(key: str) -> str:
    """Return why a key is not needed; empty if it may be needed."""
    if key in REASONS:
        return REASONS[key]
    return next((reason for pattern, reason in _FAMILIES if re.fullmatch(pattern, key)), "")
