"""Runs statements about databases that are pipes, instead of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.embedded.statement_clauses import reads_databases
from headrace.materialize_mysql.statement_parser import (
    AttachMaterializedDatabase,
    CreateMaterializedDatabase,
    DetachMaterializedDatabase,
    DropMaterializedDatabase,
    OtherDatabaseStatement,
    ShowCreate,
    ShowPipes,
    UnsupportedEnding,
    parse_statement,
)

if TYPE_CHECKING:
    from headrace.sinks.clickhouse.sink import ClickHouseSink

QueryResult: TypeAlias = tuple[list[str], list[list[Any]]]
"""Column names and rows of a result."""


def read_settings(sink: ClickHouseSink, query: str) -> dict[str, str]:
    """Return the settings of a user's query: FINAL, if it reads a database that a statement created."""
    from headrace.pipes.state.pipe_registry import all_pipes

    names = frozenset(entry.name for entry in all_pipes(sink.own_tables()) if entry.statement)
    return {"final": "1"} if names and reads_databases(query, names, sink.target.database or "default") else {}


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
        case DropMaterializedDatabase(name, _, cluster):
            return (["result"], [[f"{name} is dropped, and its pipe is gone"]]) if databases.drop(name, cluster) else None
        case DetachMaterializedDatabase(name, cluster):
            return (["result"], [[f"{name} is detached, and its pipe has stopped"]]) if databases.detach(name, cluster) else None
        case AttachMaterializedDatabase(name, cluster):
            return (["result"], [[f"{name} is attached, and its pipe is running"]]) if databases.attach(name, cluster) else None
        case ShowCreate(name):
            shown = databases.show(name)
            return None if shown is None else (["statement"], [[shown]])
        case ShowPipes():
            return ["pipe", "source", "status", "reason", "log"], databases.pipes()
        case OtherDatabaseStatement(verb, name):
            if databases.show(name) is not None:
                databases.reject(verb, name)
        case UnsupportedEnding(name, error):
            if databases.show(name) is not None:
                raise error
    return None
