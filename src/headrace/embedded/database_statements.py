"""Statements about databases that are pipes (`CREATE DATABASE … ENGINE = MaterializeMySQL(…)`): found here, run by the bridge.

A statement that creates such a database never reaches the engine, which could log its password. Other statements about databases are the
engine's, unless `headrace.pipes` has the database. Statements about one database run one after another.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from headrace.clickhouse_lexer import Token, TokenKind, content_of, tokenize_unicode
from headrace.embedded.engine.engine import Engine, quote_text
from headrace.embedded.engine.errors import ErrorCode, QueryFailure
from headrace.embedded.engine.statement_scanner import ScannedStatement, StatementKind
from headrace.embedded.pipe_bridge import PipeBridge
from headrace.embedded.statement_clauses import read_ending, reads_databases

OWN_STATEMENT: Final = "headrace: a statement of the pipe's owner"
"""Value of the setting `log_comment` in statements that Headrace itself sends: the engine runs them."""
OWN_CLIENT: Final = "headrace"
"""How the user agent of Headrace's own requests begins."""
CREATE, SHOW = "CREATE", "SHOW"
_ENGINES: Final = ("MATERIALIZEMYSQL", "MATERIALIZEDMYSQL")
_MENTIONED: Final = re.compile(r"(?i)\bDATABASE\b.*\bENGINE\s*=?\s*[`\"]?MATERIALIZED?MYSQL\b", re.DOTALL)
_VERBS: Final = ("DROP", "DETACH", "ATTACH", "RENAME", "ALTER", "TRUNCATE")
_ENDED: Final = ("DROP", "DETACH", "ATTACH", SHOW)
"""Verbs that run on a pipe; the others are rejected."""
_FIRST_WORDS: Final = (*_VERBS, "CREATE", "REPLACE", "SHOW")
_BARE: Final = re.compile(r"[\w$]+", re.ASCII)
_PARALLEL: Final = re.compile(r"(?i)\bPARALLEL\b")
_UNKNOWN: Final = (60, 81)
"""Codes of an unknown table and an unknown database."""


@dataclass(frozen=True, slots=True)
class DatabaseStatement:
    """A statement about a database that is a pipe, or is about to become one."""

    verb: str
    name: str
    text: str
    shown: str = ""
    """The statement that created the database, without its password."""
    problem: str = ""
    """Why the statement cannot be run if the database is a pipe."""
    others: tuple[str, ...] = ()
    """Further databases that RENAME names."""


class DatabaseStatements:
    """Finds and runs the statements of one server."""

    def __init__(self, engine: Engine, bridge: PipeBridge) -> None:
        self._engine = engine
        self._bridge = bridge
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def find(self, statement: ScannedStatement, settings: Mapping[str, str], parameters: Mapping[str, str]) -> DatabaseStatement | None:
        """Return the statement if a pipe is concerned; None if it is the engine's."""
        if settings.get("log_comment") == OWN_STATEMENT:
            return None
        text = statement.head.decode("utf-8", "surrogateescape")
        if _PARALLEL.search(text):
            self._reject_parallel(text, parameters)
        found = parse_database_statement(text, parameters)
        if found is None or found.verb == CREATE:
            return found
        found = self._with_pipe(found)
        if found is not None and found.problem:
            raise ErrorCode.SYNTAX_ERROR.failure(f"Syntax error: {found.problem}")
        return found

    def needs_final(self, statement: ScannedStatement, current: str, parameters: Mapping[str, str]) -> bool:
        """Whether a statement reads a database of a pipe, by its name or as the current database: its rows are merged with FINAL."""
        names = self._bridge.pipe_names()
        return bool(names) and reads_databases(statement.head.decode("utf-8", "surrogateescape"), names, current, parameters)

    def run(self, statement: DatabaseStatement, *, readonly: bool) -> None:
        """Run a statement through the bridge; raise `QueryFailure` if it fails."""
        if readonly:
            raise ErrorCode.READONLY.failure("Cannot execute query in readonly mode")
        with self._exclusive(statement.name):
            self._bridge.run_statement({"run": "statement", "verb": statement.verb, "name": statement.name, "text": statement.text})

    def _reject_parallel(self, text: str, parameters: Mapping[str, str]) -> None:
        """Raise if one of several parallel statements concerns a pipe: the engine runs them together, the bridge one at a time."""
        parts: list[list[Token[str]]] = [[]]
        for token in tokenize_unicode(text):
            if token.upper == "WITH" and parts[-1] and parts[-1][-1].upper == "PARALLEL":
                parts[-1].pop()
                parts.append([])
            else:
                parts[-1].append(token)
        for part in parts if len(parts) > 1 else []:
            found = _parse_tokens(part, text, parameters)
            if found is not None and (found.verb == CREATE or self._with_pipe(found) is not None):
                raise ErrorCode.BAD_ARGUMENTS.failure(
                    f"PARALLEL WITH is not supported for the database of a pipe, {found.name}; send each statement alone"
                )

    def _with_pipe(self, found: DatabaseStatement) -> DatabaseStatement | None:
        """Return the statement with the database that is a pipe; None if no database of it is."""
        for name in (found.name, *found.others):
            shown = self._creating_statement(name)
            if shown:
                return replace(found, name=name, shown=shown)
        return None

    def _creating_statement(self, name: str) -> str:
        sql = f"SELECT statement FROM headrace.pipes FINAL WHERE pipe = {quote_text(name)}"
        with contextlib.closing(self._engine.connect()) as handle:
            try:
                return handle.execute(sql.encode("utf-8", "surrogateescape"), "TabSeparatedRaw")[0].decode().removesuffix("\n")
            except QueryFailure as failure:
                if failure.code in _UNKNOWN:
                    return ""
                raise

    @contextlib.contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            yield


def show_statement(statement: DatabaseStatement, scanned: ScannedStatement) -> ScannedStatement:
    """Return SHOW CREATE DATABASE as a query of the engine, which formats the result."""
    head = f"SELECT {quote_text(statement.shown)} AS statement"
    return ScannedStatement(StatementKind.OUTPUT, head.encode(), scanned.tail, scanned.format)


def parse_database_statement(text: str, parameters: Mapping[str, str]) -> DatabaseStatement | None:
    """Return verb and database of a statement about a database; of CREATE, only with the engine of a pipe."""
    if next((token.upper for token in tokenize_unicode(text)), "") not in _FIRST_WORDS:
        # Most statements are long queries or inserts.
        return None
    return _parse_tokens(list(tokenize_unicode(text)), text, parameters)


def _parse_tokens(tokens: list[Token[str]], text: str, parameters: Mapping[str, str]) -> DatabaseStatement | None:
    words = [token.upper for token in tokens[:3]]
    if words[:1] in (["CREATE"], ["ATTACH"], ["REPLACE"]) and _names_engine(text, tokens):
        # The bridge parses the whole statement, and reports its errors.
        return DatabaseStatement(CREATE, _name(tokens[2:], parameters)[0], text)
    if words == ["SHOW", "CREATE", "DATABASE"]:
        return _named(SHOW, tokens[3:], text, parameters)
    if words[:1] and words[0] in _VERBS and words[1:2] == ["DATABASE"]:
        return _named(words[0], tokens[2:], text, parameters)
    return None


def _named(verb: str, rest: list[Token[str]], text: str, parameters: Mapping[str, str]) -> DatabaseStatement | None:
    name, after = _name(rest, parameters)
    if any(first.upper == "IF" and second.upper == "EMPTY" for first, second in pairwise(rest[:4])):
        verb = f"{verb} IF EMPTY"
    if not name:
        return None
    if verb not in _ENDED:
        others = [_name(rest[at:], parameters)[0] for at in range(1, len(rest)) if rest[at - 1].value == "," or rest[at - 1].upper == "TO"]
        return DatabaseStatement(verb, name, text, others=tuple(filter(None, others)) if verb == "RENAME" else ())
    ending = read_ending(verb, after)
    problem = "ON CLUSTER is not supported: an embedded server is in no cluster" if ending.cluster else ending.problem
    return DatabaseStatement(verb, name, text, problem=problem)


def _names_engine(text: str, tokens: list[Token[str]]) -> bool:
    if any(token.kind is TokenKind.BROKEN for token in tokens):
        return _MENTIONED.search(text) is not None
    for at, token in enumerate(tokens):
        if token.upper == "ENGINE":
            after = [one for one in tokens[at + 1 : at + 3] if one.value != "="]
            if after and after[0].kind in (TokenKind.WORD, TokenKind.NAME) and content_of(after[0]).upper() in _ENGINES:
                return True
    return False


def _name(rest: list[Token[str]], parameters: Mapping[str, str]) -> tuple[str, list[Token[str]]]:
    """Return the name after `IF [NOT] EXISTS`, also one that is a query parameter, and what follows. Empty if there is none."""
    for condition in (["IF", "NOT", "EXISTS"], ["IF", "EXISTS"], ["IF", "EMPTY"]):
        if [token.upper for token in rest[: len(condition)]] == condition:
            rest = rest[len(condition) :]
    if [token.value for token in rest[:1]] == ["{"] and len(rest) > 1:
        whole = [token.value for token in rest[2:5]] == [":", "Identifier", "}"]
        return parameters.get(content_of(rest[1]), ""), rest[5 if whole else 2 :]
    if rest and rest[0].kind is TokenKind.NAME:
        return content_of(rest[0]), rest[1:]
    # The engine reads 1shop and $shop as names.
    end = 0
    while end < len(rest) and _BARE.fullmatch(rest[end].value) and (end == 0 or rest[end - 1].end == rest[end].start):
        end += 1
    return "".join(token.value for token in rest[:end]), rest[end:]
