"""Tokenises ClickHouse SQL: strings, names and comments with their offsets, in text or in bytes.

Invariant: tokens follow ClickHouse's lexical rules (strings, heredocs, quoted names, comments), and no input raises. A quote or comment
without an end gives a BROKEN token. The tokens are lazy: binary data behind a statement is not scanned until it is reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, AnyStr, Final, Generic

_PATTERN: Final = r"""
      (?P<blank>(?:\s|\x00|--[^\n]*+|\#[!\ ][^\n]*+|/\*.*?\*/)++)
    | (?P<string>'(?:[^'\\]++|\\.|'')*+'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<name>`(?:[^`\\]++|\\.|``)*+`|"(?:[^"\\]++|\\.|"")*+")
    | (?P<word>[A-Za-z_][\w$]*+)
    | (?P<number>(?:\d+\.?\d*|(?<![\w)\]`"])\.\d+)(?:[eE][-+]?\d+)?[\w.]*+)
    | (?P<broken>['`"]|/\*)
    | (?P<sign>.)
"""
_TOKENS: Final[dict[type, re.Pattern[Any]]] = {
    str: re.compile(_PATTERN, re.VERBOSE | re.DOTALL | re.ASCII),
    bytes: re.compile(_PATTERN.encode(), re.VERBOSE | re.DOTALL),
}
_ESCAPES: Final = {"b": 8, "f": 12, "r": 13, "n": 10, "t": 9, "0": 0, "a": 7, "v": 11, "e": 27}
_PLAIN_ESCAPES: Final = "\\'\"`/="


class TokenKind(StrEnum):
    STRING = "string"
    NAME = "name"
    """A quoted name."""
    WORD = "word"
    """A keyword or an unquoted name."""
    NUMBER = "number"
    SIGN = "sign"
    BROKEN = "broken"
    """A quote or comment without an end."""
    END = "end"
    """The end of the text, for parsers that need one; `tokenize` does not yield it."""


@dataclass(frozen=True, slots=True)
class Token(Generic[AnyStr]):
    kind: TokenKind
    value: AnyStr
    """As written, with quotes."""
    start: int
    end: int

    @property
    def upper(self) -> AnyStr:
        """A word in upper case; empty for other tokens."""
        return self.value.upper() if self.kind is TokenKind.WORD else self.value[:0]


def tokenize(text: AnyStr) -> Iterator[Token[AnyStr]]:
    """Yield the tokens of a text, without blanks and comments."""
    for found in _TOKENS[type(text)].finditer(text):
        kind = found.lastgroup or TokenKind.SIGN
        if kind != "blank":
            yield Token(TokenKind(kind), found[0], found.start(), found.end())


def content_of(token: Token[str]) -> str:
    """Return the content of a quoted token, without quotes and escapes; any other token as written.

    An unknown escape stays unchanged, including its backslash.
    """
    if token.kind not in (TokenKind.STRING, TokenKind.NAME):
        return token.value
    quote, body = token.value[0], token.value[1:-1]
    if quote == "$":
        return body.partition("$")[2].rpartition("$")[0]
    if "\\" not in body and quote not in body:
        return body
    out, at = bytearray(), 0
    while at < len(body):
        character, after = body[at], body[at + 1 : at + 2]
        if character == "\\" and after == "x" and re.fullmatch(r"[0-9a-fA-F]{2}", body[at + 2 : at + 4]):
            out.append(int(body[at + 2 : at + 4], 16))
            at += 4
        elif character == "\\":
            out += bytes([_ESCAPES[after]]) if after in _ESCAPES else after.encode() if after in _PLAIN_ESCAPES else f"\\{after}".encode()
            at += 2
        else:
            out += character.encode()
            at += 2 if character == quote else 1
    return out.decode("utf-8", errors="surrogateescape")
