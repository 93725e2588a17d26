"""A replica of a private server, by GTID: the servers' own replication, set up as an administrator would."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from headrace.demo.private_server import PrivateServer
from testkit.machine.wait_condition import wait_until
from testkit.servers.servers import execute

PATIENCE_S = 60.0
REPLICA_SETTINGS = {"mariadb": {"log_slave_updates": True}, "mysql": {"log_replica_updates": True}}


def start_replica(primary: PrivateServer, start: Callable[..., PrivateServer]) -> PrivateServer:
    """Start a new server by `start` that replicates everything from `primary`, whose log must be complete."""
    replica = start(**REPLICA_SETTINGS[primary.flavour])
    follow(replica, primary)
    return replica


def follow(replica: PrivateServer, primary: PrivateServer) -> None:
    """Replicate from `primary`, from the GTIDs that `replica` has executed."""
    user, password = f"copy_{secrets.token_hex(3)}", secrets.token_hex(8)
    execute(primary, f"CREATE USER '{user}'@'%' IDENTIFIED BY '{password}'", f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'%'")
    where = f"{{side}}_HOST = '127.0.0.1', {{side}}_PORT = {primary.port}, {{side}}_USER = '{user}', {{side}}_PASSWORD = '{password}'"
    if primary.flavour == "mariadb":
        execute(replica, f"CHANGE MASTER TO {where.format(side='MASTER')}, MASTER_USE_GTID = slave_pos", "START SLAVE")
    else:
        options = "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
        execute(replica, f"CHANGE REPLICATION SOURCE TO {where.format(side='SOURCE')}, {options}", "START REPLICA")


def promote(replica: PrivateServer) -> None:
    """Stop the replication, so that the server is a primary."""
    word = "SLAVE" if replica.flavour == "mariadb" else "REPLICA"
    execute(replica, f"STOP {word}", f"RESET {word} ALL")


def executed(server: PrivateServer) -> str:
    """Return the GTIDs in the server's log, as the server prints them."""
    variable = "gtid_binlog_pos" if server.flavour == "mariadb" else "gtid_executed"
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        return "".join(str(cursor.fetchone()[0]).split())


def await_applied(replica: PrivateServer, gtids: str) -> None:
    """Wait, by the server's own function, until it has applied all of these GTIDs."""
    function = "MASTER_GTID_WAIT" if replica.flavour == "mariadb" else "WAIT_FOR_EXECUTED_GTID_SET"
    with replica.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}('{gtids}', {PATIENCE_S})")
        answer = cursor.fetchone()[0]
    assert answer == 0, f"the replica did not catch up within {PATIENCE_S:.0f} s"


def await_executed(replica: PrivateServer, gtids: str) -> None:
    """Wait until the server has applied all of these GTIDs and has logged them."""
    await_applied(replica, gtids)
    if replica.flavour == "mariadb":
        wait_until(lambda: _beyond(replica, gtids), PATIENCE_S)


def _beyond(replica: PrivateServer, gtids: str) -> bool:
    last = {part.split("-")[0]: int(part.split("-")[2]) for part in executed(replica).split(",") if part}
    return all(last.get(part.split("-")[0], 0) >= int(part.split("-")[2]) for part in gtids.split(","))
