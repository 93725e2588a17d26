"""Scans a statement as far as needed to run it: its kind, its FORMAT clause, and the start of inserted data.

The engine parses SQL; this module only finds where the server must cut or insert text, by ClickHouse's lexical rules (strings, quoted
names, comments, heredocs). It works on bytes and never looks beyond the first byte of inserted data, which may be binary. Text that it
cannot split goes to the engine unchanged, which reports the error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise

from headrace.clickhouse_lexer import Token, TokenKind, tokenize
from headrace.embedded.engine.errors import ErrorCode

_DATA_LEAD = re.compile(rb"[ \t\f]*\r?\n?")
_OUTPUT_VERBS = frozenset({b"SELECT", b"WITH", b"SHOW", b"DESCRIBE", b"DESC", b"EXPLAIN", b"EXISTS", b"CHECK", b"FROM"})
# Their SETTINGS clause must follow the FORMAT clause; a SELECT's may also precede it.
_PLAIN_VERBS = frozenset({b"SHOW", b"DESCRIBE", b"DESC", b"EXISTS", b"CHECK"})
_SESSION_VERBS = frozenset({b"SET", b"USE", b"BEGIN", b"START", b"COMMIT", b"ROLLBACK"})


class StatementKind(Enum):
    """How the server runs a statement."""

    EMPTY = auto()
    OUTPUT = auto()
    """Returns a result, which can be streamed."""
    INSERT_DATA = auto()
    """Reads rows from the request in some format."""
    INSERT_INPUT = auto()
    """INSERT ... SELECT ... FROM input(...): reads rows from the request through a query."""
    SESSION = auto()
    """Changes only the session: SET, USE, temporary tables, transactions."""
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class ScannedStatement:
    """One statement and the offsets in it that the server needs."""

    kind: StatementKind
    head: bytes
    """The statement without its FORMAT clause, inserted data and trailing semicolon."""
    tail: bytes = b""
    """OUTPUT: what follows the FORMAT clause (a SETTINGS clause)."""
    format: str = ""
    """The format that the statement names; empty if none."""
    data_start: int = -1
    """INSERT_DATA, INSERT_INPUT: offset of the rows in the text."""
    input_span: tuple[int, int, bytes] | None = None
    """INSERT_INPUT: start and end of `input(...)` in the head, and its argument."""
    source_at: int = -1
    """INSERT_DATA: offset in the head for a FROM INFILE clause: before the SETTINGS clause, if there is one."""


def leading_word(text: bytes) -> bytes:
    """Return the first keyword in upper case, skipping parentheses."""
    for token in tokenize(text):
        if token.value != b"(":
            return token.upper
    return b""


def parse_statement(text: bytes) -> ScannedStatement:
    """Split a whole statement that is not an INSERT."""
    tokens = list(tokenize(text))
    while tokens and tokens[-1].value == b";":
        tokens.pop()
    if not tokens:
        return ScannedStatement(StatementKind.EMPTY, b"")
    whole = text[tokens[0].start : tokens[-1].end]
    if any(token.kind is TokenKind.BROKEN for token in tokens):
        return ScannedStatement(StatementKind.OTHER, text)
    if any(token.value == b";" for token in tokens):
        raise ErrorCode.SYNTAX_ERROR.failure("Syntax error (Multi-statements are not allowed)")
    verb = leading_word(whole)
    if verb in _SESSION_VERBS or _makes_temporary(tokens):
        return ScannedStatement(StatementKind.SESSION, whole)
    outer = [token for token, depth in _with_depth(tokens) if depth == 0]
    if verb not in _OUTPUT_VERBS or any(token.upper == b"INSERT" for token in outer if verb == b"WITH"):
        return ScannedStatement(StatementKind.OTHER, whole)
    return _split_output(text, tokens[0].start, tokens[-1].end, outer)


def parse_insert(text: bytes) -> ScannedStatement | None:
    """Split an INSERT at the start of `text`; None if its end or the start of its data is not in `text`."""
    return _InsertScanner(text).split()


def _split_output(text: bytes, start: int, end: int, outer: list[Token[bytes]]) -> ScannedStatement:
    for token, follower in pairwise(outer):
        if token.upper == b"INTO" and follower.upper == b"OUTFILE":
            raise ErrorCode.INTO_OUTFILE_NOT_ALLOWED.failure("INTO OUTFILE is not allowed")
    for at in range(len(outer) - 2, 0, -1):
        token, name = outer[at], outer[at + 1]
        after = outer[at + 2] if at + 2 < len(outer) else None
        if token.upper == b"FORMAT" and name.kind is TokenKind.WORD and (after is None or after.upper == b"SETTINGS"):
            return ScannedStatement(StatementKind.OUTPUT, text[start : token.start], text[name.end : end], name.value.decode())
    if outer[0].upper in _PLAIN_VERBS:
        for at in range(1, len(outer) - 2):
            if outer[at].upper == b"SETTINGS" and outer[at + 2].value == b"=":
                return ScannedStatement(StatementKind.OUTPUT, text[start : outer[at].start], b" " + text[outer[at].start : end])
    return ScannedStatement(StatementKind.OUTPUT, text[start:end])


def _makes_temporary(tokens: list[Token[bytes]]) -> bool:
    words = [token.upper for token in tokens[:4]]
    return words[:1] in ([b"CREATE"], [b"DROP"]) and b"TEMPORARY" in words


class _InsertScanner:
    """Scans INSERT [INTO] [TABLE] [FUNCTION] name ... up to its rows or its SELECT."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.stream = tokenize(text)
        self.settings_at = -1

    def split(self) -> ScannedStatement | None:
        first = True
        depth = 0
        after_name = False
        begin = 0
        previous = b""
        for token in self.stream:
            qualified, previous = previous == b".", token.value
            if first:
                begin, first = token.start, False
                continue
            if token.kind is TokenKind.BROKEN:
                return None
            depth += {b"(": 1, b")": -1}.get(token.value, 0)
            if not after_name:
                # The target's name may be any word, including `values` and `format`.
                after_name = token.upper not in (b"INTO", b"TABLE", b"FUNCTION")
                continue
            if depth == 1 and token.value == b"(":
                if leading_word(self.text[token.end : token.end + 4096]) in (b"SELECT", b"WITH"):
                    return self._select(begin)
                continue
            if depth or qualified:
                continue
            if token.value == b";":
                return ScannedStatement(StatementKind.OTHER, self.text[begin : token.start])
            word = token.upper
            if word in (b"SELECT", b"WITH", b"WATCH"):
                return self._select(begin)
            if word == b"SETTINGS" and self.settings_at < 0:
                self.settings_at = token.start
            if word == b"VALUES":
                head = self.text[begin : token.start]
                place = self._source_at(begin, head)
                return ScannedStatement(StatementKind.INSERT_DATA, head, format="Values", data_start=token.end, source_at=place)
            if word == b"FROM":
                raise ErrorCode.UNKNOWN_TYPE_OF_QUERY.failure("Query has infile and was sent directly to the server")
            if word == b"FORMAT":
                return self._rows(begin, token)
        return None

    def _rows(self, begin: int, keyword: Token[bytes]) -> ScannedStatement | None:
        name = next(self.stream, None)
        if name is None or name.kind is not TokenKind.WORD:
            return None
        head, at = self.text[begin : keyword.start], name.end
        place = self._source_at(begin, head)
        after = next(self.stream, None)
        if after is not None and after.upper == b"SETTINGS":
            at = self._settings_end(after)
            head += self.text[after.start : at]
        lead = _DATA_LEAD.match(self.text, at)
        assert lead is not None
        return ScannedStatement(StatementKind.INSERT_DATA, head, format=name.value.decode(), data_start=lead.end(), source_at=place)

    def _source_at(self, begin: int, head: bytes) -> int:
        return len(head) if self.settings_at < 0 else self.settings_at - begin

    def _settings_end(self, keyword: Token[bytes]) -> int:
        """Return the end of `SETTINGS a = 1, b = 'x'`: after a value without a following comma."""
        end = keyword.end
        while True:
            run = [next(self.stream, None) for _ in range(3)]
            value = run[2]
            if value is None:
                return end
            end = value.end
            if value.value in (b"-", b"+"):
                number = next(self.stream, None)
                end = end if number is None else number.end
            if not re.compile(rb"\s*,").match(self.text, end):
                return end
            next(self.stream, None)

    def _select(self, begin: int) -> ScannedStatement:
        """Scan INSERT ... SELECT: it runs unchanged, unless it reads the request's rows through input()."""
        tokens = [token for token in tokenize(self.text) if token.start >= begin]
        head = self.text[begin:]
        for at, token in enumerate(tokens[:-3]):
            if (
                token.upper != b"INPUT"
                or tokens[at + 1].value != b"("
                or tokens[at + 2].kind is not TokenKind.STRING
                or tokens[at + 3].value != b")"
            ):
                continue
            if tokens[at - 1].upper not in (b"FROM", b"JOIN"):
                continue
            for keyword, name in zip(tokens[at:], tokens[at + 1 :], strict=False):
                if keyword.upper == b"FORMAT" and name.kind is TokenKind.WORD:
                    lead = _DATA_LEAD.match(self.text, name.end)
                    assert lead is not None
                    span = (token.start - begin, tokens[at + 3].end - begin, tokens[at + 2].value)
                    body = self.text[begin : keyword.start]
                    return ScannedStatement(
                        StatementKind.INSERT_INPUT, body, format=name.value.decode(), data_start=lead.end(), input_span=span
                    )
        whole = [token for token in tokens if token.kind is not TokenKind.BROKEN]
        while whole and whole[-1].value == b";":
            whole.pop()
        if any(token.value == b";" for token in whole):
            raise ErrorCode.SYNTAX_ERROR.failure("Syntax error (Multi-statements are not allowed)")
        return ScannedStatement(StatementKind.OTHER, head[: whole[-1].end - begin])


def _with_depth(tokens: list[Token[bytes]]) -> Iterator[tuple[Token[bytes], int]]:
    depth = 0
    for token in tokens:
        depth -= token.value in (b")", b"]", b"}")
        yield token, depth
        depth += token.value in (b"(", b"[", b"{")
