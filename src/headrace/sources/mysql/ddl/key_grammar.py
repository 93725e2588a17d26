"""The grammar of indexes and constraints, and of table and database options."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.sources.mysql.ddl.ast import KeyText, OptionsText
from headrace.sources.mysql.ddl.column_grammar import accept_charset, parse_references, skip_enforced
from headrace.sources.mysql.ddl.lexer import DdlTokenKind
from headrace.sources.mysql.ddl.token_cursor import DdlCursor

_OPTION: Final = re.compile(
    "TYPE|AUTO_INCREMENT|AVG_ROW_LENGTH|CHECKSUM|TABLE_CHECKSUM|COMPRESSION|CONNECTION|DELAY_KEY_WRITE|ENCRYPTION|ENCRYPTED"
    "|ENCRYPTION_KEY_ID|ENGINE_ATTRIBUTE|SECONDARY_ENGINE_ATTRIBUTE|SECONDARY_ENGINE|INSERT_METHOD|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS"
    "|PACK_KEYS|PAGE_CHECKSUM|PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|PASSWORD|ROW_FORMAT|SEQUENCE|STATS_AUTO_RECALC|STATS_PERSISTENT"
    "|STATS_SAMPLE_PAGES|TABLESPACE|TRANSACTIONAL|UNION|AUTOEXTEND_SIZE|STORAGE|NODEGROUP|IETF_QUOTES"
)
"""The options that may lack an equals sign."""
_STARTS: Final = ("PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK")


def starts_key(cursor: DdlCursor) -> bool:
    """Whether an index or a constraint comes next, not a column."""
    return cursor.keyword() in _STARTS or (cursor.is_next("VECTOR") and cursor.keyword(1) in ("INDEX", "KEY"))


def parse_key(cursor: DdlCursor) -> KeyText | None:
    """Parse an index, or a constraint that may create one; None for a constraint that never does."""
    constraint = ""
    if cursor.accept("CONSTRAINT"):
        cursor.if_not_exists()
        if not (cursor.peek().form is DdlTokenKind.WORD and cursor.keyword() in _STARTS):
            constraint = cursor.name()
    if cursor.accept("CHECK"):
        cursor.skip_parentheses()
        skip_enforced(cursor)
        return None
    if cursor.accept("FOREIGN", "KEY"):
        return _foreign(cursor, constraint)
    if cursor.accept("PRIMARY", "KEY"):
        return _rest(cursor, KeyText("primary", "PRIMARY", ()), constraint, named=True)
    if cursor.accept("UNIQUE"):
        cursor.accept_any("INDEX", "KEY")
        return _rest(cursor, KeyText("unique", "", ()), constraint)
    if word := cursor.accept_any("FULLTEXT", "SPATIAL", "VECTOR"):
        cursor.accept_any("INDEX", "KEY")
        return _rest(cursor, KeyText(word.lower(), "", ()), "")
    if not cursor.accept_any("INDEX", "KEY"):
        raise cursor.surprise("an index")
    return _rest(cursor, KeyText("index", "", ()), "")


def _rest(cursor: DdlCursor, key: KeyText, constraint: str, *, named: bool = False) -> KeyText:
    key = replace(key, if_not_exists=cursor.if_not_exists(), name=key.name or constraint)
    if not cursor.sees("(") and not _is_using(cursor):
        name = cursor.name()
        key = key if named else replace(key, name=name)
    _skip_using(cursor)
    key = parse_parts(cursor, key)
    cursor.skip_item()
    return key


def _is_using(cursor: DdlCursor) -> bool:
    return cursor.keyword() in ("USING", "TYPE") and cursor.keyword(1) in ("BTREE", "HASH", "RTREE")


def _skip_using(cursor: DdlCursor) -> None:
    if _is_using(cursor):
        cursor.next()
        cursor.next()


def parse_parts(cursor: DdlCursor, key: KeyText) -> KeyText:
    """Parse the columns of an index, in parentheses."""
    columns, prefixes = [], []
    cursor.expect_sign("(")
    while True:
        if cursor.sees("("):
            cursor.skip_parentheses()
            columns.append("")
            prefixes.append(0)
        else:
            columns.append(cursor.name())
            prefixes.append(_prefix(cursor) if cursor.sees("(") else 0)
        if cursor.accept("WITHOUT", "OVERLAPS"):
            columns.pop()
            prefixes.pop()
        cursor.accept_any("ASC", "DESC")
        if not cursor.accept_sign(","):
            break
    cursor.expect_sign(")")
    return replace(key, columns=tuple(columns), prefixes=tuple(prefixes))


def _prefix(cursor: DdlCursor) -> int:
    cursor.expect_sign("(")
    length = cursor.number()
    cursor.expect_sign(")")
    return length


def _foreign(cursor: DdlCursor, constraint: str) -> KeyText:
    if_not_exists = cursor.if_not_exists()
    name = "" if cursor.sees("(") else cursor.name()
    key = parse_parts(cursor, KeyText("foreign", constraint or name, (), if_not_exists=if_not_exists))
    cursor.expect("REFERENCES")
    return replace(key, constraint=constraint, references=parse_references(cursor))


def parse_create_index(cursor: DdlCursor, *, or_replace: bool) -> KeyText | None:
    """Parse the index after CREATE [OR REPLACE], up to ON; None if it is no index."""
    kind = "index"
    cursor.accept_any("ONLINE", "OFFLINE")
    if word := cursor.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"):
        kind = word.lower()
    if not cursor.accept("INDEX"):
        return None
    if_not_exists = cursor.if_not_exists()
    name = cursor.name()
    _skip_using(cursor)
    return KeyText(kind, name, (), if_not_exists=if_not_exists, or_replace=or_replace)


def parse_option(cursor: DdlCursor, options: OptionsText) -> OptionsText:
    """Parse one option of a table or a database. Options that do not concern columns are skipped."""
    cursor.accept("DEFAULT")
    if accept_charset(cursor):
        return replace(options, charset=cursor.value_name(), collation="")
    if cursor.accept("COLLATE"):
        cursor.accept_sign("=")
        return replace(options, collation=cursor.value_name())
    if cursor.accept("COMMENT"):
        cursor.accept_sign("=")
        return replace(options, comment=cursor.string())
    if cursor.accept("ENGINE"):
        cursor.accept_sign("=")
        return replace(options, engine=cursor.value_name().upper())
    if cursor.accept_any("DATA", "INDEX"):
        cursor.expect("DIRECTORY")
    elif cursor.accept("START"):
        cursor.expect("TRANSACTION")
        return options
    elif cursor.accept("READ"):
        cursor.expect("ONLY")
    elif cursor.sees("=", 1) or _OPTION.fullmatch(cursor.keyword()):
        cursor.name()
    else:
        raise cursor.surprise("an option")
    cursor.accept_sign("=")
    if cursor.sees("("):
        cursor.skip_parentheses()
        return options
    cursor.accept_sign("-")
    if cursor.peek().form in (DdlTokenKind.SIGN, DdlTokenKind.END):
        raise cursor.surprise("an option's value")
    cursor.next()
    # TABLESPACE t STORAGE DISK
    if cursor.accept("STORAGE"):
        cursor.next()
    return options
