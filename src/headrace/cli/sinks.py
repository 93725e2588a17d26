"""Commands about sinks: `sql`, `settings`, `serve`, `release`, `connection`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from headrace.cli.flags import OK, Subcommands, add_command, add_sink
from headrace.shutdown import stop_on_signal
from headrace.terminal_text import escape_text, print_line

CONNECTION_FIELDS = ("host", "port", "user", "password", "url")


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, sql, "sql", "run a query on a sink and print the result")
    add_sink(command)
    text = "the query, in ClickHouse's SQL (- reads it from standard input); CREATE DATABASE … ENGINE = MaterializeMySQL(…) starts a pipe"
    command.add_argument("query", help=text)

    command = add_command(subcommands, settings, "settings", "list all settings of a settings file")
    command.add_argument("--markdown", action="store_true", help="print Markdown tables")

    command = add_command(subcommands, serve, "serve", "run an embedded ClickHouse on a directory, over HTTP")
    command.add_argument("path", metavar="PATH", help="the directory; created if missing")
    command.add_argument("--port", type=int, default=8123, help="port (%(default)s; 0 takes a free one)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    command.add_argument(
        "--user", default="default", help="user name (%(default)s); its password comes from HEADRACE_SERVE_PASSWORD or is random"
    )
    text = "a name by which clients reach the server, in addition to its addresses and localhost; may be repeated"
    command.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=text)

    command = add_command(subcommands, release, "release", "give up the claim of a pipe on its target tables or topics")
    add_sink(command, kafka=True)
    command.add_argument("state", metavar="STATE", help="the id of the pipe's state, as the error of the other pipe prints it")

    command = add_command(subcommands, connection, "connection", "print host, port, user and password of a running embedded ClickHouse")
    command.add_argument("sink", metavar="SINK", help="chdb:PATH")
    command.add_argument("field", nargs="?", choices=CONNECTION_FIELDS, help="print only this one")


def sql(arguments: argparse.Namespace) -> int:
    """Print a query's result as a table, or in the format that the query names."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from headrace.materialize_mysql.statement_router import read_settings, run_statement
    from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
    from headrace.sinks.clickhouse.reader import names_format

    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    answered = run_statement(arguments.sink, query)
    if answered is None:
        with open_clickhouse_sink(arguments.sink) as named:
            settings = read_settings(named.sink, query)
            if names_format(query):
                print(named.sink.reader().text(query, settings), end="")
                return OK
            answered = named.sink.reader().query(query, settings)
    names, rows = answered
    if not names:
        return OK
    table = Table(*(Column(Text(escape_text(name))) for name in names))
    for row in rows:
        table.add_row(*(Text("NULL" if value is None else escape_text(str(value))) for value in row))
    # Piped output is not truncated to a terminal's width.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)
    return OK


def release(arguments: argparse.Namespace) -> int:
    """Give up the claim of a pipe that is no longer used, so that another pipe can write to its targets."""
    from headrace.pipes.lifecycle.sink_factory import open_claims
    from headrace.pipes.lifecycle.target_ownership import release_claims

    with open_claims(arguments.sink) as (store, place):
        claims = release_claims(store, arguments.state, place)
    print_line(f"release: pipe {claims[0].pipe} no longer owns {', '.join(sorted(claim.target for claim in claims))}")
    return OK


def settings(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from headrace.settings.reference_page import PAGES, TABLES_PAGE, markdown, setting_rows

    if arguments.markdown:
        print("\n".join(map(markdown, (TABLES_PAGE, *sorted(set(PAGES.values()))))), end="")
        return OK
    table = Table("section", "setting", "values", "default", "meaning")
    for row in setting_rows():
        table.add_row(row.section, row.name, row.values.replace("`", ""), row.default, row.text)
    Console(width=None if sys.stdout.isatty() else 200).print(table, markup=False)
    return OK


def serve(arguments: argparse.Namespace) -> int:
    """Run an embedded ClickHouse with its HTTP interface."""
    from headrace.embedded.process import PASSWORD_VARIABLE
    from headrace.embedded.server import STOP_S
    from headrace.embedded.server import serve as run_server

    def ready(port: int) -> None:
        print_line(f"ClickHouse at http://{arguments.host}:{port}/ on {arguments.path}")
        print_line(f"  its password: headrace connection chdb:{arguments.path}")

    # Removed from the environment, so that child processes do not inherit it.
    password = os.environ.pop(PASSWORD_VARIABLE, "")
    # The server handles the signal itself, and gives running requests some time.
    stop_on_signal(lambda: None, grace_s=STOP_S)
    run_server(
        Path(arguments.path),
        arguments.host,
        arguments.port,
        arguments.user,
        password,
        ready,
        allowed_hosts=arguments.allow_host,
        hosts_pipes=True,
    )
    return OK


def connection(arguments: argparse.Namespace) -> int:
    from headrace.pipes.lifecycle.sink_factory import embedded_connection

    found = embedded_connection(arguments.sink)
    if arguments.field:
        print(found[arguments.field])
        return OK
    for name in CONNECTION_FIELDS:
        print_line(f"{name:<9} {found[name]}")
    return OK
