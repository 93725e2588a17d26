"""`headrace config check|show|schema`, `headrace convert`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.flags import FAILED, OK, Subcommands, add_command
from headrace.errors import DefiniteError, HeadraceError
from headrace.terminal_text import print_line

if TYPE_CHECKING:
    from headrace.config.configuration import Configuration

_FILE = "headrace.toml"


def add(subcommands: Subcommands) -> None:
    text = "check a pipe file, print it as resolved, print the JSON schema for editors"
    command = subcommands.add_parser("config", help=text, description=text[0].upper() + text[1:] + ".")
    inner = command.add_subparsers(title="commands", required=True, metavar="COMMAND")
    checking = add_command(inner, check, "check", "report all errors of a file")
    _add_file(checking)
    checking.add_argument("--connect", action="store_true", help="also check every server of the pipes, as headrace check does")
    showing = add_command(inner, show, "show", "print a file as resolved, without its secrets")
    _add_file(showing)
    showing.add_argument("--defaults", action="store_true", help="also settings that are not in the file")
    text = "print another tool's file as headrace.toml: mypipe's, Debezium's, Altinity's"
    converting = add_command(subcommands, convert, "convert", text)
    converting.add_argument("file", metavar="FILE", help="application.conf, or a connector's .properties, .json, .yml")
    converting.add_argument("-o", "--output", default="", metavar="FILE", help="the file to create (standard output)")
    add_command(inner, schema, "schema", "print the JSON schema of headrace.toml, for editors")


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", nargs="?", default=_FILE, metavar="FILE", help="the file (%(default)s)")
    command.add_argument(
        "--pipe", action="append", default=[], metavar="NAME", help="only this pipe with its source and sink; may be repeated"
    )


def check(arguments: argparse.Namespace) -> int:
    from headrace.config.document import HEADRACE, Problems
    from headrace.config.load import read_document, resolve_valid
    from headrace.config.show import summarize
    from headrace.dashboard.auth import check_exposure, parse_listen
    from headrace.pipes.factory import check_here

    document, problems = read_document(Path(arguments.file)), Problems()
    configuration = resolve_valid(document, arguments.pipe, problems)
    if configuration.process.listen:
        try:
            check_exposure(parse_listen(configuration.process.listen), configuration.process.hosts)
        except DefiniteError as error:
            problems.add(error.message, document.place((HEADRACE, error.place)), error.hint)
    for pipe in configuration.pipes:
        for spec in pipe.specs if pipe.enabled else ():
            with problems.collect():
                check_here(spec)
    problems.raise_any(document.file)
    print(summarize(configuration))
    count = len(configuration.pipes)
    print_line(f"{arguments.file} is right: {count} pipe{'' if count == 1 else 's'}")
    return FAILED if arguments.connect and _check_servers(configuration) else OK


def show(arguments: argparse.Namespace) -> int:
    from headrace.config.load import read_document, resolve
    from headrace.config.show import render_configuration

    document = read_document(Path(arguments.file))
    print(render_configuration(document, resolve(document, arguments.pipe), defaults=arguments.defaults), end="")
    return OK


def schema(_: argparse.Namespace) -> int:
    from headrace.config.generated_files import schema_text

    print(schema_text(), end="")
    return OK


def convert(arguments: argparse.Namespace) -> int:
    """Translate a file of another tool."""
    from headrace.config.load import translate

    translation = translate(Path(arguments.file))
    if translation is None:
        raise DefiniteError(
            "this is not a file of another tool", place=arguments.file, hint="application.conf, .properties, .json and .yml are"
        )
    text = translation.text()
    if not arguments.output:
        print(text, end="")
        return OK
    write_new_file(Path(arguments.output), text)
    print_line(f"headrace: {arguments.output} is written; try headrace config check {arguments.output}", file=sys.stderr)
    return OK


def write_new_file(path: Path, text: str) -> None:
    """Write a file that does not exist; raise `DefiniteError` if it does."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DefiniteError("the file already exists", place=str(path), hint="name another, or remove it") from None
    except OSError as error:
        raise DefiniteError(f"the file cannot be written: {error.strerror}", place=str(path), hint="name another") from error


def _check_servers(configuration: Configuration) -> int:
    """Check every server of the enabled pipes; print warnings and errors; return the number of errors. No server is changed or started."""
    from headrace.config.addresses import redact
    from headrace.pipes.commands.sink_check import check_sink
    from headrace.pipes.source_registry import source_connector
    from headrace.sources.preflight import Level, failure

    errors = 0
    checked: set[object] = set()
    for part in (part for pipe in configuration.pipes if pipe.enabled for part in pipe.specs):
        for address, subject, check in (
            (part.source, (part.source, str(part.settings.selection)), source_connector(part.source).preflight),
            (part.sink, part.sink, check_sink),
        ):
            if subject in checked:
                continue
            checked.add(subject)
            try:
                findings = check(part)
            except HeadraceError as error:
                findings = (failure("answer", "none", error.message, error.hint),)
            for finding in findings:
                if finding.level is not Level.OK:
                    place = f"{part.name}, {redact(address)}"
                    print_line(f"{finding.level}: {place}: {finding.name} = {finding.value}: {finding.meaning}")
                    if finding.repair:
                        print_line(f"    repair: {finding.repair}")
                    errors += finding.level is Level.ERROR
    print_line(f"servers: {errors} errors")
    return errors
