"""A small shop and its traffic: customers, orders and order lines, bought, changed and cancelled; `headrace demo --shop`.

The workload counts changed rows by the server's own affected-row counts, so the demonstration reports exactly what happened.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from pymysql.connections import Connection
from pymysql.cursors import Cursor

from headrace.demo.private_server import Setting, mariadb
from headrace.shutdown import temporary_directory

DATABASE: Final = "shop"
TABLES: Final = ("customers", "orders", "order_lines")
DONE: Final = "the workload is over"

_SCHEMA: Final = """
CREATE DATABASE shop;
CREATE TABLE shop.customers (
  id INT UNSIGNED NOT NULL PRIMARY KEY, name VARCHAR(80) NOT NULL, email VARCHAR(120), city VARCHAR(60), credit DECIMAL(12,2) NOT NULL,
  vip BIT(1) NOT NULL DEFAULT b'0', preferences JSON, created DATETIME(6) NOT NULL);
CREATE TABLE shop.orders (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY, customer INT UNSIGNED NOT NULL, status ENUM('new','paid','shipped','cancelled') NOT NULL,
  total DECIMAL(14,2) NOT NULL, note TEXT, placed TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), KEY (customer));
CREATE TABLE shop.order_lines (
  order_id BIGINT UNSIGNED NOT NULL, line SMALLINT NOT NULL, sku CHAR(12) NOT NULL, quantity INT NOT NULL, price DECIMAL(10,2) NOT NULL,
  PRIMARY KEY (order_id, line))
"""
_CITIES: Final = ("Ulm", "Köln", "Łódź", "Reykjavík", "São Paulo", "東京", "Αθήνα", None)
_ORDER_STRIDE: Final = 1_000_000


def create_shop(connection: Connection[Any], customers: int, orders: int, seed: int = 7) -> int:
    """Create and fill the tables; return the number of rows."""
    random_ = random.Random(seed)
    with connection.cursor() as cursor:
        for statement in _SCHEMA.split(";"):
            cursor.execute(statement)
        rows = _insert(cursor, "customers", [_customer(random_, number) for number in range(1, customers + 1)])
        rows += _insert(cursor, "orders", [_order(random_, number, customers) for number in range(1, orders + 1)])
        lines = [_line(random_, number, line) for number in range(1, orders + 1) for line in range(1, random_.randint(2, 4))]
        rows += _insert(cursor, "order_lines", lines)
    return rows


class Workload:
    """Mixed traffic on one connection, in transactions of one to some hundred rows."""

    def __init__(self, connection: Connection[Any], customers: int, orders: int, seed: int = 11) -> None:
        self.changes: Counter[str] = Counter()
        self._connection = connection
        self._random = random.Random(seed)
        self._customers, self._orders = customers, orders
        self._moved = 0
        self._actions: tuple[tuple[Callable[[Cursor], None], int], ...] = (
            (self._buy, 60),
            (self._pay, 25),
            (self._reprice, 8),
            (self._cancel, 10),
            (self._new_customers, 3),
            (self._renumber, 2),
        )

    def run(self, keep_going: Callable[[], bool], per_second: float = 400.0) -> None:
        """Run transactions while `keep_going` returns true, at about `per_second`."""
        actions, weights = zip(*self._actions, strict=True)
        pause_s = 1.0 / per_second
        due = time.monotonic()
        while keep_going():
            self._connection.begin()
            with self._connection.cursor() as cursor:
                self._random.choices(actions, weights)[0](cursor)
            self._connection.commit()
            due = max(due + pause_s, time.monotonic() - 1)
            time.sleep(max(due - time.monotonic(), 0))

    def finish(self) -> None:
        """Make a last change, by which a reader of the copy knows that it is complete."""
        with self._connection.cursor() as cursor:
            self.changes["updates"] += cursor.execute("UPDATE shop.customers SET email = %s WHERE id = 1", (DONE,))
        self._connection.commit()

    @property
    def total(self) -> int:
        return sum(self.changes.values())

    def _buy(self, cursor: Cursor) -> None:
        self._orders += 1
        number = self._orders
        self.changes["inserts"] += _insert(cursor, "orders", [_order(self._random, number, self._customers)])
        lines = [_line(self._random, number, line) for line in range(1, self._random.randint(2, 6))]
        self.changes["inserts"] += _insert(cursor, "order_lines", lines)

    def _pay(self, cursor: Cursor) -> None:
        number = self._some_order()
        sql = "UPDATE shop.orders SET status = IF(status = 'new', 'paid', 'shipped'), note = %s WHERE id = %s"
        self.changes["updates"] += cursor.execute(sql, (f"seen {self._random.random():.6f}", number))
        sql = "UPDATE shop.customers SET credit = credit - 1.25 WHERE id = %s"
        self.changes["updates"] += cursor.execute(sql, (self._random.randint(1, self._customers),))

    def _reprice(self, cursor: Cursor) -> None:
        number = self._some_order()
        sql = "UPDATE shop.order_lines SET price = price + 0.01 WHERE order_id BETWEEN %s AND %s"
        self.changes["updates"] += cursor.execute(sql, (number, number + 40))

    def _cancel(self, cursor: Cursor) -> None:
        number = self._some_order()
        self.changes["deletes"] += cursor.execute("DELETE FROM shop.order_lines WHERE order_id = %s", (number,))
        self.changes["deletes"] += cursor.execute("DELETE FROM shop.orders WHERE id = %s", (number,))

    def _new_customers(self, cursor: Cursor) -> None:
        first = self._customers + 1
        self._customers += 20
        self.changes["inserts"] += _insert(cursor, "customers", [_customer(self._random, n) for n in range(first, self._customers + 1)])

    def _renumber(self, cursor: Cursor) -> None:
        """A primary-key change: an order gets a number in another range, and its lines follow."""
        number = self._some_order()
        self._moved += 1
        target = _ORDER_STRIDE + self._moved
        self.changes["key changes"] += cursor.execute("UPDATE shop.orders SET id = %s WHERE id = %s", (target, number))
        self.changes["key changes"] += cursor.execute("UPDATE shop.order_lines SET order_id = %s WHERE order_id = %s", (target, number))

    def _some_order(self) -> int:
        return self._random.randint(1, self._orders)


def _customer(random_: random.Random, number: int) -> tuple[Any, ...]:
    preferences = None if random_.random() < 0.3 else f'{{"newsletter": {str(random_.random() < 0.5).lower()}, "visits": {number % 90}}}'
    credit = f"{random_.randint(-100_000, 900_000) / 100:.2f}"
    created = f"2024-{number % 12 + 1:02}-{number % 28 + 1:02} 10:{number % 60:02}:00.{random_.randint(0, 999_999):06}"
    return number, f"customer {number}", f"c{number}@example.com", random_.choice(_CITIES), credit, number % 10 == 0, preferences, created


def _order(random_: random.Random, number: int, customers: int) -> tuple[Any, ...]:
    note = None if random_.random() < 0.6 else "bitte klingeln ☎"
    return number, random_.randint(1, customers), "new", f"{random_.randint(100, 99_999) / 100:.2f}", note


def _line(random_: random.Random, order: int, line: int) -> tuple[Any, ...]:
    return order, line, f"SKU-{random_.randint(1, 99_999):05}", random_.randint(1, 9), f"{random_.randint(99, 9_999) / 100:.2f}"


_COLUMNS: Final = {
    "customers": "id, name, email, city, credit, vip, preferences, created",
    "orders": "id, customer, status, total, note",
    "order_lines": "order_id, line, sku, quantity, price",
}


def _insert(cursor: Cursor, table: str, rows: list[tuple[Any, ...]]) -> int:
    columns = _COLUMNS[table]
    marks = ", ".join(["%s"] * (columns.count(",") + 1))
    return cursor.executemany(f"INSERT INTO shop.{table} ({columns}) VALUES ({marks})", rows) or 0


PASSWORD: Final = "secret"
"""Of both accounts. The server holds nothing but made-up customers, and listens on 127.0.0.1 only."""
_CUSTOMERS: Final = 5_000
_ORDERS: Final = 20_000
_PER_SECOND: Final = 20.0
_ACCOUNTS: Final = (
    "CREATE USER IF NOT EXISTS 'repl'@'127.0.0.1' IDENTIFIED BY '{password}'",
    "GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'repl'@'127.0.0.1'",
    "CREATE USER IF NOT EXISTS 'keeper'@'127.0.0.1' IDENTIFIED BY '{password}'",
    f"GRANT ALL ON {DATABASE}.* TO 'keeper'@'127.0.0.1'",
)


_SETTINGS: Final[Mapping[str, Setting]] = {
    "log_slave_updates": True,
    "sync_binlog": 1,
    "innodb_flush_log_at_trx_commit": 1,
    "sql_mode": "STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION",
}
"""As `headrace check` recommends for a source."""


def open_shop(port: int, directory: str, is_closed: Callable[[], bool]) -> int:
    """Serve a shop with customers in it until it is closed."""
    with ExitStack() as stack:
        home = Path(directory or stack.enter_context(temporary_directory("headrace-shop-"))).resolve()
        server = mariadb(home / "mariadb", **_SETTINGS)
        server.port = port
        stack.enter_context(server)
        with closing(server.root_connection()) as connection:
            with connection.cursor() as cursor:
                for statement in _ACCOUNTS:
                    cursor.execute(statement.format(password=PASSWORD))
            rows = create_shop(connection, _CUSTOMERS, _ORDERS)
        print(f"shop: open, with {', '.join(TABLES)}: {rows:,} rows, and customers who buy, pay and cancel; until Ctrl-C", flush=True)
        print(f"shop: for headrace  mysql://repl:{PASSWORD}@127.0.0.1:{port}/{DATABASE}", flush=True)
        print(f"shop: for yourself  mariadb -h 127.0.0.1 -P {port} -u keeper -p{PASSWORD} {DATABASE}", flush=True)
        with closing(server.root_connection(autocommit=False)) as connection:
            workload = Workload(connection, _CUSTOMERS, _ORDERS)
            workload.run(lambda: not is_closed(), _PER_SECOND)
        print(f"shop: closed after {workload.total:,} changes", flush=True)
    return 0
