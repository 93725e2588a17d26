"""Flags that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import DefiniteError
from headrace.kafka.address import PASSWORD_VARIABLE as KAFKA_PASSWORD
from headrace.model.schema import ZeroDates
from headrace.sinks.clickhouse.server.url import PASSWORD_VARIABLE as SINK_PASSWORD
from headrace.sources.mysql.server.connection import PASSWORD_VARIABLE as SOURCE_PASSWORD

if TYPE_CHECKING:
    from headrace.settings.settings_file import UserSettings

OK, DIFFERENT, FAILED, UNDECIDED = 0, 1, 2, 3
"""Exit codes: success, differences found, an explained error, a comparison that could not decide."""
CommandFunction = Callable[[argparse.Namespace], int]
Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(subcommands: Subcommands, run: CommandFunction, name: str, text: str) -> argparse.ArgumentParser:
    """Add a command that calls `run`; `text` is its one-line help."""
    command = subcommands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(run=run)
    return command


def add_source(command: argparse.ArgumentParser, *, kafka: bool = False, scylla: bool = False, optional: bool = False) -> None:
    settings = "tls, ca, cert, key, socket, connect-timeout, read-timeout"
    text = f"mysql://user:password@host:port/db?SETTING=VALUE (password also from {SOURCE_PASSWORD}; settings: {settings})"
    if kafka:
        text += f", binlog:DIR for log files, or kafka://user:password@host:port?PROPERTY=VALUE (password also from {KAFKA_PASSWORD})"
    if scylla:
        text += ", or scylla://user:password@host,host:port/keyspace?SETTING=VALUE (settings: dc, consistency, tls, ca, cert, key)"
    _add_address(command, "source", text, optional)


def add_sink(command: argparse.ArgumentParser, *, kafka: bool = False, optional: bool = False) -> None:
    text = f"clickhouse://user:password@host:port/db (password also from {SINK_PASSWORD}), or chdb:PATH for an embedded one"
    if kafka:
        text += f", or kafka://user:password@host:port,host:port?PROPERTY=VALUE (password also from {KAFKA_PASSWORD})"
        text += ", or (from scylla://) cql://user:password@host,host:port/keyspace"
        text += ", stdout: to print changes (stdout:?format=json|text&colour=auto|always|never), or class:MODULE:CLASS, a producer of yours"
    _add_address(command, "sink", text, optional)


def _add_address(command: argparse.ArgumentParser, name: str, text: str, optional: bool) -> None:
    if optional:
        command.add_argument(name, nargs="?", default="", metavar=name.upper(), help=text)
    else:
        command.add_argument(name, metavar=name.upper(), help=text)


def add_tables(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tables",
        action="append",
        default=[],
        metavar="GLOB",
        help="tables to take, such as 'shop.*' or 'order*'; may be repeated (all of db)",
    )
    command.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="tables to leave out, such as 'shop.tmp_*'; may be repeated"
    )


def add_columns(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--columns",
        action="append",
        default=[],
        metavar="GLOB",
        help="of these tables only these columns, as db.table.column; may be repeated",
    )
    command.add_argument(
        "--exclude-columns",
        action="append",
        default=[],
        metavar="GLOB",
        help="columns to leave out, such as 'shop.users.pass*'; may be repeated",
    )


def add_verify_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state", default="", metavar="DIR", help="the pipe's state directory, if the sink does not know it")
    command.add_argument(
        "--pipe",
        default="",
        metavar="NAME",
        help="the pipe to wait for, as headrace.positions names it (the only one); without SOURCE and SINK, a pipe of a running process",
    )
    command.add_argument(
        "--settings", default="", metavar="FILE", help="the settings file that the pipe was started with (what the pipe says)"
    )
    command.add_argument("--zero-dates", choices=[*ZeroDates], default="", help="as the pipe was started (what the pipe says)")
    command.add_argument("--repair", action="store_true", help="write rows that differ again, as the source has them")
    command.add_argument("--sample", default="", metavar="PART", help="compare only this share (1%%) or number of rows of each table")
    command.add_argument("--seed", type=int, default=None, metavar="N", help="which sample (a random one, which is printed)")
    command.add_argument("--wait", type=float, default=60.0, metavar="S", help="how long to wait for the pipe to catch up (%(default)s)")
    command.add_argument("--chunk-rows", type=int, default=250_000, metavar="N", help="rows per region (%(default)s)")
    command.add_argument("--spark", choices=("auto", "always", "never"), default="auto", help="compare as Spark tasks (if rows are many)")
    add_spark(command)
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def add_spark(command: argparse.ArgumentParser, usual: str = "local[2]") -> None:
    """Add the Spark flags; without `usual`, the pipe file provides the default."""
    instead = usual or "what the file says, or local[2]"
    command.add_argument(
        "--master", default=usual, help=f"Spark master: local[N], spark://host:port, yarn or k8s://… ({instead}); see docs/scaling.md"
    )
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark's, such as spark.executor.memory=2g; may be repeated",
    )


def parse_spark_settings(pairs: list[str]) -> dict[str, str]:
    """Parse the values of `--conf`."""
    wrong = next((pair for pair in pairs if not pair.partition("=")[0].startswith("spark.") or "=" not in pair), None)
    if wrong is not None:
        # The value is not printed: it may be a secret.
        raise DefiniteError(f"--conf {wrong.partition('=')[0]!r} is no setting of Spark's", hint="write --conf spark.NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def add_target_settings(command: argparse.ArgumentParser) -> None:
    """Add the settings of target tables. A flag's `dest` is the name of the setting under `[sink]`."""
    group = command.add_argument_group(
        "target tables", "Kept in the state: a restart goes on with them. See docs/clickhouse.md for all settings."
    )
    group.add_argument(
        "--settings", default="", metavar="FILE", help='settings from a TOML file: [sink], [sink.tables."db.table"], [kafka], [debezium]'
    )
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, as in the file; may be repeated")
    group.add_argument("--engine", metavar="ENGINE", help="replacing, collapsing, versioned or history (replacing)")
    group.add_argument("--sort-key", metavar="KEY", help="primary, materialize, or expressions (primary)")
    group.add_argument("--partition-by", metavar="EXPR", help="primary, or an expression (no partitions)")
    group.add_argument("--delete-column", metavar="NAME", help="mark deletions in this column instead of _sign")
    group.add_argument("--missing-columns", metavar="WHAT", help="add or error, when a table that is there lacks a column (error)")
    group.add_argument(
        "--schema-changes",
        action="append",
        default=[],
        metavar="KIND=POLICY",
        help="apply, ignore, halt, keep or resync for a kind of schema change, such as drop_table=keep or all=halt (apply)",
    )
    group.add_argument("--view", action="store_const", const="true", help="make a view t_current of each table's current rows")


def settings_from_flags(arguments: argparse.Namespace) -> list[UserSettings]:
    """Return the settings given by flags; later ones take precedence."""
    from headrace.settings.settings_file import parse_set_flag, parse_setting

    named = ("engine", "sort_key", "partition_by", "delete_column", "missing_columns", "view")
    given = [(name, getattr(arguments, name)) for name in named if getattr(arguments, name) is not None]
    policies = [(kind.strip(), word.strip()) for kind, _, word in (pair.partition("=") for pair in arguments.schema_changes)]
    return [
        *(parse_setting((name,), value, f"--{name.replace('_', '-')}") for name, value in given),
        *(parse_setting(("schema_changes", kind), word, "--schema-changes") for kind, word in policies),
        *map(parse_set_flag, arguments.set),
    ]


def parse_size(text: str) -> int:
    """Parse a number of bytes: 64M, 1G, 500000."""
    units = {"K": 10, "M": 20, "G": 30}
    shift = units.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


parse_size.__name__ = "size"  # argparse shows it in its errors
