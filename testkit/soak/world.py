"""The servers of a soak: two databases, a broker, a ClickHouse, and a proxy for each."""

from __future__ import annotations

import os
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.demo.private_process import PrivateProcess, find_free_port
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import PASSWORD_VARIABLE
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.broker import PrivateBroker
from testkit.servers.servers import mariadb, mysql
from testkit.soak.proxy import Proxy

_SERVER_SETTINGS: dict[str, Any] = {
    # Logs rotate often, and partial updates of documents are logged as such where the server can.
    "max_binlog_size": "16M",
    "max_allowed_packet": "64M",
    "innodb_buffer_pool_size": "128M",
}


class ClickHouseServer(PrivateProcess):
    """The ClickHouse engine as a server: `headrace serve`."""

    def __init__(self, directory: Path) -> None:
        super().__init__("ClickHouse", directory)
        self.port, self.password = find_free_port(), secrets.token_hex(8)

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "headrace", "serve", str(self.directory / "data"), "--port", str(self.port)]

    def _popen_options(self) -> dict[str, Any]:
        return {"env": {**os.environ, PASSWORD_VARIABLE: self.password}}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError) as error:
            self._refusal = str(error)
            return False


class World:
    """The running servers of all pipes, and the proxies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mariadb: PrivateServer = mariadb(directory / "mariadb", **_SERVER_SETTINGS)
        self.mysql: PrivateServer = mysql(directory / "mysql", binlog_row_value_options="PARTIAL_JSON", **_SERVER_SETTINGS)
        self.broker = PrivateBroker(directory / "broker")
        self.clickhouse = ClickHouseServer(directory / "clickhouse")
        self.wires = {
            name: Proxy(name, port)
            for name, port in (
                ("mariadb", self.mariadb.port),
                ("mysql", self.mysql.port),
                ("kafka", self.broker.port),
                ("clickhouse", self.clickhouse.port),
            )
        }
        # Clients connect through the proxy.
        self.broker.settings["advertised.listeners"] = f"CLIENTS://127.0.0.1:{self.wires['kafka'].port}"
        self.accounts: dict[str, Account] = {}
        self._stack = ExitStack()

    @property
    def peers(self) -> dict[str, PrivateProcess]:
        return {"mariadb": self.mariadb, "mysql": self.mysql, "kafka": self.broker, "clickhouse": self.clickhouse}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for wire in self.wires.values():
                stack.enter_context(wire)
            for peer in self.peers.values():
                stack.callback(peer.kill)
                peer.start()
            self._stack = stack.pop_all()
        for name, server in (("mariadb", self.mariadb), ("mysql", self.mysql)):
            self.accounts[name] = create_replica_account(server)
            with closing(server.root_connection()) as connection, connection.cursor() as cursor:
                # A snapshot at one position, which a topic needs, may lock the table for a moment.
                cursor.execute("GRANT LOCK TABLES ON *.* TO 'replica'@'%'")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def source_url(self, name: str, database: str, *, by_wire: bool = True) -> str:
        account = self.accounts[name]
        port = self.wires[name].port if by_wire else account.server.port
        return f"mysql://{account.user}:{account.password}@127.0.0.1:{port}/{database}"

    def clickhouse_url(self, *, by_wire: bool = True) -> str:
        port = self.wires["clickhouse"].port if by_wire else self.clickhouse.port
        return f"clickhouse://default:{self.clickhouse.password}@127.0.0.1:{port}"

    @property
    def kafka_url(self) -> str:
        return f"kafka://127.0.0.1:{self.wires['kafka'].port}"
