"""The man page of all commands, from the parser and the texts of `manual_pages`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace import __version__
from headrace.cli.help.manual import INTRODUCTION
from headrace.cli.help.manual_pages import CODES, GROUPS, PAGES, VARIABLES
from headrace.cli.help.parser_words import Command, Flag, Value


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
