"""Runs statements about databases that are pipes, instead of the server."""

from __future__ import annotations

from typing import Any, TypeAlias

from headrace.errors import DefiniteError
from headrace.materialize_mysql.statement_parser import (
    CreateMaterializedDatabase,
    DropMaterializedDatabase,
    OtherDatabaseStatement,
    ShowCreate,
    ShowPipes,
    parse_statement,
)

QueryResult: TypeAlias = tuple[list[str], list[list[Any]]]
"""Column names and rows of a result."""


def run_statement(sink: str, query: str) -> QueryResult | None:
    """Run a statement about a database that is a pipe; None if the server must run it."""
    statement = parse_statement(query)
    if statement is None:
        return None
    # Most queries go to the server and need not wait for this import.
    from headrace.materialize_mysql.databases import Databases

    databases = Databases(sink)
    match statement:
        case CreateMaterializedDatabase():
            return ["result"], [[databases.create(statement)]]
        case DropMaterializedDatabase():
            return (["result"], [[f"{statement.name} is dropped, and its pipe is gone"]]) if databases.drop(statement) else None
        case ShowCreate(name):
            shown = databases.show(name)
            return None if shown is None else (["statement"], [[shown]])
        case ShowPipes():
            return ["pipe", "source", "status", "reason", "log"], databases.pipes()
        case OtherDatabaseStatement(verb, name):
            if databases.show(name) is not None:
                raise DefiniteError(
                    f"{verb} DATABASE would pull the database from under its pipe",
                    place=f"database {name}",
                    hint="DROP DATABASE ends the pipe too",
                )
    return None
