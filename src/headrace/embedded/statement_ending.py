"""Reads what follows the name in a statement about a database that is a pipe.

Invariant: a statement is read to its end, or its first unexpected token is reported. An ignored rest could mean another database or action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.clickhouse_lexer import Token, TokenKind, content_of

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
    while count := _format_length(rest) or _settings_length(rest):
        rest = rest[count:]
    while rest and rest[0].value == ";":
        rest = rest[1:]
    return StatementEnding(cluster, rest[0] if rest else None)


def _begins(tokens: Sequence[Token[str]], *keywords: str) -> bool:
    return [token.upper for token in tokens[: len(keywords)]] == list(keywords)


def _format_length(tokens: Sequence[Token[str]]) -> int:
    return 2 if _begins(tokens, "FORMAT") and len(tokens) > 1 and tokens[1].kind is TokenKind.WORD else 0


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
