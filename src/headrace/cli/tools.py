"""Commands about Headrace itself: `demo`, `scylla log-schema`, `help`, `completion`.

shtab generates the completion scripts from the parser. They start no process of Headrace: they read the pipe names from the file with sed.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping
from typing import Any, Final

from headrace.cli.flags import OK, Subcommands, add_command
from headrace.errors import DefiniteError
from headrace.extras import EMBEDDED, require_extra
from headrace.shutdown import stop_on_signal

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
    command = add_command(subcommands, demo, "demo", "replicate a live private database into an embedded ClickHouse and verify it")
    command.add_argument("--live", action="store_true", help="run until interrupted, and print how to query")
    command.add_argument("--shop", action="store_true", help="only the database and its customers, until interrupted")
    command.add_argument("--port", type=int, default=3307, help="of --shop: where its server listens on 127.0.0.1 (%(default)s)")
    command.add_argument("--seconds", type=float, default=20.0, help="how long the workload runs (%(default)s)")
    command.add_argument("--directory", default="", help="the folder of the demo's files (a temporary one, removed at the end)")

    text = "tools for ScyllaDB's CDC log"
    tools = subcommands.add_parser("scylla", help=text, description=text[0].upper() + text[1:] + ".")
    kinds = tools.add_subparsers(title="commands", required=True, metavar="COMMAND")
    command = add_command(kinds, log_schema, "log-schema", "print the CREATE TABLE of a table's log table")
    command.add_argument("source", help="a file of CREATE statements, - for standard input, or scylla://user:password@host:port/keyspace")
    command.add_argument("--table", dest="tables", action="append", default=[], metavar="KS.T", help="which table (those with CDC, or all)")
    command.add_argument("--cassandra", action="store_true", help="for Apache Cassandra, whose log Headrace writes")

    command = add_command(subcommands, completion, "completion", "print the completion script of a shell")
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")

    command = add_command(subcommands, show_help, "help", "show the help of a command")
    command.add_argument("command", nargs="*", metavar="COMMAND", help="the command (an overview)")
    command.add_argument("--man", action="store_true", help="print the manual page of all commands")


def demo(arguments: argparse.Namespace) -> int:
    if arguments.shop:
        from headrace.demo.shop import open_shop

        closed = threading.Event()
        stop_on_signal(closed.set)
        return open_shop(arguments.port, arguments.directory, closed.is_set)
    require_extra(EMBEDDED)
    from headrace.demo.run import run_demo

    return run_demo(live=arguments.live, seconds=arguments.seconds, directory=arguments.directory)


def log_schema(arguments: argparse.Namespace) -> int:
    from headrace.pipes.scylla import log_schema_command

    print(log_schema_command.log_schema(arguments.source, arguments.tables, cassandra=arguments.cassandra))
    return OK


def completion(arguments: argparse.Namespace) -> int:
    print(completion_script(arguments.parser, arguments.shell), end="")
    return OK


def show_help(arguments: argparse.Namespace) -> int:
    from headrace.cli.man_page import list_commands, man_page

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
