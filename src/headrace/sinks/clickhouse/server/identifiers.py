"""Quotes identifiers and string literals in ClickHouse SQL.

Invariant: whatever characters a source's name contains, the SQL contains exactly that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.errors import DefiniteError

# A dropped table is renamed to database.table.uuid.sql, and a file name has at most 255 bytes.
_FILE_NAME_BYTES, _DROPPED_SUFFIX_BYTES, _SQL_SUFFIX_BYTES = 255, 42, 4
_MOST_NARROW = 100
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0", "a": "\a", "v": "\v"}
_ESCAPED = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)


def quote_name(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def qualify(place: Iterable[str]) -> str:
    """Return `database.table`, both quoted."""
    return ".".join(map(quote_name, place))


def places_condition(places: Iterable[tuple[str, str]], table: str = "name") -> str:
    """Return the condition of a system table for these pairs of database and table. `table`: its column with the table's name.

    ClickHouse evaluates conditions on single columns before it reads about a table; with pairs alone it reads about all tables.
    """
    pairs = [(quote_text(database), quote_text(name)) for database, name in places]
    databases, names = (", ".join(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    listed = ", ".join(f"({database}, {name})" for database, name in pairs)
    # The size of a query is limited, and who asks about many tables asks about most of them.
    narrow = f"{table} IN ({names}) AND " if len(pairs) <= _MOST_NARROW else ""
    return f"database IN ({databases}) AND {narrow}(database, {table}) IN ({listed})"


def on_cluster(cluster: str) -> str:
    """Return the ON CLUSTER clause, with a space before it; empty if there is no cluster."""
    return f" ON CLUSTER {quote_name(cluster)}" if cluster else ""


def quote_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def unescape(text: str) -> str:
    """Resolve the escapes of a quoted string's content."""
    return _ESCAPED.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    body = match.group(1)
    if len(body) == 3:
        return chr(int(body[1:], 16))
    return _ESCAPES.get(body, body)


def check_name_lengths(database: str, table: str) -> None:
    """Raise `DefiniteError` for names that are too long for ClickHouse, which stores tables under file names derived from them."""
    in_database, in_table = _stored_bytes(database), _stored_bytes(table)
    too_long = in_table + in_database + _DROPPED_SUFFIX_BYTES > _FILE_NAME_BYTES or in_database + _SQL_SUFFIX_BYTES > _FILE_NAME_BYTES
    if too_long:
        raise DefiniteError(
            f"the name {database}.{table} is too long for ClickHouse, which makes a file name of it",
            place=f"table {database}.{table}",
            hint="give a short target database in the sink's URL, or leave the table out with --exclude",
        )


def _stored_bytes(name: str) -> int:
    return sum(1 if byte in _PLAIN else 3 for byte in name.encode())
