"""A cursor over the tokens of a statement (see `headrace.clickhouse_lexer`), for recursive-descent parsers.

A quoted token is never a keyword. Text that cannot be tokenised (an unterminated string) is an error.
"""

from __future__ import annotations

from typing import Final, NoReturn

from headrace.clickhouse_lexer import Token, TokenKind, content_of, tokenize
from headrace.errors import DefiniteError

_PLAIN: Final = {TokenKind.END: "the end", TokenKind.STRING: "a text in quotes"}
_SECRET: Final = {TokenKind.NAME: "a name", TokenKind.WORD: "a name", TokenKind.NUMBER: "a number"}


class StatementSyntaxError(DefiniteError):
    """The statement cannot be parsed."""


def read_tokens(text: str) -> list[Token[str]]:
    """Return the tokens of a statement, ending with END; raise `DefiniteError` for a quote or comment without an end."""
    tokens = list(tokenize(text))
    broken = next((token for token in tokens if token.kind is TokenKind.BROKEN), None)
    if broken is not None:
        raise syntax_error(text, broken.start, f"what begins with {broken.value} has no end")
    return [*tokens, Token(TokenKind.END, "", len(text), len(text))]


def syntax_error(text: str, offset: int, what: str, hint: str = "") -> StatementSyntaxError:
    """Return the error at an offset of a statement. It does not quote the text, which may contain a password."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return StatementSyntaxError(f"the statement cannot be read: {what}", place=f"line {line}, column {column}", hint=hint)


class StatementCursor:
    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = read_tokens(text)
        self._place = 0
        self.hides = False
        """Whether errors hide names and numbers: one of them may be a password with the wrong quotes."""

    @property
    def token(self) -> Token[str]:
        return self._tokens[self._place]

    @property
    def at_end(self) -> bool:
        return self.token.kind is TokenKind.END

    @property
    def rest(self) -> list[Token[str]]:
        """The tokens that are not read, with END."""
        return self._tokens[self._place :]

    def peek(self, *keywords: str) -> bool:
        """Whether these keywords come next."""
        after = self._tokens[self._place : self._place + len(keywords)]
        return [token.upper for token in after] == list(keywords)

    def take(self) -> Token[str]:
        token = self.token
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def accept(self, *keywords: str) -> bool:
        found = self.peek(*keywords)
        if found:
            self._place += len(keywords)
        return found

    def accept_sign(self, sign: str) -> bool:
        found = self.token.kind is TokenKind.SIGN and self.token.value == sign
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
        if self.token.kind not in (TokenKind.WORD, TokenKind.NAME):
            self.fail(f"{what} is expected")
        return content_of(self.take())

    def string(self, what: str) -> str:
        if self.token.kind is not TokenKind.STRING:
            self.fail(f"{what} is expected, in single quotes")
        return content_of(self.take())

    def name_or_string(self, what: str) -> str:
        return content_of(self.take()) if self.token.kind is TokenKind.STRING else self.name(what)

    def expression(self, *ends: tuple[str, ...]) -> str:
        """Return the text up to a comma, a closing parenthesis or one of these keywords, outside of nested parentheses."""
        first, last, depth = self.token.start, self.token.start, 0
        while self.token.kind is not TokenKind.END:
            if self.token.kind is TokenKind.SIGN and self.token.value in "([{":
                depth += 1
            elif self.token.kind is TokenKind.SIGN and self.token.value in ")]}":
                depth -= 1
            if depth < 0 or (depth == 0 and (self._is_sign(",") or any(self.peek(*end) for end in ends))):
                break
            last = self.take().end
        if first == last:
            self.fail("an expression is expected")
        return self.text[first:last]

    def fail(self, what: str, hint: str = "") -> NoReturn:
        there = _PLAIN.get(self.token.kind) or (_SECRET.get(self.token.kind) if self.hides else None) or content_of(self.token)
        raise syntax_error(self.text, self.token.start, f"{what}, but there is {there}", hint)

    def _is_sign(self, sign: str) -> bool:
        return self.token.kind is TokenKind.SIGN and self.token.value == sign
