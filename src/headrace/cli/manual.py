"""The texts of the manual, a page for each command, in `--help` and in the man page.

Invariant: every command has a page here, and every example parses; a test holds both.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn


@dataclass(frozen=True, slots=True)
class ManualPage:
    """The manual page of a command, without its flags."""

    text: str
    """Paragraphs; each is one line."""
    examples: tuple[tuple[str, str], ...]
    """A command line, and what it does."""
    codes: Mapping[int, str] = field(default_factory=dict)
    """Exit codes in addition to those of all commands."""
    variables: tuple[str, ...] = ()
    see: tuple[str, ...] = ()


CODES: Final[Mapping[int, str]] = {
    0: "success",
    2: "an error, with its place and a remedy; or a wrong command line",
    130: "ended by SIGINT (Ctrl-C)",
    143: "ended by SIGTERM",
}
"""Exit codes of all commands."""

VARIABLES: Final[Mapping[str, str]] = {
    "HEADRACE_SOURCE_PASSWORD": "the password of a source that is a server, if its address has none",
    "HEADRACE_SINK_PASSWORD": "the password of a ClickHouse sink, if its address has none",
    "HEADRACE_KAFKA_PASSWORD": "the password of a Kafka cluster, if its address has none",
    "HEADRACE_REGISTRY_PASSWORD": "the password of a schema registry, if its address has none",
    "HEADRACE_TOKEN": "the token of a running process, for commands that are given its --url",
    "HEADRACE_SERVE_PASSWORD": "the password of an embedded server, instead of a random one",
    "HEADRACE_KAFKA_JARS": "a folder with Spark's Kafka connector, or its Maven coordinates",
    "HEADRACE_MAVEN": "the Maven repository, instead of Maven Central",
    "HEADRACE_CACHE": "the folder of fetched files and Java's class archive, instead of ~/.cache/headrace",
}
_PASSWORDS: Final = ("HEADRACE_SOURCE_PASSWORD", "HEADRACE_SINK_PASSWORD", "HEADRACE_KAFKA_PASSWORD")
_PROCESS: Final = ("HEADRACE_TOKEN",)

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "pipes of a file": ("run", "init", "config", "convert", "status", "pause", "resume", "stop", "skip", "reload", "dashboard"),
    "one pipe by itself": ("replicate", "resync", "release"),
    "making sure": ("check", "verify", "ddl", "retry", "alerts"),
    "looking": ("tail", "sql", "settings"),
    "trying it out": ("demo", "serve", "connection"),
    "tools": ("scylla", "completion", "help"),
}
"""The commands by topic, in the order of the overview."""

_FIND: Final = (
    "The process is found by the `state` of its file (./headrace.toml unless one is named), by --state, or by --url with the token in "
    "HEADRACE_TOKEN. No secret of the file is needed."
)

PAGES: Final[Mapping[str, ManualPage]] = {
    "init": ManualPage(
        "Checks the source as `headrace check` does, and the sink, and writes a headrace.toml with comments and one pipe. On a terminal it "
        "asks for what is missing. After an error it writes nothing, and it never changes an existing file.\n\n"
        "The file contains no passwords: it refers to HEADRACE_SOURCE_PASSWORD, HEADRACE_SINK_PASSWORD or HEADRACE_KAFKA_PASSWORD, "
        "which `headrace run` needs. A password that a server requires and no variable holds is asked for, without echo.",
        (
            ("headrace init", "answer questions"),
            ("headrace init mysql://repl@db1/shop chdb:./warehouse --yes", "for a script: ask nothing"),
            ("headrace init mysql://repl@db1 clickhouse://default@ch1 --tables 'shop.*' --file shop.toml --run", "and run it"),
            ("headrace init kafka://k1:9092 --topics 'shop.inventory.*' --yes", "Debezium's topics, into the default sink"),
        ),
        {2: "an error; or the source or the sink is not ready, and no file is written"},
        _PASSWORDS,
        ("docs/pipes.md", "docs/configuration.md"),
    ),
    "run": ManualPage(
        "All pipes of the file run in this process and are isolated: a pipe that fails is reported, the others keep running. Transient "
        "errors are retried. The dashboard, the Prometheus metrics and the control API are served on 127.0.0.1:8088.\n\n"
        "The first Ctrl-C (or SIGTERM) stops after the current batches, a second one at once. In both cases the next start continues "
        "where this one stopped: nothing is lost and nothing is written twice.",
        (
            ("headrace run", "the pipes of ./headrace.toml"),
            ("headrace run shop.toml --pipe orders --once", "one pipe, until it has caught up"),
            ("headrace run application.conf", "pipes that were written for mypipe"),
            ("headrace --log-format json run --listen 127.0.0.1:0", "for a service: lines of JSON, and any free port"),
        ),
        {2: "an error; or all pipes have ended and one has failed"},
        see=("docs/pipes.md", "docs/configuration.md", "docs/operations.md"),
    ),
    "config": ManualPage("", (("headrace config check", "is ./headrace.toml right?"),), see=("docs/configuration.md",)),
    "config check": ManualPage(
        "All errors are reported at once, each with its line, the allowed values and the most similar key. No server is contacted "
        "without --connect.",
        (("headrace config check", "./headrace.toml"), ("headrace config check shop.toml", "another one")),
    ),
    "config show": ManualPage(
        "References are expanded and secrets are masked.",
        (("headrace config show --defaults", "with the defaults of settings that the file does not have"),),
    ),
    "config schema": ManualPage(
        "For editors that complete and check TOML by a schema.",
        (("headrace config schema > headrace.schema.json", "next to the file; name it there: #:schema ./headrace.schema.json"),),
    ),
    "alerts": ManualPage("", (("headrace alerts test", "does every receiver get alerts?"),), see=("docs/operations/alerts.md",)),
    "alerts test": ManualPage(
        "Sends one alert to the receiver of each [alerts.NAME] and prints what the receiver answered. It needs no running process, and "
        "none of the passwords of sources and sinks.",
        (("headrace alerts test", "all receivers of ./headrace.toml"), ("headrace alerts test oncall --file shop.toml", "one of them")),
        {2: "an error; or a receiver did not take the alert"},
        see=("docs/operations/alerts.md",),
    ),
    "convert": ManualPage(
        "Reads files of mypipe (application.conf), Debezium and Altinity's sink connector (properties, YAML, JSON) and prints them as "
        "headrace.toml. A key that Headrace does not need is listed with the reason.",
        (("headrace convert application.conf > headrace.toml", "start from an existing file"),),
        see=("docs/pipes.md",),
    ),
    "status": ManualPage(
        f"One line per pipe, and below the table: errors with their remedies, waits, rejected rows, tables that differ.\n\n{_FIND}",
        (
            ("headrace status", "the process of ./headrace.toml"),
            ("headrace status --watch", "the same, live"),
            ("headrace status --tables --pipe shop", "one pipe, with its tables"),
            ("headrace status --json", "for scripts: the response of GET /api/status"),
        ),
        {1: "a pipe has failed, or waits to be started again"},
        _PROCESS,
        ("headrace dashboard", "docs/operations.md"),
    ),
    "pause": ManualPage(
        f"The state stores the pause: after a restart of the process the pipe is still paused, at the same log position.\n\n{_FIND}",
        (("headrace pause shop", "this pipe, all of its sources"), ("headrace pause shop/east", "one of its sources")),
        variables=_PROCESS,
    ),
    "resume": ManualPage(
        f"Restarts a failed pipe, and a pipe that waits for its next attempt.\n\n{_FIND}",
        (("headrace resume shop crm", "two pipes"), ("headrace resume --all", "every one")),
        variables=_PROCESS,
    ),
    "stop": ManualPage(
        f"Unlike a pause, this is not stored: the next start of the process runs the pipe again.\n\n{_FIND}",
        (("headrace stop shop", "until the next start"),),
        variables=_PROCESS,
    ),
    "skip": ManualPage(
        "For an event that cannot be replicated and that cannot be corrected at the source. The command shows the event and asks for "
        f"confirmation. It records the event with its position, and skips nothing else.\n\n{_FIND}",
        (
            ("headrace skip shop", "shows the event, and asks for confirmation"),
            ("headrace skip shop --place binlog.000042:1337 --yes", "for scripts: only if the pipe halts at just this event"),
        ),
        variables=_PROCESS,
    ),
    "reload": ManualPage(
        "New pipes start, removed pipes stop (their state stays), and changed pipes restart with the new settings after the current "
        "batch. All other pipes run on. Alert rules and, of `[headrace]`, `address`, `edit` and `retry_seconds` apply at once. If the file "
        "has mistakes, all of them are printed, and nothing changes. SIGHUP to the process (`kill -HUP PID`) does the same, with the "
        f"outcome in its log.\n\n{_FIND}",
        (("headrace reload", "apply the changes of ./headrace.toml"),),
        variables=_PROCESS,
    ),
    "dashboard": ManualPage(
        f"The link contains the token after the #, which browsers do not send. Everyone with the token may pause, resume and "
        f"query, and change pipes if `[headrace] edit = true`.\n\n{_FIND}",
        (("headrace dashboard", "print it"), ("xdg-open $(headrace dashboard)", "open it")),
        variables=_PROCESS,
    ),
    "replicate": ManualPage(
        "First copies the existing rows, without locks, while the log is read; then applies every change and every schema change. "
        "--state stores the progress: the same command continues where the last one stopped. For several pipes, and for a dashboard, use "
        "`headrace run`.",
        (
            ("headrace replicate mysql://repl@db1/shop chdb:copy", "a database into an embedded ClickHouse in ./copy"),
            ("headrace replicate mysql://repl@db1/shop clickhouse://default@ch1/shop --tables 'order*'", "some tables into a server"),
            ("headrace replicate kafka://k1:9092 clickhouse://default@ch1/shop --topics 'shop.inventory.*'", "Debezium's topics"),
            ("headrace replicate scylla://s1,s2/app clickhouse://default@ch1/app", "ScyllaDB's CDC log"),
            ("headrace replicate mysql://repl@db1/shop chdb:copy --once", "until it has caught up"),
        ),
        variables=(*_PASSWORDS, "HEADRACE_SERVE_PASSWORD", "HEADRACE_KAFKA_JARS", "HEADRACE_MAVEN", "HEADRACE_CACHE"),
        see=("docs/mysql.md", "docs/clickhouse.md", "docs/kafka.md", "docs/scylla.md"),
    ),
    "resync": ManualPage(
        "Reads the tables again while the stream continues; at the end, rows that the source no longer has are removed. Without --pipe "
        "it works on the pipe of a state directory (`headrace replicate`); if that pipe does not run, its next start does it. With "
        "--new-log, the next start of the pipe reads all tables again and continues in the log that the server writes then: for a server "
        "whose log was reset, restored from a backup, or purged too early.",
        (
            ("headrace resync shop.orders --state headrace-state", "of a pipe without a file"),
            ("headrace resync 'shop.order*' --pipe shop", "of a running process"),
            ("headrace resync --new-log --state headrace-state", "of all tables, after the source's log was reset"),
        ),
        variables=_PROCESS,
    ),
    "release": ManualPage(
        "A target table or topic has one owner: the pipe that wrote to it first. Another pipe ends with an error that names the owner and "
        "the id of its state. If the owner is no longer used, this gives up all its claims in the sink; no row is changed. A pipe that ran "
        "within the last 30 seconds, as far as the sink knows, must be stopped first.",
        (
            ("headrace release chdb:copy 5f0c3a9d2be41877", "in an embedded ClickHouse"),
            ("headrace release kafka://k1:9092 5f0c3a9d2be41877", "in a Kafka cluster"),
        ),
        variables=_PASSWORDS,
        see=("docs/operations.md",),
    ),
    "check": ManualPage(
        "Checks every relevant setting and privilege of a server or a cluster, and prints a remedy for each problem. Of Kafka, it looks "
        "for the topics; of log files, it reads where they begin and end.",
        (
            ("headrace check mysql://repl@db1/shop", "a server"),
            ("headrace check scylla://s1/app --json", "a cluster, for a program"),
            ("headrace check kafka://k1:9092/shop.*", "topics"),
            ("headrace check binlog:/backup/logs", "log files"),
        ),
        {2: "an error; or the source cannot be replicated"},
        ("HEADRACE_SOURCE_PASSWORD",),
    ),
    "verify": ManualPage(
        "Compares tables by digests and, where those differ, row by row, while both sides change: a row that is only late is not a "
        "difference. Without SOURCE and SINK, a running process compares the tables of --pipe.",
        (
            ("headrace verify mysql://repl@db1/shop clickhouse://default@ch1/shop", "all tables of a pipe"),
            ("headrace verify mysql://repl@db1/shop chdb:copy --sample 1%", "a part of each"),
            ("headrace verify mysql://repl@db1/shop chdb:copy --repair", "and write again what differs"),
            ("headrace verify --pipe shop --tables 'shop.order*'", "in the process that runs the pipe"),
        ),
        {1: "rows differ", 3: "undecided: the sink is behind"},
        (*_PASSWORDS[:2], "HEADRACE_TOKEN"),
    ),
    "ddl": ManualPage(
        "Changes neither the source nor the sink.",
        (("headrace ddl 'ALTER TABLE shop.orders ADD COLUMN note TEXT' --source mysql://repl@db1/shop", "before it is run on the source"),),
        variables=_PASSWORDS[:2],
    ),
    "retry": ManualPage(
        'With on_refused_row = "dead_letter", a row that the target table rejects is stored in headrace.errors with the reason; no row '
        "is dropped.",
        (("headrace retry clickhouse://default@ch1/shop --list", "list the rejected rows"), ("headrace retry chdb:copy", "try them again")),
        {1: "some rows are still rejected"},
        ("HEADRACE_SINK_PASSWORD",),
        ("docs/clickhouse.md",),
    ),
    "tail": ManualPage(
        "Prints decoded changes or messages until interrupted. It writes nothing and commits no offset.",
        (
            ("headrace tail mysql://reader@db1/shop", "new changes of a database, in colours"),
            ("headrace tail mysql://reader@db1/shop --tables orders --json", "one table, for a program"),
            ("headrace tail binlog:/backup/logs --once --tables 'shop.*'", "the changes in log files, without a server"),
            ("headrace tail kafka://k1:9092/shop.orders --from-beginning --limit 10", "the first messages of a topic"),
            ("headrace tail kafka://k1:9092/shop.orders --json", "new messages, for a program"),
            ("headrace tail mysql://repl@db1/shop --tables 'order*'", "a server's changes, as they are committed"),
            ("headrace tail scylla://s1/app --tables users", "a table's CDC log"),
        ),
        variables=("HEADRACE_SOURCE_PASSWORD", "HEADRACE_KAFKA_PASSWORD", "HEADRACE_REGISTRY_PASSWORD"),
    ),
    "sql": ManualPage(
        "A query in the SQL of ClickHouse; with a FORMAT clause, the output has that format.",
        (
            ("headrace sql chdb:copy 'SELECT count() FROM shop.orders FINAL'", "an embedded ClickHouse, also while a pipe fills it"),
            ("headrace sql clickhouse://default@ch1/shop 'SELECT * FROM headrace.lag FORMAT JSONEachRow'", "how far pipes are"),
        ),
        variables=("HEADRACE_SINK_PASSWORD",),
    ),
    "settings": ManualPage("Prints the values, defaults and descriptions.", (("headrace settings", "print them"),)),
    "serve": ManualPage(
        "The server provides ClickHouse's HTTP interface on loopback until interrupted. A pipe with the sink chdb:PATH starts its own.",
        (("headrace serve copy --port 8123", "then, in another terminal: headrace sql chdb:copy 'SELECT 1'"),),
        variables=("HEADRACE_SERVE_PASSWORD",),
    ),
    "connection": ManualPage(
        "For other clients. The password is HEADRACE_SERVE_PASSWORD at the start of the server, or a random one that is stored in the "
        "directory, readable by its owner only.",
        (
            ("headrace connection chdb:copy", "host, port, user, password and URL"),
            ("headrace connection chdb:copy password", "the password alone, for a script"),
        ),
    ),
    "demo": ManualPage(
        "All parts are private and temporary: a MariaDB with a shop and its customers, an embedded ClickHouse, and a pipe. At the end "
        "both sides are compared.",
        (("headrace demo", "half a minute"), ("headrace demo --live", "until Ctrl-C, to look around")),
        {1: "the copy differs"},
    ),
    "scylla": ManualPage("", (("headrace scylla log-schema schema.cql", "the log tables of a schema"),), see=("docs/scylla.md",)),
    "scylla log-schema": ManualPage(
        "Prints the log table that `WITH cdc` would create, for tables in a file or in a cluster.",
        (("headrace scylla log-schema schema.cql --table app.users", "of one table"),),
        variables=("HEADRACE_SOURCE_PASSWORD",),
    ),
    "completion": ManualPage(
        "Completes commands, flags, values, files, and the pipe names of headrace.toml.",
        (
            ("headrace completion bash > ~/.local/share/bash-completion/completions/headrace", "for new shells"),
            ('headrace completion zsh > "${fpath[1]}/_headrace"', "in a folder of $fpath"),
            ("headrace completion fish > ~/.config/fish/completions/headrace.fish", "for new shells"),
        ),
    ),
    "help": ManualPage(
        "With --man: the manual page of all commands, for man(1).",
        (("headrace help verify", "as headrace verify --help"), ("headrace help --man > headrace.1", "then: man ./headrace.1")),
    ),
}
"""By what a command is called."""


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
        positional = (action for action in command._actions if not action.option_strings)
        names = (format_repetition(one.metavar if isinstance(one.metavar, str) else one.dest, one.nargs) for one in positional)
        # argparse interprets percent signs.
        command.usage = f"{command.prog} [OPTION]... {' '.join(names)}".rstrip().replace("%", "%%")


def format_repetition(name: str, nargs: str | int | None) -> str:
    """Return the name of an argument in the form that says how often it may be given."""
    forms: Mapping[str | int | None, str] = {"?": f"[{name}]", "*": f"[{name}...]", "+": f"{name}..."}
    return forms.get(nargs, name)


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
            "  headrace init                                      write a first headrace.toml",
            "  headrace check mysql://user@host/db                is this server ready?",
            "  headrace replicate mysql://user@host/db chdb:copy  one pipe, no file",
            "  headrace run                                       pipes of ./headrace.toml",
        ]
    )
    yield "`headrace COMMAND --help` (or `headrace help COMMAND`) lists flags, examples, exit codes and variables."


def _indent_continuation(line: str) -> str:
    width = max(min(shutil.get_terminal_size().columns, _MAX_WIDTH) - 2, 40)
    return textwrap.fill(line, width, subsequent_indent=" " * 14, break_long_words=False, break_on_hyphens=False)
