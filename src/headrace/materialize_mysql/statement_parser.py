"""Parses statements about databases that are pipes, with the grammar of ClickHouse's MaterializeMySQL.

Invariant: a statement is parsed completely or rejected with a position; nothing is ignored. Statements about other things give None and go
to the server. No text form of an object here shows the password.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final, TypeAlias

from headrace.clickhouse_lexer import Token, TokenKind, content_of
from headrace.embedded.statement_clauses import read_ending
from headrace.errors import DefiniteError
from headrace.materialize_mysql.token_cursor import StatementCursor, read_tokens, syntax_error

ENGINES: Final = ("MATERIALIZEMYSQL", "MATERIALIZEDMYSQL")
HIDDEN: Final = "[HIDDEN]"
_NUMBER: Final = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_DEFAULT_PORT: Final = 3306
_HOST_NAME: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_.])?", re.ASCII | re.IGNORECASE)
_ZONE: Final = re.compile(r"[a-z0-9_.-]+", re.ASCII | re.IGNORECASE)
_COLUMN_ENDS: Final = (("CODEC",), ("TTL",), ("COMMENT",))
_DECLARED: Final = ("DEFAULT", "MATERIALIZED", "ALIAS", "EPHEMERAL")
_TYPE_ENDS: Final = (*((word,) for word in _DECLARED), *_COLUMN_ENDS, ("NOT",), ("NULL",), ("PRIMARY",), ("STATISTICS",), ("COLLATE",))
_CLAUSES: Final = (("COLUMNS",), ("ORDER", "BY"), ("PRIMARY", "KEY"), ("PARTITION", "BY"), ("SAMPLE", "BY"), ("TTL",))


@dataclass(frozen=True, slots=True)
class ColumnOverride:
    name: str
    type: str = ""
    declared: str = ""
    """For a column that the source does not have: ALIAS or MATERIALIZED, and its expression."""
    codec: str = ""
    ttl: str = ""


@dataclass(frozen=True, slots=True)
class TableOverride:
    table: str
    columns: tuple[ColumnOverride, ...] = ()
    indexes: tuple[tuple[str, str], ...] = ()
    clauses: tuple[tuple[str, str], ...] = ()
    """`ORDER BY` and others, each with its expression."""


@dataclass(frozen=True, slots=True)
class CreateMaterializedDatabase:
    """`CREATE DATABASE name ENGINE = MaterializeMySQL('host:port', 'database', 'user', 'password') …`."""

    name: str
    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    if_not_exists: bool = False
    cluster: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    overrides: tuple[TableOverride, ...] = ()
    redacted: str = ""
    """The statement without the password and without IF NOT EXISTS, for display."""


@dataclass(frozen=True, slots=True)
class DropMaterializedDatabase:
    name: str
    if_exists: bool
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class DetachMaterializedDatabase:
    name: str
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class AttachMaterializedDatabase:
    name: str
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class ShowCreate:
    name: str


@dataclass(frozen=True, slots=True)
class ShowPipes:
    """`SHOW PIPES`: a statement that ClickHouse does not have."""


@dataclass(frozen=True, slots=True)
class OtherDatabaseStatement:
    """A statement that would take a database away from its pipe."""

    verb: str
    name: str


@dataclass(frozen=True, slots=True)
class UnsupportedEnding:
    """A statement with clauses that the server may know, but not for a database that is a pipe."""

    name: str
    error: DefiniteError


Statement: TypeAlias = (
    CreateMaterializedDatabase
    | DropMaterializedDatabase
    | DetachMaterializedDatabase
    | AttachMaterializedDatabase
    | ShowCreate
    | ShowPipes
    | OtherDatabaseStatement
    | UnsupportedEnding
)


def parse_statement(text: str) -> Statement | None:
    """Parse a statement about databases; None if the server must handle it."""
    try:
        cursor = StatementCursor(text)
    except DefiniteError:
        if _mentions_engine(text):
            raise
        # The server reports errors in its own statements better.
        return None
    if cursor.accept("CREATE", "DATABASE"):
        return _create(cursor) if _names_engine(text) else None
    if (cursor.peek("CREATE") or cursor.peek("ATTACH")) and _names_engine(text):
        # A statement with a password must not reach the server, whose log would contain it.
        cursor.fail("CREATE DATABASE is expected", hint="drop the database first; nothing else makes one of this engine")
    if cursor.accept("DROP", "DATABASE"):
        if_exists = cursor.accept("IF", "EXISTS")
        if cursor.accept("IF", "EMPTY"):
            return OtherDatabaseStatement("DROP IF EMPTY", cursor.name("a database"))
        return _ended(cursor, "DROP", lambda name, cluster: DropMaterializedDatabase(name, if_exists, cluster))
    if cursor.accept("DETACH", "DATABASE"):
        cursor.accept("IF", "EXISTS")
        return _ended(cursor, "DETACH", DetachMaterializedDatabase)
    if cursor.accept("ATTACH", "DATABASE"):
        cursor.accept("IF", "NOT", "EXISTS")
        return _ended(cursor, "ATTACH", AttachMaterializedDatabase)
    if cursor.accept("SHOW", "CREATE", "DATABASE"):
        return _ended(cursor, "SHOW", lambda name, _: ShowCreate(name))
    if cursor.accept("SHOW", "PIPES"):
        return ShowPipes()
    for verb in ("RENAME", "ALTER", "TRUNCATE"):
        if cursor.accept(verb, "DATABASE"):
            cursor.accept("IF", "EXISTS")
            return OtherDatabaseStatement(verb, cursor.name("a database"))
    return None


def _ended(cursor: StatementCursor, verb: str, build: Callable[[str, str], Statement]) -> Statement:
    """Read the name and the clauses after it; return the statement."""
    name = cursor.name("a database")
    ending = read_ending(verb, cursor.rest)
    if ending.unexpected is not None:
        return UnsupportedEnding(name, syntax_error(cursor.text, ending.unexpected.start, ending.problem))
    return build(name, ending.cluster)


def hide_password(text: str) -> tuple[str, str | None]:
    """Return the text with the engine's password hidden, and the password; None if there is none. Also works on invalid statements."""
    place = _password_token(text)
    if place is None or content_of(place) == HIDDEN:
        return text, None
    return f"{text[: place.start]}'{HIDDEN}'{text[place.end :]}", content_of(place)


def _password_token(text: str) -> Token[str] | None:
    if not _mentions_engine(text):
        return None
    try:
        tokens = read_tokens(text)
    except DefiniteError:
        return None
    begin = next((number for number, token in enumerate(tokens) if token.upper in ENGINES), None)
    if begin is None or tokens[begin + 1].value != "(":
        return None
    commas = 0
    for token in tokens[begin + 2 :]:
        if token.kind is TokenKind.SIGN and token.value == ")":
            return None
        if token.kind is TokenKind.SIGN and token.value == ",":
            commas += 1
        elif commas == 3:
            return token if token.kind is TokenKind.STRING else None
    return None


def _mentions_engine(text: str) -> bool:
    upper = text.upper()
    return "DATABASE" in upper and any(engine in upper for engine in ENGINES)


def _names_engine(text: str) -> bool:
    tokens = read_tokens(text)
    for number, token in enumerate(tokens):
        if token.upper == "ENGINE":
            after = [one for one in tokens[number + 1 : number + 3] if one.value != "="]
            return bool(after) and after[0].upper in ENGINES
    return False


def _create(cursor: StatementCursor) -> CreateMaterializedDatabase:
    before = cursor.token
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name_token = cursor.token
    name = cursor.name("the name of the new database")
    if cursor.peek("UUID"):
        cursor.fail("a UUID cannot be chosen")
    cluster = ""
    if cursor.accept("ON", "CLUSTER"):
        cluster = cursor.name_or_string("a cluster")
    cursor.expect("ENGINE")
    cursor.accept_sign("=")
    cursor.take()
    host, port, database, user, password, secret = _engine_arguments(cursor)
    settings = _settings(cursor) if cursor.accept("SETTINGS") else ()
    overrides = _overrides(cursor)
    if cursor.peek("COMMENT"):
        cursor.fail("a comment on the database is not kept")
    cursor.accept_sign(";")
    if not cursor.at_end:
        cursor.fail("SETTINGS, TABLE OVERRIDE or the end is expected")
    text = cursor.text
    begin = text[: before.start] + text[name_token.start :] if if_not_exists else text
    moved = len(text) - len(begin)
    redacted = f"{begin[: secret.start - moved]}'{HIDDEN}'{begin[secret.end - moved :]}"
    return CreateMaterializedDatabase(
        name, host, port, database, user, password, if_not_exists, cluster, settings, overrides, redacted.strip().rstrip(";").rstrip()
    )


def _engine_arguments(cursor: StatementCursor) -> tuple[str, int, str, str, str, Token[str]]:
    cursor.hides = True
    cursor.expect_sign("(")
    if cursor.token.kind in (TokenKind.WORD, TokenKind.NAME):
        hint = (
            "write the four arguments: 'host:port', 'database', 'user', 'password'; ClickHouse shows a collection's password to no client"
        )
        cursor.fail("named collections are not supported", hint)
    start = cursor.token
    host, port = _host_port(cursor, cursor.string("'host:port'"), start)
    cursor.expect_sign(",")
    database = cursor.name_or_string("the source's database")
    cursor.expect_sign(",")
    user = cursor.string("the user")
    cursor.expect_sign(",")
    secret = cursor.token
    password = cursor.string("the password")
    cursor.expect_sign(")")
    cursor.hides = False
    return host, port, database, user, password, secret


def _host_port(cursor: StatementCursor, text: str, token: Token[str]) -> tuple[str, int]:
    host, found, port = text.rpartition(":")
    if not found or host.endswith(":") or (host.startswith("[") and "]" not in host):
        host, port = text, str(_DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise syntax_error(cursor.text, token.start, "the first argument is no 'host:port'", "write 'host:3306' or '[::1]:3306'")
    return host, int(port)


def _is_host(text: str) -> bool:
    """Whether a text is a host name or an IP address. Any other character could add a path or settings to the source's address."""
    if ":" not in text:
        return _HOST_NAME.fullmatch(text) is not None
    address, has_zone, zone = text.partition("%")
    try:
        IPv6Address(address)
    except ValueError:
        return False
    return not has_zone or _ZONE.fullmatch(zone) is not None


def _settings(cursor: StatementCursor) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    while True:
        name = cursor.name("the name of a setting")
        if name in found:
            cursor.fail(f"{name} is set twice")
        cursor.expect_sign("=")
        sign = "-" if cursor.accept_sign("-") else ""
        if cursor.token.kind not in (TokenKind.NUMBER, TokenKind.STRING) and cursor.token.upper not in ("TRUE", "FALSE"):
            cursor.fail(f"a number or a text is expected for {name}")
        if cursor.token.kind is TokenKind.NUMBER and not _NUMBER.fullmatch(cursor.token.value):
            cursor.fail(f"a number or a text is expected for {name}")
        value = cursor.take()
        found[name] = sign + ({"TRUE": "1", "FALSE": "0"}.get(value.upper) or content_of(value))
        if not cursor.accept_sign(","):
            return tuple(found.items())


def _overrides(cursor: StatementCursor) -> tuple[TableOverride, ...]:
    found: list[TableOverride] = []
    while cursor.accept("TABLE", "OVERRIDE"):
        override = _override(cursor)
        if override.table in [one.table for one in found]:
            cursor.fail(f"the table {override.table} is overridden twice")
        found.append(override)
        # The comma between overrides is optional, as in ClickHouse.
        cursor.accept_sign(",")
    return tuple(found)


def _override(cursor: StatementCursor) -> TableOverride:
    table = cursor.name("a table")
    columns: tuple[ColumnOverride, ...] = ()
    indexes: tuple[tuple[str, str], ...] = ()
    clauses: dict[str, str] = {}
    cursor.expect_sign("(")
    while not cursor.accept_sign(")"):
        clause = next((one for one in _CLAUSES if cursor.peek(*one)), None)
        if clause is None:
            cursor.fail("COLUMNS, ORDER BY, PRIMARY KEY, PARTITION BY, SAMPLE BY or TTL is expected")
        cursor.accept(*clause)
        word = " ".join(clause)
        if word in clauses or (word == "COLUMNS" and (columns or indexes)):
            cursor.fail(f"{word} is repeated")
        if word == "COLUMNS":
            columns, indexes = _columns(cursor)
        else:
            clauses[word] = _clause_text(cursor)
    return TableOverride(table, columns, indexes, tuple(clauses.items()))


def _clause_text(cursor: StatementCursor) -> str:
    parts = [cursor.expression(*_CLAUSES)]
    while cursor.accept_sign(","):
        parts.append(cursor.expression(*_CLAUSES))
    return ", ".join(parts)


def _columns(cursor: StatementCursor) -> tuple[tuple[ColumnOverride, ...], tuple[tuple[str, str], ...]]:
    columns: list[ColumnOverride] = []
    indexes: list[tuple[str, str]] = []
    cursor.expect_sign("(")
    while True:
        if cursor.peek("PROJECTION"):
            cursor.fail("projections are not supported", hint="ReplacingMergeTree with FINAL does not use them")
        if cursor.peek("CONSTRAINT"):
            cursor.fail("constraints are not supported", hint="the source's rows are taken as they are")
        if cursor.accept("INDEX"):
            indexes.append((cursor.name("an index"), cursor.expression()))
        else:
            columns.append(_column(cursor))
        if not cursor.accept_sign(","):
            break
    cursor.expect_sign(")")
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        cursor.fail(f"the column {twice} is repeated")
    return tuple(columns), tuple(indexes)


def _column(cursor: StatementCursor) -> ColumnOverride:
    name = cursor.name("a column")
    kind = declared = codec = ttl = ""
    if cursor.token.kind is TokenKind.WORD and not any(cursor.peek(*end) for end in _TYPE_ENDS):
        kind = cursor.expression(*_TYPE_ENDS)
    for word in ("NOT", "NULL", "PRIMARY", "STATISTICS", "COLLATE", "DEFAULT", "EPHEMERAL", "COMMENT"):
        if cursor.peek(word):
            hint = "say it in the type, as Nullable(…)" if word in ("NOT", "NULL") else "types, ALIAS, MATERIALIZED, CODEC and TTL are"
            cursor.fail(f"{word} is not supported in COLUMNS", hint=hint)
    for word in ("MATERIALIZED", "ALIAS"):
        if cursor.accept(word):
            declared = f"{word} {cursor.expression(*_COLUMN_ENDS)}"
    if cursor.accept("CODEC"):
        cursor.expect_sign("(")
        codec = cursor.expression()
        while cursor.accept_sign(","):
            codec += f", {cursor.expression()}"
        cursor.expect_sign(")")
    if cursor.accept("TTL"):
        ttl = cursor.expression(*_COLUMN_ENDS)
    return ColumnOverride(name, kind, declared, codec, ttl)
