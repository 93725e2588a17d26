"""`headrace help`, `headrace completion`."""

from __future__ import annotations

import argparse

from headrace.cli.flags import OK, Subcommands, add_command
from headrace.errors import DefiniteError


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, completion, "completion", "print the script that completes headrace's words in a shell")
    command.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")

    command = add_command(subcommands, show_help, "help", "show the help of a command")
    command.add_argument("command", nargs="*", metavar="COMMAND", help="which (an overview)")
    command.add_argument("--man", action="store_true", help="print the manual page of all commands")


def completion(arguments: argparse.Namespace) -> int:
    """Print a completion script."""
    from headrace.cli import build_parser
    from headrace.cli.help.completion import script

    print(script(build_parser(), arguments.shell), end="")
    return OK


def show_help(arguments: argparse.Namespace) -> int:
    """Print what `--help` prints, or the man page."""
    from headrace.cli import build_parser
    from headrace.cli.help.man_page import man_page
    from headrace.cli.help.parser_words import list_commands

    known = list_commands(build_parser())
    if arguments.man:
        print(man_page(known), end="")
        return OK
    asked = " ".join(arguments.command)
    found = next((command for command in known if command.name == asked), None)
    if found is None:
        raise DefiniteError(f"there is no command {asked!r}", place="headrace help", hint="`headrace help` lists them")
    print(found.parser.format_help(), end="")
    return OK
