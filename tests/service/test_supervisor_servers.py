"""Three pipes of a file in one process, on real servers: one of two merged sources, one that fails, one that gets all requests."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.config.load import load
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.service.status import PipeStage
from headrace.service.supervisor import Supervisor
from testkit.pipelines.supervision import counted, until
from testkit.servers.accounts import create_replica_account
from testkit.servers.servers import build

FILE = """
[headrace]
state = "state"
listen = ""
retry_seconds = 1

[sources.east]
url = "{east}"

[sources.west]
url = "{west}"

[sources.crm]
url = "{crm}"

[sources.odd]
url = "{odd}"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
sources = ["east", "west"]
sink = "warehouse"
merge = true

[pipes.crm]
source = "crm"
sink = "warehouse"

# Expressions are looked at before there is a Java process, by another thread than the one that starts it.
[pipes.crm.tables."crm.customers"]
computed = {{ loud = "upper(v)" }}

[pipes.odd]
source = "odd"
sink = "warehouse"
"""


class Databases:
    """The databases of this test, on two servers: `own`, which may be killed, and the session's, which may not."""

    def __init__(self, own: PrivateServer, shared: PrivateServer) -> None:
        self.own, self.shared = own, shared
        self.shop = f"shop_{os.urandom(3).hex()}"
        """On both."""

    def fill(self) -> dict[str, str]:
        """Tables with rows; the sources' addresses."""
        for server, database, table in (
            (self.own, self.shop, "orders"),
            (self.shared, self.shop, "orders"),
            (self.own, "crm", "customers"),
            (self.own, "odd", "days"),
        ):
            self.run(server, f"CREATE DATABASE {database}")
            self.run(server, f"CREATE TABLE {database}.{table} (id INT PRIMARY KEY, v VARCHAR(20), d DATE)")
            self.run(server, f"USE {database}", f"INSERT INTO {table} SELECT seq, 'before', '2024-05-01' FROM seq_1_to_1000")
        mine, theirs = create_replica_account(self.own), create_replica_account(self.shared, f"west_{os.urandom(3).hex()}")
        return {"east": mine.url(self.shop), "west": theirs.url(self.shop), "crm": mine.url("crm"), "odd": mine.url("odd")}

    def run(self, server: PrivateServer, *statements: str) -> None:
        with server.root_connection(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = ''")
            for statement in statements:
                cursor.execute(statement)


@pytest.fixture
def databases(mariadb_server: PrivateServer, tmp_path: Path) -> Iterator[Databases]:
    own = build("mariadb", tmp_path / "server")
    try:
        found = Databases(own.start(), mariadb_server)
        yield found
        found.run(mariadb_server, f"DROP DATABASE IF EXISTS {found.shop}")
    finally:
        own.remove()


@contextmanager
def supervised(tmp_path: Path, addresses: dict[str, str]) -> Iterator[Supervisor]:
    file = tmp_path / "headrace.toml"
    file.write_text(FILE.format(**addresses))
    with Supervisor(load(file)) as supervisor:
        yield supervisor


def rows(supervisor: Supervisor, table: str, condition: str = "1") -> int:
    """Return the rows of a table in the sink."""
    return counted(supervisor, "crm", f"{table} FINAL WHERE {condition}")


def stage(supervisor: Supervisor, name: str) -> PipeStage:
    return supervisor.pipe(name).stage


@pytest.mark.timeout(900)
def test_pipes_share_a_process_and_nothing_else(databases: Databases, tmp_path: Path) -> None:
    addresses = databases.fill()
    own, shared, shop = databases.own, databases.shared, databases.shop
    with supervised(tmp_path, addresses) as supervisor:
        parts = ("shop/east", "shop/west", "crm", "odd")
        until("streaming", lambda: all(stage(supervisor, name) is PipeStage.STREAMING for name in parts), supervisor)
        for name in parts:
            [table] = supervisor.pipe(name).tables
            assert (table.copied, table.complete) == (1000, True)

        # One event that cannot be written ends its pipe and is named; the others continue.
        databases.run(own, "INSERT INTO odd.days VALUES (1001, 'bad', '0000-00-00')")
        databases.run(own, f"INSERT INTO {shop}.orders VALUES (1001, 'after', '2024-05-02')")
        databases.run(own, "INSERT INTO crm.customers VALUES (1001, 'after', '2024-05-02')")
        databases.run(shared, f"INSERT INTO {shop}.orders VALUES (2001, 'after', '2024-05-02')")
        until("the failure", lambda: stage(supervisor, "odd") is PipeStage.FAILED, supervisor)
        until("others' changes", lambda: all(supervisor.pipe(name).changes == 1 for name in parts[:3]), supervisor)
        error = supervisor.pipe("odd").error
        assert error is not None
        assert "odd.days" in error.message + error.place
        assert error.remedy

        # A merge table shows the rows of both sources.
        until("the merged table", lambda: _is_there(supervisor, shop), supervisor)
        assert rows(supervisor, f"{shop}.orders") == 2002
        assert rows(supervisor, f"{shop}.orders", "_table = 'west_orders' AND id > 1000") == 1

        # A pause stops one pipe, and its lag grows.
        supervisor.pause("crm")
        until("the pause", lambda: stage(supervisor, "crm") is PipeStage.PAUSED, supervisor)
        databases.run(own, "UPDATE crm.customers SET v = 'changed' WHERE id <= 100")
        databases.run(own, f"DELETE FROM {shop}.orders WHERE id <= 10")
        until("the lag", lambda: (supervisor.pipe("crm").lag_bytes or 0) > 0 and (supervisor.pipe("crm").lag_s or 0) > 1, supervisor)
        until("shop's deletions", lambda: rows(supervisor, f"{shop}.east_orders") == 991, supervisor)
        assert rows(supervisor, "crm.customers", "v = 'changed'") == 0
        supervisor.resume("crm")
        until("what was paused", lambda: rows(supervisor, "crm.customers", "v = 'changed' AND loud = 'CHANGED'") == 100, supervisor)

        # A table is read again while the others stream.
        supervisor.resync("shop/east", [f"{shop}.orders"])
        until("the second copy", lambda: _copied_again(tmp_path / "state" / "shop" / "east"), supervisor)

        # The server of three pipes is killed; the fourth is not affected, and the three recover by themselves.
        own.kill()
        databases.run(shared, f"UPDATE {shop}.orders SET v = 'meanwhile' WHERE id <= 50")
        until("others meanwhile", lambda: rows(supervisor, f"{shop}.west_orders", "v = 'meanwhile'") == 50, supervisor)
        troubled = (PipeStage.WAITING, PipeStage.RETRYING)
        until("the wait", lambda: stage(supervisor, "crm") in troubled and stage(supervisor, "shop/east") in troubled, supervisor)
        assert stage(supervisor, "shop/west") is PipeStage.STREAMING
        own.start()
        databases.run(own, "INSERT INTO crm.customers VALUES (1002, 'back', '2024-05-03')")
        until("the return", lambda: rows(supervisor, "crm.customers", "id = 1002") == 1, supervisor)

        # The cause is removed, and the pipe continues where it halted.
        databases.run(own, "UPDATE odd.days SET d = '2024-05-03' WHERE id = 1001")
        assert stage(supervisor, "odd") is PipeStage.FAILED

        for name in ("shop", "crm"):
            supervisor.verify(name)
        until("the comparison", lambda: all(_is_compared(supervisor, name) for name in parts[:3]), supervisor)
        found = [table.verify for name in parts[:3] for table in supervisor.pipe(name).tables]
        assert [(one.verdict, one.differences) for one in found if one is not None] == [("equal", 0)] * 3

        with pytest.raises(DefiniteError, match="only queries that read"):
            supervisor.query("crm", "DROP TABLE crm.customers")
        until("history", lambda: len(supervisor.history("crm")) > 5, supervisor)
        java = supervisor._own_spark.pid if supervisor._own_spark is not None else 0
        assert java
        assert supervisor.status().memory_bytes > 100 << 20
    assert not Path(f"/proc/{java}").exists(), "Spark ends with the process's pipes"
    for path in (tmp_path / "state" / "crm", tmp_path / "state" / "shop" / "east"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def _is_there(supervisor: Supervisor, database: str) -> bool:
    condition = f"database = '{database}' AND name = 'orders' AND engine = 'Merge'"
    return bool(supervisor.query("crm", f"SELECT 1 FROM system.tables WHERE {condition}")[1])


def _copied_again(state: Path) -> bool:
    return (state / "snapshot.jsonl").read_text().count('"sweep": null') > 1


def _is_compared(supervisor: Supervisor, name: str) -> bool:
    return all(table.verify is not None and table.verify.verdict != "running" for table in supervisor.pipe(name).tables)
