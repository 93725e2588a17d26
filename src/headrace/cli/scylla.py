"""`headrace scylla`: tools for ScyllaDB's CDC log."""

from __future__ import annotations

import argparse

from headrace.cli.flags import OK, Subcommands


def add(subcommands: Subcommands) -> None:
    text = "tools for ScyllaDB's CDC log"
    tools = subcommands.add_parser("scylla", help=text, description=text[0].upper() + text[1:] + ".")
    kinds = tools.add_subparsers(title="commands", required=True, metavar="COMMAND")
    text = "print the CREATE TABLE of a table's log table"
    command = kinds.add_parser("log-schema", help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(run=log_schema)
    command.add_argument("source", help="a file of CREATE statements, - for standard input, or scylla://user:password@host:port/keyspace")
    command.add_argument("--table", dest="tables", action="append", default=[], metavar="KS.T", help="which table (those with CDC, or all)")
    command.add_argument("--cassandra", action="store_true", help="for Apache Cassandra, whose log Headrace writes")


def log_schema(arguments: argparse.Namespace) -> int:
    """Print the definitions of log tables."""
    from headrace.pipes.scylla import log_schema_command

    print(log_schema_command.log_schema(arguments.source, arguments.tables, cassandra=arguments.cassandra))
    return OK
