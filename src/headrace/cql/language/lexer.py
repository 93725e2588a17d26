"""Splits CQL text into tokens, with a cursor over them.

Comments are removed, names are as the server stores them (lower case unless quoted), and strings have no quotes. A character that begins
no token is an error with its position.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, TypeVar

from headrace.errors import DefiniteError
from headrace.model.schema import TableName

T = TypeVar("T")


class CqlTokenKind(StrEnum):
    NAME = "name"
    QUOTED = "quoted name"
    STRING = "string"
    INTEGER = "integer"
    FLOAT = "number"
    BLOB = "blob"
    UUID = "uuid"
    DURATION = "duration"
    BIND = "bind marker"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class CqlToken:
    kind: CqlTokenKind
    text: str
    """Names: as stored. Strings: their content. Others: as written."""
    start: int
    """Start position in the statement's text."""
    end: int


_UNITS: Final = r"(?:mo|ms|us|µs|ns|y|w|d|h|m|s)"
_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*|//[^\n]*|/\*.*?\*/)
    | (?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?!\w))
    | (?P<blob>0x[0-9a-f]*(?!\w))
    | (?P<duration>(?:\d+"""
    + _UNITS
    + r""")+(?!\w))
    | (?P<float>\d+\.\d*(?:e[+-]?\d+)?(?!\w)|\d+e[+-]?\d+(?!\w))
    | (?P<integer>\d+(?!\w))
    | (?P<iso>P(?:\d+W|\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}|(?:\d+[YMD])*(?:T(?:\d+[HMS])+)?)(?<!P)(?!\w))
    | (?P<name>[a-z]\w*)
    | "(?P<quoted>(?:[^"]|"")+)"
    | '(?P<string>(?:[^']|'')*)'
    | \$\$(?P<dollar>.*?)\$\$
    | (?P<bind>\?)
    | (?P<sign><=|>=|!=|\+=|-=|[-+*/=<>(),.;:{}\[\]%])
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_PLAIN: Final = {
    "uuid": CqlTokenKind.UUID,
    "blob": CqlTokenKind.BLOB,
    "duration": CqlTokenKind.DURATION,
    "iso": CqlTokenKind.DURATION,
    "float": CqlTokenKind.FLOAT,
    "integer": CqlTokenKind.INTEGER,
    "dollar": CqlTokenKind.STRING,
    "bind": CqlTokenKind.BIND,
    "sign": CqlTokenKind.SIGN,
}


def tokens(text: str) -> list[CqlToken]:
    """Return all tokens of a text; the last one marks its end."""
    found: list[CqlToken] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            place = f"character {at}: {shortened(text[at:])}"
            raise DefiniteError("cannot read this CQL", place=place, hint="check the statement's quotes and signs")
        if match.lastgroup != "space":
            found.append(_token(match))
        at = match.end()
    found.append(CqlToken(CqlTokenKind.END, "", len(text), len(text)))
    return found


def _token(match: re.Match[str]) -> CqlToken:
    group = match.lastgroup or ""
    token_text = match[group]
    if group == "name":
        kind, token_text = CqlTokenKind.NAME, token_text.lower()
    elif group == "quoted":
        kind, token_text = CqlTokenKind.QUOTED, token_text.replace('""', '"')
    elif group == "string":
        kind, token_text = CqlTokenKind.STRING, token_text.replace("''", "'")
    else:
        kind = _PLAIN[group]
    return CqlToken(kind, token_text, match.start(), match.end())


def shortened(text: str, length: int = 60) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


class CqlCursor:
    """Reads tokens from the first to the last."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = tokens(text)
        self._at = 0

    @property
    def peek(self) -> CqlToken:
        return self._tokens[self._at]

    def ahead(self, count: int) -> CqlToken:
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def take(self) -> CqlToken:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def is_word(self, *words: str) -> bool:
        return all(self.ahead(i).kind is CqlTokenKind.NAME and self.ahead(i).text == word for i, word in enumerate(words))

    def is_sign(self, sign: str) -> bool:
        return self.peek.kind is CqlTokenKind.SIGN and self.peek.text == sign

    def skip_word(self, *words: str) -> bool:
        """Skip the keywords if all of them come next."""
        if not self.is_word(*words):
            return False
        for _ in words:
            self.take()
        return True

    def skip_sign(self, sign: str) -> bool:
        if not self.is_sign(sign):
            return False
        self.take()
        return True

    def word(self, *words: str) -> None:
        """Skip the keywords; raise if they do not come next."""
        for word in words:
            if not self.skip_word(word):
                raise self.unexpected(word.upper())

    def sign(self, sign: str) -> None:
        if not self.skip_sign(sign):
            raise self.unexpected(sign)

    def name(self) -> str:
        if self.peek.kind not in (CqlTokenKind.NAME, CqlTokenKind.QUOTED):
            raise self.unexpected("a name")
        return self.take().text

    def names(self) -> list[str]:
        self.sign("(")
        found = self.items(self.name)
        self.sign(")")
        return found

    def table_name(self, keyspace: str) -> TableName:
        """Read a name that may begin with its keyspace; otherwise it is in the given one, which is empty if unknown."""
        first = self.name()
        return TableName(first, self.name()) if self.skip_sign(".") else TableName(keyspace, first)

    def items(self, read: Callable[[], T]) -> list[T]:
        """Read items that are separated by commas; at least one."""
        found = [read()]
        while self.skip_sign(","):
            found.append(read())
        return found

    def items_until(self, sign: str, read: Callable[[], T]) -> list[T]:
        """Read items that are separated by commas, and the sign after them."""
        found: list[T] = []
        while not self.is_sign(sign):
            found.append(read())
            if not self.skip_sign(","):
                break
        self.sign(sign)
        return found

    @property
    def at_end(self) -> bool:
        return self.peek.kind is CqlTokenKind.END

    def end(self) -> None:
        """Raise unless only a semicolon follows."""
        self.skip_sign(";")
        if not self.at_end:
            raise self.unexpected("the statement's end")

    def unexpected(self, wanted: str) -> DefiniteError:
        here = shortened(self.text[self.peek.start :]) or "the end"
        message = f"cannot read this CQL: {wanted} is expected at {here!r}"
        return DefiniteError(message, place=f"statement {shortened(self.text)}", hint="check its spelling")


def statements(text: str) -> list[str]:
    """Split a script at its semicolons; the statements of a BATCH stay together."""
    found: list[str] = []
    begin: int | None = None
    in_batch = False
    last = 0
    for token, after in pairwise(tokens(text)):
        if begin is None:
            begin, in_batch = token.start, token.text == "begin" and token.kind is CqlTokenKind.NAME
        if token.text == "apply" and after.text == "batch" and token.kind is CqlTokenKind.NAME:
            in_batch = False
        last = token.end
        if token.kind is CqlTokenKind.SIGN and token.text == ";" and not in_batch:
            found.append(text[begin : token.start])
            begin = None
    if begin is not None:
        found.append(text[begin:last])
    return [one for one in found if one.strip()]
