"""The man page of all commands, from the parser and the texts of `manual`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace import __version__
from headrace.cli.manual import CODES, GROUPS, INTRODUCTION, PAGES, VARIABLES, format_repetition, iter_commands

_ROFF: Final = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})
_FILES: Final = {
    "headrace.toml": "The file of pipes, in the working directory unless another is named.",
    "headrace-state/": "Progress, one directory for each pipe; and control.json, by which commands find the process.",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command; the program itself has an empty path."""

    path: tuple[str, ...]
    parser: argparse.ArgumentParser
    line: str

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def flags(self) -> list[argparse.Action]:
        return [one for one in self.parser._actions if one.option_strings and one.help != argparse.SUPPRESS]

    @property
    def values(self) -> list[argparse.Action]:
        """The positional arguments; COMMAND is none."""
        actions = (one for one in self.parser._actions if not isinstance(one, argparse._SubParsersAction))
        return [one for one in actions if not one.option_strings and one.help != argparse.SUPPRESS]


def list_commands(parser: argparse.ArgumentParser) -> list[Command]:
    """Return all commands, the program first."""
    return [Command((), parser, parser.description or ""), *(Command(*found) for found in iter_commands(parser))]


def man_page(commands: Sequence[Command]) -> str:
    return "\n".join(_lines(commands)) + "\n"


def _lines(commands: Sequence[Command]) -> Iterator[str]:
    program, named = commands[0], {command.name: command for command in commands[1:]}
    yield '.\\" Made by `headrace help --man`; do not edit.'
    yield f'.TH HEADRACE 1 "" "headrace {__version__}" "User Commands"'
    # No justification and no hyphenation in addresses and commands.
    yield from (".ad l", ".nh")
    yield from (".SH NAME", _escape("headrace - change data capture into ClickHouse and Kafka"))
    yield from (".SH SYNOPSIS", "\\fBheadrace\\fR [\\fIOPTION\\fR]... \\fICOMMAND\\fR [\\fIARGUMENT\\fR]...")
    yield from (".SH DESCRIPTION", _escape(INTRODUCTION))
    yield ".SH OPTIONS"
    yield from _flags(program)
    yield ".SH COMMANDS"
    known = [name for names in GROUPS.values() for name in names]
    ordered = sorted(named.values(), key=lambda one: known.index(one.path[0]) if one.path[0] in known else len(known))
    for command in ordered:
        yield from _command(command)
    yield ".SH EXIT STATUS"
    for code, text in CODES.items():
        yield from (".TP", f"\\fB{code}\\fR", _escape(text))
    yield from (".PP", _escape("Some commands have others; see there."))
    yield ".SH ENVIRONMENT"
    for name, text in VARIABLES.items():
        yield from (".TP", f"\\fB{_escape(name)}\\fR", _escape(text))
    yield ".SH FILES"
    for name, text in _FILES.items():
        yield from (".TP", f"\\fI{_escape(name)}\\fR", _escape(text))


def _command(command: Command) -> Iterator[str]:
    has_commands = next(iter_commands(command.parser), None) is not None
    values = "\\fICOMMAND\\fR" if has_commands else " ".join(_positional(value) for value in command.values)
    options = "[\\fIOPTION\\fR]... " if len(command.flags) > 1 else ""
    yield f".SS \\fBheadrace {_escape(command.name)}\\fR {options}{values}"
    yield _sentence(command.line)
    page = PAGES.get(command.name)
    for paragraph in filter(None, page.text.split("\n\n") if page is not None else ()):
        yield from (".PP", _escape(paragraph))
    for value in command.values:
        yield from (".TP", _positional(value), _sentence(_help_of(value)))
    yield from _flags(command)
    if page is None:
        return
    for code, text in page.codes.items():
        yield from (".TP", f"exit status \\fB{code}\\fR", _sentence(text))
    if page.examples:
        yield from (".PP", "Examples:")
    for example, text in page.examples:
        yield from (".TP", f"\\fB{_escape(example)}\\fR", _sentence(text))


def _flags(command: Command) -> Iterator[str]:
    for flag in command.flags:
        if "--help" not in flag.option_strings:
            spellings = ", ".join(f"\\fB{_escape(spelling)}\\fR" for spelling in flag.option_strings)
            value = "" if flag.nargs == 0 else f" [{_name(flag)}]" if flag.nargs == "?" else f" {_name(flag)}"
            yield from (".TP", spellings + value, _sentence(_help_of(flag)))


def _name(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(_escape(str(choice)) for choice in action.choices)
    return f"\\fI{_escape(action.metavar if isinstance(action.metavar, str) else action.dest.upper())}\\fR"


def _positional(action: argparse.Action) -> str:
    return format_repetition(_name(action), action.nargs)


def _help_of(action: argparse.Action) -> str:
    """Return the help text with its default."""
    return (action.help or "") % {**vars(action), "prog": "headrace"}


def _sentence(text: str) -> str:
    # An address keeps its case.
    written = text if ":" in text.partition(" ")[0] else text[:1].upper() + text[1:]
    return _escape(written if written.endswith((".", "…", ")")) or not written else f"{written}.")


def _escape(text: str) -> str:
    escaped = text.translate(_ROFF)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
