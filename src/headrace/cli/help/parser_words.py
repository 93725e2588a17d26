"""The commands and flags of the parser as plain data, for the man page."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from headrace.cli.help.manual import iter_commands


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
    return [_command((), parser, parser.description or ""), *(_command(*found) for found in iter_commands(parser))]


def _command(path: tuple[str, ...], parser: argparse.ArgumentParser, line: str) -> Command:
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
