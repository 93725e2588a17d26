"""Splits a statement into tokens as its server does: strings, names and comments as units, version comments expanded or dropped.

Quoted text is never a keyword. The content of a version comment counts only if the server that wrote the log executed it. A text that
cannot be split (an unterminated string) is refused, not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headrace.sources.mysql.ddl.dialect import ANSI_QUOTES, NO_BACKSLASH_ESCAPES, Dialect


class NotUnderstood(ValueError):
    """The grammar does not cover the text: what was expected, and what was found."""


class DdlTokenKind(Enum):
    WORD = auto()
    """A keyword or an unquoted name."""
    NAME = auto()
    """A quoted name."""
    STRING = auto()
    NUMBER = auto()
    BITS = auto()
    """A hexadecimal or binary literal; its text is its digits in hexadecimal."""
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class DdlToken:
    form: DdlTokenKind
    text: str
    """The name, the string's content, or the word itself."""
    keyword: str = ""
    """A word in capitals; empty for other tokens, so that quoted text is never a keyword."""
    start: int = 0
    end: int = 0


_TOKEN: Final = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<open>/\*(?P<maria>M?)!(?P<version>\d{5,6})?)"
    r"|(?P<comment>/\*.*?\*/|--(?=[\s\x00-\x1f]|\Z)[^\n]*|\#[^\n]*)"
    r"|(?P<close>\*/)"
    r"|`(?P<name>(?:[^`]|``)*)`"
    r"|(?P<bits>[xX]'[0-9a-fA-F]*'|0x[0-9a-fA-F]+(?![\w$])|[bB]'[01]*'|0b[01]+(?![\w$]))"
    r"|(?P<national>[nN](?='))"
    r"|(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w$\u0080-\U0010ffff]))"
    r"|(?P<word>[\w$\u0080-\U0010ffff]+)"
    r"|(?P<quote>['\"])"
    r"|(?P<sign>.)",
    re.DOTALL,
)
_STRING: Final = {
    ("'", True): re.compile(r"'(?P<body>(?:[^'\\]|''|\\.)*)'", re.DOTALL),
    ("'", False): re.compile(r"'(?P<body>(?:[^']|'')*)'", re.DOTALL),
    ('"', True): re.compile(r'"(?P<body>(?:[^"\\]|""|\\.)*)"', re.DOTALL),
    ('"', False): re.compile(r'"(?P<body>(?:[^"]|"")*)"', re.DOTALL),
}
"""The pattern of a quoted text, by its quote and by whether a backslash escapes."""
_ESCAPE: Final = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a", "t": "\t", "b": "\b", "%": "\\%", "_": "\\_"}
"""The meaning of a character after a backslash. Other characters stand for themselves. Wildcards of LIKE keep the backslash."""
_MYSQL_ONLY: Final = range(50_700, 100_000)
"""Version comments that MariaDB ignores, because they concern MySQL's versions after the fork."""


def tokenize(text: str, dialect: Dialect, sql_mode: int) -> list[DdlToken]:
    """Return the tokens of a statement; the last one has the form END."""
    return [*_tokens(text, dialect, sql_mode), DdlToken(DdlTokenKind.END, "", start=len(text), end=len(text))]


def _tokens(text: str, dialect: Dialect, sql_mode: int) -> Iterator[DdlToken]:
    escapes = not sql_mode & NO_BACKSLASH_ESCAPES
    at, opened, after_dot, named_until = 0, 0, False, -1
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternative takes any character"
        kind, start, at = match.lastgroup, at, match.end()
        if kind == "number" and text[start] == "." and start == named_until:
            # `db.1st`: the dot after a name is no decimal point.
            kind, at = "sign", start + 1
        if kind in ("space", "comment", "national"):
            continue
        if match["open"] is not None:
            if _executes(dialect, match["version"], maria=bool(match["maria"])):
                opened += 1
            else:
                at = _skip_comment(text, at)
            continue
        if kind == "close" and opened:
            opened -= 1
            continue
        if kind == "close":
            at = start + 1
            token = DdlToken(DdlTokenKind.SIGN, "*", start=start, end=at)
        elif kind == "quote":
            named = match.group() == '"' and bool(sql_mode & ANSI_QUOTES)
            body = _STRING[match.group(), escapes and not named].match(text, start)
            if body is None:
                raise NotUnderstood(f"a string without its end: {text[start : start + 40]}")
            at = body.end()
            content = _unquoted(body["body"], match.group(), escapes=escapes and not named)
            token = DdlToken(DdlTokenKind.NAME if named else DdlTokenKind.STRING, content, start=start, end=at)
        elif kind == "name":
            token = DdlToken(DdlTokenKind.NAME, match["name"].replace("``", "`"), start=start, end=at)
        elif after_dot and kind in ("number", "bits", "word"):
            # After a dot every word is a name.
            found = re.compile(r"[\w$\u0080-\U0010ffff]+").match(text, start)
            assert found is not None
            at = found.end()
            token = DdlToken(DdlTokenKind.NAME, found.group(), start=start, end=at)
        elif kind == "bits":
            token = DdlToken(DdlTokenKind.BITS, _hexadecimal(match.group()), start=start, end=at)
        elif kind == "number":
            token = DdlToken(DdlTokenKind.NUMBER, match.group(), start=start, end=at)
        elif kind == "word":
            token = DdlToken(DdlTokenKind.WORD, match.group(), match.group().upper(), start=start, end=at)
        else:
            token = DdlToken(DdlTokenKind.SIGN, text[start:at], start=start, end=at)
        named_until = at if token.form in (DdlTokenKind.WORD, DdlTokenKind.NAME) else -1
        after_dot = token.form is DdlTokenKind.SIGN and token.text == "."
        yield token


def _executes(dialect: Dialect, version: str | None, *, maria: bool) -> bool:
    """Whether the server executes the content of a version comment."""
    if maria and not dialect.mariadb:
        return False
    number = int(version or 0)
    if dialect.mariadb and not maria and number in _MYSQL_ONLY:
        return False
    return number <= dialect.version


def _skip_comment(text: str, at: int) -> int:
    """Return the position after a comment, which may be nested."""
    depth = 1
    while depth:
        found = re.compile(r"/\*|\*/").search(text, at)
        if found is None:
            raise NotUnderstood("a comment without its end")
        depth += 1 if found.group() == "/*" else -1
        at = found.end()
    return at


def _unquoted(body: str, quote: str, *, escapes: bool) -> str:
    if not escapes:
        return body.replace(quote * 2, quote)

    def replaced(found: re.Match[str]) -> str:
        if found[1] is not None:
            return _ESCAPES.get(found[1], found[1])
        return quote if found[0][0] == quote else found[0]

    return _ESCAPE.sub(replaced, body)


def _hexadecimal(literal: str) -> str:
    digits = literal[2:].rstrip("'")
    if literal[0] in "xX" or literal[1] == "x":
        return digits if len(digits) % 2 == 0 else f"0{digits}"
    size = (len(digits) + 7) // 8
    return int(digits or "0", 2).to_bytes(size, "big").hex()
