"""The man page of all commands, from the parser and the texts of `manual_pages`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace import __version__
from headrace.cli.help.manual import INTRODUCTION, iter_commands
from headrace.cli.help.manual_pages import CODES, GROUPS, PAGES, VARIABLES


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a flag, or a positional argument."""

    name: str
    choices: tuple[str, ...] = ()
    nargs: str = ""
    """`?`, `*`, `+`, or one."""


@dataclass(frozen=True, slots=True)
class Flag:
    """An option."""

    spellings: tuple[str, ...]
    text: str
    value: Value | None


@dataclass(frozen=True, slots=True)
class Command:
    """One command; the program itself has an empty path."""

    path: tuple[str, ...]
    line: str
    flags: tuple[Flag, ...]
    values: tuple[Value, ...]
    values_text: tuple[str, ...]
    below: tuple[tuple[str, str], ...]
    """Its subcommands with their one-line help."""
    parser: argparse.ArgumentParser

    @property
    def name(self) -> str:
        return " ".join(self.path)


def list_commands(parser: argparse.ArgumentParser) -> list[Command]:
    """Return all commands, the program first."""
    return [_read_command((), parser, parser.description or ""), *(_read_command(*found) for found in iter_commands(parser))]


def _read_command(path: tuple[str, ...], parser: argparse.ArgumentParser, line: str) -> Command:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction)]
    positional = [one for one in shown if not one.option_strings and not isinstance(one, argparse._SubParsersAction)]
    return Command(
        path,
        line,
        tuple(_flag(one) for one in shown if one.option_strings),
        tuple(_value(one) for one in positional),
        tuple(_text(one) for one in positional),
        tuple((below[-1], text) for below, _, text in iter_commands(parser) if len(below) == 1),
        parser,
    )


def _flag(action: argparse.Action) -> Flag:
    return Flag(tuple(action.option_strings), _text(action), None if action.nargs == 0 else _value(action))


def _value(action: argparse.Action) -> Value:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    choices = tuple(map(str, action.choices)) if action.choices is not None else ()
    return Value(name, choices, action.nargs if isinstance(action.nargs, str) else "")


def _text(action: argparse.Action) -> str:
    """Return the help of a flag with its default."""
    return (action.help or "") % {**vars(action), "prog": "headrace"}


def man_page(commands: Sequence[Command]) -> str:
    """Return the man page as roff."""
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
    for name, text in (
        ("headrace.toml", "The file of pipes, in the working directory unless another is named."),
        ("headrace-state/", "Progress, one directory for each pipe; and control.json, by which commands find the process."),
    ):
        yield from (".TP", f"\\fI{_escape(name)}\\fR", _escape(text))


def _command(command: Command) -> Iterator[str]:
    values = " ".join(_positional(value) for value in command.values) if not command.below else "\\fICOMMAND\\fR"
    options = "[\\fIOPTION\\fR]... " if len(command.flags) > 1 else ""
    yield f".SS \\fBheadrace {_escape(command.name)}\\fR {options}{values}"
    yield _sentence(command.line)
    page = PAGES.get(command.name)
    for paragraph in filter(None, page.text.split("\n\n") if page is not None else ()):
        yield from (".PP", _escape(paragraph))
    for value, text in zip(command.values, command.values_text, strict=True):
        yield from (".TP", _positional(value), _sentence(text))
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
        if "--help" not in flag.spellings:
            yield from (".TP", _option(flag), _sentence(flag.text))


def _option(flag: Flag) -> str:
    value = ""
    if flag.value is not None:
        value = f" [{_name(flag.value)}]" if flag.value.nargs == "?" else f" {_name(flag.value)}"
    return ", ".join(f"\\fB{_escape(spelling)}\\fR" for spelling in flag.spellings) + value


def _name(value: Value) -> str:
    return "|".join(map(_escape, value.choices)) if value.choices else f"\\fI{_escape(value.name)}\\fR"


def _positional(value: Value) -> str:
    name = _name(value)
    return {"?": f"[{name}]", "*": f"[{name}...]", "+": f"{name}..."}.get(value.nargs, name)


def _sentence(text: str) -> str:
    # An address keeps its case.
    written = text if ":" in text.partition(" ")[0] else text[:1].upper() + text[1:]
    return _escape(written if written.endswith((".", "…", ")")) or not written else f"{written}.")


def _escape(text: str) -> str:
    """Escape a text for roff."""
    escaped = (
        text.replace("\\", "\\e")
        .replace("-", "\\-")
        .replace("'", "\\(aq")
        .replace("`", "\\(ga")
        .replace("^", "\\(ha")
        .replace("~", "\\(ti")
    )
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
