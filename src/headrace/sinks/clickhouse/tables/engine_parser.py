"""Parses `system.tables.engine_full`: engine name, arguments, settings, and the columns that key expressions read.

Pure text in, frozen values out. `existing_table` decides whether an engine is supported. Text that cannot be parsed raises
`EngineParseError`; nothing is guessed.

Invariant: a key expression depends on the row alone, so all images of a row with equal values have equal keys. If an update changes a key,
the row is deleted under the old key and inserted under the new one: `TargetTable.key_dependencies` lists the columns that can cause it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.clickhouse_lexer import Token, TokenKind, content_of, tokenize
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.tables.target_table import StoredColumn

_REPLICATING: Final = ("Replicated", "Shared")
# Functions whose value does not depend on the row alone: two images of one row would get different keys.
_NONDETERMINISTIC: Final = re.compile(
    r"rand\w*|now\w*|today|yesterday|generate\w+|hostname|\w*rownumber\w*|blocknumber|runningdifference\w*|runningaccumulate|neighbor"
    r"|currentdatabase|currentuser|user|(?:initial)?queryid|connectionid|uptime|timezone|serveruuid|servertimezone|utctimestamp|current_\w+"
    r"|dictget\w*|joinget\w*|filesystem\w*|getsetting|getmacro|fqdn|tcpport|fuzzbits|fuzzjson|fuzzquery",
    re.IGNORECASE,
)
_CONSTANTS: Final = frozenset({"null", "true", "false", "nan", "inf"})


class EngineParseError(ValueError):
    """An engine description or key expression that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class EngineArgument:
    sql: str
    name: str | None = None
    """Set if the argument is a single identifier."""
    text: str | None = None
    """Set if the argument is a single string literal."""


@dataclass(frozen=True, slots=True)
class TableEngine:
    """An engine without its replication prefix: `ReplicatedReplacingMergeTree('/path', 'r', v)` is a replicated ReplacingMergeTree(v)."""

    name: str
    arguments: tuple[EngineArgument, ...] = ()
    replication: str = ""
    """`Replicated`, `Shared` or empty."""
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
        """The arguments as column names; None if one of them is not a column."""
        names = [argument.name for argument in self.arguments if argument.name is not None]
        return tuple(names) if len(names) == len(self.arguments) else None


@dataclass(frozen=True, slots=True)
class DistributedEngine:
    cluster: str
    database: str
    table: str
    shard_by: str = ""


def parse_engine(described: str) -> TableEngine:
    """Parse an engine as `system.tables.engine_full` describes it."""
    tokens = parse_tokens(described)
    if not tokens or not is_name(tokens[0]):
        raise EngineParseError(described)
    name, at = content_of(tokens[0]), 1
    arguments: tuple[EngineArgument, ...] = ()
    if at < len(tokens) and tokens[at].value == "(":
        end = _closing(tokens, at, described)
        arguments = tuple(_argument(part, described) for part in _split(tokens[at + 1 : end]))
        at = end + 1
    settings = _settings(tokens[at:], described)
    replication = next((word for word in _REPLICATING if name.startswith(word) and name.endswith("MergeTree")), "")
    if not replication:
        return TableEngine(name, arguments, settings=settings)
    base = name.removeprefix(replication)
    # Path and replica name come together, or both are the server's defaults.
    given = len(arguments) >= 2 and arguments[0].text is not None and arguments[1].text is not None
    path, replica = (str(arguments[0].text), str(arguments[1].text)) if given else ("", "")
    return TableEngine(base, arguments[2:] if given else arguments, replication, path, replica, settings)


def parse_distribution(engine: TableEngine) -> DistributedEngine:
    if engine.name != "Distributed" or not 3 <= len(engine.arguments) <= 5:
        raise EngineParseError(engine.full_name)
    places = [argument.text if argument.text is not None else argument.name for argument in engine.arguments[:3]]
    cluster, database, table = places
    if cluster is None or database is None or table is None:
        raise EngineParseError(f"Distributed({', '.join(argument.sql for argument in engine.arguments)})")
    return DistributedEngine(cluster, database, table, engine.arguments[3].sql if len(engine.arguments) > 3 else "")


def split_key(listed: str) -> tuple[str, ...]:
    """Split a key such as `system.tables.sorting_key` into its expressions; nested tuples are flattened."""
    return tuple(listed[part[0].start : part[-1].end] for part in _flattened(parse_tokens(listed), listed))


def _flattened(tokens: list[Token[str]], sql: str) -> list[list[Token[str]]]:
    found = []
    for part in _split(tokens):
        opens = 1 if part[0].value == "tuple" and len(part) > 1 else 0
        if part[opens].value == "(" and _closing(part, opens, sql) == len(part) - 1:
            found += _flattened(part[opens + 1 : -1], sql)
        else:
            found.append(part)
    return found


def single_column(expression: str) -> str | None:
    """Return the column name if the expression is a single column; else None."""
    tokens = parse_tokens(expression)
    return content_of(tokens[0]) if len(tokens) == 1 and _is_column(tokens, 0) else None


def referenced_names(expression: str) -> tuple[str, ...]:
    """Return the columns that an expression reads; may include identifiers that are not columns."""
    tokens = parse_tokens(expression)
    return tuple(dict.fromkeys(content_of(token) for at, token in enumerate(tokens) if _is_column(tokens, at)))


def check_expression(name: TableName, what: str, expression: str) -> None:
    """Raise `DefiniteError` if an expression does not depend on the row alone."""
    try:
        nondeterministic = nondeterministic_function(expression)
    except EngineParseError as error:
        raise DefiniteError(
            f"the {what} {expression} is not SQL: a quote is not closed", place=f"table {name}", hint="correct it in the settings"
        ) from error
    if nondeterministic:
        raise DefiniteError(
            f"the {what} {expression} is not decided by the row: {nondeterministic}() gives another value each time, and a deletion"
            " would not find its row",
            place=f"table {name}",
            hint=f"make the {what} of columns of the row, such as cityHash64 of its key",
        )


def source_columns(needed: Iterable[str], columns: Iterable[StoredColumn], computed: Mapping[str, str]) -> tuple[str, ...]:
    """Return the source columns on which expressions depend, also through computed columns."""
    stored = {column.name: column.source.name for column in columns}
    found: dict[str, None] = {}
    waiting, seen = [name for expression in needed for name in referenced_names(expression)], set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in stored:
            found[stored[name]] = None
        elif name in computed:
            waiting += referenced_names(computed[name])
    return tuple(found)


def plain_columns(key: Iterable[str]) -> frozenset[str]:
    """Return the columns that stand in a key unchanged."""
    return frozenset(name for name in map(single_column, key) if name is not None)


def nondeterministic_function(expression: str) -> str | None:
    """Return the first function call whose value does not depend on the row alone."""
    tokens = parse_tokens(expression)
    calls = (content_of(tokens[at]) for at in range(len(tokens) - 1) if is_name(tokens[at]) and tokens[at + 1].value == "(")
    return next((name for name in calls if _NONDETERMINISTIC.fullmatch(name)), None)


def parse_tokens(sql: str) -> list[Token[str]]:
    """Return the tokens of an expression; raise `EngineParseError` for a quote without an end."""
    tokens = list(tokenize(sql))
    if any(token.kind is TokenKind.BROKEN for token in tokens):
        raise EngineParseError(sql)
    return tokens


def is_name(token: Token[str]) -> bool:
    return token.kind in (TokenKind.WORD, TokenKind.NAME)


def _is_column(tokens: list[Token[str]], at: int) -> bool:
    token = tokens[at]
    if not is_name(token):
        return False
    called = at + 1 < len(tokens) and tokens[at + 1].value == "("
    return not called and (token.kind is TokenKind.NAME or token.value.lower() not in _CONSTANTS)


def _closing(tokens: list[Token[str]], at: int, sql: str) -> int:
    """Return the index of the bracket that closes the one at `at`."""
    for index, (_, depth) in enumerate(_with_depth(tokens[at:]), at):
        if not depth:
            return index
    raise EngineParseError(sql)


def _with_depth(tokens: list[Token[str]]) -> Iterator[tuple[Token[str], int]]:
    """Yield each token with the number of brackets that are open after it."""
    depth = 0
    for token in tokens:
        if token.kind is TokenKind.SIGN:
            depth += (token.value in "([{") - (token.value in ")]}")
        yield token, depth


def _split(tokens: list[Token[str]]) -> list[list[Token[str]]]:
    """Split at commas outside of brackets."""
    parts: list[list[Token[str]]] = [[]]
    for token, depth in _with_depth(tokens):
        if token.kind is TokenKind.SIGN and token.value == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _argument(part: list[Token[str]], sql: str) -> EngineArgument:
    text = sql[part[0].start : part[-1].end]
    if len(part) > 1:
        return EngineArgument(text)
    content = content_of(part[0])
    return EngineArgument(text, name=content if is_name(part[0]) else None, text=content if part[0].kind is TokenKind.STRING else None)


def _settings(tokens: list[Token[str]], sql: str) -> tuple[tuple[str, str], ...]:
    """Parse the SETTINGS clause outside of brackets; values come unquoted."""
    for at, (token, depth) in enumerate(_with_depth(tokens)):
        if token.kind is not TokenKind.SIGN and token.upper == "SETTINGS" and not depth:
            parts = [part for part in _split(tokens[at + 1 :]) if len(part) >= 3 and part[1].value == "="]
            return tuple((content_of(part[0]), _setting_value(part[2:], sql)) for part in parts)
    return ()


def _setting_value(tokens: list[Token[str]], sql: str) -> str:
    return content_of(tokens[0]) if len(tokens) == 1 else sql[tokens[0].start : tokens[-1].end]
