"""Compares texts by the collation of a column, on the server itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.mysql.server.connection import MySQLAddress, connect, is_mariadb, log_status, query
from headrace.sources.mysql.server.position import BinlogPosition

_AT_ONCE: Final = 500
# Collations of one language may treat pairs of letters as one.
_OF_ALL_LANGUAGES: Final = re.compile(
    r"(ascii|latin1|utf8|utf8mb3|utf8mb4)_"
    r"(general_(nopad_|mysql500_)?ci|swedish_(nopad_)?ci|unicode_(520_)?(nopad_)?ci|(nopad_)?bin|0900_(ai_ci|as_ci|as_cs|bin))"
    r"|(utf8mb3_|utf8mb4_)?uca1400_(nopad_)?(ai|as)_(ci|cs)"
)


class SourceCollations:
    """`read_until`: a position in the log; the collations that were returned are those of the source at this position or before it."""

    def __init__(self, address: MySQLAddress, read_until: BinlogPosition) -> None:
        self._address, self.read_until = address, read_until
        self._known: dict[tuple[TableName, str], tuple[str, str, bool]] = {}

    def forget(self) -> None:
        """Read the collations again: a statement may have changed them."""
        self._known.clear()

    def weights(self, table: TableName, column: str, texts: Sequence[str]) -> list[str]:
        """Return a weight for each text. Texts are equal in the column if their weights are."""
        charset, collation, pads = self._collation(table, column)
        stripped = [text.rstrip(" ") if pads else text for text in texts]
        found: list[str] = []
        with closing(connect(self._address)) as connection:
            for start in range(0, len(stripped), _AT_ONCE):
                chosen = stripped[start : start + _AT_ONCE]
                weight = f"HEX(WEIGHT_STRING(CONVERT(%s USING {charset}) COLLATE {collation}))"
                [row] = query(connection, self._address, f"SELECT {', '.join([weight] * len(chosen))}", tuple(chosen))
                found += [_weight(value, collation) for value in row]
        return found

    def folds_ascii_letters_only(self, table: TableName, column: str) -> bool:
        """Whether two texts of printable ASCII characters are equal only if they differ in upper and lower case and in trailing spaces."""
        return bool(_OF_ALL_LANGUAGES.fullmatch(self._collation(table, column)[1]))

    def ignores_trailing_spaces(self, table: TableName, column: str) -> bool:
        """Whether texts that differ in trailing spaces only are equal in a column."""
        return self._collation(table, column)[2]

    def _collation(self, table: TableName, column: str) -> tuple[str, str, bool]:
        known = self._known.get((table, column))
        if known is None:
            with closing(connect(self._address)) as connection:
                known = self._known[table, column] = read_collation(connection, self._address, table, column)
                self.read_until = BinlogPosition(*log_status(connection, self._address), epoch=self.read_until.epoch)
        return known


def read_collation(connection: Connection[Any], address: MySQLAddress, table: TableName, column: str) -> tuple[str, str, bool]:
    """Return character set and collation of a column, and whether the collation ignores trailing spaces."""
    rows = query(
        connection,
        address,
        "SELECT character_set_name, collation_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND column_name = %s",
        (table.database, table.table, column),
    )
    if not rows or rows[0][1] is None:
        raise DefiniteError(
            f"the source no longer has column {column} of {table}, by whose collation it compared the keys of child tables",
            place=f"table {table}",
            hint="leave its child tables out with --exclude, or start over: remove the state directory and the target tables",
        )
    charset, collation = _text(rows[0][0]), _text(rows[0][1])
    if is_mariadb(connection):
        return charset, collation, "nopad" not in collation
    sql = "SELECT pad_attribute FROM information_schema.collations WHERE collation_name = %s"
    return charset, collation, _text(query(connection, address, sql, (collation,))[0][0]) == "PAD SPACE"


def _weight(value: Any, collation: str) -> str:
    if value is None:
        raise DefiniteError(
            f"the source returns no weight of a text under the collation {collation}, by which it compares foreign keys",
            hint='leave the child table out with --exclude, or accept different rows with cascades = "ignore"',
        )
    return _text(value)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
