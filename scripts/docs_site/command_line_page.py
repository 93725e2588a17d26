"""The reference page of all commands, from the parser and the texts of the manual."""

from __future__ import annotations

import argparse
import html
from collections.abc import Iterator, Mapping
from typing import Final

from headrace.cli import build_parser
from headrace.cli.man_page import Command, list_commands
from headrace.cli.manual import CODES, GROUPS, PAGES, VARIABLES, format_repetition, iter_commands

_ENTITIES: Final = str.maketrans({character: f"&#{ord(character)};" for character in "*_[]|\\#~"})


def command_line_page() -> str:
    return "\n".join(_lines(list_commands(build_parser()))) + "\n"


def _lines(commands: list[Command]) -> Iterator[str]:
    program, named = commands[0], commands[1:]
    yield "# Command line\n"
    yield "`headrace COMMAND --help` shows the same texts, and `headrace help --man` prints them as a manual page.\n"
    yield "```text\nheadrace [OPTION]... COMMAND [ARGUMENT]...\n```\n"
    yield from _arguments(program)
    for title, names in GROUPS.items():
        yield f"## {title[:1].upper()}{title[1:]}\n"
        for command in sorted((one for one in named if one.path[0] in names), key=lambda one: names.index(one.path[0])):
            yield from _command(command)
    yield "## Exit codes\n"
    yield from _table(("code", "meaning"), {str(code): text for code, text in CODES.items()})
    yield "Some commands have others; see there.\n"
    yield "## Environment variables\n"
    yield from _table(("variable", "meaning"), VARIABLES)


def _command(command: Command) -> Iterator[str]:
    yield f"### headrace {command.name}\n"
    yield f"{_sentence(command.line)}\n"
    has_commands = next(iter_commands(command.parser), None) is not None
    words = ["COMMAND"] if has_commands else [_name(value) for value in command.values]
    yield f"```text\n{' '.join(['headrace', command.name, '[OPTION]...', *words])}\n```\n"
    page = PAGES.get(command.name)
    if page is not None and page.text:
        yield "\n\n".join(escape_markdown(paragraph) for paragraph in page.text.split("\n\n")) + "\n"
    yield from _arguments(command)
    if page is None:
        return
    if page.codes:
        yield from _table(("exit code", "meaning"), {str(code): text for code, text in page.codes.items()})
    if page.examples:
        yield from ("Examples:\n", "```sh")
        yield from (f"# {text}\n{example}" for example, text in page.examples)
        yield "```\n"
    if page.variables:
        yield f"Environment: {', '.join(f'`{name}`' for name in page.variables)}.\n"
    if page.see:
        yield f"See also {', '.join(map(_reference, page.see))}.\n"


def _arguments(command: Command) -> Iterator[str]:
    flags = [flag for flag in command.flags if "--help" not in flag.option_strings]
    described = {_name(value): _help_of(value) for value in command.values} | {_spelling(flag): _help_of(flag) for flag in flags}
    yield from _table(("argument", "meaning"), described)


def _table(titles: tuple[str, str], rows: Mapping[str, str]) -> Iterator[str]:
    if rows:
        yield f"| {titles[0]} | {titles[1]} |\n|---|---|"
        yield from (f"| `{name}` | {escape_markdown(text)} |" for name, text in rows.items())
        yield ""


def _spelling(flag: argparse.Action) -> str:
    value = "" if flag.nargs == 0 else f" [{_value(flag)}]" if flag.nargs == "?" else f" {_value(flag)}"
    return ", ".join(flag.option_strings) + value


def _name(value: argparse.Action) -> str:
    return format_repetition(_value(value), value.nargs)


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    return action.metavar if isinstance(action.metavar, str) else action.dest.upper()


def _help_of(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "headrace"}


def _reference(name: str) -> str:
    """Return a link to another command or page."""
    path = name.removeprefix("docs/")
    return f"[{path.removesuffix('.md')}]({path})" if path != name else f"[{name}](#{name.replace(' ', '-')})"


def _sentence(text: str) -> str:
    return escape_markdown(f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '…', ')')) else '.'}")


def escape_markdown(text: str) -> str:
    """Return plain text as Markdown; what is between backticks stays code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return html.escape(text, quote=False).translate(_ENTITIES).replace("`", "&#96;")
    return "`".join(piece if number % 2 else html.escape(piece, quote=False).translate(_ENTITIES) for number, piece in enumerate(pieces))
