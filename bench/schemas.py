"""Reads the schemas of the workload's tables from the source."""

from __future__ import annotations

from bench.target import Target
from headrace.model.schema import TableSchema
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, connect


def capture_tables(target: Target) -> list[TableSchema]:
    address = MySQLAddress(target.host, target.port, target.user, target.password, target.database)
    with connect(address) as connection:
        return capture_schemas(connection, address, lambda name: name.database == target.database)
