"""A position in a statement's tokens, and the basic steps of all grammar rules."""

from __future__ import annotations

from typing import Final

from headrace.model.schema import TableName
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.ddl.lexer import DdlToken, DdlTokenKind, NotUnderstood, tokenize


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
        """Whether the next tokens are these keywords."""
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
        """Parse a string, or several adjacent ones."""
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
        """Skip to the end of a list item."""
        while not self.at_stop:
            if self.sees("("):
                self.skip_parentheses()
            else:
                self.next()

    def skip_all(self) -> None:
        self._at = len(self._tokens) - 1

    def text_since(self, start: DdlToken) -> str:
        """Return the text from a token up to here."""
        return self.text[start.start : self._tokens[self._at - 1].end]

    def if_exists(self) -> bool:
        return self.accept("IF", "EXISTS")

    def if_not_exists(self) -> bool:
        return self.accept("IF", "NOT", "EXISTS")

    def surprise(self, expected: str) -> NotUnderstood:
        token = self.peek()
        found = "the end" if token.form is DdlTokenKind.END else repr(self.text[token.start : token.start + _SHOWN])
        return NotUnderstood(f"{expected} was expected, not {found}")


_SHOWN: Final = 40
