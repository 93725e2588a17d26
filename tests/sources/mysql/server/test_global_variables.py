"""Global variables of the source that a session inherits change neither a snapshot nor a comparison."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.sources.mysql.schema.information_schema import read_foreign_keys
from headrace.sources.mysql.server.connection import connect, parse_mysql_url
from headrace.verify.verifier import Verdict, VerifyOptions, verify_tables
from testkit.oracles.binlogs import open_logbook
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.servers.servers import execute

TABLES = [f"t{number}" for number in range(6)]
LIMITS = ("sql_select_limit = 3", "max_join_size = 2", "sql_quote_show_create = OFF", "completion_type = 'CHAIN'")


@pytest.mark.timeout(120)
def test_a_snapshot_is_complete_and_committed(
    flavour: str, fresh_server: Callable[..., PrivateServer], clickhouse: EmbeddedServer, tmp_path: Path
) -> None:
    server, database = fresh_server(), f"globals_{flavour}"
    child = TableName(database, "child")
    rows = ", ".join(f"({number})" for number in range(1, 11))
    execute(server, f"CREATE DATABASE {database}")
    for table in TABLES:
        execute(server, f"CREATE TABLE {database}.{table} (id INT PRIMARY KEY)", f"INSERT INTO {database}.{table} VALUES {rows}")
    execute(
        server,
        f"CREATE TABLE {database}.child (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES {database}.t0 (id))",
        "CREATE USER reader@'%' IDENTIFIED BY 'Secret-1'",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader@'%'",
    )
    isolation = "tx_isolation" if flavour == "mariadb" else "transaction_isolation"
    with open_logbook(server, database) as book:
        book.run("BEGIN", "INSERT INTO t1 VALUES (77)", "UPDATE t2 SET id = 78 WHERE id = 1")
        execute(server, *(f"SET GLOBAL {setting}" for setting in (*LIMITS, f"{isolation} = 'READ-UNCOMMITTED'")))
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
        options = VerifyOptions(recheck=False)
        results = list(verify_tables(book.address, pipe.sink, Selection((f"{database}.*",)), options))
    found = {result.schema.name.table: (result.verdict, result.comparison.rows) for result in results}
    assert found == {"child": (Verdict.EQUAL, 0), **dict.fromkeys(TABLES, (Verdict.EQUAL, 10))}
    address = parse_mysql_url(server.url(database, "reader", "Secret-1"))
    with closing(connect(address)) as connection:
        assert len(read_foreign_keys(connection, address, [child])[child]) == 1
