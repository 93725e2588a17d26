"""Rejects statements that reach files or hosts in ways that the engine's access control does not cover.

It inspects tokens: the function `file` (not the table function), table functions and engines that `privileges` does not list (some need no
grant), disks defined in a statement, tables attached from a path, INTO OUTFILE and FROM INFILE. If the engine might tokenise the text
differently than this server (Unicode quotes and spaces), the mere presence of such a name is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from headrace.clickhouse_lexer import Token, TokenKind, tokenize
from headrace.embedded.access.privileges import DATABASE_ENGINES, TABLE_ENGINES, TABLE_FUNCTIONS
from headrace.embedded.engine.errors import ErrorCode, QueryFailure

_FUNCTIONS: Final = frozenset({b"file", b"disk"})
"""The function that reads a file, and a disk defined in a statement."""
_DEFINED: Final = frozenset({b"INTO", b"TABLE", b"VIEW", b"INDEX", b"PROJECTION"})
"""Words that are followed by a user-defined name, which parentheses may follow."""
_DEFINING: Final = frozenset({b"CREATE", b"ATTACH", b"REPLACE"})
_UNICODE_SYNTAX: Final = re.compile(rb"\xe2[\x80\x81\x88]|\xc2\xa0|\xe3\x80\x80|\xef\xbb\xbf")


class StatementGuard:
    """The rules for one engine, by the names of its functions and engines."""

    def __init__(self, table_functions: Iterable[str], engines: Iterable[str]) -> None:
        """Functions and engines that `privileges` does not allow by name are rejected."""
        self._functions = _FUNCTIONS | (_names(table_functions) - _names(TABLE_FUNCTIONS))
        self._engines = _names(engines) - _names((*TABLE_ENGINES, *DATABASE_ENGINES))
        words = (*self._functions, b"outfile", b"infile", b"attach", b"engine")
        self._named = re.compile(rb"(?i)\b(?:" + b"|".join(map(re.escape, words)) + rb")\b")

    def check(self, text: bytes) -> None:
        """Raise `QueryFailure` for a statement that would reach beyond the engine's own tables."""
        listed = list(tokenize(text))
        # Inside of ASCII quotes they have no meaning, and both tokenise the text equally up to the first one outside.
        bare = b"".join(token.value for token in listed if token.kind not in (TokenKind.NAME, TokenKind.STRING))
        if (_UNICODE_SYNTAX.search(bare) or b"\x00" in text) and (found := self._named.search(text)):
            raise _denied(found[0], "in a statement with spaces or quotation marks that only Unicode has")
        listed = [token for token in listed if token.kind is not TokenKind.SIGN or token.value < b"\x80"]
        verb = listed[0].upper if listed else b""
        defines = not _DEFINING.isdisjoint(token.upper for token in listed)
        for at, token in enumerate(listed):
            following = listed[at + 1 : at + 3]
            _check_clause(verb, token, following)
            name = _identifier(token)
            if (name in self._functions or b"\\" in name) and _is_called(listed[max(0, at - 3) : at], following):
                raise _denied(name, "as a function")
            if defines and token.upper == b"ENGINE":
                self._check_engine([one for one in following if one.value != b"="])

    def _check_engine(self, following: list[Token[bytes]]) -> None:
        name = _identifier(following[0]) if following else b""
        if name in self._engines or b"\\" in name:
            raise _denied(name, "as an engine")


def _names(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)


def _check_clause(verb: bytes, token: Token[bytes], following: list[Token[bytes]]) -> None:
    word, next_word = token.upper, following[0].upper if following else b""
    if word == b"INTO" and next_word == b"OUTFILE":
        raise ErrorCode.INTO_OUTFILE_NOT_ALLOWED.failure("INTO OUTFILE is not allowed")
    if word == b"FROM" and next_word == b"INFILE":
        raise ErrorCode.UNKNOWN_TYPE_OF_QUERY.failure("Query has infile and was sent directly to the server")
    if verb == b"ATTACH" and word == b"FROM":
        raise _denied(b"FROM", "in ATTACH: tables are attached from this server's own directory only")


def _identifier(token: Token[bytes]) -> bytes:
    """Return the name of a token; a name with escapes keeps its backslash."""
    if token.kind is TokenKind.WORD:
        return token.value.lower()
    return token.value[1:-1].lower() if token.kind is TokenKind.NAME else b""


def _is_called(before: list[Token[bytes]], following: list[Token[bytes]]) -> bool:
    words = [token.upper for token in before]
    if words[-1:] == [b"APPLY"] or (words[-2:-1] == [b"APPLY"] and before[-1].value == b"("):
        return True
    if not following or following[0].value != b"(":
        return False
    # A table of that name: in its definition, or as target of an INSERT.
    named = bool(before) and (before[-1].value == b"." or words[-1] in _DEFINED or words[-3:] == [b"IF", b"NOT", b"EXISTS"])
    return not named


def _denied(name: bytes, where: str) -> QueryFailure:
    shown = name.decode("utf-8", "replace")
    return ErrorCode.ACCESS_DENIED.failure(f"{shown} is not allowed {where}: an embedded server reads and writes its own tables only")
