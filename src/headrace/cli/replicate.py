"""`headrace replicate`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cli.flags import (
    OK,
    Subcommands,
    add_command,
    add_setting_flags,
    add_sink,
    add_source,
    add_spark,
    add_tables,
    add_target_settings,
    flag_name,
    parse_spark_settings,
    settings_from_flags,
)
from headrace.errors import DefiniteError, HeadraceError
from headrace.settings.dataclass_fields import merge_fields, select_values
from headrace.settings.pipe_keys import LOG_KEYS, ColumnKeys, LatencyKeys, TargetKeys, TopicKeys
from headrace.shutdown import is_requested, stop_on_signal
from headrace.sinks.stdout.options import LineFormat
from headrace.stage_report import report_stages

if TYPE_CHECKING:
    from headrace.materialize_mysql.keeper import KeeperLink
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.pipes.spec import PipeSpec

log = logging.getLogger("headrace")

_ATTEMPTS: Final = 5
"""Starts of a pipe on a machine that is too busy to start Spark's Python processes in time."""


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, replicate, "replicate", "copy tables, then replicate their changes")
    add_source(command, kafka=True, scylla=True)
    add_sink(command, kafka=True)
    add_tables(command)
    add_setting_flags(command, ColumnKeys)
    add_setting_flags(command.add_argument_group("topics", "Of a source in Kafka: Debezium's change events. See docs/kafka.md."), TopicKeys)
    command.add_argument(
        "--state",
        default="headrace-state",
        metavar="DIR",
        help="the directory of the progress; the same command continues from it (%(default)s)",
    )
    command.add_argument("--name", default="", help="the pipe's name in the sink (the name of its state directory)")
    command.add_argument("--once", action="store_true", help="stop at the end that the log had at the start")
    formats = [one.value for one in LineFormat]
    command.add_argument("--format", default="", choices=formats, help="how stdout: prints changes (auto: text on a terminal, else json)")
    add_target_settings(command)
    add_setting_flags(command, *LOG_KEYS, LatencyKeys, TargetKeys)
    add_spark(command)
    command.add_argument("--spark-log", action="store_true", help="log Spark's warnings, too")
    command.add_argument("--keeper-fd", type=int, default=-1, help=argparse.SUPPRESS)


@report_stages("loading Headrace")
def replicate(arguments: argparse.Namespace) -> int:
    """Take a snapshot, then replicate the changes."""
    from headrace.materialize_mysql.keeper import open_keeper_link
    from headrace.pipes.factory import selected
    from headrace.pipes.lifecycle.progress_view import LogView, choose_view
    from headrace.pipes.source_registry import DEBEZIUM, source_connector
    from headrace.pipes.spec import PipeSpec
    from headrace.pipes.state.stored_settings import chosen_for
    from headrace.settings.pipe_settings import PipeSettings
    from headrace.sinks.registry import prints_here

    # State and relay log contain the source's data: only the owner may read them.
    os.umask(0o077)
    if source_connector(arguments.source) is DEBEZIUM:
        hint = "leave it out: --start says where topics are begun, --max-offsets how large a batch is, and the connector what it takes over"
        _refuse_flags(arguments, LOG_KEYS, "is about a server's log, and the source is in Kafka", hint)
    else:
        hint = "leave it out, or give kafka://host:port as the source"
        _refuse_flags(arguments, (TopicKeys,), "is about a source in Kafka", hint)
    arguments.sink = _with_format(arguments.sink, arguments.format)
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
    spec = PipeSpec(arguments.source, arguments.sink, settings, chosen, TopicKeys(**select_values(vars(arguments), TopicKeys)))
    # A progress line that is rewritten in place would mix with printed changes.
    view = LogView() if prints_here(arguments.sink) else choose_view()
    with open_keeper_link(arguments.keeper_fd) as line:
        _run_pipe(spec, view, line)
    return OK


def _with_format(sink: str, line_format: str) -> str:
    from headrace.sinks.registry import prints_here

    if not line_format:
        return sink
    if not prints_here(sink):
        raise DefiniteError("--format is about the standard output", place=sink, hint="leave it out, or give stdout: as the sink")
    return f"{sink}{'&' if '?' in sink else '?'}format={line_format}"


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
                try:
                    ready.pipe.run()
                except HeadraceError:
                    output = sys.modules.get("headrace.sinks.stdout.output")
                    # A reader of stdout that has closed it is no error.
                    if output is None or not output.STDOUT.left:
                        raise
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


def _refuse_flags(arguments: argparse.Namespace, classes: Iterable[type], why: str, hint: str) -> None:
    """Raise `DefiniteError` if a flag of these settings is given: it would have no effect."""
    given = select_values(vars(arguments), *classes)
    for name, one in merge_fields(*classes).items():
        if given[name] != one.default:
            raise DefiniteError(f"{flag_name(name)} {why}", place=flag_name(name), hint=hint)
