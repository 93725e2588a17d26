"""Completion for shells, written out of the parser: commands, flags, values, files, and the names of pipes.

The scripts ask nobody: what they know is in them, and the names of pipes are read out of the file with sed, so that a Tab costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from headrace.cli.help.parser_words import Command, Flag, Value, ValueKind

_PIPES: Final = r"s/^[[:space:]]*\[pipes\.\([A-Za-z0-9_-]*\)[].].*/\1/p"
"""For sed: the names of pipes in a file."""


def bash(commands: Sequence[Command]) -> str:
    """For bash 4 and later."""
    return "\n".join(_bash_lines(commands)) + "\n"


def _bash_lines(commands: Sequence[Command]) -> Iterator[str]:
    yield "# Completion of headrace for bash; made by `headrace completion bash`."
    yield "_headrace_pipes() {"
    yield "    local word file=headrace.toml"
    yield '    for word in "${COMP_WORDS[@]}"; do [[ $word == *.toml && -r $word ]] && file=$word; done'
    yield f"""    sed -n '{_PIPES}' "$file" 2>/dev/null | sort -u"""
    yield "}"
    yield "_headrace() {"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command='' i"
    yield "    COMPREPLY=()"
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '        case "$command:${COMP_WORDS[i]}" in'
    for command in commands:
        taking = [f'"{command.name}:{spelling}"' for flag in command.flags if flag.value for spelling in flag.spellings]
        if taking:
            yield f"            {'|'.join(taking)}) ((i++)) ;;"
        for name, _ in command.below:
            yield f'            "{command.name}:{name}") command="{" ".join((*command.path, name))}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$command:$prev" in'
    for command in commands:
        for flag in command.flags:
            if flag.value is not None:
                places = "|".join(f'"{command.name}:{spelling}"' for spelling in flag.spellings)
                yield f"        {places}) {_bash_value(flag.value)}; return ;;"
    yield "    esac"
    yield '    case "$command" in'
    for command in commands:
        flags = " ".join(spelling for flag in command.flags for spelling in flag.spellings)
        yield f'        "{command.name}")'
        yield f"""            if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "{flags}" -- "$cur")); return; fi"""
        if command.below:
            yield f"""            COMPREPLY=($(compgen -W "{" ".join(name for name, _ in command.below)}" -- "$cur")) ;;"""
        else:
            known = [_bash_value(value, more=True) for value in command.values if value.kind is not ValueKind.NOTHING]
            yield f"            {'; '.join(known) or ':'} ;;"
    yield "    esac"
    yield "}"
    yield "complete -F _headrace headrace"


def _bash_value(value: Value, *, more: bool = False) -> str:
    plus = "+" if more else ""
    match value.kind:
        case ValueKind.CHOICE:
            return f"""COMPREPLY{plus}=($(compgen -W "{" ".join(value.choices)}" -- "$cur"))"""
        case ValueKind.FILE:
            return f"""compopt -o filenames 2>/dev/null; COMPREPLY{plus}=($(compgen -f -- "$cur"))"""
        case ValueKind.DIRECTORY:
            return f"""compopt -o filenames 2>/dev/null; COMPREPLY{plus}=($(compgen -d -- "$cur"))"""
        case ValueKind.PIPE:
            return f"""COMPREPLY{plus}=($(compgen -W "$(_headrace_pipes)" -- "$cur"))"""
        case ValueKind.NOTHING:
            return ":"


def zsh(commands: Sequence[Command]) -> str:
    """For zsh; a file `_headrace` in a folder of `$fpath`."""
    return "\n".join(_zsh_lines(commands)) + "\n"


def _zsh_lines(commands: Sequence[Command]) -> Iterator[str]:
    yield "#compdef headrace"
    yield "# Completion of headrace for zsh; made by `headrace completion zsh`."
    yield "_headrace_pipes() {"
    yield "    local word file=headrace.toml"
    yield "    for word in $words; do [[ $word == *.toml && -r $word ]] && file=$word; done"
    yield "    local -a names"
    yield f"""    names=(${{(f)"$(sed -n '{_PIPES}' $file 2>/dev/null | sort -u)"}})"""
    yield "    compadd -a names"
    yield "}"
    for command in reversed(commands):
        yield from _zsh_command(command)
    yield 'if [[ $funcstack[1] == _headrace ]]; then _headrace "$@"; else compdef _headrace headrace; fi'


def _zsh_function(path: Sequence[str]) -> str:
    return "_".join(["_headrace", *(name.replace("-", "_") for name in path)])


def _zsh_command(command: Command) -> Iterator[str]:
    # The names of the inner functions: `pipes` and `words` are taken.
    yield f"{_zsh_function(command.path) if not command.path else _zsh_function(('command', *command.path))}() {{"
    arguments = [argument for flag in command.flags for argument in _zsh_flag(flag)]
    if not command.below:
        arguments += [_zsh_positional(value) for value in command.values]
        yield "    _arguments -s " + " \\\n        ".join(arguments)
        yield "}"
        return
    yield '    local curcontext="$curcontext" state line'
    yield "    local -A opt_args"
    yield "    _arguments -C " + " \\\n        ".join([*arguments, "'1:command:->command'", "'*::argument:->argument'"])
    yield "    case $state in"
    yield "        command)"
    yield "            local -a below"
    described = " ".join(_zsh_quoted(f"{name}:{text}") for name, text in command.below)
    yield f"            below=({described})"
    yield "            _describe command below ;;"
    yield "        argument)"
    yield "            case $line[1] in"
    for name, _ in command.below:
        yield f"                {name}) {_zsh_function(('command', *command.path, name))} ;;"
    yield "            esac ;;"
    yield "    esac"
    yield "}"


def _zsh_flag(flag: Flag) -> Iterator[str]:
    text = flag.text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    value = "" if flag.value is None else f":{flag.value.name}:{_zsh_action(flag.value)}"
    others = "" if flag.repeats or len(flag.spellings) == 1 else f"({' '.join(flag.spellings)})"
    for spelling in flag.spellings:
        yield _zsh_quoted(f"{'*' if flag.repeats else others}{spelling}[{text}]{value}")


def _zsh_positional(value: Value) -> str:
    many = value.nargs in ("*", "+")
    return _zsh_quoted(f"{'*' if many else ''}:{value.name}:{_zsh_action(value)}")


def _zsh_action(value: Value) -> str:
    match value.kind:
        case ValueKind.CHOICE:
            return f"({' '.join(value.choices)})"
        case ValueKind.FILE:
            return "_files"
        case ValueKind.DIRECTORY:
            return "_files -/"
        case ValueKind.PIPE:
            return "_headrace_pipes"
        case ValueKind.NOTHING:
            return " "


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def fish(commands: Sequence[Command]) -> str:
    """For fish."""
    return "\n".join(_fish_lines(commands)) + "\n"


def _fish_lines(commands: Sequence[Command]) -> Iterator[str]:
    yield "# Completion of headrace for fish; made by `headrace completion fish`."
    yield "function __headrace_pipes"
    yield "    set -l file headrace.toml"
    yield "    for word in (commandline -opc)"
    yield "        if string match -q -- '*.toml' $word; and test -r $word"
    yield "            set file $word"
    yield "        end"
    yield "    end"
    yield f"    sed -n {_fish_quoted(_PIPES)} $file 2>/dev/null | sort -u"
    yield "end"
    yield "complete -c headrace -f"
    for command in commands:
        condition = _fish_condition(command)
        for name, text in command.below:
            none_yet = " ".join(below for below, _ in command.below)
            when = f"{condition}; and " if command.path else ""
            which = _fish_quoted(f"{when}not __fish_seen_subcommand_from {none_yet}")
            yield f"complete -c headrace -n {which} -a {name} -d {_fish_quoted(text)}"
        for flag in command.flags:
            yield _fish_flag(condition, flag)
        for value in command.values:
            completed = _fish_value(value)
            if completed:
                yield f"complete -c headrace -n {_fish_quoted(condition)} {completed}"


def _fish_condition(command: Command) -> str:
    if not command.path:
        return "__fish_use_subcommand"
    return "; and ".join(f"__fish_seen_subcommand_from {name}" for name in command.path)


def _fish_flag(condition: str, flag: Flag) -> str:
    names = " ".join(f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in flag.spellings)
    value = "" if flag.value is None else " " + (_fish_value(flag.value) or "-x")
    return f"complete -c headrace -n {_fish_quoted(condition)} {names}{value} -d {_fish_quoted(flag.text)}"


def _fish_value(value: Value) -> str:
    match value.kind:
        case ValueKind.CHOICE:
            return f"-x -a {_fish_quoted(' '.join(value.choices))}"
        case ValueKind.FILE:
            return "-r -F"
        case ValueKind.DIRECTORY:
            return "-x -a '(__fish_complete_directories)'"
        case ValueKind.PIPE:
            return "-x -a '(__headrace_pipes)'"
        case ValueKind.NOTHING:
            return ""


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Final[Mapping[str, Callable[[Sequence[Command]], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
