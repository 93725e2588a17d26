"""The commands `headrace scylla ...`."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.cql.address import parse_cql_url
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_log_table
from headrace.cql.language.lexer import CqlCursor
from headrace.cql.log import SUFFIX
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe_all, describe_options, list_tables
from headrace.cql.session import CqlSession, connect
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.scylla.connector import SCYLLA


def log_schema(source: str, names: list[str], *, cassandra: bool = False) -> str:
    """Return the CQL of log tables: for a file's CREATE statements (`-`: standard input), or for a server's tables.

    Without names: for all tables with CDC enabled, or, if there are none, for all tables. `cassandra`: in Apache Cassandra's dialect.
    """
    known = _from_server(source, names) if SCYLLA.is_address(source) else CqlCatalog().apply_all(_text(source))
    tables = [known.named(name) for name in names] or _logged(known)
    if not tables:
        raise DefiniteError("there is no table", place=source, hint="give CREATE TABLE statements, or a keyspace in the address")
    return "\n\n".join(create_log_table(table, known.cdc.get(table.name), cassandra=cassandra) for table in tables)


def _logged(known: CqlCatalog) -> list[CqlTable]:
    chosen = [table for name, table in known.tables.items() if known.cdc[name].enabled]
    return chosen or list(known.tables.values())


def _from_server(source: str, names: list[str]) -> CqlCatalog:
    address = parse_cql_url(source)
    with connect(address) as session:
        wanted = [_name(text, address.keyspace) for text in names] or _all_of(session, address.keyspace)
        tables = {name: found.table for name, found in describe_all(session, wanted).items()}
        return CqlCatalog(address.keyspace, tables, {}, {name: describe_options(session, name) or CdcOptions() for name in tables})


def _all_of(session: CqlSession, keyspace: str) -> list[TableName]:
    if not keyspace:
        raise DefiniteError("no tables are named", hint="give a keyspace in the address, or --table keyspace.table")
    return [TableName(keyspace, name) for name in list_tables(session, keyspace) if not name.endswith(SUFFIX)]


def _name(text: str, keyspace: str) -> TableName:
    cursor = CqlCursor(text)
    found = cursor.table_name(keyspace)
    cursor.end()
    if not found.database:
        raise DefiniteError(f"{text} is in no keyspace", hint=f"write --table keyspace.{text}")
    return found


def _text(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    path = Path(source)
    if not path.is_file():
        raise DefiniteError(f"there is no file {source}", hint="give a file of CREATE statements, - for standard input, or scylla://host")
    return path.read_text(encoding="utf-8")
