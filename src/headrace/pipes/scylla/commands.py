"""The bodies of `headrace scylla ...`."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.cql.ddl import Definitions
from headrace.cql.options import CdcOptions
from headrace.cql.printing import create_log_table
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError


def log_schema(source: str, names: list[str], *, cassandra: bool = False) -> str:
    """The CQL of log tables: of a file's CREATE statements (`-`: standard input), or of a server's tables.

    Without names: of all tables that have CDC enabled, or, where none has, of all tables. `cassandra`: in the words of Apache Cassandra.
    """
    known = Definitions().apply_all(_text(source))
    tables = [known.named(name) for name in names] or _logged(known)
    if not tables:
        raise DefiniteError("there is no table", place=source, hint="give CREATE TABLE statements")
    return "\n\n".join(create_log_table(table, _options(known, table), cassandra=cassandra) for table in tables)


def _logged(known: Definitions) -> list[CqlTable]:
    chosen = [table for name, table in known.tables.items() if known.cdc[name].enabled]
    return chosen or list(known.tables.values())


def _options(known: Definitions, table: CqlTable) -> CdcOptions:
    return known.cdc.get(table.name, CdcOptions(enabled=True))


def _text(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    path = Path(source)
    if not path.is_file():
        raise DefiniteError(f"there is no file {source}", hint="give a file of CREATE statements, - for standard input, or scylla://host")
    return path.read_text(encoding="utf-8")
