"""The followed foreign keys equal those that the server describes, on both servers, after every statement."""

from __future__ import annotations

from contextlib import closing

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.schema import ForeignKey, ReferentialAction, TableName
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url
from testkit.generators.ddl_random import Follower
from testkit.oracles.binlogs import open_logbook
from testkit.servers.accounts import Account

_STATEMENTS = (
    "CREATE TABLE p (id INT PRIMARY KEY, code VARCHAR(10) NOT NULL, a INT, b INT, UNIQUE (code), UNIQUE two (a, b))",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE SET NULL)",
    "CREATE TABLE named (id INT PRIMARY KEY, p INT, CONSTRAINT fk_p FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL)",
    "CREATE TABLE indexed (id INT PRIMARY KEY, p INT, FOREIGN KEY by_p (p) REFERENCES p (id) ON UPDATE CASCADE)",
    "CREATE TABLE both_named (id INT PRIMARY KEY, p INT, CONSTRAINT one FOREIGN KEY two (p) REFERENCES p (id) ON UPDATE CASCADE)",
    "CREATE TABLE plain (id INT PRIMARY KEY, p INT, q INT, FOREIGN KEY (p) REFERENCES p (id), "
    "FOREIGN KEY (q) REFERENCES p (id) ON DELETE RESTRICT ON UPDATE NO ACTION)",
    "CREATE TABLE inline (id INT PRIMARY KEY, p INT REFERENCES p (id) ON DELETE CASCADE)",
    "CREATE TABLE pair (id INT PRIMARY KEY, x INT, y INT, FOREIGN KEY (x, y) REFERENCES p (a, b) MATCH SIMPLE ON DELETE CASCADE)",
    "CREATE TABLE tree (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE)",
    "CREATE TABLE {aside}.far (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {database}.p (id) ON DELETE CASCADE)",
    "CREATE TABLE {aside}.near (id INT PRIMARY KEY, f INT, FOREIGN KEY (f) REFERENCES far (id) ON DELETE CASCADE)",
    "CREATE TABLE alike LIKE c",
    "ALTER TABLE c ADD code VARCHAR(10), ADD FOREIGN KEY (code) REFERENCES p (code) ON UPDATE CASCADE",
    "ALTER TABLE c ADD q INT, ADD CONSTRAINT c_ibfk_9 FOREIGN KEY (q) REFERENCES p (id)",
    "ALTER TABLE c ADD d INT, ADD FOREIGN KEY (d) REFERENCES p (id) ON DELETE SET NULL",
    "ALTER TABLE c DROP FOREIGN KEY c_ibfk_1",
    "ALTER TABLE c CHANGE code words VARCHAR(10)",
    "ALTER TABLE p RENAME COLUMN code TO word",
    "ALTER TABLE p CHANGE a z INT",
    "ALTER TABLE tree CHANGE id number INT",
    "RENAME TABLE p TO parents",
    "RENAME TABLE c TO children",
    "ALTER TABLE tree RENAME TO forest",
    "ALTER TABLE named DROP CONSTRAINT fk_p",
    "RENAME TABLE {aside}.far TO {aside}.distant, indexed TO {aside}.indexed",
    "ALTER TABLE plain DROP FOREIGN KEY plain_ibfk_2, DROP FOREIGN KEY plain_ibfk_1, ADD r INT, "
    "ADD CONSTRAINT again FOREIGN KEY (r) REFERENCES parents (id) ON DELETE CASCADE",
    "SET foreign_key_checks = 0",
    "DROP TABLE parents",
    "CREATE TABLE parents (id INT PRIMARY KEY, word VARCHAR(10) NOT NULL UNIQUE, z INT, b INT, UNIQUE (z, b))",
    "SET foreign_key_checks = 1",
    "DROP TABLE children",
)


def read_by(address: MySQLAddress, *databases: str) -> dict[TableName, tuple[ForeignKey, ...]]:
    """Return the foreign keys that an account can see."""
    with closing(connect(address)) as connection:
        captured = capture_schemas(connection, address, lambda name: name.database in databases)
    return {schema.name: schema.foreign_keys for schema in captured}


def test_followed_foreign_keys_equal_those_of_the_server(server: PrivateServer, database: str, replica_account: Account) -> None:
    aside = f"{database}_aside"
    with open_logbook(server, database) as book:
        book.run(f"CREATE DATABASE {aside}")
        try:
            follower, seen = Follower(book, (database, aside)), set[ForeignKey]()
            for text in _STATEMENTS:
                statement = text.format(database=database, aside=aside)
                book.run(statement)
                unclear = [answer for answer in follower.catch_up() if answer.why]
                assert (statement, unclear, follower.differences()) == (statement, [], [])
                assert read_by(parse_mysql_url(replica_account.url(database)), database, aside) == read_by(book.address, database, aside)
                seen |= {key for table in follower.history.catalog.tables.values() for key in table.foreign_keys}
        finally:
            book.run("SET foreign_key_checks = 0")
            book.run(f"DROP DATABASE {aside}")
    parent = TableName(database, "p")
    assert ForeignKey("c_ibfk_1", ("p",), parent, ("id",), ReferentialAction.CASCADE, ReferentialAction.SET_NULL) in seen
    assert {key.parent.table for key in seen} == {"p", "parents", "tree", "forest", "far", "distant"}


@pytest.mark.parametrize(
    ("on_delete", "on_update", "cascades"), [("none", "none", False), ("none", "cascade", True), ("set_null", "none", True)]
)
def test_a_key_cascades_if_one_of_its_actions_does(on_delete: str, on_update: str, cascades: bool) -> None:
    key = ForeignKey("k", ("p",), TableName("d", "p"), ("id",), ReferentialAction(on_delete), ReferentialAction(on_update))
    assert key.cascades == cascades
    assert ForeignKey.from_json(key.to_json()) == key
