"""Setting names of other tools, and what to write in Headrace instead.

Only for hints in messages: such a name is never accepted, because its meaning is not exactly the same.
"""

from __future__ import annotations

from typing import Final

_SINK_ADDRESS: Final = "give it in the sink's address: clickhouse://user:password@host:port/database"
_SOURCE_ADDRESS: Final = "give it in the source's address: mysql://user:password@host:port/database"
_CLUSTER: Final = "give it in the sink's address: kafka://host:port,host:port"
_ALWAYS: Final = "nothing is needed: Headrace always does this"
_POLICY: Final = "write the policy per kind of statement under [schema_changes]"

REPLACEMENTS: Final[dict[str, str]] = {
    # Altinity's sink connector
    "replacingmergetree.delete.column": 'write delete_column = "NAME"',
    "ignore_delete": 'write deletes = "ignore"',
    "ignore.delete": 'write deletes = "ignore"',
    "auto.create.tables": f'{_ALWAYS}; existing tables are adapted to (missing_columns = "add" completes them)',
    "auto.create.tables.replicated": 'write cluster = "NAME"',
    "schema.evolution": _POLICY,
    "disable.ddl": _POLICY,
    "disable.drop.truncate": f'{_POLICY}, such as drop_table = "ignore"',
    "snowflake.id": "nothing is needed: versions are places in the log, which never tie",
    "clickhouse.server.url": _SINK_ADDRESS,
    "clickhouse.server.user": _SINK_ADDRESS,
    "clickhouse.server.password": _SINK_ADDRESS,
    "clickhouse.server.port": _SINK_ADDRESS,
    "clickhouse.server.database": _SINK_ADDRESS,
    "clickhouse.database.override.map": 'write database = "NAME" under [sink.tables."source.*"]',
    "clickhouse.topic2table.map": 'write target = "NAME" under [sink.tables."source.table"]',
    "clickhouse.datetime.timezone": "nothing is needed: times are stored as the source has them, in UTC",
    "thread.pool.size": "use --master 'local[N]'",
    "buffer.flush.time.ms": "use --flush-seconds",
    "buffer.max.records": "use --flush-rows",
    "store.raw.data": 'write engine = "history" to keep every change',
    "store.kafka.metadata": "there is no Kafka in between; _version is the place in the log",
    # Debezium
    "database.hostname": _SOURCE_ADDRESS,
    "database.port": _SOURCE_ADDRESS,
    "database.user": _SOURCE_ADDRESS,
    "database.password": _SOURCE_ADDRESS,
    "database.server.id": "nothing is needed: an id that is free is taken",
    "database.include.list": "use --tables 'db.*'",
    "table.include.list": "use --tables",
    "table.exclude.list": "use --exclude",
    "column.include.list": "use --columns",
    "column.exclude.list": "use --exclude-columns",
    "snapshot.mode": "use --snapshot or --start-at",
    "tombstones.on.delete": 'write deletes = "apply" or "ignore"; for a Kafka sink, tombstones = "on" or "off" under [kafka]',
    "topic.prefix": 'write prefix = "NAME" under [kafka]',
    "bootstrap.servers": _CLUSTER,
    "schema.registry.url": 'write registry = "http://host:port" under [kafka] or [debezium]',
    "compression.type": 'write compression = "lz4" under [kafka]',
    "topic.creation.default.partitions": "write partitions under [kafka]",
    "topic.creation.default.replication.factor": "write replication under [kafka]",
    # mypipe
    "metadata-brokers": _CLUSTER,
    "schema-repo-client": 'write registry = "http://host:port" under [kafka]',
    # ClickHouse's MaterializeMySQL
    "max_rows_in_buffer": "use --flush-rows",
    "max_rows_in_buffers": "use --flush-rows",
    "max_bytes_in_buffer": "use --flush-bytes",
    "max_bytes_in_buffers": "use --flush-bytes",
    "max_flush_data_time": "use --flush-seconds",
    "materialized_mysql_tables_list": "use --tables",
    # ClickHouse SQL
    "order_by": "write sort_key",
    "is_deleted": 'write delete_column = "is_deleted"',
    "sign": "write sign_column",
    "ver": "write version_column",
    "on_cluster": 'write cluster = "NAME"',
}
