"""Shell completion from the parser, by shtab: commands, flags, values, files, and pipe names.

The scripts start no process of Headrace: they read the pipe names from the file with sed.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import shtab

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
_METAVARS: Final[dict[str, Any]] = {
    "FILE": shtab.FILE,
    "DIR": shtab.DIRECTORY,
    "PATH": shtab.DIRECTORY,
    "DIRECTORY": shtab.DIRECTORY,
    "PIPE": _PIPE,
}


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script for a shell."""
    _annotate(parser)
    made = shtab.complete(parser, shell, preamble=_PREAMBLE[shell])
    # For zsh, shtab completes only the first value of a positional with nargs="*". It registers the script after `eval` only; after
    # `source`, it would call the function outside of a completion.
    return made.replace('"(*)::', '"*:').replace("$zsh_eval_context[-1] == eval", "$zsh_eval_context[-1] == (eval|file)")


def _annotate(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            # shtab leaves out an action whose help is suppressed.
            action.help = "command"
            for command in action.choices.values():
                _annotate(command)
        elif "--pipe" in action.option_strings:
            action.complete = _PIPE  # type: ignore[attr-defined]
        elif isinstance(action.metavar, str) and action.metavar in _METAVARS:
            action.complete = _METAVARS[action.metavar]  # type: ignore[attr-defined]
