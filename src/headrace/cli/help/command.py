"""`headrace help`, `headrace completion`.

shtab generates the completion scripts from the parser. They start no process of Headrace: they read the pipe names from the file with sed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from headrace.cli.flags import OK, Subcommands, add_command
from headrace.errors import DefiniteError

SHELLS: Final = ("bash", "zsh", "fish")
_PIPES: Final = r"sed -n 's/^[[:space:]]*\[pipes\.\([A-Za-z0-9_-]*\)[].].*/\1/p'"
"""Prints the pipe names of a file."""
_PREAMBLE: Final = {
    "bash": f"""_headrace_pipes() {{
    local word file=headrace.toml
    for word in "${{COMP_WORDS[@]}}"; do [[ $word == *.toml && -r $word ]] && file=$word; done
    compgen -W "$({_PIPES} "$file" 2>/dev/null | sort -u)" -- "$1"
}}
""",
    "zsh": f"""_headrace_pipes() {{
    local word file=headrace.toml
    for word in $words; do [[ $word == *.toml && -r $word ]] && file=$word; done
    local -a names
    names=(${{(f)"$({_PIPES} $file 2>/dev/null | sort -u)"}})
    compadd -a names
}}
""",
    "fish": f"""function __headrace_pipes
    set -l file headrace.toml
    for word in (commandline -opc)
        if string match -q -- '*.toml' $word; and test -r $word
            set file $word
        end
    end
    {_PIPES} $file 2>/dev/null | sort -u
end
""",
}
_PIPE: Final = {"bash": "_headrace_pipes", "zsh": "_headrace_pipes", "fish": "(__headrace_pipes)"}


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, completion, "completion", "print the completion script of a shell")
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")

    command = add_command(subcommands, show_help, "help", "show the help of a command")
    command.add_argument("command", nargs="*", metavar="COMMAND", help="the command (an overview)")
    command.add_argument("--man", action="store_true", help="print the manual page of all commands")


def completion(arguments: argparse.Namespace) -> int:
    """Print a completion script."""
    print(completion_script(arguments.parser, arguments.shell), end="")
    return OK


def show_help(arguments: argparse.Namespace) -> int:
    """Print what `--help` prints, or the man page."""
    from headrace.cli.help.man_page import list_commands, man_page

    known = list_commands(arguments.parser)
    if arguments.man:
        print(man_page(known), end="")
        return OK
    name = " ".join(arguments.command)
    found = next((command for command in known if command.name == name), None)
    if found is None:
        raise DefiniteError(f"there is no command {name!r}", place="headrace help", hint="`headrace help` lists them")
    print(found.parser.format_help(), end="")
    return OK


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script for a shell."""
    import shtab

    folder = shtab.DIRECTORY
    _annotate(parser, {"FILE": shtab.FILE, "DIR": folder, "PATH": folder, "DIRECTORY": folder, "PIPE": _PIPE})
    made = shtab.complete(parser, shell, preamble=_PREAMBLE[shell])
    # For zsh, shtab completes only the first value of a positional with nargs="*". It registers the script after `eval` only; after
    # `source`, it would call the function outside of a completion.
    return made.replace('"(*)::', '"*:').replace("$zsh_eval_context[-1] == eval", "$zsh_eval_context[-1] == (eval|file)")


def _annotate(parser: argparse.ArgumentParser, by_metavar: Mapping[str, Any]) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            # shtab leaves out an action whose help is suppressed.
            action.help = "command"
            for command in action.choices.values():
                _annotate(command, by_metavar)
        elif "--pipe" in action.option_strings:
            action.complete = _PIPE  # type: ignore[attr-defined]
        elif isinstance(action.metavar, str) and action.metavar in by_metavar:
            action.complete = by_metavar[action.metavar]  # type: ignore[attr-defined]
