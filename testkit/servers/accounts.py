"""Database accounts with no more rights than their purpose needs."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from headrace.demo.private_server import PrivateServer


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
        # MariaDB names the second right BINLOG MONITOR and takes REPLICATION CLIENT as the older name of it.
        cursor.execute(f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{user}'@'%'")
    return account


def create_locking_account(server: PrivateServer) -> Account:
    """An account of its own kind, for tests whose snapshots lock tables for a moment: other tests rely on `replica` being refused that."""
    account = create_replica_account(server, f"locker_{secrets.token_hex(4)}")
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"GRANT RELOAD, LOCK TABLES ON *.* TO '{account.user}'@'%'")
    return account
