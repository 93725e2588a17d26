"""Finds clauses in the tokens of a statement: the databases that it reads, and what follows the name of a database that is a pipe.

Databases are found by the positions of table names: after FROM, JOIN, IN, and a comma of a FROM list. A qualified name elsewhere is a
column of a table with that alias, or an element of a tuple. Names in text (`merge('shop', '')`) and tables behind a view are not found.

Invariant of a statement about a database: it is read to its end, or its first unexpected token is reported. An ignored rest could mean
another database or action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.clickhouse_lexer import Token, TokenKind, content_of, tokenize_unicode

_READING: Final = frozenset({"SELECT", "WITH", "FROM", "INSERT", "EXPLAIN", "CREATE", "REPLACE"})
"""First words of statements that return or store what a SELECT reads. A mutation must not depend on FINAL."""
_CLAUSES: Final = frozenset(
    {"SELECT", "PREWHERE", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "SETTINGS", "USING"}
)
"""Words after which a comma does not separate tables."""
_FUNCTIONS: Final = frozenset({"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "MID", "OVERLAY", "POSITION"})
"""Functions whose arguments may be separated by FROM or IN."""


def reads_databases(text: str, names: frozenset[str], current: str, parameters: Mapping[str, str] | None = None) -> bool:
    """Whether a statement reads a table of one of the databases; tables without a database are in the current one."""
    first = next((token.upper for token in tokenize_unicode(text) if token.value != "("), "")
    if first not in _READING:
        return False
    tokens = list(tokenize_unicode(text))
    return any(_database(tokens, at, current, parameters or {}) in names for at in _table_positions(tokens))


def _table_positions(tokens: Sequence[Token[str]]) -> Iterator[int]:
    """Yield the places where a table, a table function or a subquery is expected."""
    lists, functions = [False], [False]
    previous = ""
    for at, token in enumerate(tokens):
        word = "" if previous == "." else token.upper
        if token.value in ("(", "[", "{"):
            lists.append(False)
            functions.append(previous in _FUNCTIONS)
        elif token.value in (")", "]", "}") and len(lists) > 1:
            lists.pop()
            functions.pop()
        elif word == "FROM" and previous != "DISTINCT" and not functions[-1]:
            lists[-1] = True
            yield at + 1
        elif word == "JOIN":
            lists[-1] = previous != "ARRAY"
            if lists[-1]:
                yield at + 1
        elif word == "IN" and not functions[-1]:
            yield from _right_side(tokens, at + 1)
        elif word in _CLAUSES and previous != "AS":
            lists[-1] = False
        elif token.value == "," and lists[-1]:
            yield at + 1
        previous = token.upper or token.value


def _right_side(tokens: Sequence[Token[str]], at: int) -> Iterator[int]:
    """Yield the place of a table after IN, also of one in parentheses."""
    yield at
    if [token.value for token in tokens[at : at + 1]] == ["("]:
        after = _after_name(tokens, at + 1)
        if after < len(tokens) and tokens[after].value == ".":
            after = _after_name(tokens, after + 1)
        if after > at + 1 and [token.value for token in tokens[after : after + 1]] == [")"]:
            yield at + 1


def _after_name(tokens: Sequence[Token[str]], at: int) -> int:
    """Return the place after a name or a query parameter; `at` if there is none."""
    if at >= len(tokens):
        return at
    if tokens[at].kind in (TokenKind.WORD, TokenKind.NAME):
        return at + 1
    is_parameter = [token.value for token in tokens[at : at + 5 : 2]] == ["{", ":", "}"] and tokens[at + 3].upper == "IDENTIFIER"
    return at + 5 if is_parameter else at


def _database(tokens: Sequence[Token[str]], at: int, current: str, parameters: Mapping[str, str]) -> str | None:
    """Return the database of the table at a place; None if no table is there."""
    after = _after_name(tokens, at)
    if after == at:
        return None
    follower = tokens[after].value if after < len(tokens) else ""
    if follower == ".":
        return parameters.get(tokens[at + 1].value) if tokens[at].value == "{" else content_of(tokens[at])
    return None if follower == "(" else current


_WAITING: Final = ("DROP", "DETACH")
_VALUES: Final = (TokenKind.NUMBER, TokenKind.STRING, TokenKind.WORD)
PERMANENTLY: Final = "PERMANENTLY is not supported: the next start of the pipe's host attaches the database"


@dataclass(frozen=True, slots=True)
class StatementEnding:
    """The clauses after the name of a database."""

    cluster: str = ""
    unexpected: Token[str] | None = None
    """The first token that cannot stand there."""

    @property
    def problem(self) -> str:
        """Why the statement cannot be run; empty if it can."""
        if self.unexpected is None:
            return ""
        return PERMANENTLY if self.unexpected.upper == "PERMANENTLY" else "the end of the statement is expected after the database's name"


def read_ending(verb: str, tokens: Sequence[Token[str]]) -> StatementEnding:
    """Read `[ON CLUSTER c] [SYNC | NO DELAY] [FORMAT f] [SETTINGS a = 1, …] [;]`; SYNC and NO DELAY only after DROP and DETACH."""
    rest = [token for token in tokens if token.kind is not TokenKind.END]
    cluster = ""
    if _begins(rest, "ON", "CLUSTER") and len(rest) > 2 and rest[2].kind in (TokenKind.WORD, TokenKind.NAME, TokenKind.STRING):
        cluster, rest = content_of(rest[2]), rest[3:]
    for words in (("SYNC",), ("NO", "DELAY")):
        if verb in _WAITING and _begins(rest, *words):
            rest = rest[len(words) :]
            break
    while count := (2 if _begins(rest, "FORMAT") and len(rest) > 1 and rest[1].kind is TokenKind.WORD else _settings_length(rest)):
        rest = rest[count:]
    while rest and rest[0].value == ";":
        rest = rest[1:]
    return StatementEnding(cluster, rest[0] if rest else None)


def _begins(tokens: Sequence[Token[str]], *keywords: str) -> bool:
    return [token.upper for token in tokens[: len(keywords)]] == list(keywords)


def _settings_length(tokens: Sequence[Token[str]]) -> int:
    """Return the number of tokens of a SETTINGS clause; 0 if there is no complete one."""
    if not _begins(tokens, "SETTINGS"):
        return 0
    at = 1
    while True:
        value = at + 2 + (len(tokens) > at + 2 and tokens[at + 2].value in ("-", "+"))
        if (
            len(tokens) <= value
            or tokens[at].kind is not TokenKind.WORD
            or tokens[at + 1].value != "="
            or tokens[value].kind not in _VALUES
        ):
            return 0
        at = value + 1
        if len(tokens) <= at or tokens[at].value != ",":
            return at
        at += 1
