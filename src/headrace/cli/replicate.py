"""`headrace replicate`."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cli.flags import (
    OK,
    Subcommands,
    add_columns,
    add_command,
    add_sink,
    add_source,
    add_spark,
    add_tables,
    add_target_settings,
    parse_size,
    parse_spark_settings,
    settings_from_flags,
)
from headrace.cli.signals import ignore_closed_stdout
from headrace.errors import DefiniteError
from headrace.model.schema import ZeroDates
from headrace.shutdown import is_requested, stop_on_signal

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.keeper_link import KeeperLink
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.pipes.spec import PipeSpec

log = logging.getLogger("headrace")

_ATTEMPTS: Final = 5
"""Starts of a pipe on a machine that is too busy to start Spark's Python processes in time."""


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, replicate, "replicate", "copy tables and then follow their changes")
    add_source(command, kafka=True, scylla=True)
    add_sink(command, kafka=True)
    add_tables(command)
    add_columns(command)
    _add_topics(command)
    command.add_argument(
        "--state", default="headrace-state", metavar="DIR", help="where progress is kept; run again with it to go on (%(default)s)"
    )
    command.add_argument("--name", default="", help="what the pipe is called in the sink (the name of its state directory)")
    command.add_argument(
        "--shared-target", action="store_true", help="write also to tables or topics that another pipe writes to; otherwise an error"
    )
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
    add_target_settings(command)
    command.add_argument(
        "--zero-dates",
        choices=[*ZeroDates],
        default="halt",
        help="what to do with dates such as 0000-00-00 (%(default)s); epoch: 1970-01-01",
    )
    command.add_argument("--flush-bytes", type=parse_size, default=128 << 20, metavar="N", help="cut a batch after this much log (128M)")
    command.add_argument("--flush-rows", type=int, default=0, metavar="N", help="cut a batch after this many changes (no limit)")
    command.add_argument("--flush-seconds", type=float, default=0.05, metavar="S", help="how long a batch may gather (%(default)s)")
    command.add_argument("--relay-bytes", type=parse_size, default=1 << 30, metavar="N", help="most log kept on local disk (1G)")
    command.add_argument(
        "--relay",
        default="",
        metavar="DIR",
        help="where the log is mirrored; on a cluster, a directory that all machines share (the state)",
    )
    command.add_argument("--chunk-rows", type=int, default=200_000, metavar="N", help="rows per snapshot chunk (%(default)s)")
    command.add_argument(
        "--patience",
        type=float,
        default=600.0,
        metavar="S",
        help="how long a sink that is away or busy is waited for; 0: for ever (%(default)s)",
    )
    add_spark(command)
    command.add_argument("--spark-log", action="store_true", help="let Spark log its warnings")
    command.add_argument("--keeper-fd", type=int, default=-1, help=argparse.SUPPRESS)


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


TOPIC_FLAGS = ("topics", "topic_pattern", "start", "max_offsets", "min_partitions", "kafka_jars")
LOG_FLAGS = ("snapshot", "start_at", "zero_dates", "flush_bytes", "flush_rows", "flush_seconds", "relay_bytes", "relay", "chunk_rows")
"""Flags that apply to one kind of source only."""


def replicate(arguments: argparse.Namespace) -> int:
    """Take a snapshot, then replicate the changes."""
    from headrace.pipes.factory import selected
    from headrace.pipes.lifecycle.keeper_link import open_keeper_link
    from headrace.pipes.lifecycle.progress_view import LogView, choose_view
    from headrace.pipes.source_registry import DEBEZIUM, source_connector
    from headrace.pipes.spec import PipeSpec, TopicChoice
    from headrace.pipes.state.stored_settings import chosen_for
    from headrace.settings.pipe_settings import PipeSettings
    from headrace.sinks.registry import prints_here

    # State and relay log contain the source's data: only the owner may read them.
    os.umask(0o077)
    if source_connector(arguments.source) is DEBEZIUM:
        hint = "leave it out: --start says where topics are begun, --max-offsets how large a batch is, and the connector what it takes over"
        check_applicable_flags(arguments, LOG_FLAGS, "is about a server's log, and the source is in Kafka", hint)
    else:
        check_applicable_flags(
            arguments, TOPIC_FLAGS, "is about a source in Kafka", "leave it out, or give kafka://host:port as the source"
        )
    chosen = chosen_for(Path(arguments.state), arguments.settings, settings_from_flags(arguments))
    selection = selected(arguments.source, arguments.tables, arguments.exclude)
    settings = replace(
        PipeSettings.from_values(vars(arguments), chosen, selection=selection, state=Path(arguments.state)),
        name=arguments.name,
        once=arguments.once,
        master=arguments.master,
        spark=parse_spark_settings(arguments.conf),
        spark_log=arguments.spark_log,
    )
    spec = PipeSpec(arguments.source, arguments.sink, settings, chosen, TopicChoice.from_values(vars(arguments)))
    # A progress line that is rewritten in place would mix with printed changes.
    view = LogView() if prints_here(arguments.sink) else choose_view()
    with open_keeper_link(arguments.keeper_fd) as line:
        _run_pipe(spec, view, line)
    return OK


def _run_pipe(spec: PipeSpec, view: ProgressView, line: KeeperLink) -> None:
    """Run the pipe; restart it from its state if the machine was too busy to start Spark's Python processes in time."""
    from headrace.pipes.factory import open_pipe
    from headrace.runtime.interface import WorkerStartTimeout
    from headrace.spark.runtime import java_process

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with open_pipe(spec, view) as ready:
                ready.pipe.on_begun, line.is_in_vain = line.begun, ready.is_lost
                stop_on_signal(ready.pipe.stop)
                if is_requested():
                    # The signal went to the pipe of the last attempt.
                    ready.pipe.stop()
                with ignore_closed_stdout():
                    try:
                        ready.pipe.run()
                    finally:
                        # The sink closes with this attempt.
                        line.is_in_vain = lambda: False
            return
        except WorkerStartTimeout as error:
            if attempt == _ATTEMPTS or is_requested():
                raise
            log.warning("waiting: %s; the pipe starts again", error.message)
            # The next attempt waits until the processes of this one are gone.
            java_process.reset_gateway()


def check_applicable_flags(arguments: argparse.Namespace, names: Iterable[str], why: str, hint: str) -> None:
    """Raise `DefiniteError` if one of these flags is given: it would have no effect."""
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    usual = parser.parse_args(["replicate", "source", "sink"])
    for name in names:
        if getattr(arguments, name) != getattr(usual, name):
            flag = f"--{name.replace('_', '-')}"
            raise DefiniteError(f"{flag} {why}", place=flag, hint=hint)
