"""Generates pages of a ScyllaDB log as a server sends them: orders with a map, a set, a list, a user type and a static column.

Of ten log rows, about five insert a whole row. Four change some columns of one: a value, an added or removed element, an appended list
element. One deletes a row or a range, or sets a static column. Keys repeat, so that rows have to be merged. All rows of a customer are in
one stream, as those of a partition are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

from headrace.cql import timeuuid
from headrace.cql.bounded_connection import RawPage
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.log import END, OPERATION, SEQUENCE, STREAM, TIME, TTL, Operation, deleted, deleted_elements, log_table
from headrace.cql.tables import CqlTable
from testkit.generators.cql_values import PROTOCOL, driver_type, serialised

PAGE_ROWS: Final = 5000
STREAMS: Final = 2
START: Final = 1_700_000_000_000_000
_NULL: Final = b"\xff\xff\xff\xff"
_ORDERS_PER_CUSTOMER: Final = 50
_STATUSES: Final = ("new", "paid", "sent", "returned")
_SCRIPT: Final = """CREATE TYPE shop.address (street text, zip int);
CREATE TABLE shop.orders (customer int, id int, name text static, status text, amount double, quantity int, notes text,
 attributes map<text, text>, tags set<text>, events list<text>, address address, PRIMARY KEY (customer, id))"""


def orders_table() -> CqlTable:
    (table,) = CqlCatalog().apply_all(_SCRIPT).tables.values()
    return table


class Pages:
    """Generates a given number of log rows."""

    def __init__(self, rows: int) -> None:
        self.table = orders_table()
        self._log = log_table(self.table)
        self._kinds = {column.name: column.type for column in self._log.columns}
        self._random = Random(7)
        self._rows = rows
        self._customers = max(rows // 4 // _ORDERS_PER_CUSTOMER, 1)

    def make(self) -> list[list[RawPage]]:
        """Return the pages of each stream."""
        rows: list[list[dict[str, bytes]]] = [[] for _ in range(STREAMS)]
        for stream, row in self._log_rows():
            rows[stream].append(row)
        return [self._pages(some) for some in rows]

    def _pages(self, rows: list[dict[str, bytes]]) -> list[RawPage]:
        names = [column.name for column in self._log.columns]
        described = [("shop", "orders", column.name, driver_type(column.type)) for column in self._log.columns]
        pages = []
        start = self._sized(OPERATION, Operation.RANGE_START_INCLUSIVE)
        first = 0
        while first < len(rows):
            # Blocks consist of whole pages, and both rows of a range belong to one block.
            last = min(first + PAGE_ROWS, len(rows))
            last += rows[last - 1][OPERATION] == start
            some, first = rows[first:last], last
            body = struct.pack(">iii", 4, len(names), len(some)) + b"".join(row.get(name, _NULL) for row in some for name in names)
            pages.append(RawPage(names, body, 12, len(some), (2, 0, PROTOCOL, {}, described, None)))
        return pages

    def _log_rows(self) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Yield each row with its stream number."""
        made = 0
        while made < self._rows:
            at = START + made * 10
            customer = self._random.randrange(self._customers)
            for row in self._change(at, customer):
                made += 1
                yield customer % STREAMS, row

    def _row(self, at: int, operation: Operation, values: Mapping[str, Any]) -> dict[str, bytes]:
        own = {
            STREAM: bytes([values["customer"] % STREAMS]) * 16,
            TIME: timeuuid.make(at, 1 << 63),
            SEQUENCE: 0,
            OPERATION: operation,
            END: True,
        }
        return {name: self._sized(name, value) for name, value in {**own, **values}.items() if value is not None}

    def _sized(self, name: str, value: Any) -> bytes:
        raw = serialised(self._kinds[name], value)
        return struct.pack(">i", len(raw)) + raw

    def _change(self, at: int, customer: int) -> list[dict[str, bytes]]:
        random = self._random
        key = {"customer": customer, "id": random.randrange(_ORDERS_PER_CUSTOMER)}
        kind = random.random()
        if kind < 0.5:
            return [self._row(at, Operation.INSERT, {**key, **self._order(at)})]
        if kind < 0.9:
            return [self._row(at, Operation.UPDATE, {**key, **self._update(at)})]
        if kind < 0.95:
            return [self._row(at, Operation.ROW_DELETE, key)]
        if kind < 0.98:
            return [self._row(at, Operation.UPDATE, {"customer": key["customer"], "name": f"customer {random.randrange(1000)}"})]
        return [
            self._row(at, Operation.RANGE_START_INCLUSIVE, key),
            self._row(at, Operation.RANGE_END_INCLUSIVE, {**key, "id": key["id"] + 1}),
        ]

    def _order(self, at: int) -> dict[str, Any]:
        random = self._random
        return {
            "status": random.choice(_STATUSES),
            "amount": random.randrange(100_000) / 100,
            "quantity": random.randrange(1, 100),
            "notes": f"order of {at}",
            "attributes": [(f"attribute{n}", f"value {random.randrange(100)}") for n in range(3)],
            deleted("attributes"): True,
            "tags": sorted(random.sample(["books", "garden", "gift", "toys"], 2)),
            deleted("tags"): True,
            "events": [(timeuuid.make(at, 1 << 63, n), f"event {n}") for n in range(2)],
            deleted("events"): True,
            "address": (f"{random.randrange(100)} Main Street", random.randrange(10_000, 99_999)),
            deleted("address"): True,
            TTL: None,
        }

    def _update(self, at: int) -> dict[str, Any]:
        random = self._random
        match random.randrange(5):
            case 0:
                return {"status": random.choice(_STATUSES)}
            case 1:
                return {"attributes": [(f"attribute{random.randrange(4)}", "changed")]}
            case 2:
                return {"events": [(timeuuid.make(at, 1 << 63), "another event")], "quantity": random.randrange(1, 100)}
            case 3:
                return {deleted_elements("tags"): ["gift"], "tags": ["garden"]}
            case _:
                return {"address": (None, random.randrange(10_000, 99_999)), deleted("notes"): True}
