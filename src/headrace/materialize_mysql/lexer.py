"""Tokenises a statement like ClickHouse does: strings, names and comments, with offsets.

A quoted token is never a keyword. Text that cannot be tokenised (an unterminated string) is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NoReturn

from headrace.errors import DefiniteError


class Form(Enum):
    WORD = auto()
    """A keyword or an unquoted name."""
    NAME = auto()
    """A quoted name."""
    STRING = auto()
    NUMBER = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    form: Form
    text: str
    """The word, number or sign; the content of a quoted token."""
    start: int
    end: int

    @property
    def keyword(self) -> str:
        """A word in upper case; empty for other tokens."""
        return self.text.upper() if self.form is Form.WORD else ""


_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--[^\n]*|\#[ !][^\n]*|/\*.*?\*/)"
    r"|'(?P<string>(?:[^'\\]|\\.|'')*)'"
    r"|`(?P<back>(?:[^`\\]|\\.|``)*)`"
    r'|"(?P<double>(?:[^"\\]|\\.|"")*)"'
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w))"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<unclosed>['`\"]|/\*)"
    r"|(?P<sign>.)",
    re.DOTALL | re.ASCII,
)
_FORMS: Final = {"string": Form.STRING, "back": Form.NAME, "double": Form.NAME, "number": Form.NUMBER, "word": Form.WORD, "sign": Form.SIGN}
_QUOTES: Final = {"string": "'", "back": "`", "double": '"'}
_ESCAPES: Final = {"b": 8, "f": 12, "r": 13, "n": 10, "t": 9, "0": 0, "a": 7, "v": 11, "e": 27}
_PLAIN_ESCAPES: Final = "\\'\"`/="


def cut(text: str) -> Iterator[Token]:
    """Yield the tokens of a statement, ending with END."""
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "unclosed":
            raise syntax_error(text, match.start(), f"what begins with {match.group()} has no end")
        if kind != "space":
            body = match.group(kind)
            yield Token(_FORMS[kind], _unescape(body, _QUOTES[kind]) if kind in _QUOTES else body, match.start(), match.end())
    yield Token(Form.END, "", len(text), len(text))


def syntax_error(text: str, offset: int, what: str, hint: str = "") -> DefiniteError:
    """Return the error at an offset of a statement. It does not quote the text, which may contain a password."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return DefiniteError(f"the statement cannot be read: {what}", place=f"line {line}, column {column}", hint=hint)


class Cursor:
    """Walks over the tokens of a statement."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = list(cut(text))
        self._place = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._place]

    @property
    def at_end(self) -> bool:
        return self.token.form is Form.END

    def peek(self, *keywords: str) -> bool:
        """Whether these keywords come next."""
        after = self._tokens[self._place : self._place + len(keywords)]
        return [token.keyword for token in after] == list(keywords)

    def take(self) -> Token:
        token = self.token
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def accept(self, *keywords: str) -> bool:
        found = self.peek(*keywords)
        if found:
            self._place += len(keywords)
        return found

    def accept_sign(self, sign: str) -> bool:
        found = self.token.form is Form.SIGN and self.token.text == sign
        if found:
            self._place += 1
        return found

    def expect(self, *keywords: str) -> None:
        if not self.accept(*keywords):
            self.fail(f"{' '.join(keywords)} is expected")

    def expect_sign(self, sign: str) -> None:
        if not self.accept_sign(sign):
            self.fail(f"{sign} is expected")

    def name(self, what: str) -> str:
        """Read a name, quoted or not."""
        if self.token.form not in (Form.WORD, Form.NAME):
            self.fail(f"{what} is expected")
        return self.take().text

    def string(self, what: str) -> str:
        if self.token.form is not Form.STRING:
            self.fail(f"{what} is expected, in single quotes")
        return self.take().text

    def name_or_string(self, what: str) -> str:
        return self.take().text if self.token.form is Form.STRING else self.name(what)

    def expression(self, *ends: tuple[str, ...]) -> str:
        """Return the text up to a comma, a closing parenthesis or one of these keywords, outside of nested parentheses."""
        first, last, depth = self.token.start, self.token.start, 0
        while self.token.form is not Form.END:
            if self.token.form is Form.SIGN and self.token.text in "([{":
                depth += 1
            elif self.token.form is Form.SIGN and self.token.text in ")]}":
                depth -= 1
            if depth < 0 or (depth == 0 and (self._is_sign(",") or any(self.peek(*end) for end in ends))):
                break
            last = self.take().end
        if first == last:
            self.fail("an expression is expected")
        return self.text[first:last]

    def fail(self, what: str, hint: str = "") -> NoReturn:
        there = "the end" if self.token.form is Form.END else "a text in quotes" if self.token.form is Form.STRING else self.token.text
        raise syntax_error(self.text, self.token.start, f"{what}, but there is {there}", hint)

    def _is_sign(self, sign: str) -> bool:
        return self.token.form is Form.SIGN and self.token.text == sign


def _unescape(body: str, quote: str) -> str:
    """Return the content of a quoted token; an unknown escape stays unchanged, including its backslash."""
    if "\\" not in body and quote not in body:
        return body
    out = bytearray()
    place = 0
    while place < len(body):
        character, after = body[place], body[place + 1 : place + 2]
        if character == "\\" and after == "x" and re.fullmatch(r"[0-9a-fA-F]{2}", body[place + 2 : place + 4]):
            out.append(int(body[place + 2 : place + 4], 16))
            place += 4
        elif character == "\\":
            out += bytes([_ESCAPES[after]]) if after in _ESCAPES else after.encode() if after in _PLAIN_ESCAPES else f"\\{after}".encode()
            place += 2
        else:
            out += character.encode()
            place += 2 if character == quote else 1
    return out.decode("utf-8", errors="surrogateescape")
