"""`headrace demo --shop`: only the demonstration's database, on a chosen port, for trying Headrace by hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from headrace.demo.private_server import PrivateServer, mariadb
from headrace.demo.shop import DATABASE, TABLES, Workload, create_shop
from headrace.shutdown import temporary_directory

PASSWORD: Final = "secret"
"""Of both accounts. The server holds nothing but made-up customers, and listens on 127.0.0.1 only."""
_CUSTOMERS: Final = 5_000
_ORDERS: Final = 20_000
_PER_SECOND: Final = 20.0
_ACCOUNTS: Final = (
    "CREATE USER IF NOT EXISTS 'repl'@'127.0.0.1' IDENTIFIED BY '{password}'",
    "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'repl'@'127.0.0.1'",
    "CREATE USER IF NOT EXISTS 'keeper'@'127.0.0.1' IDENTIFIED BY '{password}'",
    f"GRANT ALL ON {DATABASE}.* TO 'keeper'@'127.0.0.1'",
)


def open_shop(port: int, directory: str, is_closed: Callable[[], bool]) -> int:
    """Serve a shop with customers in it until it is closed."""
    with ExitStack() as stack:
        home = Path(directory or stack.enter_context(temporary_directory("headrace-shop-"))).resolve()
        server = mariadb(home / "mariadb")
        server.port = port
        stack.enter_context(server)
        _make_accounts(server)
        with closing(server.root_connection()) as connection:
            rows = create_shop(connection, _CUSTOMERS, _ORDERS)
        print(f"shop: open, with {', '.join(TABLES)}: {rows:,} rows, and customers who buy, pay and cancel; until Ctrl-C", flush=True)
        print(f"shop: for headrace  mysql://repl:{PASSWORD}@127.0.0.1:{port}/{DATABASE}", flush=True)
        print(f"shop: for yourself  mariadb -h 127.0.0.1 -P {port} -u keeper -p{PASSWORD} {DATABASE}", flush=True)
        with closing(server.root_connection(autocommit=False)) as connection:
            workload = Workload(connection, _CUSTOMERS, _ORDERS)
            workload.run(lambda: not is_closed(), _PER_SECOND)
        print(f"shop: closed after {workload.total:,} changes", flush=True)
    return 0


def _make_accounts(server: PrivateServer) -> None:
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        for statement in _ACCOUNTS:
            cursor.execute(statement.format(password=PASSWORD))
