"""`headrace run`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from headrace.cli.flags import FAILED, OK, Subcommands, add_command, add_spark, parse_spark_settings
from headrace.errors import DefiniteError, HeadraceError
from headrace.shutdown import reload_on_signal, stop_on_signal
from headrace.stage_report import end_report, report_stages
from headrace.terminal_text import escape_text, print_line

if TYPE_CHECKING:
    from headrace.config.configuration import Configuration
    from headrace.service.supervisor import Supervisor

log = logging.getLogger("headrace")


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, run, "run", "run the pipes of a file, with a dashboard; Ctrl-C stops them")
    command.add_argument(
        "file",
        nargs="?",
        default="headrace.toml",
        metavar="FILE",
        help="the file of pipes (%(default)s; also files of mypipe and Debezium)",
    )
    command.add_argument("--pipe", action="append", default=[], metavar="NAME", help="run only this pipe; may be repeated (all)")
    command.add_argument("--once", action="store_true", help="stop when all pipes have reached the end that their logs had at the start")
    add_spark(command, usual="")
    command.add_argument(
        "--listen", default=None, metavar="HOST:PORT", help="the address of the dashboard; empty: no dashboard (from the file)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run pipes until they are done or a signal stops them; return 2 if one failed and none is left."""
    from headrace.config.configuration import LogFormat
    from headrace.config.load import load, read_document, reload
    from headrace.kernels.compile import ensure_compiled
    from headrace.service.log_formats import JsonFormatter, configure_pipe_logging
    from headrace.service.running_process import hold_instance_lock, new_token, publish_endpoint

    # Compile once, before several pipes start at the same time, and before an import loads a part of the kernels.
    ensure_compiled()
    file = Path(arguments.file)
    configuration = _apply_flags(load(file, arguments.pipe), arguments)
    if not any(pipe.enabled for pipe in configuration.pipes):
        raise DefiniteError("no pipe is to run", place=configuration.file, hint="add one ([pipes.NAME]), or set enabled = true")
    # State, relay logs and sockets are for the owner only.
    os.umask(0o077)
    process = configuration.process
    as_json = (arguments.log_format or process.log) == LogFormat.JSON
    configure_pipe_logging(JsonFormatter() if as_json else None)
    with ExitStack() as stack:
        stack.enter_context(report_stages("loading Headrace"))
        from headrace.dashboard.server import serve
        from headrace.editor import Editor
        from headrace.service.supervisor import Supervisor

        stack.enter_context(hold_instance_lock(process.state))

        def read_again() -> Configuration:
            return _apply_flags(reload(read_document(file), arguments.pipe, process.state), arguments)

        supervisor = Supervisor(configuration, read_again=read_again)
        if process.listen:
            # Before any pipe starts, so that an address in use is reported at once.
            token = new_token()
            editor = Editor(file, process.state, arguments.pipe, lambda: supervisor.configuration.process.edit, supervisor.reload)
            server = stack.enter_context(serve(supervisor, process.listen, token, hosts=process.hosts, editor=editor))
            stack.enter_context(publish_endpoint(process.state, server.url, token))
            supervisor.alert_monitor.server_url = server.url
            link = f"headrace: dashboard at {server.url} (headrace dashboard prints a link that may also pause, resume and query)"
            print_line(link, file=_message_stream(configuration))
        _print_pipes(configuration)
        # Each pipe reports its own start.
        end_report()
        stop_on_signal(supervisor.end)
        reload_on_signal(lambda: _reload(supervisor))
        with supervisor:
            well = supervisor.wait()
    return _report_failures(supervisor, well, logged=as_json)


def _reload(supervisor: Supervisor) -> None:
    """Reload on a signal: the log has the outcome."""
    try:
        supervisor.reload()
    except HeadraceError as error:
        log.error("reload: nothing was changed: %s", error)


def _apply_flags(configuration: Configuration, arguments: argparse.Namespace) -> Configuration:
    process = configuration.process
    if arguments.master:
        process = replace(process, master=arguments.master)
    if arguments.conf:
        process = replace(process, spark={**process.spark, **parse_spark_settings(arguments.conf)})
    if arguments.listen is not None:
        process = replace(process, listen=arguments.listen)
    pipes = configuration.pipes
    if arguments.once:
        pipes = tuple(
            replace(pipe, specs=tuple(replace(part, settings=replace(part.settings, once=True)) for part in pipe.specs)) for pipe in pipes
        )
    return replace(configuration, process=process, pipes=pipes)


def _print_pipes(configuration: Configuration) -> None:
    from headrace.pipes.factory import shown_source
    from headrace.sinks.registry import redact_sink

    out = _message_stream(configuration)
    for pipe in configuration.pipes:
        for part in pipe.specs:
            off = "" if pipe.enabled else " (disabled)"
            print_line(f"headrace: pipe {part.name}: {shown_source(part.source)} -> {redact_sink(part.sink)}{off}", file=out)


def _message_stream(configuration: Configuration) -> TextIO:
    """Return the stream for the list of pipes: the standard error if a pipe prints changes."""
    from headrace.sinks.registry import prints_here

    printing = any(pipe.enabled and prints_here(part.sink) for pipe in configuration.pipes for part in pipe.specs)
    return sys.stderr if printing else sys.stdout


def _report_failures(supervisor: Supervisor, well: bool, *, logged: bool) -> int:
    """Print the errors of failed pipes, unless they are logged as JSON, and return the exit code: 0 if some pipes still ran."""
    failed = [part for part in supervisor.runners.values() if part.has_failed and not logged]
    for part in failed:
        error = part.error
        assert error is not None
        text = str(DefiniteError(error.message, place=error.place, hint=error.remedy))
        print(f"headrace: pipe {escape_text(part.name)} failed: {text}", file=sys.stderr)
    is_over = all(part.is_over for part in supervisor.runners.values())
    return FAILED if not well and is_over else OK
