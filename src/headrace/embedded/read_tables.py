"""Finds the databases that a statement reads, by the positions of table names: after FROM, JOIN, IN, and a comma of a FROM list.

A qualified name elsewhere is a column of a table with that alias, or an element of a tuple. Names in text (`merge('shop', '')`) and tables
behind a view are not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    return at + 5 if _is_parameter(tokens, at) else at


def _is_parameter(tokens: Sequence[Token[str]], at: int) -> bool:
    return [token.value for token in tokens[at : at + 5 : 2]] == ["{", ":", "}"] and tokens[at + 3].upper == "IDENTIFIER"


def _database(tokens: Sequence[Token[str]], at: int, current: str, parameters: Mapping[str, str]) -> str | None:
    """Return the database of the table at a place; None if no table is there."""
    after = _after_name(tokens, at)
    if after == at:
        return None
    follower = tokens[after].value if after < len(tokens) else ""
    if follower == ".":
        return parameters.get(tokens[at + 1].value) if tokens[at].value == "{" else content_of(tokens[at])
    return None if follower == "(" else current
