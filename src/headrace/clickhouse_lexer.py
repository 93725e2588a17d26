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
_UNICODE_BLANKS: Final = frozenset(
    "\x85\xa0\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u200c\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
)
_UNICODE_QUOTES: Final = {"\u2018": ("\u2019", "'", "string"), "\u201c": ("\u201d", "`", "name")}
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


def tokenize_unicode(text: str) -> Iterator[Token[str]]:
    """Yield the tokens of a text with the blanks and quotation marks of Unicode that ClickHouse accepts; such quotes have no escapes."""
    start = 0
    while True:
        for token in tokenize(text[start:]):
            if token.value in _UNICODE_BLANKS:
                continue
            end, quote, kind = _UNICODE_QUOTES.get(token.value, ("", "", ""))
            closing = text.find(end, start + token.end) if end else -1
            if closing >= 0:
                content = text[start + token.end : closing].replace("\\", "\\\\").replace(quote, quote * 2)
                yield Token(TokenKind(kind), f"{quote}{content}{quote}", start + token.start, closing + 1)
                start = closing + 1
                break
            yield Token(token.kind, token.value, start + token.start, start + token.end)
        else:
            return


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
