"""Keys of Debezium and of Altinity's sink connector: those that Headrace does not need, with the reason, and those that it translates."""

from __future__ import annotations

import re
from typing import Final

_BY_ITSELF: Final = "unavailable servers are retried automatically (patience of a pipe)"
_CONNECT: Final = "there is no Kafka Connect here"
_HISTORY: Final = "the state directory stores table definitions, which come from the log"
_OFFSETS: Final = "the state directory stores the progress ([headrace] state)"

_KEYS_BY_REASON: Final = {
    '[headrace] master = "local[N]" sets the number of concurrent tasks': "tasks.max thread.pool.size single.threaded snapshot.max.threads",
    "Headrace chooses a free id": "database.server.id database.server.id.offset",
    "only Kafka's topics have such a prefix": "database.server.name topic.prefix",
    "the server's key is requested automatically, over TLS if available": "database.allowPublicKeyRetrieval",
    "times are stored as the source has them, in UTC": "database.connectionTimeZone database.serverTimezone database.server.timezone",
    _CONNECT: """database.protocol database.jdbc.driver header.converter producer.override.compression.type executor.shutdown.timeout.ms
        fetch.max.wait.ms fetch.min.bytes metadata.max.age.ms""",
    "the log is read as it is, without events in between": """database.initial.statements include.query provide.transaction.metadata
        read.only""",
    _BY_ITSELF: """database.query.timeout.ms connect.keep.alive connect.keep.alive.interval.ms connect.max.attempts
        connect.backoff.initial.delay.ms connect.backoff.max.delay.ms database.keep.alive.interval.ms
        database.connection.reconnect.backoff.ms database.connection.reconnect.backoff.max.ms retriable.restart.connector.wait.ms
        restart.event.loop restart.event.loop.timeout.period.secs use.nongraceful.disconnect ddl.retry""",
    "give database.ssl.mode": "database.useSSL",
    "snapshots take no locks, and read in chunks": """snapshot.locking.mode snapshot.isolation.mode snapshot.fetch.size snapshot.delay.ms
        snapshot.lock.timeout.ms min.row.count.to.stream.results""",
    "new tables are copied and followed automatically": "snapshot.new.tables",
    _HISTORY: "enable.snapshot.ddl enable.ddl.snapshot include.schema.changes include.schema.comments",
    "missing tables are created, existing ones are used as they are": "auto.create.tables",
    "tables follow their source (schema_changes of a pipe)": "schema.evolution",
    "versions are log positions, which are unique": "snowflake.id",
    "values are stored exactly, in the types of docs/types.md": """time.precision.mode bigint.unsigned.handling.mode geometry.handling.mode
        enable.time.adjuster""",
    # Handled by their value.
    "": """converters event.deserialization.failure.handling.mode inconsistent.schema.handling.mode
        event.processing.failure.handling.mode""",
    "bytes are always stored as they are": "persist.raw.bytes",
    "NULL stays NULL": "non.default.value",
    "a deletion is one change": "tombstones.on.delete",
    "memory use is bounded automatically": "max.batch.size max.queue.size max.queue.size.in.bytes sink.connector.max.queue.size",
    "changes come as the server sends them": "poll.interval.ms",
    "put ?connect-timeout=SECONDS into the address": "connect.timeout.ms",
    "rows are sent as Arrow, with the settings that they need": """connection.pool.disable connection.pool.max.size
        connection.pool.min.idle connection.pool.timeout connection.pool.max.lifetime clickhouse.jdbc.params clickhouse.jdbc.settings""",
    "tables are named as the source's, or by target": "clickhouse.table.name",
    "metrics are at /metrics of [headrace] listen": """metrics.enable metrics.port metrics.endpoint.port custom.metric.tags
        advanced.metrics.enable""",
    "headrace status, pause and resume ask the process itself": "cli.port",
    "see headrace.lag in the sink": "replica.status.view",
    _OFFSETS: "enable.kafka.offset kafka.offset.metadata.table offset.flush.interval.ms offset.flush.timeout.ms",
    "topic, partition and offset are not stored; _version is the log position of a change": "store.kafka.metadata",
    "raw events are not stored": "store.raw.data.column",
    "Headrace numbers its tasks": "task_id",
    "brokers of all providers are read alike": "provider",
    "failover uses GTIDs": "gtid.source.filter.dml.events",
    "keys and values are distinguished automatically": "key.converter",
    "events with and without a schema are distinguished automatically": "schemas.enable converter.schemas.enable",
}
REASONS: Final = {key: reason for reason, keys in _KEYS_BY_REASON.items() for key in keys.split()}
_TRANSLATED: Final = """
name connector.class topics topics.regex bootstrap.servers
database.hostname database.port database.user database.password database.ssl.mode database.include.list database.exclude.list
table.include.list table.exclude.list column.include.list column.exclude.list
snapshot.mode skipped.operations decimal.handling.mode binary.handling.mode
clickhouse.server.url clickhouse.server.port clickhouse.server.user clickhouse.server.password clickhouse.server.database
clickhouse.datetime.timezone clickhouse.database.override.map clickhouse.topic2table.map
replacingmergetree.delete.column ignore_delete disable.ddl disable.drop.truncate ignore.ddl.regex skip_replica_start store.raw.data
auto.create.tables auto.create.tables.replicated deduplication.policy value.converter transforms
"""
TRANSLATED: Final = tuple(_TRANSLATED.split())
"""Keys that `connectors` translates or checks by their value."""
_FAMILIES: Final = (
    (r"offset\.storage(\..*)?", _OFFSETS),
    (r"(schema\.history\.internal|database\.history)(\..*)?", _HISTORY),
    (r"errors\..*", "an error halts the pipe, or stores a dead letter (on_refused_row, on_malformed)"),
    (r"heartbeat\..*", "lag is known without heartbeats"),
    (r"(signal|incremental\.snapshot|notification)\..*", "headrace resync reads tables again"),
    (r"(topic\.creation|producer|consumer)\..*", _CONNECT),
    (r"(key|value)\.converter\..*", _CONNECT),
    (
        r"(buffer|batch)\.(flush\.time(out)?(\.ms)?|count(\.records)?|max\.records)",
        "batches are limited by flush_bytes, flush_rows or max_offsets of a source",
    ),
    (r"quarkus\..*", "there is no Quarkus here"),
)


def reason_for(key: str) -> str:
    """Return why a key is not needed; empty if it may be needed."""
    if key in REASONS:
        return REASONS[key]
    return next((reason for pattern, reason in _FAMILIES if re.fullmatch(pattern, key)), "")
