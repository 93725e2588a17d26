"""A table with a column of every common type, and rows for it at random: small, large, NULL, text in many scripts, documents, blobs.

Floats are multiples of 1/8, so that their sums are exact in every order: the comparison relies on it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pymysql.cursors import Cursor

KEYS = 4000
_TEXT = ("plain", "naïve", "日本語", "emoji 🎈", "quote ' and \\", "", "tab\tline\n", "ünïcödé", "Ω≈ç√")
_BASE: tuple[tuple[str, str], ...] = (
    ("id", "BIGINT NOT NULL PRIMARY KEY"),
    ("tiny", "TINYINT"),
    ("small", "SMALLINT UNSIGNED NOT NULL DEFAULT 3"),
    ("medium", "MEDIUMINT"),
    ("big", "BIGINT UNSIGNED"),
    ("price", "DECIMAL(18,4)"),
    ("ratio", "DOUBLE"),
    ("share", "FLOAT"),
    ("name", "VARCHAR(80)"),
    ("body", "MEDIUMTEXT"),
    ("raw", "VARBINARY(64)"),
    ("day", "DATE"),
    ("moment", "DATETIME(6)"),
    ("doc", "JSON"),
    ("picture", "LONGBLOB"),
)
_MORE: tuple[tuple[str, str], ...] = (
    ("fixed", "CHAR(12) CHARACTER SET latin1"),
    ("clock", "TIME(3)"),
    ("stamp", "TIMESTAMP(3) NULL"),
    ("era", "YEAR"),
    ("mood", "ENUM('calm','busy','é','late')"),
    ("tags", "SET('a','b','c','d')"),
    ("flags", "BIT(9)"),
    ("spot", "POINT"),
)
_OWN = {"mariadb": (("uid", "UUID"), ("net", "INET6")), "mysql": (("embedding", "VECTOR(4)"),)}


class Things:
    """The table, its rows and its alterations. `topic` omits what topics cannot express: dropped, renamed and retyped columns."""

    def __init__(self, flavour: str, chooser: random.Random, *, topic: bool = False) -> None:
        self._random, self._topic = chooser, topic
        self._columns = dict((*_BASE, *(() if topic else (*_MORE, *_OWN[flavour]))))
        self._number = 0
        self.altered: list[str] = []

    def prepare(self, cursor: Cursor) -> None:
        cursor.execute(f"CREATE TABLE things ({', '.join(f'`{name}` {kind}' for name, kind in self._columns.items())})")
        self._insert(cursor, range(0, KEYS, 8))

    def transaction(self, cursor: Cursor) -> None:
        """One to three statements; the caller commits."""
        steps: tuple[Callable[[Cursor], None], ...] = (self._put, self._put, self._touch, self._move, self._remove, self._document)
        for _ in range(self._random.choice((1, 1, 2, 3))):
            self._random.choice(steps)(cursor)

    def alter(self, cursor: Cursor) -> str:
        """Return the next ALTER statement of the table; empty if none fits."""
        names = self._names(cursor)
        added = [name for name in names if name.startswith("x")]
        self._number += 1
        new = f"x{self._number}"
        if self._topic:
            plain = ("INT", "VARCHAR(40)", "DECIMAL(20,3)", "DATETIME(3)", "BIGINT")
            return f"ALTER TABLE things ADD COLUMN {new} {self._random.choice(plain)}" if len(added) < 12 else ""
        kinds = ("INT NOT NULL DEFAULT 5", "VARCHAR(40) DEFAULT 'é'", "DECIMAL(20,3)", "DATETIME(3)", "BIGINT UNSIGNED", "TEXT", "DOUBLE")
        place = self._random.choice(("", "FIRST", f"AFTER `{self._random.choice(names)}`"))
        wider = (("small", "INT UNSIGNED NOT NULL DEFAULT 3"), ("tiny", "SMALLINT"), ("name", "VARCHAR(120)"), ("price", "DECIMAL(22,4)"))
        back = (("small", "INT UNSIGNED NOT NULL DEFAULT 9"), ("tiny", "INT"), ("name", "VARCHAR(90)"), ("price", "DECIMAL(20,4)"))
        name, kind = self._random.choice((*wider, *back))
        one = self._random.choice(added) if added else ""
        choices = [f"ADD COLUMN {new} {self._random.choice(kinds)} {place}"] * (2 if len(added) < 8 else 0)
        choices += [f"MODIFY COLUMN {name} {kind}"]
        choices += [f"DROP COLUMN {one}", f"RENAME COLUMN {one} TO {new}"] if one else []
        choices += [f"DROP COLUMN {one}, ADD COLUMN {new} INT DEFAULT 1, COMMENT 'step {self._number}'"] if one else []
        return f"ALTER TABLE things {self._random.choice(choices)}"

    def _names(self, cursor: Cursor) -> list[str]:
        cursor.execute("SHOW COLUMNS FROM things")
        return [str(row[0]) for row in cursor.fetchall()]

    def _put(self, cursor: Cursor) -> None:
        count = self._random.choice((1, 1, 3, 20))
        self._insert(cursor, [self._random.randrange(KEYS) for _ in range(count)])

    def _insert(self, cursor: Cursor, keys: Any) -> None:
        names = [name for name in self._columns if name != "id"]
        holders = ", ".join(
            "ST_GeomFromText(%s)" if name == "spot" else "STRING_TO_VECTOR(%s)" if name == "embedding" else "%s" for name in names
        )
        listed = ", ".join(f"`{name}`" for name in names)
        cursor.executemany(f"REPLACE INTO things (id, {listed}) VALUES (%s, {holders})", [(key, *map(self._value, names)) for key in keys])

    def _touch(self, cursor: Cursor) -> None:
        start, width = self._random.randrange(KEYS), self._random.choice((1, 8, 40))
        name = self._random.choice(("price", "medium", "body", "moment", "name", "day"))
        cursor.execute(f"UPDATE things SET `{name}` = %s WHERE id BETWEEN %s AND %s", (self._value(name), start, start + width))

    def _move(self, cursor: Cursor) -> None:
        cursor.execute("UPDATE IGNORE things SET id = %s WHERE id = %s", (self._random.randrange(KEYS), self._random.randrange(KEYS)))

    def _remove(self, cursor: Cursor) -> None:
        start = self._random.randrange(KEYS)
        cursor.execute("DELETE FROM things WHERE id BETWEEN %s AND %s", (start, start + self._random.choice((0, 2, 30))))

    def _document(self, cursor: Cursor) -> None:
        """Change a part of a document, which some servers log as a partial update."""
        start = self._random.randrange(KEYS)
        cursor.execute(
            "UPDATE things SET doc = JSON_SET(doc, '$.n', %s) WHERE id BETWEEN %s AND %s", (self._random.randrange(10**6), start, start + 9)
        )

    def _value(self, name: str) -> Any:
        chooser = self._random
        if name != "small" and chooser.random() < 0.08:
            return None
        makers: dict[str, Callable[[], Any]] = {
            "tiny": lambda: chooser.randrange(-128, 128),
            "small": lambda: chooser.randrange(1 << 16),
            "medium": lambda: chooser.randrange(-(1 << 23), 1 << 23),
            "big": lambda: chooser.randrange(1 << chooser.choice((8, 32, 64))),
            "price": lambda: f"{chooser.randrange(-(10**12), 10**12)}.{chooser.randrange(10**4):04}",
            "ratio": lambda: chooser.randrange(-(1 << 40), 1 << 40) / 8,
            "share": lambda: chooser.randrange(-(1 << 20), 1 << 20) / 8,
            "name": lambda: f"{chooser.choice(_TEXT)} {chooser.randrange(1000)}",
            "body": lambda: chooser.choice(_TEXT) * chooser.choice((0, 1, 40, 400)),
            "raw": lambda: chooser.randbytes(chooser.randrange(64)),
            "day": lambda: f"{chooser.randrange(1900, 2200)}-{chooser.randrange(1, 13):02}-{chooser.randrange(1, 29):02}",
            "moment": lambda: f"{chooser.randrange(1971, 2200)}-03-04 {chooser.randrange(24):02}:05:06.{chooser.randrange(10**6):06}",
            "doc": lambda: json.dumps(
                {"n": chooser.randrange(100), "s": chooser.choice(_TEXT), "l": [1, None, True, {"k": chooser.random()}]}
            ),
            "picture": lambda: chooser.randbytes(
                chooser.choice((0, 10, 100, 500, 5_000) if chooser.random() < 0.995 else (100_000 if self._topic else 600_000,))
            ),
            "fixed": lambda: chooser.choice(("é", "abc", "", "Zürich")),
            "clock": lambda: (
                f"{chooser.choice(('', '-'))}{chooser.randrange(800):02}:{chooser.randrange(60):02}:07.{chooser.randrange(1000):03}"
            ),
            "stamp": lambda: f"{chooser.randrange(1971, 2037)}-06-07 {chooser.randrange(24):02}:05:06.{chooser.randrange(1000):03}",
            "era": lambda: chooser.randrange(1901, 2156),
            "mood": lambda: chooser.choice(("calm", "busy", "é", "late")),
            "tags": lambda: ",".join(sorted(chooser.sample("abcd", chooser.randrange(5)))),
            "flags": lambda: chooser.randrange(1 << 9),
            "spot": lambda: f"POINT({chooser.randrange(100)} {chooser.randrange(100) / 4})",
            "uid": lambda: str(UUID(int=chooser.getrandbits(128), version=4)),
            "net": lambda: f"2001:db8::{chooser.randrange(1 << 16):x}",
            "embedding": lambda: json.dumps([chooser.randrange(100) / 4 for _ in range(4)]),
        }
        return makers[name]()
