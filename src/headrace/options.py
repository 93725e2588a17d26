"""What the commands take: their names, arguments, flags and help."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.errors import DefiniteError
from headrace.model.schema import ZeroDates
from headrace.pipes.endpoints import KAFKA_PASSWORD
from headrace.pipes.endpoints import PASSWORD_VARIABLE as SINK_PASSWORD
from headrace.sources.mysql.connection import PASSWORD_VARIABLE as SOURCE_PASSWORD

if TYPE_CHECKING:
    from headrace.pipes.settings_file import Chosen

Verb = Callable[[argparse.Namespace], int]


def build_parser(run: Mapping[str, Verb]) -> argparse.ArgumentParser:
    """The parser of all commands; `run` has a function for each."""
    parser = argparse.ArgumentParser(prog="headrace", description="Replicate operational data, continuously and exactly, into analytics.")
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more in the log")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = _command(verbs, run, "replicate", "copy tables and then follow their changes")
    _add_source(command, kafka=True, scylla=True)
    _add_sink(command, kafka=True)
    _add_tables(command)
    _add_columns(command)
    _add_topics(command)
    command.add_argument(
        "--state", default="headrace-state", metavar="DIR", help="where progress is kept; run again with it to go on (%(default)s)"
    )
    command.add_argument("--name", default="", help="what the pipe is called in the sink (the name of its state directory)")
    command.add_argument("--once", action="store_true", help="stop when caught up with where the log stood at the start")
    command.add_argument(
        "--snapshot",
        choices=("lock-free", "consistent", "none"),
        default="lock-free",
        help="how the rows that are there already come over (%(default)s)",
    )
    command.add_argument(
        "--start-at", default="", metavar="WHERE", help="no snapshot: follow the log from now, oldest, FILE:OFFSET or a GTID set on"
    )
    _add_choices(command)
    command.add_argument(
        "--zero-dates",
        choices=[*ZeroDates],
        default="halt",
        help="what to do with dates such as 0000-00-00 (%(default)s); epoch: 1970-01-01",
    )
    command.add_argument("--flush-bytes", type=size, default=128 << 20, metavar="N", help="cut a batch after this much log (128M)")
    command.add_argument("--flush-rows", type=int, default=0, metavar="N", help="cut a batch after this many changes (no limit)")
    command.add_argument("--flush-seconds", type=float, default=0.05, metavar="S", help="how long a batch may gather (%(default)s)")
    command.add_argument("--relay-bytes", type=size, default=1 << 30, metavar="N", help="most log kept on local disk (1G)")
    command.add_argument("--chunk-rows", type=int, default=200_000, metavar="N", help="rows per snapshot chunk (%(default)s)")
    command.add_argument(
        "--patience",
        type=float,
        default=600.0,
        metavar="S",
        help="how long a sink that is away or busy is waited for; 0: for ever (%(default)s)",
    )
    command.add_argument("--master", default="local[2]", help="Spark master (%(default)s)")
    command.add_argument("--spark-log", action="store_true", help="let Spark log its warnings")
    command.add_argument("--keeper-fd", type=int, default=-1, help=argparse.SUPPRESS)

    command = _command(verbs, run, "verify", "compare every table with its copy; exit 1 if rows differ, 3 if the sink is only behind")
    _add_source(command)
    _add_sink(command)
    _add_tables(command)
    _add_columns(command)
    _add_comparison(command)

    command = _command(verbs, run, "resync", "read tables again, without stopping the others")
    command.add_argument("tables", nargs="+", metavar="TABLE", help="database.table, or a glob over such names; a new name is added")
    command.add_argument("--state", default="headrace-state", metavar="DIR", help="the pipe's state directory (%(default)s)")

    command = _command(verbs, run, "ddl", "show what a statement of the source would do to the sink, without doing it")
    command.add_argument("statement", help="the statement, such as 'ALTER TABLE shop.orders ADD COLUMN note TEXT'")
    command.add_argument("--source", default="", metavar="SOURCE", help="the server whose tables it is about")
    command.add_argument("--schema", action="append", default=[], metavar="SQL", help="their CREATE TABLE statements, or a file of them")
    command.add_argument("--state", default="", metavar="DIR", help="the state of a pipe that replicates them")
    command.add_argument(
        "--sink", default="", metavar="SINK", help="look at the tables there, instead of taking them as Headrace makes them"
    )
    command.add_argument("--database", default="", metavar="NAME", help="the database of names without one")
    command.add_argument(
        "--server-version", default="9.7.0", metavar="V", help="of --schema: such as 8.0.36 or 10.11.6-MariaDB (%(default)s)"
    )
    _add_choices(command)

    command = _command(verbs, run, "retry", "write rows again that a target table refused and that wait in headrace.errors")
    _add_sink(command)
    command.add_argument("--pipe", default="", metavar="NAME", help="only rows of this pipe")
    command.add_argument("--table", default="", metavar="GLOB", help="only rows of these tables, by the source's names")
    command.add_argument("--id", action="append", default=[], metavar="ID", help="only this row; may be repeated")
    command.add_argument("--list", action="store_true", help="list the rows that wait, and write nothing")
    _add_choices(command)

    command = _command(verbs, run, "check", "look at a source's settings and privileges; exit 2 if it cannot be replicated")
    _add_source(command, scylla=True)
    _add_tables(command)
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting that the pipe will have, as scylla.confidence=5"
    )
    command.add_argument("--json", action="store_true", help="print the findings as JSON")

    command = _command(verbs, run, "tail", "print what is in a Kafka topic, or in the log of ScyllaDB's tables, decoded")
    text = f"kafka://user:password@host:port,host:port/topic,topic?PROPERTY=VALUE (password also from {KAFKA_PASSWORD})"
    text += "; a topic that begins with ^ is a pattern; or scylla://user:password@host:port/keyspace"
    command.add_argument("topic", metavar="TOPIC", help=text)
    command.add_argument("--from-beginning", action="store_true", help="from the oldest message (what comes from now on)")
    command.add_argument("--offset", default="", metavar="N", help="from this offset of each partition; -N: the last N of each")
    command.add_argument("--limit", type=int, default=None, metavar="N", help="end after N messages")
    command.add_argument("--once", action="store_true", help="end where the topic ends now; from the beginning unless --offset is given")
    command.add_argument("--registry", default="", metavar="ADDRESS", help="where schemas are: a folder, or http://host:port of a registry")
    command.add_argument("--json", action="store_true", help="print each as a line of JSON")
    _add_tables(command)
    text = "of ScyllaDB's log: a setting such as scylla.confidence=1 (5: seconds that a change waits to be shown)"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)

    command = _command(verbs, run, "sql", "run a query on a sink and print the result")
    _add_sink(command)
    text = "the query, in ClickHouse's SQL (- reads it from standard input); CREATE DATABASE … ENGINE = MaterializeMySQL(…) starts a pipe"
    command.add_argument("query", help=text)

    command = _command(verbs, run, "settings", "list all settings of a settings file")
    command.add_argument("--markdown", action="store_true", help="as tables for a document")

    command = _command(verbs, run, "serve", "run an embedded ClickHouse on a directory, over HTTP")
    command.add_argument("path", metavar="PATH", help="the directory; made if missing")
    command.add_argument("--port", type=int, default=8123, help="port (%(default)s; 0 takes a free one)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    command.add_argument("--user", default="default", help="user name (%(default)s); its password comes from HEADRACE_SERVE_PASSWORD")

    command = _command(verbs, run, "demo", "replicate a live private database into an embedded ClickHouse and verify it")
    command.add_argument("--live", action="store_true", help="keep going until interrupted, and say how to query")
    command.add_argument("--seconds", type=float, default=20.0, help="how long the workload runs (%(default)s)")
    command.add_argument("--directory", default="", help="where to put the demo's files (a temporary folder, removed at the end)")
    _add_scylla(verbs, run)
    return parser


def _add_scylla(verbs: argparse._SubParsersAction[argparse.ArgumentParser], run: Mapping[str, Verb]) -> None:
    text = "tools for ScyllaDB's CDC log"
    commands = verbs.add_parser("scylla", help=text, description=text[0].upper() + text[1:] + ".")
    kinds = commands.add_subparsers(title="commands", required=True, metavar="COMMAND")
    text = "print the CREATE TABLE of a table's log table"
    command = kinds.add_parser("log-schema", help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(run=run["scylla log-schema"])
    command.add_argument("source", help="a file of CREATE statements, - for standard input, or scylla://user:password@host:port/keyspace")
    command.add_argument("--table", dest="tables", action="append", default=[], metavar="KS.T", help="which table (those with CDC, or all)")
    command.add_argument("--cassandra", action="store_true", help="in the words of Apache Cassandra, for a log that Headrace writes")


def _command(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], run: Mapping[str, Verb], name: str, text: str
) -> argparse.ArgumentParser:
    command = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(run=run[name])
    return command


def _add_source(command: argparse.ArgumentParser, *, kafka: bool = False, scylla: bool = False) -> None:
    settings = "tls, ca, cert, key, socket, connect-timeout, read-timeout"
    text = f"mysql://user:password@host:port/db?SETTING=VALUE (password also from {SOURCE_PASSWORD}; settings: {settings})"
    if kafka:
        text += f", binlog:DIR for log files, or kafka://user:password@host:port?PROPERTY=VALUE (password also from {KAFKA_PASSWORD})"
    if scylla:
        text += ", or scylla://user:password@host,host:port/keyspace?SETTING=VALUE (settings: dc, consistency, tls, ca, cert, key)"
    command.add_argument("source", metavar="SOURCE", help=text)


def _add_topics(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("topics", "Of a source in Kafka: Debezium's change events. See docs/kafka.md.")
    group.add_argument(
        "--topics", action="append", default=[], metavar="GLOB", help="topics to read, such as 'shop.inventory.*'; may be repeated"
    )
    group.add_argument("--topic-pattern", default="", metavar="REGEX", help="topics to read, by a regular expression over whole names")
    group.add_argument(
        "--start",
        default="earliest",
        metavar="WHERE",
        help="where a new pipe begins: earliest, latest, a moment (2024-05-01T12:00:00Z), or offsets as JSON (%(default)s)",
    )
    group.add_argument("--max-offsets", type=int, default=500_000, metavar="N", help="most records of one batch; 0: no limit (%(default)s)")
    group.add_argument("--min-partitions", type=int, default=0, metavar="N", help="cut batches into this many tasks at least (partitions)")
    group.add_argument(
        "--kafka-jars",
        default="",
        metavar="DIR",
        help="a folder with Spark's Kafka connector, or its Maven coordinates (fetched if need be)",
    )


def _add_sink(command: argparse.ArgumentParser, *, kafka: bool = False) -> None:
    text = f"clickhouse://user:password@host:port/db (password also from {SINK_PASSWORD}), or chdb:PATH for an embedded one"
    if kafka:
        text += f", or kafka://user:password@host:port,host:port?PROPERTY=VALUE (password also from {KAFKA_PASSWORD})"
        text += ", or (from scylla://) cql://user:password@host,host:port/keyspace"
    command.add_argument("sink", metavar="SINK", help=text)


def _add_tables(command: argparse.ArgumentParser) -> None:
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


def _add_columns(command: argparse.ArgumentParser) -> None:
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


def _add_comparison(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state", default="", metavar="DIR", help="the pipe's state directory, if the sink does not know it")
    command.add_argument("--pipe", default="", metavar="NAME", help="the pipe to wait for, as headrace.positions names it (the only one)")
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
    command.add_argument("--master", default="local[2]", help="Spark master (%(default)s)")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_choices(command: argparse.ArgumentParser) -> None:
    """What may be chosen for the target tables. A flag's `dest` is the setting's name in a file, under `sink`."""
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


def chosen_by_flags(arguments: argparse.Namespace) -> list[Chosen]:
    """The settings that flags give, later ones over earlier ones."""
    from headrace.pipes.settings_file import choose, parse_set

    named = ("engine", "sort_key", "partition_by", "delete_column", "missing_columns", "view")
    given = [(name, getattr(arguments, name)) for name in named if getattr(arguments, name) is not None]
    policies = [(kind.strip(), word.strip()) for kind, _, word in (pair.partition("=") for pair in arguments.schema_changes)]
    return [
        *(choose((name,), value, f"--{name.replace('_', '-')}") for name, value in given),
        *(choose(("schema_changes", kind), word, "--schema-changes") for kind, word in policies),
        *map(parse_set, arguments.set),
    ]


OF_TOPICS = ("topics", "topic_pattern", "start", "max_offsets", "min_partitions", "kafka_jars")
OF_A_LOG = ("snapshot", "start_at", "zero_dates", "flush_bytes", "flush_rows", "flush_seconds", "relay_bytes", "chunk_rows")
"""Flags of `replicate` that only one kind of source heeds."""


def check_heeded(arguments: argparse.Namespace, names: Iterable[str], why: str, hint: str) -> None:
    """Raise `DefiniteError` if one of these flags is given: nobody would heed it."""
    usual = build_parser(collections.defaultdict(lambda: arguments.run)).parse_args(["replicate", "source", "sink"])
    for name in names:
        if getattr(arguments, name) != getattr(usual, name):
            flag = f"--{name.replace('_', '-')}"
            raise DefiniteError(f"{flag} {why}", place=flag, hint=hint)


def size(text: str) -> int:
    """A number of bytes: 64M, 1G, 500000."""
    units = {"K": 10, "M": 20, "G": 30}
    shift = units.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift
