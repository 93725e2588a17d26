"""`headrace init`: writes a `headrace.toml` with one pipe, after its source and sink were checked.

Invariant: the file is written last, from what was checked, and only if nothing was wrong. An existing file is never changed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

from headrace.argument_secrets import secret_variables, strip_secrets
from headrace.cli.flags import FAILED, OK, Subcommands, add_command, add_sink, add_source
from headrace.errors import DefiniteError
from headrace.shutdown import is_requested
from headrace.terminal_text import print_line

if TYPE_CHECKING:
    from headrace.cli.questions import Questions
    from headrace.config.new_file import NewPipe
    from headrace.pipes.spec import PipeSpec
    from headrace.sources.preflight import Finding

DEFAULT_SINK: Final = "chdb:./warehouse"
_MISSING_HINT: Final = "write headrace init SOURCE SINK --yes, with --tables or --topics where SOURCE names no database or topic"
_PASSWORD_TRIES: Final = 3


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, init, "init", "check a source and a sink, and write a file with a pipe between them")
    add_source(command, kafka=True, scylla=True, optional=True)
    add_sink(command, kafka=True, optional=True)
    command.add_argument("--file", default="headrace.toml", metavar="FILE", help="the file to create (%(default)s)")
    command.add_argument("--name", default="", metavar="NAME", help="the pipe's name (the source's database, or its kind)")
    command.add_argument(
        "--tables", action="append", default=[], metavar="GLOB", help="tables to replicate, such as 'shop.*'; may be repeated (all of db)"
    )
    command.add_argument(
        "--topics", action="append", default=[], metavar="GLOB", help="of a source in Kafka: topics to read; may be repeated"
    )
    command.add_argument(
        "--yes", action="store_true", help=f"ask nothing; a sink that is not given is {DEFAULT_SINK}; the pipe runs only with --run"
    )
    command.add_argument("--run", dest="runs_file", action="store_true", help="run the file afterwards, as headrace run does")


def init(arguments: argparse.Namespace) -> int:
    """Check both ends, write the file, and offer to run it."""
    from headrace.cli.questions import Questions, has_terminal

    file = Path(arguments.file)
    if os.path.lexists(file):
        hint = "name another with --file, or add a pipe to this one (docs/pipes.md)"
        raise DefiniteError("the file already exists and is not changed", place=str(file), hint=hint)
    questions = Questions(_MISSING_HINT) if has_terminal() and not arguments.yes else None
    if questions is None:
        _require_addresses(arguments)
    pipe = _choose_source(arguments, questions, file)
    if not _check_source(pipe, file, questions):
        return FAILED
    pipe = _choose_sink(pipe, arguments, questions, file)
    if not _check_sink(pipe, file, questions):
        return FAILED
    return _write(pipe, arguments, questions, file)


def _require_addresses(arguments: argparse.Namespace) -> None:
    """Raise `DefiniteError` if an address is missing that cannot be asked for."""
    why = "--yes asks no question" if arguments.yes else "there is no terminal to ask on"
    missing = "" if arguments.source else "source"
    missing = missing or ("" if arguments.sink or arguments.yes else "sink")
    if missing:
        raise DefiniteError(f"no {missing} is given, and {why}", place="headrace init", hint=_MISSING_HINT)


def _choose_source(arguments: argparse.Namespace, questions: Questions | None, file: Path) -> NewPipe:
    from headrace.config.addresses import SOURCE_FORMS, check_source, source_kind
    from headrace.config.new_file import NewPipe, pipe_name, plain_name, selection_key

    def parse(answer: str) -> str:
        with _secrets_in_environment(answer) as without:
            address = _relocate(without, file)
            check_source(address, source_kind(address, "SOURCE"))
        return address

    if arguments.name and plain_name(arguments.name) != arguments.name:
        raise DefiniteError(f"{arguments.name!r} cannot be a name here", place="--name", hint="names have letters, digits, _ and -")
    if arguments.source or questions is None:
        source = parse(arguments.source)
    else:
        print_line(f"Where do changes come from? {SOURCE_FORMS[:1].upper()}{SOURCE_FORMS[1:]}.")
        source = questions.ask("Source", parse)
    key = selection_key(source)
    other = "tables" if key == "topics" else "topics"
    if getattr(arguments, other):
        raise DefiniteError(f"--{other} does not select from this source", place=f"--{other}", hint=f"give --{key}")
    # What a source provides does not depend on the sink, which is chosen later.
    pipe = NewPipe(source, DEFAULT_SINK, arguments.name or pipe_name(source), tuple(getattr(arguments, key)))

    def select(answer: str) -> NewPipe:
        selected = replace(pipe, selection=tuple(answer.replace(",", " ").split()))
        _spec(selected, file)
        return selected

    if questions is not None and not pipe.selection and (not arguments.source or _is_incomplete(pipe, file)):
        return questions.ask(f"{key.capitalize()}, such as 'shop.*'; nothing means all of the address", select)
    _spec(pipe, file)
    return pipe


def _is_incomplete(pipe: NewPipe, file: Path) -> bool:
    """Return whether a pipe needs more than its addresses: they select nothing."""
    try:
        _spec(pipe, file)
    except DefiniteError:
        return True
    return False


def _choose_sink(pipe: NewPipe, arguments: argparse.Namespace, questions: Questions | None, file: Path) -> NewPipe:
    from headrace.config.addresses import SINK_FORMS, check_sink
    from headrace.pipes.factory import check_here

    def parse(answer: str) -> NewPipe:
        with _secrets_in_environment(answer, _secrets_of(pipe.source)) as without:
            address = _relocate(without, file)
            check_sink(address)
        found = replace(pipe, sink=address)
        check_here(_spec(found, file))
        return found

    if arguments.sink or questions is None:
        return parse(arguments.sink or DEFAULT_SINK)
    print_line(f"Where do they go? {SINK_FORMS[:1].upper()}{SINK_FORMS[1:]}.")
    return questions.ask("Sink", parse, DEFAULT_SINK)


def _check_source(pipe: NewPipe, file: Path, questions: Questions | None) -> bool:
    from headrace.pipes.source_registry import source_connector

    return _check("source", pipe.source, lambda: source_connector(pipe.source).preflight(_spec(pipe, file)), questions)


def _check_sink(pipe: NewPipe, file: Path, questions: Questions | None) -> bool:
    from headrace.pipes.commands.sink_check import check_sink

    return _check("sink", pipe.sink, lambda: check_sink(_spec(pipe, file)), questions)


def _check(side: str, address: str, check: Callable[[], Sequence[Finding]], questions: Questions | None) -> bool:
    """Print the findings about a server, and return whether none is an error. Ask for a password if the server refuses the account."""
    from headrace.config.addresses import redact
    from headrace.pipes.commands.preflight_view import print_findings
    from headrace.sources.preflight import Level

    print_line(f"headrace: checking the {side} {redact(address)}")
    findings = _with_password(address, check, questions)
    if findings:
        print_findings(findings)
    return not any(finding.level is Level.ERROR for finding in findings)


def _with_password(address: str, check: Callable[[], Sequence[Finding]], questions: Questions | None) -> Sequence[Finding]:
    """Run a check. If the server refuses an account without a password, ask for one."""
    variable = next(iter(secret_variables(address)), "")
    for _ in range(_PASSWORD_TRIES if questions is not None and variable and not os.environ.get(variable) else 0):
        try:
            return check()
        except DefiniteError as error:
            if not error.wrong_password:
                raise
            print_line(f"headrace: {error.message}")
            assert questions is not None
            os.environ[variable] = questions.ask_password("Password")
    return check()


def _write(pipe: NewPipe, arguments: argparse.Namespace, questions: Questions | None, file: Path) -> int:
    from headrace.cli.config import write_new_file
    from headrace.config.addresses import redact

    if is_requested():
        return OK
    write_new_file(file, _with_references(pipe).text())
    print_line(f"headrace: {file} is written: pipe {pipe.name}, {redact(pipe.source)} -> {redact(pipe.sink)}")
    needed = dict.fromkeys(name for address in (pipe.source, pipe.sink) for name in secret_variables(address) if os.environ.get(name))
    if needed:
        print_line(f"headrace: the file contains no secrets: set {', '.join(needed)} before headrace run")
    if arguments.runs_file or (questions is not None and questions.confirm("Run it now?")):
        _run(arguments, file)
    print_line(f"headrace: run it with: headrace run {shlex.quote(str(file))}")
    return OK


def _run(arguments: argparse.Namespace, file: Path) -> NoReturn:
    """Replace this process by `headrace run`: what the checks have loaded, and their connections, end here."""
    options = ["--verbose"] if arguments.verbose else []
    options += ["--log-format", arguments.log_format] if arguments.log_format else []
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "headrace", *options, "run", str(file)])


def _spec(pipe: NewPipe, file: Path) -> PipeSpec:
    return _with_references(pipe).resolve(file).pipes[0].specs[0]


def _with_references(pipe: NewPipe) -> NewPipe:
    """Return the pipe with references to the variables of passwords that are set."""
    return replace(pipe, source_password=_password_variable(pipe.source), sink_password=_password_variable(pipe.sink))


def _password_variable(address: str) -> str:
    from headrace.config.addresses import has_account

    variable = next(iter(secret_variables(address)), "")
    return variable if variable and os.environ.get(variable) and has_account(address) else ""


def _secrets_of(address: str) -> Mapping[str, str]:
    """Return the secrets of an address that are in the environment, by their variables."""
    return {name: os.environ[name] for name in secret_variables(address) if name in os.environ}


@contextmanager
def _secrets_in_environment(address: str, used: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Move the secrets of an address to the environment, where the file refers to them; yield the address without them.

    References stay as they are. If the caller rejects the address, its secrets leave the environment. `used`: secrets of another address.
    """
    from headrace.config.document import references_in

    without, secrets = (address, {}) if references_in(address) else strip_secrets(address)
    for name, secret in secrets.items():
        if used.get(name, secret) != secret:
            raise DefiniteError(
                f"source and sink have different passwords, and both would be read from {name}",
                hint="write one of them as ${VARIABLE}, with a variable of your own that is set",
            )
    before = {name: os.environ.get(name) for name in secrets}
    os.environ.update(secrets)
    try:
        yield without
    except DefiniteError:
        for name, earlier in before.items():
            if earlier is None:
                del os.environ[name]
            else:
                os.environ[name] = earlier
        raise


def _relocate(address: str, file: Path) -> str:
    """Make the path of an address independent of the working directory, if the file is in another one."""
    from headrace.config.addresses import resolve_path

    return address if file.resolve().parent == Path.cwd() else resolve_path(address, Path.cwd())
