"""Steps of changes to two tables, of every kind, after each of which a target must equal the source's rows.

The steps run once per server; each target then reads the same log. `orders` has a key, `loose` has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableSchema
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, Segment, plan_tables, read_segment
from testkit.oracles.binlogs import Logbook, Row

TABLES = (
    "CREATE TABLE orders (id INT NOT NULL AUTO_INCREMENT, part INT NOT NULL COMMENT 'what it is of', note VARCHAR(40),"
    " at DATETIME(3) NOT NULL, stamp BIGINT UNSIGNED NOT NULL, PRIMARY KEY (id), KEY by_part (part, note),"
    " UNIQUE KEY by_stamp (stamp, id)) COMMENT = 'it''s of orders'",
    "CREATE TABLE loose (a INT, b VARCHAR(20))",
)
STEPS: Sequence[tuple[str, Sequence[str]]] = (
    (
        "insert",
        (
            "INSERT INTO orders VALUES " + ", ".join(f"({n}, {n % 3}, 'n{n}', '2024-01-{n:02d} 12:00:00.5', {n})" for n in range(1, 13)),
            "INSERT INTO orders VALUES (13, 0, NULL, '2023-12-31 23:59:59.999', 13), (14, -5, '', '1999-01-01', 18446744073709551615)",
            "INSERT INTO loose VALUES (1, 'x'), (1, 'x'), (1, 'x'), (2, NULL), (NULL, NULL), (NULL, NULL)",
        ),
    ),
    (
        "update",
        (
            "UPDATE orders SET note = CONCAT(note, '!'), stamp = stamp + 100 WHERE id IN (1, 2)",
            "UPDATE orders SET note = NULL WHERE id = 3",
            "UPDATE orders SET note = 'was NULL' WHERE id = 13",
            "BEGIN",
            "UPDATE orders SET note = 'once' WHERE id = 4",
            "UPDATE orders SET note = 'twice' WHERE id = 4",
            "UPDATE orders SET note = 'n4' WHERE id = 4",
            "COMMIT",
            "UPDATE loose SET b = 'y' WHERE a = 1 LIMIT 1",
        ),
    ),
    (
        "sort key change",
        (
            "UPDATE orders SET part = part + 10 WHERE id < 5",
            "UPDATE orders SET part = part - 10, note = 'there and back' WHERE id = 1",
            "UPDATE orders SET stamp = stamp + 1000 WHERE id IN (5, 6)",
        ),
    ),
    ("key change", ("UPDATE orders SET id = id + 100 WHERE id IN (2, 7)", "UPDATE orders SET id = 1 + 200, note = 'moved' WHERE id = 1")),
    (
        "partition change",
        (
            "UPDATE orders SET at = '2024-02-29 00:00:00' WHERE id IN (3, 4)",
            "UPDATE orders SET at = '2024-01-04 00:00:00' WHERE id = 4",
            "UPDATE orders SET at = '2024-03-01', part = 77, id = 300 WHERE id = 5",
        ),
    ),
    (
        "delete",
        (
            "DELETE FROM orders WHERE id IN (6, 102)",
            "BEGIN",
            "DELETE FROM orders WHERE id = 8",
            "INSERT INTO orders VALUES (8, 2, 'again', '2024-01-08', 8)",
            "COMMIT",
            "BEGIN",
            "INSERT INTO orders VALUES (400, 4, 'short', '2024-04-01', 400)",
            "UPDATE orders SET note = 'lived' WHERE id = 400",
            "DELETE FROM orders WHERE id = 400",
            "COMMIT",
            "DELETE FROM loose WHERE a = 1 LIMIT 2",
            "DELETE FROM loose WHERE a IS NULL LIMIT 1",
        ),
    ),
    (
        "keys change places",
        (
            "BEGIN",
            "UPDATE orders SET id = 1000 WHERE id = 9",
            "UPDATE orders SET id = 9 WHERE id = 10",
            "UPDATE orders SET id = 10 WHERE id = 1000",
            "COMMIT",
        ),
    ),
    (
        "all at once",
        (
            "BEGIN",
            "DELETE FROM orders WHERE part = 0",
            "INSERT INTO orders VALUES (6, 6, 'back', '2024-01-06', 6), (102, 1, NULL, '2024-01-02', 102)",
            "UPDATE orders SET part = 5, at = '2025-05-05', note = NULL, id = id + 5000 WHERE id IN (6, 8)",
            "UPDATE orders SET stamp = 0",
            "INSERT INTO loose SELECT * FROM loose",
            "COMMIT",
        ),
    ),
)


@dataclass(frozen=True)
class Step:
    """One step: its part of the log, and the rows that the server's SELECT returns after it."""

    name: str
    segment: Segment
    rows: dict[str, list[Row]]

    def blocks(self, schema: TableSchema, keys: tuple[str, ...]) -> Iterator[ChangeBlock]:
        """Return the blocks of a table that Headrace reads from it."""
        catalog = ReadCatalog(plan_tables({schema.name: schema}, {schema.name: keys}), lambda name: name == schema.name)
        return read_segment(self.segment, catalog)


@dataclass(frozen=True)
class Scenario:
    """All steps, and the tables."""

    schemas: dict[str, TableSchema]
    steps: tuple[Step, ...]


def run_scenario(book: Logbook) -> Scenario:
    """Run the steps."""
    book.run(*TABLES)
    schemas = {table: book.schema(table) for table in ("orders", "loose")}
    steps = []
    for name, statements in STEPS:
        start = book.place()
        book.run(*statements)
        rows = {table: sorted(book.select(schema), key=repr) for table, schema in schemas.items()}
        steps.append(Step(name, book.segment(start), rows))
    return Scenario(schemas, tuple(steps))
