"""The texts of the manual: a page for each command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class ManualPage:
    """The manual page of a command, without its flags."""

    text: str
    """Paragraphs; each is one line."""
    examples: tuple[tuple[str, str], ...]
    """A command line, and what it does."""
    codes: Mapping[int, str] = field(default_factory=dict)
    """Exit codes besides those of all commands."""
    variables: tuple[str, ...] = ()
    see: tuple[str, ...] = ()


CODES: Final[Mapping[int, str]] = {
    0: "all is well",
    2: "an error, told with its place and a remedy; or a wrong command line",
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
    "HEADRACE_SERVE_PASSWORD": "the password that an embedded server asks for, instead of a random one",
    "HEADRACE_KAFKA_JARS": "a folder with Spark's Kafka connector, or its Maven coordinates",
    "HEADRACE_MAVEN": "where Maven's files are fetched from, instead of Maven Central",
    "HEADRACE_CACHE": "where fetched files and Java's class archive are kept, instead of ~/.cache/headrace",
}
_PASSWORDS: Final = ("HEADRACE_SOURCE_PASSWORD", "HEADRACE_SINK_PASSWORD", "HEADRACE_KAFKA_PASSWORD")
_PROCESS: Final = ("HEADRACE_TOKEN",)

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "pipes of a file": ("run", "config", "convert", "status", "pause", "resume", "stop", "skip", "dashboard"),
    "one pipe by itself": ("replicate", "resync", "release"),
    "making sure": ("check", "verify", "ddl", "retry"),
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
    "run": ManualPage(
        "All pipes of the file run in this process, each by itself: one that fails is reported and leaves the others running; "
        "passing errors "
        "are tried again. The dashboard, the figures for Prometheus and the control API are served on 127.0.0.1:8088.\n\n"
        "The first Ctrl-C (or SIGTERM) ends after the batches under way, a second one at once; either way the next start goes on "
        "where this "
        "one stopped, with nothing lost and nothing twice.",
        (
            ("headrace run", "the pipes of ./headrace.toml"),
            ("headrace run shop.toml --pipe orders --once", "one pipe, until it has caught up"),
            ("headrace run application.conf", "pipes that were written for mypipe"),
            ("headrace --log-format json run --listen 127.0.0.1:0", "for a service: lines of JSON, and any free port"),
        ),
        {2: "an error, explained; or every pipe is done and one has failed"},
        see=("docs/pipes.md", "docs/configuration.md", "docs/operations.md"),
    ),
    "config": ManualPage("", (("headrace config check", "is ./headrace.toml right?"),), see=("docs/configuration.md",)),
    "config check": ManualPage(
        "Everything that is wrong is told at once, each with its line, what is allowed there and the nearest known word. No "
        "server is asked, but by --connect.",
        (("headrace config check", "./headrace.toml"), ("headrace config check shop.toml", "another one")),
    ),
    "config show": ManualPage(
        "References are followed, and secrets masked.",
        (("headrace config show --defaults", "with all settings that the file leaves as they are"),),
    ),
    "config schema": ManualPage(
        "For editors that complete and check TOML by a schema.",
        (("headrace config schema > headrace.schema.json", "beside the file; name it there: #:schema ./headrace.schema.json"),),
    ),
    "convert": ManualPage(
        "Files of mypipe (application.conf) and of Debezium and Altinity's sink connector (properties, YAML, JSON) are read, and "
        "what they say "
        "is printed as headrace.toml. A key that has no meaning here is named, not dropped.",
        (("headrace convert application.conf > headrace.toml", "begin with what is there"),),
        see=("docs/pipes.md",),
    ),
    "status": ManualPage(
        "A line for each pipe, and under the table what a person has to know: errors with their remedies, what is waited for, "
        "rows that were "
        f"refused, tables that differ.\n\n{_FIND}",
        (
            ("headrace status", "the process of ./headrace.toml"),
            ("headrace status --watch", "the same, live"),
            ("headrace status --tables --pipe shop", "one pipe, with its tables"),
            ("headrace status --json", "for scripts: what GET /api/status answers"),
        ),
        {1: "a pipe has failed, or waits to be started again"},
        _PROCESS,
        ("headrace dashboard", "docs/operations.md"),
    ),
    "pause": ManualPage(
        f"The pause is kept in the state: a restart of the process leaves the pipe paused. Its place in the log is kept as "
        f"well.\n\n{_FIND}",
        (("headrace pause shop", "this pipe, all of its sources"), ("headrace pause shop/east", "one of its sources")),
        variables=_PROCESS,
    ),
    "resume": ManualPage(
        f"A pipe that failed is started again, with the error that it had gone or not; one that waits for its next try need not "
        f"wait.\n\n{_FIND}",
        (("headrace resume shop crm", "two pipes"), ("headrace resume --all", "every one")),
        variables=_PROCESS,
    ),
    "stop": ManualPage(
        f"Unlike a pause this is not kept: the next start of the process runs the pipe again.\n\n{_FIND}",
        (("headrace stop shop", "until the next start"),),
        variables=_PROCESS,
    ),
    "skip": ManualPage(
        "For an event that cannot be replicated and that cannot be corrected at the source. The event is shown and you are asked; "
        "it is recorded "
        f"with its place, and nothing else is left out.\n\n{_FIND}",
        (
            ("headrace skip shop", "shows the event, and asks"),
            ("headrace skip shop --place binlog.000042:1337 --yes", "for scripts: only if the pipe halts at just this event"),
        ),
        variables=_PROCESS,
    ),
    "dashboard": ManualPage(
        f"The link holds the token, behind the #, where browsers keep it to themselves: whoever has it may pause, resume and "
        f"query.\n\n{_FIND}",
        (("headrace dashboard", "print it"), ("xdg-open $(headrace dashboard)", "open it")),
        variables=_PROCESS,
    ),
    "replicate": ManualPage(
        "The rows that are there come over first, without a lock, while the log is followed; then every change does, and every "
        "schema change. "
        "Progress is kept in --state: the same command goes on where the last one stopped. For several pipes, and for a dashboard, use "
        "`headrace run`.",
        (
            ("headrace replicate mysql://repl@db1/shop chdb:copy", "a database into an embedded ClickHouse in ./copy"),
            ("headrace replicate mysql://repl@db1/shop clickhouse://default@ch1/shop --tables 'order*'", "some tables into a server"),
            ("headrace replicate kafka://k1:9092 clickhouse://default@ch1/shop --topics 'shop.inventory.*'", "Debezium's topics"),
            ("headrace replicate scylla://s1,s2/app clickhouse://default@ch1/app", "ScyllaDB's CDC log"),
            ("headrace replicate mysql://repl@db1/shop chdb:copy --once", "until it has caught up, then end"),
        ),
        variables=(*_PASSWORDS, "HEADRACE_SERVE_PASSWORD", "HEADRACE_KAFKA_JARS", "HEADRACE_MAVEN", "HEADRACE_CACHE"),
        see=("docs/mysql.md", "docs/clickhouse.md", "docs/kafka.md", "docs/scylla.md"),
    ),
    "resync": ManualPage(
        "The table's rows are read anew beside the stream, which goes on; rows that the source has no more go at the end. Without "
        "--pipe it is "
        "about the pipe of a state directory (`headrace replicate`); if none runs there now, the next one does it. With --new-log, the "
        "next start of the pipe reads all tables again and goes on in the log that the server writes then: for a server whose log was "
        "reset, restored from a backup, or purged too early.",
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
        "Every setting and privilege that matters is looked at, and for each that is wrong it is said what to do.",
        (("headrace check mysql://repl@db1/shop", "a server"), ("headrace check scylla://s1/app --json", "a cluster, for a program")),
        {2: "an error; or the source cannot be replicated as it is"},
        ("HEADRACE_SOURCE_PASSWORD",),
    ),
    "verify": ManualPage(
        "Tables are compared by digests and, where those differ, row by row, while both sides change: what is only late is not a "
        "difference. "
        "Without SOURCE and SINK, a running process compares the tables of --pipe.",
        (
            ("headrace verify mysql://repl@db1/shop clickhouse://default@ch1/shop", "all tables of a pipe"),
            ("headrace verify mysql://repl@db1/shop chdb:copy --sample 1%", "a part of each"),
            ("headrace verify mysql://repl@db1/shop chdb:copy --repair", "and write again what differs"),
            ("headrace verify --pipe shop --tables 'shop.order*'", "in the process that runs the pipe"),
        ),
        {1: "rows differ", 3: "it could not be decided: the sink is behind"},
        (*_PASSWORDS[:2], "HEADRACE_TOKEN"),
    ),
    "ddl": ManualPage(
        "Nothing is done, neither to the source nor to the sink.",
        (("headrace ddl 'ALTER TABLE shop.orders ADD COLUMN note TEXT' --source mysql://repl@db1/shop", "before it is run on the source"),),
        variables=_PASSWORDS[:2],
    ),
    "retry": ManualPage(
        "A row that a target table refuses is kept in headrace.errors, with its reason, if the pipe is set so; nothing is ever dropped.",
        (("headrace retry clickhouse://default@ch1/shop --list", "which wait"), ("headrace retry chdb:copy", "try them again")),
        {1: "some still wait"},
        ("HEADRACE_SINK_PASSWORD",),
        ("docs/clickhouse.md",),
    ),
    "tail": ManualPage(
        "What is there is printed, decoded, until interrupted; nothing is written anywhere, and no offset is committed.",
        (
            ("headrace tail mysql://reader@db1/shop", "what happens to a database's tables from now on, in colours"),
            ("headrace tail mysql://reader@db1/shop --tables orders --json", "one table, for a program"),
            ("headrace tail binlog:/backup/logs --once --tables 'shop.*'", "what log files say, without a server"),
            ("headrace tail kafka://k1:9092/shop.orders --from-beginning --limit 10", "the first messages of a topic"),
            ("headrace tail kafka://k1:9092/shop.orders --json", "what comes from now on, for a program"),
            ("headrace tail mysql://repl@db1/shop --tables 'order*'", "a server's changes, as they are committed"),
            ("headrace tail scylla://s1/app --tables users", "a table's CDC log"),
        ),
        variables=("HEADRACE_SOURCE_PASSWORD", "HEADRACE_KAFKA_PASSWORD", "HEADRACE_REGISTRY_PASSWORD"),
    ),
    "sql": ManualPage(
        "In the SQL of ClickHouse. A query that names a FORMAT is printed in that one.",
        (
            ("headrace sql chdb:copy 'SELECT count() FROM shop.orders FINAL'", "an embedded ClickHouse, also while a pipe fills it"),
            ("headrace sql clickhouse://default@ch1/shop 'SELECT * FROM headrace.lag FORMAT JSONEachRow'", "how far pipes are"),
        ),
        variables=("HEADRACE_SINK_PASSWORD",),
    ),
    "settings": ManualPage("What they mean, what they may be, and what they are if nobody says.", (("headrace settings", "print them"),)),
    "serve": ManualPage(
        "It speaks ClickHouse's HTTP interface on loopback, until interrupted. Pipes with the sink chdb:PATH start one by themselves.",
        (("headrace serve copy --port 8123", "then, in another terminal: headrace sql chdb:copy 'SELECT 1'"),),
        variables=("HEADRACE_SERVE_PASSWORD",),
    ),
    "connection": ManualPage(
        "For a client of your own. The password is the one of HEADRACE_SERVE_PASSWORD when the server started, else a random one that is "
        "stored in the directory, readable by its owner alone.",
        (
            ("headrace connection chdb:copy", "host, port, user, password and URL"),
            ("headrace connection chdb:copy password", "the password alone, for a script"),
        ),
    ),
    "demo": ManualPage(
        "Everything is private and temporary: a MariaDB with a shop whose customers order, an embedded ClickHouse, a pipe between "
        "them; at the "
        "end both are compared.",
        (("headrace demo", "half a minute"), ("headrace demo --live", "until Ctrl-C, to look around")),
        {1: "the copy differs"},
    ),
    "scylla": ManualPage("", (("headrace scylla log-schema schema.cql", "what is logged of tables"),), see=("docs/scylla.md",)),
    "scylla log-schema": ManualPage(
        "What `WITH cdc` would make, of tables in a file or in a cluster.",
        (("headrace scylla log-schema schema.cql --table app.users", "of one table"),),
        variables=("HEADRACE_SOURCE_PASSWORD",),
    ),
    "completion": ManualPage(
        "Commands, flags, their values, files, and the names of pipes, which are read out of headrace.toml.",
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
