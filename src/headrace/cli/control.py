"""Commands for a running process: `status`, `pause`, `resume`, `stop`, `skip`, `reload`, `dashboard`, and `resync` and `verify` of its
pipes.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from headrace.cli.flags import DIFFERENT, OK, UNDECIDED, Subcommands, add_command
from headrace.errors import DefiniteError, HeadraceError
from headrace.service.status import PipeStage, PipeStatus, ServiceStatus, TableStatus, VerifyResult
from headrace.shutdown import stop_on_signal
from headrace.stage_report import enter_stage
from headrace.terminal_text import escape_text, exit_on_closed_stdout, print_line

if TYPE_CHECKING:
    from headrace.service.running_process import HttpControl
    from headrace.service.status import Control

_POLL_S: Final = 0.5
_UNHEALTHY: Final = (PipeStage.FAILED, PipeStage.RETRYING)


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, status, "status", "show the pipes of a running process; exit 1 if one has failed")
    _add_file(command)
    _add_process_selection(command)
    command.add_argument(
        "--watch", nargs="?", type=float, const=1.0, default=None, metavar="S", help="refresh it every second, or every S seconds"
    )
    command.add_argument("--tables", action="store_true", help="also the tables: rows, changes, snapshot, last comparison")
    command.add_argument("--pipe", action="append", default=[], metavar="NAME", help="only this pipe; may be repeated (all)")
    command.add_argument("--json", action="store_true", help="print it as JSON, as GET /api/status answers")

    for run, name, text in (
        (pause, "pause", "stop pipes after the current batch, until they are resumed"),
        (resume, "resume", "resume pipes that were paused or stopped, failed, or wait for a retry"),
        (stop, "stop", "stop pipes after the current batch, until they are resumed or the process restarts"),
    ):
        command = add_command(subcommands, run, name, text)
        command.add_argument("pipes", nargs="*", metavar="PIPE", help="its name in the file; NAME/SOURCE is the part of one source")
        command.add_argument("--all", action="store_true", help="all pipes of the process")
        _add_process_selection(command, file=True)

    command = add_command(subcommands, skip, "skip", "skip the one event that a pipe halts at, record it, and continue")
    text = "the pipe that failed, of a running process; without one, --state is the directory of a pipe that does not run"
    command.add_argument("pipe", nargs="?", default="", metavar="PIPE", help=text)
    command.add_argument("--place", default="", metavar="PLACE", help="the event, as the error names it (the one the pipe halts at)")
    command.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    _add_process_selection(command, file=True)

    command = add_command(subcommands, reload, "reload", "let a running process read its file again, and apply what has changed")
    _add_file(command)
    _add_process_selection(command)

    command = add_command(subcommands, dashboard, "dashboard", "print the link to a running process's dashboard")
    _add_file(command)
    _add_process_selection(command)


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", nargs="?", default="", metavar="FILE", help="the file that the process was started with (headrace.toml)")


def _add_process_selection(command: argparse.ArgumentParser, *, file: bool = False) -> None:
    group = command.add_argument_group("which process")
    if file:
        group.add_argument("-f", "--file", default="", metavar="FILE", help="the file that it was started with (headrace.toml)")
    group.add_argument("--state", default="", metavar="DIR", help="its state directory (from the file)")
    group.add_argument("--url", default="", metavar="URL", help="its address, with its token in HEADRACE_TOKEN (from its state)")


def add_process_options(command: argparse.ArgumentParser) -> None:
    """Add the flags of commands that also work on a running process."""
    group = command.add_argument_group("of a running process")
    group.add_argument("-f", "--file", default="", metavar="FILE", help="the file that it was started with (headrace.toml)")
    group.add_argument("--url", default="", metavar="URL", help="its address, with its token in HEADRACE_TOKEN (from its state)")


def connect_to_process(arguments: argparse.Namespace) -> HttpControl:
    from headrace.service.running_process import HttpControl, find_process

    return HttpControl(find_process(arguments.file, arguments.state, arguments.url))


def status(arguments: argparse.Namespace) -> int:
    """Print the status of a process once, or until interrupted."""
    if arguments.watch is not None:
        return _watch(arguments)
    from headrace.cli.status_view import make_console, render_status

    found = connect_to_process(arguments).status()
    if arguments.pipe:
        _check_known([pipe.name for pipe in found.pipes] + [pipe.group for pipe in found.pipes], arguments.pipe)
        found = _only(found, arguments.pipe)
    with exit_on_closed_stdout():
        if arguments.json:
            print(json.dumps(found.to_json(), indent=2))
        else:
            make_console().print(render_status(found, tables=arguments.tables))
        sys.stdout.flush()
    return DIFFERENT if any(pipe.stage in _UNHEALTHY for pipe in found.pipes) else OK


def _watch(arguments: argparse.Namespace) -> int:
    """Print the status until interrupted, also while the process is away."""
    from rich.live import Live
    from rich.text import Text

    from headrace.cli.status_view import make_console, render_status

    if arguments.json:
        raise DefiniteError("--json and --watch do not go together", hint="read GET /api/stream, or call status --json in turn")
    console = make_console()

    def current() -> object:
        try:
            return render_status(_only(connect_to_process(arguments).status(), arguments.pipe), tables=arguments.tables)
        except HeadraceError as error:
            return Text(escape_text(f"{error.message} ({error.place})"))

    # Fail at once if there is no process.
    connect_to_process(arguments).status()
    stopped = threading.Event()
    stop_on_signal(stopped.set)
    with exit_on_closed_stdout():
        if not console.is_terminal:
            while not stopped.is_set():
                console.print(current())
                stopped.wait(arguments.watch)
            return OK
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while not stopped.is_set():
                live.update(current(), refresh=True)  # type: ignore[arg-type]
                stopped.wait(arguments.watch)
    return OK


def _only(found: ServiceStatus, names: Sequence[str]) -> ServiceStatus:
    from dataclasses import replace

    pipes = tuple(pipe for pipe in found.pipes if not names or pipe.name in names or pipe.group in names)
    return replace(found, pipes=pipes)


def _check_known(known: Sequence[str], names: Sequence[str]) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise DefiniteError(
            f"there is no pipe {unknown!r}", place=unknown, hint=f"pipes of this process: {', '.join(dict.fromkeys(known))}"
        )


def pause(arguments: argparse.Namespace) -> int:
    return _apply_to_pipes(
        arguments, lambda control, name: control.pause(name), "pauses, after the current batch; `headrace resume` lets it go on"
    )


def resume(arguments: argparse.Namespace) -> int:
    return _apply_to_pipes(arguments, lambda control, name: control.resume(name), "resumes")


def stop(arguments: argparse.Namespace) -> int:
    return _apply_to_pipes(arguments, lambda control, name: control.stop(name), "stops, until `headrace resume` or the next start")


def _apply_to_pipes(arguments: argparse.Namespace, ask: Callable[[Control, str], None], result: str) -> int:
    """Apply an action to all named pipes, also if it fails for one of them."""
    remote = connect_to_process(arguments)
    if bool(arguments.pipes) == arguments.all:
        raise DefiniteError("say which pipes" if not arguments.all else "--all and names do not go together", hint="name pipes, or --all")
    found = remote.status().pipes
    names = arguments.pipes or list(dict.fromkeys(pipe.group for pipe in found if pipe.stage is not PipeStage.DISABLED))
    _check_known([name for pipe in found for name in (pipe.group, pipe.name)], names)
    failures: list[HeadraceError] = []
    for name in names:
        try:
            ask(remote, name)
            print_line(f"{name}: {result}")
        except HeadraceError as error:
            failures.append(error)
    for failure in failures[:-1]:
        print(f"headrace: {failure}", file=sys.stderr)
    if failures:
        raise failures[-1]
    return OK


def skip(arguments: argparse.Namespace) -> int:
    """Print the event that a pipe halted at, ask for confirmation, and skip it."""
    from headrace.cli.status_view import render_error

    if not arguments.pipe:
        return _skip_in_state(arguments)
    remote = connect_to_process(arguments)
    halted = _halted_pipe(remote, arguments.pipe)
    error = halted.error
    place = arguments.place or (error.skippable if error is not None else "")
    if error is not None:
        for line in render_error(halted.name, error, time.time()):
            print_line(line.plain)
    if not place:
        raise DefiniteError(
            f"{arguments.pipe} does not halt at an event that can be left out", place=arguments.pipe, hint="see `headrace status`"
        )
    if not arguments.yes:
        _confirm(f"Skip the event at {place} permanently? The skip is recorded; no other event is skipped.")
    print_line(f"{halted.name}: {remote.skip(halted.name, place)}")
    return OK


def _skip_in_state(arguments: argparse.Namespace) -> int:
    """Skip the event of a pipe that does not run; its next run skips it."""
    from pathlib import Path

    from headrace.pipes.state.event_skips import halted_at, request_skip

    if not arguments.state:
        raise DefiniteError("no pipe is named", hint="name one of a running process, or give --state DIR of a pipe that has halted")
    directory = Path(arguments.state)
    halted = halted_at(directory)
    if halted is not None:
        print_line(f"{halted['message']} (at {halted['place']})")
        if not arguments.yes:
            _confirm(f"Skip the event at {halted['event']} permanently? The skip is recorded; no other event is skipped.")
    print_line(request_skip(directory, arguments.place))
    return OK


def _halted_pipe(remote: HttpControl, name: str) -> PipeStatus:
    """Return the pipe, or the source of the pipe that halted."""
    found = remote.status().pipes
    _check_known([known for pipe in found for known in (pipe.group, pipe.name)], [name])
    parts = [pipe for pipe in found if name in (pipe.name, pipe.group)]
    return next((pipe for pipe in parts if pipe.error is not None and pipe.error.skippable), parts[0])


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise DefiniteError(
            "the standard input is not a terminal, so the command cannot ask for confirmation", place="standard input", hint="give --yes"
        )
    if input(f"{escape_text(question)} [y/N] ").strip().lower() not in ("y", "yes"):
        raise DefiniteError("nothing was left out", hint="answer y, or give --yes")


def dashboard(arguments: argparse.Namespace) -> int:
    from headrace.service.running_process import HttpControl, find_process

    contact = find_process(arguments.file, arguments.state, arguments.url)
    HttpControl(contact).status()
    # Browsers do not send the fragment to a server.
    print_line(f"{contact.url}/#token={contact.token}" if contact.token else f"{contact.url}/")
    return OK


def reload(arguments: argparse.Namespace) -> int:
    """Reload the pipe file of a process and print what has changed."""
    result = connect_to_process(arguments).reload()
    for line in result.lines():
        print_line(f"headrace: {line}")
    return OK


def resync_running(arguments: argparse.Namespace) -> int:
    connect_to_process(arguments).resync(arguments.pipe, arguments.tables)
    print_line(f"resync: {arguments.pipe} reads {', '.join(arguments.tables)} again; `headrace status --tables` shows how far it is")
    return OK


def verify_running(arguments: argparse.Namespace) -> int:
    """Let a running process compare tables with their source; return 1 if rows differ, 3 if undecided."""
    remote = connect_to_process(arguments)
    # The status has results of earlier comparisons: only a changed result is new.
    before = {(part, table.name): table.verify for part, table in _tables(remote, arguments.pipe)}
    verdicts: dict[tuple[str, str], str] = {}
    meant = {key for key in before if not arguments.tables or any(fnmatchcase(key[1], glob) for glob in arguments.tables)}
    if not meant:
        raise DefiniteError("there is no such table to compare", place=arguments.pipe, hint="`headrace status --tables` lists them")
    remote.verify(arguments.pipe, sorted({name for _, name in meant}) if arguments.tables else ())
    deadline, seen_at = time.monotonic() + arguments.wait, time.monotonic()
    while meant - verdicts.keys():
        enter_stage("comparing", f": {len(verdicts)} of {len(meant)} tables")
        for part, table in _tables(remote, arguments.pipe):
            key, result = (part, table.name), table.verify
            if key not in meant or key in verdicts or result is None or result == before.get(key):
                continue
            seen_at = time.monotonic()
            if result.verdict != "running":
                verdicts[key] = result.verdict
                print_line(_verdict_line(table, result))
        # Wait as long as results arrive.
        if time.monotonic() > max(deadline, seen_at + arguments.wait):
            left = ", ".join(sorted(name for _, name in meant - verdicts.keys()))
            raise DefiniteError(f"no result came for {left}", place=arguments.pipe, hint="see `headrace status` and the process's log")
        time.sleep(_POLL_S)
    if "different" in verdicts.values():
        return DIFFERENT
    return OK if set(verdicts.values()) <= {"equal"} else UNDECIDED


def _tables(remote: HttpControl, name: str) -> list[tuple[str, TableStatus]]:
    return [(pipe.name, table) for pipe in remote.status().pipes if name in (pipe.name, pipe.group) for table in pipe.tables]


def _verdict_line(table: TableStatus, result: VerifyResult) -> str:
    # An undecided comparison has no number of differences.
    differences = f", {result.differences:,} differences" if result.verdict != "undecided" or result.differences else ""
    excluded = f"; the filter excludes {result.excluded:,} source rows" if result.excluded else ""
    return f"{table.name}: {result.verdict}, {result.rows:,} rows{differences}{excluded}"
