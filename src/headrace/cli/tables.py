"""Commands about the tables of a pipe: `resync`, `ddl`, `retry`, `check`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.control import add_process_options, resync_running
from headrace.cli.flags import (
    DIFFERENT,
    FAILED,
    OK,
    Subcommands,
    add_command,
    add_sink,
    add_source,
    add_tables,
    add_target_settings,
    settings_from_flags,
)
from headrace.errors import DefiniteError
from headrace.stage_report import report_stages
from headrace.terminal_text import print_line

if TYPE_CHECKING:
    from headrace.pipes.state.pipe_state import StateDirectory


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, resync, "resync", "read tables again, without stopping the others")
    command.add_argument("tables", nargs="*", metavar="TABLE", help="database.table, or a glob over such names; a new name is added")
    command.add_argument(
        "--new-log",
        action="store_true",
        help="read all tables again and begin in the log that the server writes now, after its log was reset or restored",
    )
    command.add_argument(
        "--state", default="", metavar="DIR", help="the pipe's state directory (headrace-state); with --pipe, the running process's"
    )
    command.add_argument("--pipe", default="", metavar="NAME", help="this pipe of a running process (`headrace run`)")
    add_process_options(command)

    command = add_command(subcommands, ddl, "ddl", "show what a statement of the source would do to the sink, without doing it")
    command.add_argument("statement", help="the statement, such as 'ALTER TABLE shop.orders ADD COLUMN note TEXT'")
    command.add_argument("--source", default="", metavar="SOURCE", help="the server with the tables")
    command.add_argument("--schema", action="append", default=[], metavar="SQL", help="their CREATE TABLE statements, or a file with them")
    command.add_argument("--state", default="", metavar="DIR", help="the state directory of a pipe that replicates them")
    command.add_argument(
        "--sink", default="", metavar="SINK", help="use the tables of this sink, instead of those that Headrace would create"
    )
    command.add_argument("--database", default="", metavar="NAME", help="the database of names without one")
    command.add_argument(
        "--server-version", default="9.7.0", metavar="V", help="of --schema: such as 8.0.36 or 10.11.6-MariaDB (%(default)s)"
    )
    add_target_settings(command)

    command = add_command(subcommands, retry, "retry", "write rows of headrace.errors again, which a target table rejected")
    add_sink(command)
    command.add_argument("--pipe", default="", metavar="NAME", help="only rows of this pipe")
    command.add_argument("--table", default="", metavar="GLOB", help="only rows of these tables, by their names in the source")
    command.add_argument("--id", action="append", default=[], metavar="ID", help="only this row; may be repeated")
    command.add_argument("--list", action="store_true", help="list the rows, and write nothing")
    add_target_settings(command)

    command = add_command(subcommands, check, "check", "check the settings and privileges of a source; exit 2 if it cannot be replicated")
    add_source(command, kafka=True, scylla=True)
    add_tables(command)
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the pipe, such as scylla.confidence=5"
    )
    command.add_argument("--json", action="store_true", help="print the findings as JSON")


@report_stages("requesting the resync")
def resync(arguments: argparse.Namespace) -> int:
    """Request a resync from a pipe of a running process, or from the pipe of a state directory."""
    _check_resync(arguments)
    if arguments.pipe:
        return resync_running(arguments)
    if arguments.file or arguments.url:
        raise DefiniteError("which pipe of the process is to read them again?", place="--pipe", hint="give --pipe NAME")
    from headrace.pipes.state.pipe_state import StateDirectory
    from headrace.pipes.state.resync_requests import request_resync

    directory = StateDirectory(Path(arguments.state or "headrace-state"), make=False)
    state = directory.load()
    if state is None:
        raise DefiniteError("there is no pipe here", place=str(directory.path), hint="give the --state of a pipe that was started before")
    unclear = next((table for table in arguments.tables if "." not in table), None)
    if unclear is not None:
        raise DefiniteError(f"{unclear!r} has no database", hint="write database.table")
    if arguments.new_log:
        return _resync_from_new_log(directory, state.source)
    request_resync(directory, tuple(arguments.tables))
    when = "the running pipe takes it up in a moment" if directory.is_owned else "no pipe runs now; it is done at the next start"
    print_line(f"resync: requested for {', '.join(arguments.tables)}; {when}")
    return OK


def _check_resync(arguments: argparse.Namespace) -> None:
    if arguments.new_log and arguments.tables:
        raise DefiniteError("--new-log reads all tables again", place=", ".join(arguments.tables), hint="name no tables with --new-log")
    if arguments.new_log and arguments.pipe:
        raise DefiniteError("--new-log needs the state directory of the pipe", place="--pipe", hint="give --state DIR instead of --pipe")
    if not arguments.new_log and not arguments.tables:
        raise DefiniteError("no table is named", place="headrace resync", hint="name tables as database.table, or give --new-log")


def _resync_from_new_log(directory: StateDirectory, source: str) -> int:
    from headrace.pipes.source_registry import MYSQL
    from headrace.pipes.state.resync_requests import request_resync

    if not MYSQL.is_address(source):
        raise DefiniteError(
            f"--new-log is for pipes from MySQL and MariaDB, and this one reads {source}",
            place=str(directory.path),
            hint="start with a new state directory and new target tables",
        )
    request_resync(directory, ("*.*",), new_log=True)
    when = "the pipe runs now: stop it and start it again" if directory.is_owned else "start the pipe again"
    print_line(f"resync: all tables are read again at the next start, from the log that the server writes then; {when}")
    return OK


def ddl(arguments: argparse.Namespace) -> int:
    """Show what a statement of the source would do to the sink."""
    from headrace.pipes.commands.ddl_dry_run import DryRunArguments, dry_run
    from headrace.settings.settings_file import UserSettings, read_settings

    chosen = read_settings(Path(arguments.settings)) if arguments.settings else UserSettings()
    for flag in settings_from_flags(arguments):
        chosen = flag.over(chosen)
    request = DryRunArguments(
        arguments.statement,
        arguments.source,
        tuple(arguments.schema),
        arguments.state,
        arguments.sink,
        arguments.database,
        arguments.server_version,
        chosen,
    )
    for line in dry_run(request):
        print_line(line)
    return OK


def retry(arguments: argparse.Namespace) -> int:
    """Write rows again that a target table refused; 1 if some still wait."""
    from headrace.pipes.commands.retry_rows import retry_rows
    from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
    from headrace.settings.settings_file import UserSettings, read_settings
    from headrace.sinks.clickhouse.bookkeeping.dead_letters import waiting_dead_letters

    given: UserSettings | None = read_settings(Path(arguments.settings)) if arguments.settings else None
    for flag in settings_from_flags(arguments):
        given = flag.over(given or UserSettings())
    chosen = {"pipe": arguments.pipe, "table": arguments.table, "ids": tuple(arguments.id)}
    with open_clickhouse_sink(arguments.sink) as named:
        if arguments.list:
            letters = waiting_dead_letters(named.sink.own_tables(), **chosen)
            for letter in letters:
                print_line(f"{letter.id} {letter.table} {letter.fields['operation']} {letter.key}: {letter.fields['reason']}")
            print_line(f"retry: {len(letters)} rows wait")
            return OK
        written = left = 0
        for outcome in retry_rows(named.sink, choices=None if given is None else given.sink, **chosen):
            written, left = written + outcome.written, left + (not outcome.written)
            result = "written" if outcome.written else f"{'still refused' if outcome.waits else 'left out'}: {outcome.reason}"
            print_line(f"{outcome.letter.id} {outcome.letter.table} {outcome.letter.key}: {result}")
    print_line(f"retry: {written} rows written, {left} not")
    return DIFFERENT if left else OK


def check(arguments: argparse.Namespace) -> int:
    """Check all relevant settings and privileges of a source; return 2 if it cannot be replicated correctly."""
    from headrace.extras import require_extra
    from headrace.model.table_selection import Selection
    from headrace.pipes.commands.preflight_view import findings_json, print_findings
    from headrace.pipes.source_registry import SCYLLA, source_connector
    from headrace.pipes.spec import PipeSpec
    from headrace.settings.pipe_settings import PipeSettings
    from headrace.settings.settings_file import UserSettings, parse_set_flag
    from headrace.sources.preflight import Level

    connector = source_connector(arguments.source)
    if connector.extra is not None:
        require_extra(connector.extra)
    if not connector.has_rows and (arguments.tables or arguments.exclude):
        raise DefiniteError(
            "--tables and --exclude select tables of a database", place=connector.redact(arguments.source), hint="leave them out"
        )
    shown, database = connector.redact(arguments.source), connector.database_of(arguments.source)
    everything = not arguments.tables and not database
    selection = Selection(("*",)) if everything else Selection.of_globs(arguments.tables, arguments.exclude, database)
    chosen = UserSettings()
    for one in arguments.set if connector is SCYLLA else ():
        chosen = parse_set_flag(one).over(chosen)
    findings = connector.preflight(PipeSpec(arguments.source, "", PipeSettings(selection, Path()), chosen))
    if arguments.json:
        print(findings_json(shown, findings))
    else:
        print_findings(findings)
    return FAILED if any(finding.level is Level.ERROR for finding in findings) else OK
