"""`headrace tail`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import threading
from typing import Any, Final

from headrace.argument_secrets import KAFKA, SOURCE
from headrace.cli.flags import OK, ZERO_DATES, Subcommands, add_command, add_tables
from headrace.errors import DefiniteError
from headrace.shutdown import stop_on_signal
from headrace.terminal_text import exit_on_closed_stdout, print_line

COLOURS: Final = ("auto", "always", "never")


def add(subcommands: Subcommands) -> None:
    text = "print changes as they happen: of a server's tables, of log files, in a Kafka topic, or in the log of ScyllaDB's tables"
    command = add_command(subcommands, tail, "tail", text)
    text = f"mysql://user:password@host:port/db (password also from {SOURCE}), mariadb://…, binlog:DIR"
    text += f"; kafka://user:password@host:port,host:port/topic,topic?PROPERTY=VALUE (password also from {KAFKA})"
    text += ", where a topic that begins with ^ is a pattern; or scylla://user:password@host:port/keyspace"
    command.add_argument("topic", metavar="SOURCE", help=text)
    command.add_argument("--from-beginning", action="store_true", help="start at the oldest change or message (new ones)")
    command.add_argument("--start-at", default="", metavar="WHERE", help="of a server's log: now, oldest, FILE:OFFSET or a GTID set (now)")
    command.add_argument("--offset", default="", metavar="N", help="of a topic: from this offset of each partition; -N: the last N of each")
    command.add_argument("--limit", type=int, default=None, metavar="N", help="end after N changes or messages")
    text = "stop at the current end of the log or topic; start at the beginning unless --start-at or --offset is given"
    command.add_argument("--once", action="store_true", help=text)
    text = "of a server's log: what to do with dates such as 0000-00-00 (%(default)s)"
    command.add_argument("--zero-dates", choices=ZERO_DATES, default=ZERO_DATES[0], help=text)
    command.add_argument("--colour", choices=COLOURS, default="auto", help="colours (auto: on a terminal, unless NO_COLOR is set)")
    command.add_argument("--registry", default="", metavar="ADDRESS", help="the schemas: a folder, or http://host:port of a registry")
    command.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_tables(command)
    text = "of ScyllaDB's log: a setting such as scylla.confidence=1 (5: seconds that a change waits to be shown)"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def tail(arguments: argparse.Namespace) -> int:
    """Print the messages of a topic, the rows of ScyllaDB's CDC log, or the changes of a binary log."""
    from headrace.pipes.source_registry import BINLOG_FILES, MYSQL, SCYLLA, find_source_connector
    from headrace.sources.debezium_route import check_is_read

    connector = find_source_connector(arguments.topic)
    if connector in (MYSQL, BINLOG_FILES):
        return _tail_changes(arguments, is_directory=connector is BINLOG_FILES)
    if arguments.start_at:
        raise DefiniteError("this is about a server's log", place="--start-at", hint="leave it out, or give mysql://user@host:port/db")
    if connector is SCYLLA:
        return _tail_log(arguments)
    if connector is None:
        check_is_read(arguments.topic)
        hint = "write mysql://user@host:port/db, binlog:DIR, kafka://host:port/topic or scylla://host:port/keyspace"
        raise DefiniteError("the source's address cannot be read", place=arguments.topic.partition(":")[0], hint=hint)
    from headrace.kafka.consumers.consumer import ConsumerSettings
    from headrace.kafka.consumers.message_source import EARLIEST, LATEST
    from headrace.kafka.consumers.tail import json_line, tail, text_line

    start = arguments.offset or (EARLIEST if arguments.from_beginning or arguments.once else LATEST)
    line = json_line if arguments.json else text_line
    stop = threading.Event()
    stop_on_signal(stop.set)
    with exit_on_closed_stdout():
        for found in tail(
            ConsumerSettings(arguments.topic, registry=arguments.registry, start=start),
            once=arguments.once,
            limit=arguments.limit,
            stop=stop,
        ):
            print_line(line(found))
    return OK


def _tail_changes(arguments: argparse.Namespace, *, is_directory: bool) -> int:
    from headrace.model.setting_values import ZeroDates
    from headrace.model.table_selection import Selection
    from headrace.pipes.commands.mysql_tail import NOW, OLDEST, DirectoryTail, ServerTail, TailOptions
    from headrace.sinks.stdout.batches import LineOptions, as_bytes
    from headrace.sinks.stdout.output import may_colour
    from headrace.sources.mysql.offline_source import parse_directory
    from headrace.sources.mysql.server.connection import parse_mysql_url

    for name, value in (("--offset", arguments.offset), ("--registry", arguments.registry), ("--set", arguments.set)):
        if value:
            raise DefiniteError("this is not about a server's log", place=name, hint="leave it out")
    if arguments.start_at and arguments.from_beginning:
        raise DefiniteError("--start-at and --from-beginning contradict each other", place="--start-at", hint="give one of them")
    database = "" if is_directory else parse_mysql_url(arguments.topic).database
    looking = TailOptions(
        Selection.of_globs(arguments.tables or (["*.*"] if is_directory else []), arguments.exclude, database),
        arguments.start_at or (OLDEST if arguments.from_beginning or arguments.once else NOW),
        arguments.once,
        ZeroDates(arguments.zero_dates),
        LineOptions(human=not arguments.json, colour=not arguments.json and may_colour(arguments.colour)),
    )
    left = arguments.limit

    def show(lines: Any) -> None:
        nonlocal left
        shown = lines if left is None else lines[:left]
        sys.stdout.buffer.write(as_bytes(shown))
        sys.stdout.buffer.flush()
        if left is not None:
            left -= len(shown)
            if left <= 0:
                found.stop()

    found: DirectoryTail | ServerTail
    if is_directory:
        found = DirectoryTail(parse_directory(arguments.topic), looking)
    else:
        found = ServerTail(parse_mysql_url(arguments.topic), looking, show)
    stop_on_signal(found.stop)
    with exit_on_closed_stdout(), contextlib.closing(found.lines()) as several:
        for lines in several:
            show(lines)
            if left is not None and left <= 0:
                break
    found.stop()
    return OK


def _tail_log(arguments: argparse.Namespace) -> int:
    from headrace.cql.address import parse_cql_url
    from headrace.model.table_selection import Selection
    from headrace.pipes.scylla.tail import Tail, tail_choices, text_line

    for name, value in (("--offset", arguments.offset), ("--registry", arguments.registry)):
        if value:
            raise DefiniteError("this is about topics of Kafka", place=name, hint="leave it out")
    address = parse_cql_url(arguments.topic)
    looking = Tail(
        address,
        tail_choices(arguments.set),
        Selection.of_globs(arguments.tables, arguments.exclude, address.keyspace),
        oldest=arguments.from_beginning,
        once=arguments.once,
    )
    stop = threading.Event()
    stop_on_signal(stop.set)
    with exit_on_closed_stdout():
        for document in itertools.islice(looking.documents(stop), arguments.limit):
            print_line(document.decode() if arguments.json else text_line(document))
    return OK
