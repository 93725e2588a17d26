"""Adds descriptions, examples, exit codes and variables to `--help`. The man page uses the same texts.

Invariant: every command has a page here, and every example parses; a test holds both.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NoReturn

from headrace.cli.help.manual_pages import CODES, GROUPS, PAGES, VARIABLES, ManualPage

_MAX_WIDTH: Final = 100
INTRODUCTION: Final = (
    "Replicate operational data, continuously and exactly, into analytics: MySQL, MariaDB, ScyllaDB and Debezium's topics through Spark "
    "into ClickHouse and Kafka."
)
_MAX_USAGE_OPTIONS: Final = 8
"""With more options, the usage line does not list them."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps help to the terminal without breaking addresses or examples."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
        super().__init__(prog, max_help_position=26, width=max(width - 2, 40))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs are filled; lines that begin with spaces stay as they are."""
        return "\n".join(indent + line for block in text.split("\n") for line in _wrap_line(block, width - len(indent)))


class Parser(argparse.ArgumentParser):
    """Suggests similar commands and flags in errors."""

    def error(self, message: str) -> NoReturn:
        chosen = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        unknown = re.fullmatch(r"unrecognized arguments: (--[\w-]+).*", message)
        if chosen is not None:
            meant = _suggestion(chosen[1], re.findall("'(.*?)'", chosen[2]))
            message = message.replace(chosen[0], f"{chosen[1]!r} is not known here{meant}")
        elif unknown is not None:
            spellings = {spelling for _, command, _ in iter_commands(self) for spelling in command._option_string_actions}
            message = f"{message}{_suggestion(unknown[1], sorted(spellings))}"
        super().error(message)


def _suggestion(word: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]}?" if found else f" (choose from {', '.join(known)})" if len(known) < 30 else ""


def _wrap_line(line: str, width: int) -> list[str]:
    if not line.strip() or line.startswith(" "):
        return [line]
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def iter_commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser, str]]:
    """Yield all commands of a parser with their path and one-line help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                yield (*path, name), command, lines.get(name, "")
                yield from iter_commands(command, (*path, name))


def attach_pages(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Attach the manual pages to all commands."""
    parser.formatter_class = HelpFormatter
    parser.usage = "headrace [OPTION]... COMMAND [ARGUMENT]..."
    parser.epilog = "\n\n".join(_overview(parser))
    for path, command, _ in iter_commands(parser):
        command.formatter_class = HelpFormatter
        page = PAGES.get(" ".join(path))
        _shorten_usage(command)
        if page is not None:
            command.description = "\n\n".join(filter(None, [command.description, page.text]))
            command.epilog = "\n\n".join(sections(page))
    return parser


def _shorten_usage(command: argparse.ArgumentParser) -> None:
    optional = [action for action in command._actions if action.option_strings]
    if len(optional) > _MAX_USAGE_OPTIONS:
        rest = " ".join(_positional(action) for action in command._actions if not action.option_strings)
        # argparse interprets percent signs.
        command.usage = f"{command.prog} [OPTION]... {rest}".rstrip().replace("%", "%%")


def _positional(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    forms: Mapping[str | int | None, str] = {"?": f"[{name}]", "*": f"[{name}...]", "+": f"{name}..."}
    return forms.get(action.nargs, name)


def sections(page: ManualPage) -> Iterator[str]:
    """Yield examples, exit codes and variables, which follow the flags."""
    if page.examples:
        yield "examples:\n" + "\n".join(f"  {command}\n      {text}" for command, text in page.examples)
    yield "exit codes:\n" + "\n".join(f"  {code:<4}{text}" for code, text in sorted({**CODES, **page.codes}.items()))
    if page.variables:
        yield "environment:\n" + "\n".join(f"  {name}\n      {VARIABLES[name]}" for name in page.variables)
    if page.see:
        yield f"see also: {', '.join(page.see)}"


def _overview(parser: argparse.ArgumentParser) -> Iterator[str]:
    lines = {path[0]: line for path, _, line in iter_commands(parser) if len(path) == 1}
    left = [name for name in lines if not any(name in names for names in GROUPS.values())]
    for title, names in {**GROUPS, **({"other": tuple(left)} if left else {})}.items():
        listed = [f"  {name:<12}{lines[name]}" for name in names if name in lines]
        if listed:
            yield "\n".join([f"{title}:", *(_indent_continuation(line) for line in listed)])
    yield "\n".join(
        [
            "Begin with:",
            "  headrace demo                                      see it work",
            "  headrace check mysql://user@host/db                is this server ready?",
            "  headrace replicate mysql://user@host/db chdb:copy  one pipe, no file",
            "  headrace run                                       pipes of ./headrace.toml",
        ]
    )
    yield "`headrace COMMAND --help` (or `headrace help COMMAND`) lists flags, examples, exit codes and variables."


def _indent_continuation(line: str) -> str:
    width = max(min(shutil.get_terminal_size().columns, _MAX_WIDTH) - 2, 40)
    return textwrap.fill(line, width, subsequent_indent=" " * 14, break_long_words=False, break_on_hyphens=False)
