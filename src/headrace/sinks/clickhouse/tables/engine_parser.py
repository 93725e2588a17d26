"""What a server says of a table's engine (`engine_full`), read: name, arguments, settings, and the columns that expressions are made of.

Pure text in, frozen words out; nothing here knows what an engine is good for (see `adapting`). A text that is not understood is an error,
never a guess: `EngineParseError` carries what was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.sinks.clickhouse.server.quoting import unquote

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<quoted>`(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*")
  | (?P<text>'(?:[^'\\]|\\.|'')*')
  | (?P<number>\d[\w.]*)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REPLICATING: Final = ("Replicated", "Shared")
# Functions whose value is not decided by the row: two images of one row would be kept in different places.
_NONDETERMINISTIC: Final = re.compile(
    r"rand\w*|now\w*|today|yesterday|generate\w+|hostname|\w*rownumber\w*|blocknumber|runningdifference\w*|runningaccumulate|neighbor"
    r"|currentdatabase|currentuser|user|(?:initial)?queryid|connectionid|uptime|timezone|serveruuid|servertimezone|utctimestamp|current_\w+"
    r"|dictget\w*|joinget\w*|filesystem\w*|getsetting|getmacro|fqdn|tcpport|fuzzbits|fuzzjson|fuzzquery",
    re.IGNORECASE,
)
_CONSTANTS: Final = frozenset({"null", "true", "false", "nan", "inf"})


class EngineParseError(ValueError):
    """A description of an engine that nobody here understands."""


@dataclass(frozen=True, slots=True)
class Token:
    """One word of ClickHouse's SQL."""

    kind: str
    """`name` (quoted or not), `text`, `number` or `mark`."""
    value: str
    """A name or a text without its quotes."""
    start: int
    end: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class EngineArgument:
    """One argument of an engine: a column's name, a literal, or an expression."""

    sql: str
    name: str | None = None
    """If it is nothing but an identifier."""
    text: str | None = None
    """If it is nothing but a string."""


@dataclass(frozen=True, slots=True)
class TableEngine:
    """An engine by its own name: `ReplicatedReplacingMergeTree('/path', 'r', v)` is a ReplacingMergeTree(v), replicated."""

    name: str
    arguments: tuple[EngineArgument, ...] = ()
    replication: str = ""
    """`Replicated`, `Shared` or nothing."""
    path: str = ""
    replica: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def full_name(self) -> str:
        return self.replication + self.name

    def setting(self, name: str) -> str | None:
        return dict(self.settings).get(name)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The arguments, if all of them are columns."""
        names = [argument.name for argument in self.arguments if argument.name is not None]
        return tuple(names) if len(names) == len(self.arguments) else None


@dataclass(frozen=True, slots=True)
class DistributedEngine:
    """What a Distributed table writes to, and by what it says where a row goes."""

    cluster: str
    database: str
    table: str
    shard_by: str = ""


def parse_engine(described: str) -> TableEngine:
    """An engine as `system.tables.engine_full` spells it."""
    tokens = list(tokenize(described))
    if not tokens or tokens[0].kind != "name":
        raise EngineParseError(described)
    name, at = tokens[0].value, 1
    arguments: tuple[EngineArgument, ...] = ()
    if at < len(tokens) and tokens[at].value == "(" and tokens[at].kind == "mark":
        end = _closing(tokens, at, described)
        arguments = tuple(_argument(part, described) for part in _split(tokens[at + 1 : end]))
        at = end + 1
    settings = _settings(tokens[at:], described)
    replication = next((word for word in _REPLICATING if name.startswith(word) and name.endswith("MergeTree")), "")
    if not replication:
        return TableEngine(name, arguments, settings=settings)
    base = name.removeprefix(replication)
    # Path and replica are both given, or the server's defaults hold.
    given = len(arguments) >= 2 and arguments[0].text is not None and arguments[1].text is not None
    path, replica = (str(arguments[0].text), str(arguments[1].text)) if given else ("", "")
    return TableEngine(base, arguments[2:] if given else arguments, replication, path, replica, settings)


def parse_distribution(engine: TableEngine) -> DistributedEngine:
    """The arguments of a Distributed table."""
    if engine.name != "Distributed" or not 3 <= len(engine.arguments) <= 5:
        raise EngineParseError(engine.full_name)
    places = [argument.text if argument.text is not None else argument.name for argument in engine.arguments[:3]]
    cluster, database, table = places
    if cluster is None or database is None or table is None:
        raise EngineParseError(f"Distributed({', '.join(argument.sql for argument in engine.arguments)})")
    return DistributedEngine(cluster, database, table, engine.arguments[3].sql if len(engine.arguments) > 3 else "")


def split_key(listed: str) -> tuple[str, ...]:
    """The expressions of a key, as `system.tables.sorting_key` lists them; a tuple of some is as good as these one by one."""
    return tuple(listed[part[0].start : part[-1].end] for part in _flattened(list(tokenize(listed)), listed))


def _flattened(tokens: list[Token], sql: str) -> list[list[Token]]:
    found = []
    for part in _split(tokens):
        opens = 1 if part[0].value == "tuple" and len(part) > 1 else 0
        if part[opens].kind == "mark" and part[opens].value == "(" and _closing(part, opens, sql) == len(part) - 1:
            found += _flattened(part[opens + 1 : -1], sql)
        else:
            found.append(part)
    return found


def single_column(expression: str) -> str | None:
    """The column, where an expression is nothing but one."""
    tokens = list(tokenize(expression))
    return tokens[0].value if len(tokens) == 1 and _is_column(tokens, 0) else None


def referenced_names(expression: str) -> tuple[str, ...]:
    """The identifiers of an expression that are not functions: the columns it is made of (and, it may be, words that are none)."""
    tokens = list(tokenize(expression))
    return tuple(dict.fromkeys(token.value for at, token in enumerate(tokens) if _is_column(tokens, at)))


def nondeterministic_function(expression: str) -> str | None:
    """The first function of an expression whose value is not decided by the row alone."""
    tokens = list(tokenize(expression))
    calls = (tokens[at].value for at in range(len(tokens) - 1) if tokens[at].kind == "name" and tokens[at + 1].value == "(")
    return next((name for name in calls if _NONDETERMINISTIC.fullmatch(name)), None)


def tokenize(sql: str) -> Iterator[Token]:
    """The words of a piece of SQL; one quote that is not closed makes it unreadable."""
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # the last alternative takes any character
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "space":
            continue
        body = match.group()
        if kind == "mark" and body in "`'\"":
            raise EngineParseError(sql)
        if kind in ("quoted", "text"):
            yield Token("name" if kind == "quoted" else "text", unquote(body), match.start(), at, quoted=True)
        else:
            yield Token("name" if kind == "word" else kind, body, match.start(), at)


def _is_column(tokens: list[Token], at: int) -> bool:
    token = tokens[at]
    if token.kind != "name":
        return False
    called = at + 1 < len(tokens) and tokens[at + 1].kind == "mark" and tokens[at + 1].value == "("
    return not called and (token.quoted or token.value.lower() not in _CONSTANTS)


def _closing(tokens: list[Token], at: int, sql: str) -> int:
    """Where the parenthesis that opens at `at` closes."""
    depth = 0
    for index in range(at, len(tokens)):
        if tokens[index].kind == "mark":
            depth += (tokens[index].value in "([{") - (tokens[index].value in ")]}")
            if not depth:
                return index
    raise EngineParseError(sql)


def _split(tokens: list[Token]) -> list[list[Token]]:
    """The parts between commas that are in no parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind == "mark":
            depth += (token.value in "([{") - (token.value in ")]}")
            if token.value == "," and not depth:
                parts.append([])
                continue
        parts[-1].append(token)
    return [part for part in parts if part]


def _argument(part: list[Token], sql: str) -> EngineArgument:
    text = sql[part[0].start : part[-1].end]
    if len(part) > 1:
        return EngineArgument(text)
    return EngineArgument(
        text, name=part[0].value if part[0].kind == "name" else None, text=part[0].value if part[0].kind == "text" else None
    )


def _settings(tokens: list[Token], sql: str) -> tuple[tuple[str, str], ...]:
    """What follows SETTINGS, outside of parentheses; values without their quotes."""
    depth = 0
    for at, token in enumerate(tokens):
        if token.kind == "mark":
            depth += (token.value in "([{") - (token.value in ")]}")
        elif token.kind == "name" and not token.quoted and token.value.upper() == "SETTINGS" and not depth:
            parts = [part for part in _split(tokens[at + 1 :]) if len(part) >= 3 and part[1].value == "="]
            return tuple((part[0].value, _setting_value(part[2:], sql)) for part in parts)
    return ()


def _setting_value(tokens: list[Token], sql: str) -> str:
    return tokens[0].value if len(tokens) == 1 else sql[tokens[0].start : tokens[-1].end]
