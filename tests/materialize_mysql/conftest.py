"""A source database and an account that may replicate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.servers.accounts import Account, create_replica_account


@pytest.fixture
def account(mysql_server: PrivateServer) -> Iterator[Account]:
    account = create_replica_account(mysql_server, "mirror")
    yield account
    with closing(mysql_server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute("DROP USER 'mirror'@'%'")


@pytest.fixture
def execute(mysql_server: PrivateServer) -> Iterator[Callable[[str], None]]:
    with closing(mysql_server.root_connection()) as connection, connection.cursor() as cursor:

        def run(statement: str) -> None:
            cursor.execute(statement)

        run("CREATE DATABASE mirrored")
        yield run
        run("DROP DATABASE mirrored")
