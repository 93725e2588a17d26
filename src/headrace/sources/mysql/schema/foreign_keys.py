"""Reads the foreign keys of tables from a server.

MariaDB shows foreign keys in `information_schema` only to accounts that may change the table, and replication needs no such right. It shows
them to every reader in `SHOW CREATE TABLE`, one table at a time. MySQL shows them to every reader in `information_schema`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import ForeignKey, ReferentialAction, TableName
from headrace.sources.mysql.server.connection import MySQLAddress, is_mariadb, query, quote_name

_FOREIGN_KEYS = """
SELECT k.table_schema, k.table_name, k.constraint_name, k.column_name, k.referenced_table_schema, k.referenced_table_name,
  k.referenced_column_name, r.delete_rule, r.update_rule
FROM information_schema.key_column_usage k JOIN information_schema.referential_constraints r
  ON r.constraint_schema = k.constraint_schema AND r.constraint_name = k.constraint_name AND r.table_name = k.table_name
WHERE k.table_schema IN %s AND k.referenced_table_name IS NOT NULL
ORDER BY k.table_schema, k.table_name, k.constraint_name, k.ordinal_position"""
_ACTIONS: Final = {
    "CASCADE": ReferentialAction.CASCADE,
    "SET NULL": ReferentialAction.SET_NULL,
    "SET DEFAULT": ReferentialAction.SET_DEFAULT,
}
_NAME: Final = r"`((?:[^`]|``)+)`"
_NAMES: Final = re.compile(_NAME)
_LIST: Final = r"\(((?:`(?:[^`]|``)+`(?:, ?)?)+)\)"
_ACTION: Final = r"(CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)"
# The server prints each constraint on a line of its own.
_CONSTRAINT: Final = re.compile(
    rf"^ +CONSTRAINT {_NAME} FOREIGN KEY {_LIST} REFERENCES (?:{_NAME}\.)?{_NAME} {_LIST}"
    rf"(?: ON DELETE {_ACTION})?(?: ON UPDATE {_ACTION})?,?$",
    re.MULTILINE,
)
_FOREIGN_KEY_LINE: Final = re.compile(r"^ +CONSTRAINT `.*` FOREIGN KEY ", re.MULTILINE)


def read_foreign_keys(connection: Connection[Any], address: MySQLAddress, names: Sequence[TableName]) -> dict[TableName, list[ForeignKey]]:
    """Return the foreign keys of each of these child tables, in the order of their names."""
    if not names:
        return {}
    if is_mariadb(connection) and not _has_all_privileges(connection, address):
        return {name: _parse_create(name, _show_create(connection, address, name)) for name in names}
    return _from_information_schema(connection, address, sorted({name.database for name in names}))


def _has_all_privileges(connection: Connection[Any], address: MySQLAddress) -> bool:
    """Whether the account has all privileges. Then `information_schema` shows all keys: one query instead of one per table."""
    return any(str(grant[0]).startswith("GRANT ALL PRIVILEGES ON *.* TO") for grant in query(connection, address, "SHOW GRANTS"))


def _show_create(connection: Connection[Any], address: MySQLAddress, name: TableName) -> str:
    # The text may contain bytes of another character set: MariaDB prints some defaults as they were written.
    decodes, connection.use_unicode = connection.use_unicode, False
    try:
        [row] = query(connection, address, f"SHOW CREATE TABLE {quote_name(name.database)}.{quote_name(name.table)}")
    finally:
        connection.use_unicode = decodes
    return bytes(row[1]).decode(errors="replace")


def _parse_create(child: TableName, statement: str) -> list[ForeignKey]:
    parsed = _CONSTRAINT.findall(statement)
    if len(parsed) != len(_FOREIGN_KEY_LINE.findall(statement)):
        raise DefiniteError(
            f"the server describes a foreign key of {child} in a form that Headrace does not know",
            place=f"table {child}",
            hint=f"please report its SHOW CREATE TABLE; until then leave the table out with --exclude {child}",
        )
    found = []
    for name, columns, database, parent, referenced, on_delete, on_update in parsed:
        found.append(
            ForeignKey(
                _unquoted(name),
                _listed(columns),
                TableName(_unquoted(database) or child.database, _unquoted(parent)),
                _listed(referenced),
                _ACTIONS.get(on_delete, ReferentialAction.NONE),
                _ACTIONS.get(on_update, ReferentialAction.NONE),
            )
        )
    return sorted(found, key=lambda key: key.name)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(map(_unquoted, _NAMES.findall(names)))


def _unquoted(name: str) -> str:
    return name.replace("``", "`")


def _from_information_schema(connection: Connection[Any], address: MySQLAddress, databases: list[str]) -> dict[TableName, list[ForeignKey]]:
    found: dict[tuple[TableName, str], ForeignKey] = {}
    for database, table, name, column, parent_database, parent, parent_column, on_delete, on_update in query(
        connection, address, _FOREIGN_KEYS, (databases,)
    ):
        key = TableName(database, table), str(name)
        actions = _ACTIONS.get(on_delete, ReferentialAction.NONE), _ACTIONS.get(on_update, ReferentialAction.NONE)
        so_far = found.get(key) or ForeignKey(name, (), TableName(parent_database, parent), (), *actions)
        found[key] = replace(so_far, columns=(*so_far.columns, column), parent_columns=(*so_far.parent_columns, parent_column))
    of_tables: dict[TableName, list[ForeignKey]] = {}
    for child, name in sorted(found):
        of_tables.setdefault(child, []).append(found[child, name])
    return of_tables
