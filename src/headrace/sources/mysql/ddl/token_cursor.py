"""Splits a statement into tokens as its server does, and walks over them with the basic steps of all grammar rules.

Strings, names and comments are units; version comments are expanded or dropped. Quoted text is never a keyword. The content of a version
comment counts only if the server that wrote the log executed it. A text that cannot be split (an unterminated string) is refused, not
guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeVar

from headrace.model.schema import TableName
from headrace.sources.mysql.ddl.dialect import ANSI_QUOTES, NO_BACKSLASH_ESCAPES, Dialect

T = TypeVar("T")


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


_SHOWN: Final = 40
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


class DdlCursor:
    """Walks the tokens of one statement, forwards only."""

    def __init__(self, text: str, database: str, dialect: Dialect, sql_mode: int) -> None:
        self.text, self.database, self.dialect, self.sql_mode = text, database, dialect, sql_mode
        self._tokens = tokenize(text, dialect, sql_mode)
        self._at = 0

    def peek(self, ahead: int = 0) -> DdlToken:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def keyword(self, ahead: int = 0) -> str:
        return self.peek(ahead).keyword

    def next(self) -> DdlToken:
        token = self.peek()
        self._at += 1
        return token

    def is_next(self, *words: str) -> bool:
        return all(self.keyword(i) == word for i, word in enumerate(words))

    def accept(self, *words: str) -> bool:
        """Skip the keywords if all of them come next."""
        if not self.is_next(*words):
            return False
        self._at += len(words)
        return True

    def accept_any(self, *words: str) -> str:
        """Skip one of the keywords; return it, or nothing."""
        found = self.keyword()
        if found and found in words:
            self._at += 1
            return found
        return ""

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.surprise(" ".join(words))

    def sees(self, sign: str, ahead: int = 0) -> bool:
        token = self.peek(ahead)
        return token.form is DdlTokenKind.SIGN and token.text == sign

    def accept_sign(self, sign: str) -> bool:
        if self.sees(sign):
            self._at += 1
            return True
        return False

    def expect_sign(self, sign: str) -> None:
        if not self.accept_sign(sign):
            raise self.surprise(sign)

    def accept_setting(self, *words: str) -> bool:
        """Skip the keywords, and an equals sign after them, if they come next."""
        found = self.accept(*words)
        if found:
            self.accept_sign("=")
        return found

    def items(self, parse: Callable[[], T]) -> tuple[T, ...]:
        """Parse one item, and each that follows after a comma."""
        found = [parse()]
        while self.accept_sign(","):
            found.append(parse())
        return tuple(found)

    @property
    def at_end(self) -> bool:
        """Whether only semicolons are left."""
        ahead = 0
        while self.sees(";", ahead):
            ahead += 1
        return self.peek(ahead).form is DdlTokenKind.END

    @property
    def at_stop(self) -> bool:
        """Whether an item of a list ends here."""
        return self.at_end or self.sees(",") or self.sees(")")

    def name(self) -> str:
        """Parse a name of anything but a table."""
        token = self.next()
        if token.form not in (DdlTokenKind.WORD, DdlTokenKind.NAME):
            self._at -= 1
            raise self.surprise("a name")
        return token.text

    def value_name(self) -> str:
        """Parse a name that may be written as a string: character sets, collations, engines."""
        if self.peek().form is DdlTokenKind.STRING:
            return self.next().text
        return self.name()

    def table(self, default_database: str | None = None) -> TableName:
        """Parse a table's name; the session's database is the default, unless another one is given."""
        self.accept_sign(".")
        first = self.name()
        if not self.accept_sign("."):
            return self._folded(self.database if default_database is None else default_database, first)
        return self._folded(first, self.name())

    def database_name(self) -> str:
        return self._folded(self.name(), "").database

    def _folded(self, database: str, table: str) -> TableName:
        if self.dialect.folds_case:
            database, table = database.lower(), table.lower()
        return TableName(database, table)

    def string(self) -> str:
        if self.peek().form is not DdlTokenKind.STRING:
            raise self.surprise("a string")
        parts = []
        while self.peek().form is DdlTokenKind.STRING:
            parts.append(self.next().text)
        return "".join(parts)

    def number(self) -> int:
        token = self.next()
        if token.form is not DdlTokenKind.NUMBER or not token.text.isdecimal():
            self._at -= 1
            raise self.surprise("a number")
        return int(token.text)

    def skip_parentheses(self) -> str:
        """Skip a parenthesis with its content; return the text without the outer marks."""
        start = self.peek().end
        self.expect_sign("(")
        depth = 1
        while depth:
            token = self.next()
            if token.form is DdlTokenKind.END:
                raise self.surprise(")")
            if token.form is DdlTokenKind.SIGN:
                depth += {"(": 1, ")": -1}.get(token.text, 0)
        return self.text[start : self._tokens[self._at - 1].start]

    def skip_item(self) -> None:
        while not self.at_stop:
            self.skip_unit()

    def skip_unit(self) -> None:
        """Skip a token, or a parenthesis with its content."""
        if self.sees("("):
            self.skip_parentheses()
        else:
            self.next()

    def skip_all(self) -> None:
        self._at = len(self._tokens) - 1

    def text_since(self, start: DdlToken) -> str:
        return self.text[start.start : self._tokens[self._at - 1].end]

    def if_exists(self) -> bool:
        return self.accept("IF", "EXISTS")

    def if_not_exists(self) -> bool:
        return self.accept("IF", "NOT", "EXISTS")

    def surprise(self, expected: str) -> NotUnderstood:
        token = self.peek()
        found = "the end" if token.form is DdlTokenKind.END else repr(self.text[token.start : token.start + _SHOWN])
        return NotUnderstood(f"{expected} was expected, not {found}")
