"""`headrace tail`."""

from __future__ import annotations

import argparse
import itertools
import threading

from headrace.cli.ending import readers_may_leave, stop_on_signals
from headrace.cli.flags import OK, Verbs, add_command, add_tables
from headrace.cql.address import is_cql, parse_cql_url
from headrace.errors import DefiniteError
from headrace.kafka.address import PASSWORD_VARIABLE as KAFKA_PASSWORD
from headrace.sources.mysql.selection import Selection


def add(verbs: Verbs) -> None:
    command = add_command(verbs, tail, "tail", "print what is in a Kafka topic, or in the log of ScyllaDB's tables, decoded")
    text = f"kafka://user:password@host:port,host:port/topic,topic?PROPERTY=VALUE (password also from {KAFKA_PASSWORD})"
    text += "; a topic that begins with ^ is a pattern; or scylla://user:password@host:port/keyspace"
    command.add_argument("topic", metavar="TOPIC", help=text)
    command.add_argument("--from-beginning", action="store_true", help="from the oldest message (what comes from now on)")
    command.add_argument("--offset", default="", metavar="N", help="from this offset of each partition; -N: the last N of each")
    command.add_argument("--limit", type=int, default=None, metavar="N", help="end after N messages")
    command.add_argument("--once", action="store_true", help="end where the topic ends now; from the beginning unless --offset is given")
    command.add_argument("--registry", default="", metavar="ADDRESS", help="where schemas are: a folder, or http://host:port of a registry")
    command.add_argument("--json", action="store_true", help="print each as a line of JSON")
    add_tables(command)
    text = "of ScyllaDB's log: a setting such as scylla.confidence=1 (5: seconds that a change waits to be shown)"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def tail(arguments: argparse.Namespace) -> int:
    """Print what is in a topic, message by message, or in ScyllaDB's log, row by row."""
    if is_cql(arguments.topic):
        return _tail_log(arguments)
    from headrace.kafka.consumer import Reading
    from headrace.kafka.tailing import json_line, tail, text_line
    from headrace.kafka.topics import EARLIEST, LATEST

    start = arguments.offset or (EARLIEST if arguments.from_beginning or arguments.once else LATEST)
    line = json_line if arguments.json else text_line
    stop = threading.Event()
    stop_on_signals(stop.set)
    with readers_may_leave():
        for found in tail(
            Reading(arguments.topic, registry=arguments.registry, start=start), once=arguments.once, limit=arguments.limit, stop=stop
        ):
            print(line(found), flush=True)
    return OK


def _tail_log(arguments: argparse.Namespace) -> int:
    """Print what is in the CDC log of a cluster's tables."""
    from headrace.pipes.scylla.tailing import Tail, tail_choices, text_line

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
    stop_on_signals(stop.set)
    with readers_may_leave():
        for document in itertools.islice(looking.documents(stop), arguments.limit):
            print(document.decode() if arguments.json else text_line(document), flush=True)
    return OK
