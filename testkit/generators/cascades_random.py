"""Random tables with foreign keys, and random statements over them."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

from pymysql.err import MySQLError

from testkit.oracles.binlogs import Logbook

_DELETE = ("CASCADE", "CASCADE", "SET NULL", "RESTRICT")
_UPDATE = ("CASCADE", "CASCADE", "SET NULL", "RESTRICT")
_VALUES = 8
"""Keys are small numbers, so that rows meet often."""


@dataclass(slots=True)
class RandomTables:
    """Tables `t0`, `t1` and so on. Each has a key, a unique pair of columns, and foreign keys to earlier tables or to itself."""

    book: Logbook
    rng: random.Random
    columns: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    executed: list[str] = field(default_factory=list)

    def create(self) -> None:
        for number in range(self.rng.randint(3, 5)):
            # The server refuses some combinations of foreign keys.
            while f"t{number}" not in self.columns:
                with suppress(MySQLError):
                    self._create(f"t{number}", [f"t{other}" for other in range(number)])

    def _create(self, table: str, earlier: list[str]) -> None:
        rng = self.rng
        foreign, columns, defined = [], ["id"], ["id INT"]
        self.keys.pop(table, None)
        for number in range(rng.randint(1, 2) if earlier else 0):
            column = f"f{number}"
            in_key = not number and rng.random() < 0.4
            defined.append(f"{column} INT{' NOT NULL' if in_key else ''}")
            columns.append(column)
            actions = ["CASCADE", rng.choice(("CASCADE", "CASCADE", "RESTRICT"))] if in_key else [rng.choice(_DELETE), rng.choice(_UPDATE)]
            parent = rng.choice(earlier)
            referenced = rng.choice(["id"] if len(self.keys[parent]) == 1 else ["u"])
            foreign.append(f"FOREIGN KEY ({column}) REFERENCES {parent} ({referenced}) ON DELETE {actions[0]} ON UPDATE {actions[1]}")
            if in_key:
                self.keys[table] = ["id", column]
        pairs = [parent for parent in earlier if "a" in self.columns[parent]]
        if pairs and rng.random() < 0.4:
            defined += ["x INT", "y INT"]
            columns += ["x", "y"]
            actions = [rng.choice(_DELETE), rng.choice(_UPDATE)]
            foreign.append(f"FOREIGN KEY (x, y) REFERENCES {rng.choice(pairs)} (a, b) ON DELETE {actions[0]} ON UPDATE {actions[1]}")
        self.keys.setdefault(table, ["id"])
        if rng.random() < 0.3 and len(self.keys[table]) == 1:
            defined.append("up INT")
            columns.append("up")
            foreign.append(f"FOREIGN KEY (up) REFERENCES {table} (id) ON DELETE {rng.choice(('CASCADE', 'SET NULL'))}")
        defined += ["u INT", "a INT", "b INT", "v INT"]
        columns += ["u", "a", "b", "v"]
        constraints = [f"PRIMARY KEY ({', '.join(self.keys[table])})", "UNIQUE (u)", "UNIQUE pair (a, b)", *foreign]
        self.book.run(f"CREATE TABLE {table} ({', '.join([*defined, *constraints])})")
        self.columns[table] = columns

    def change(self, statements: int) -> None:
        """Run random statements. The server refuses some of them, which has no effect."""
        for _ in range(statements):
            table = self.rng.choice(list(self.columns))
            text = self.rng.choice((self._insert, self._insert, self._insert, self._delete, self._update, self._update_key))(table)
            unchecked = self.rng.random() < 0.03
            try:
                self.book.run(*(["SET foreign_key_checks = 0"] if unchecked else []), text)
            except MySQLError:
                continue
            finally:
                self.book.run("SET foreign_key_checks = 1")
            self.executed.append(("/* unchecked */ " if unchecked else "") + text)

    def transact(self, statements: int) -> None:
        """Run random statements in one transaction."""
        self.book.run("BEGIN")
        self.change(statements)
        self.book.run(self.rng.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))

    def _value(self) -> str:
        return str(self.rng.randint(1, _VALUES))

    def _insert(self, table: str) -> str:
        rows = []
        for _ in range(self.rng.randint(1, 4)):
            values = [self._value() if column in self.keys[table] or self.rng.random() < 0.7 else "NULL" for column in self.columns[table]]
            rows.append(f"({', '.join(values)})")
        word = self.rng.choice(("INSERT", "INSERT IGNORE", "REPLACE"))
        update = " ON DUPLICATE KEY UPDATE v = 9" if word == "INSERT" and self.rng.random() < 0.3 else ""
        return f"{word} INTO {table} VALUES {', '.join(rows)}{update}"

    def _delete(self, table: str) -> str:
        return f"DELETE FROM {table} WHERE {self._condition(table)}"

    def _update(self, table: str) -> str:
        column = self.rng.choice(self.columns[table])
        value = self._value() if column in self.keys[table] or self.rng.random() < 0.8 else "NULL"
        return f"UPDATE {table} SET {column} = {value} WHERE {self._condition(table)}"

    def _update_key(self, table: str) -> str:
        column = self.rng.choice(("id", "u", "a", "b"))
        step, order = self.rng.choice(((1, "DESC"), (-1, "ASC")))
        return f"UPDATE {table} SET {column} = {column} + {step} WHERE {self._condition(table)} ORDER BY {column} {order}"

    def _condition(self, table: str) -> str:
        return f"{self.rng.choice(self.columns[table])} {self.rng.choice(('=', '=', '>', '<'))} {self._value()}"
