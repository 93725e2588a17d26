"""The contenders in the order of the tables.

This module names them; each is imported when it runs, so that a contender's process does not load what only another one needs.
"""

from __future__ import annotations

from importlib import import_module

from bench.contenders.base import Contender

LOG_READERS = {
    "floor": "mysqlbinlog:RawCopy",
    "mysqlbinlog": "mysqlbinlog:DecodeToText",
    "mysql-replication": "mysql_replication:MysqlReplication",
    "debezium": "debezium:Debezium",
    "headrace-decode": "headrace_decode:HeadraceDecode",
    "headrace": "headrace_replicate:HeadraceReplicate",
}
TABLE_COPIERS = {
    "clickhouse-own": "clickhouse_own:ClickHouseOwn",
    "headrace-snapshot": "headrace_replicate:HeadraceSnapshot",
}
KAFKA_SIDES = {
    "headrace-from-kafka": "headrace_kafka:HeadraceFromTopics",
    "headrace-into-kafka": "headrace_kafka:HeadraceIntoTopics",
}
CASCADE_MODES = {
    "cascades-ignore": "headrace_replicate:IgnoredCascades",
    "cascades-apply": "headrace_replicate:AppliedCascades",
}


def load_contender(name: str) -> Contender:
    module, _, kind = {**LOG_READERS, **TABLE_COPIERS, **KAFKA_SIDES, **CASCADE_MODES}[name].partition(":")
    contender: Contender = getattr(import_module(f"bench.contenders.{module}"), kind)()
    return contender
