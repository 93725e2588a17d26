"""The servers of the kill rounds. Each starts with the first pipe that needs it, and runs until the end."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.cql.session import CqlSession, close_shared_sessions, connect
from headrace.demo.private_server import PrivateServer
from testkit.servers.accounts import Account, create_locking_account
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import PrivateCassandra
from testkit.servers.debezium import Worker, json_converters, mysql_settings
from testkit.servers.servers import build
from testkit.soak.world import ClickHouseServer

_SERVER_SETTINGS: dict[str, Any] = {"max_binlog_size": "16M", "innodb_buffer_pool_size": "64M"}


class KillPeers:
    """Private servers on loopback ports, in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._servers: dict[str, tuple[PrivateServer, Account]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def database_server(self, flavour: str) -> PrivateServer:
        return self._database_server(flavour)[0]

    def account(self, flavour: str) -> Account:
        """An account that may read rows and the log, and lock tables for a snapshot."""
        return self._database_server(flavour)[1]

    def _database_server(self, flavour: str) -> tuple[PrivateServer, Account]:
        if flavour not in self._servers:
            server = build(flavour, self.directory / flavour, **_SERVER_SETTINGS)
            self._stack.callback(server.remove)
            self._servers[flavour] = server, create_locking_account(server.start())
        return self._servers[flavour]

    @cached_property
    def broker(self) -> PrivateBroker:
        broker = PrivateBroker(self.directory / "broker")
        self._stack.callback(broker.remove)
        return broker.start()

    @cached_property
    def clickhouse(self) -> ClickHouseServer:
        server = ClickHouseServer(self.directory / "clickhouse")
        self._stack.callback(server.remove)
        return server.start()

    @cached_property
    def cassandra(self) -> PrivateCassandra:
        server = PrivateCassandra(self.directory / "cassandra")
        self._stack.callback(server.remove)
        return server.start()

    @cached_property
    def cql(self) -> CqlSession:
        session = self._stack.enter_context(connect(self.cassandra.address()))
        self._stack.callback(close_shared_sessions)
        return session

    def start_debezium(self, database: str, prefix: str) -> None:
        """Run the real Debezium on a database of the MySQL server, with JSON and schemas."""
        worker = Worker(self.directory / "connect", self.broker.servers)
        self._stack.callback(worker.remove)
        settings = mysql_settings(self.database_server("mysql"), prefix, self.directory / "history.dat", [database], 3)
        worker.add(prefix, {**settings, **json_converters(schemas=True), "errors.max.retries": "-1"})

    def execute(self, flavour: str, *statements: str) -> None:
        with closing(self.database_server(flavour).root_connection()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
