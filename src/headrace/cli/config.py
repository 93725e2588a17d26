"""`headrace config check|show|schema`, `headrace convert`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.flags import FAILED, OK, Subcommands, add_command
from headrace.errors import DefiniteError
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
    """Load the file and print its pipes."""
    from headrace.config import load
    from headrace.config.output.show import summarize
    from headrace.dashboard.auth import check_exposure, parse_listen
    from headrace.pipes.factory import check_here

    configuration = load(Path(arguments.file), arguments.pipe)
    if configuration.process.listen:
        check_exposure(parse_listen(configuration.process.listen), configuration.process.hosts)
    for pipe in configuration.pipes:
        for spec in pipe.specs if pipe.enabled else ():
            check_here(spec)
    print(summarize(configuration))
    count = len(configuration.pipes)
    print_line(f"{arguments.file} is right: {count} pipe{'' if count == 1 else 's'}")
    return FAILED if arguments.connect and _check_servers(configuration) else OK


def show(arguments: argparse.Namespace) -> int:
    """Print the file with references expanded and secrets masked."""
    from headrace.config.load import read_document
    from headrace.config.output.show import render_configuration
    from headrace.config.resolve import resolve

    document = read_document(Path(arguments.file))
    print(render_configuration(document, resolve(document, arguments.pipe), defaults=arguments.defaults), end="")
    return OK


def schema(_: argparse.Namespace) -> int:
    """Print the schema."""
    from headrace.config.output.json_schema import schema_text

    print(schema_text(), end="")
    return OK


def convert(arguments: argparse.Namespace) -> int:
    """Translate a file of another tool."""
    from headrace.config.load import translate

    translation = translate(Path(arguments.file))
    if translation is None:
        raise DefiniteError(
            "this is not a file of another tool",
            place=arguments.file,
            hint="application.conf, .properties, .json and .yml are",
        )
    text = translation.text()
    if not arguments.output:
        print(text, end="")
        return OK
    try:
        with Path(arguments.output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DefiniteError("the file is there already", place=arguments.output, hint="name another, or remove it") from None
    except OSError as error:
        raise DefiniteError(f"the file cannot be written: {error.strerror}", place=arguments.output, hint="name another") from error
    print_line(f"headrace: {arguments.output} is written; try headrace config check {arguments.output}", file=sys.stderr)
    return OK


def _check_servers(configuration: Configuration) -> int:
    """Check every server of the pipes, as `headrace check` does; print warnings and errors; return the number of errors."""
    from headrace.config.server_checks import check_servers
    from headrace.sources.preflight import Level

    errors = 0
    for place, findings in check_servers(configuration):
        for finding in findings:
            if finding.level is not Level.OK:
                print_line(f"{finding.level}: {place}: {finding.name} = {finding.value}: {finding.meaning}")
                if finding.repair:
                    print_line(f"    repair: {finding.repair}")
                errors += finding.level is Level.ERROR
    print_line(f"servers: {errors} errors")
    return errors
