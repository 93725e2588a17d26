"""Database accounts with no more rights than their purpose needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.demo.private_server import PrivateServer
from testkit.servers.servers import execute


@dataclass(frozen=True, slots=True)
class Account:
    """A database account and the server it is on."""

    server: PrivateServer
    user: str
    password: str

    def url(self, database: str = "") -> str:
        """The server's address with this account, in the form the `headrace` command takes."""
        return self.server.url(database, self.user, self.password)


def create_replica_account(server: PrivateServer, user: str = "replica") -> Account:
    """Create an account that may read rows and the binary log, and nothing else."""
    account = Account(server, user, secrets.token_hex(8))
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{account.password}'")
        # MariaDB's name of REPLICATION CLIENT is BINLOG MONITOR; it accepts both.
        cursor.execute(f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{user}'@'%'")
    return account


def create_locking_account(server: PrivateServer) -> Account:
    """Create an account that may also lock tables, for tests of locking snapshots: other tests rely on `replica` not having that right."""
    account = create_replica_account(server, f"locker_{secrets.token_hex(4)}")
    execute(server, f"GRANT RELOAD, LOCK TABLES ON *.* TO '{account.user}'@'%'")
    return account


@contextmanager
def account_with(server: PrivateServer, *grants: str) -> Iterator[Account]:
    """Create an account with only these grants. Drop it at the end."""
    account = Account(server, f"few{secrets.token_hex(3)}", secrets.token_hex(8))
    name = f"'{account.user}'@'%'"
    execute(server, f"CREATE USER {name} IDENTIFIED BY '{account.password}'", *(f"GRANT {grant} TO {name}" for grant in grants))
    try:
        yield account
    finally:
        execute(server, f"DROP USER {name}")
