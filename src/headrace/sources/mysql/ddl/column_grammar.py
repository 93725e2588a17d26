"""The grammar of a column: its type in all forms, and its attributes in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.model.schema import ReferentialAction
from headrace.sources.mysql.ddl.ast import ColumnText, DefaultForm, DefaultText, ReferencesText, TypeText
from headrace.sources.mysql.ddl.dialect import ORACLE, REAL_AS_FLOAT
from headrace.sources.mysql.ddl.token_cursor import DdlCursor, DdlTokenKind
from headrace.sources.mysql.type_names import UNSIZED

_INTEGERS: Final = {
    **dict.fromkeys(("TINYINT", "INT1"), "tinyint"),
    **dict.fromkeys(("SMALLINT", "INT2"), "smallint"),
    **dict.fromkeys(("MEDIUMINT", "INT3", "MIDDLEINT"), "mediumint"),
    **dict.fromkeys(("INT", "INTEGER", "INT4"), "int"),
    **dict.fromkeys(("BIGINT", "INT8"), "bigint"),
}
_DECIMALS: Final = frozenset({"DECIMAL", "DEC", "NUMERIC", "FIXED", "NUMBER"})
_PLAIN: Final = {**{word.upper(): word for word in UNSIZED}, "GEOMCOLLECTION": "geometrycollection", "CLOB": "longtext"}
_SIZED: Final = {
    **{word.upper(): word for word in ("time", "datetime", "timestamp", "bit", "vector", "binary", "varbinary", "text", "blob", "varchar")},
    **dict.fromkeys(("VARCHARACTER", "VARCHAR2"), "varchar"),
    "RAW": "varbinary",
}
NATIONAL_CHARSET: Final = "utf8mb3"
_REFERENCES_COUNT: Final = {True: 100_500, False: 90_000}
"""The versions of MariaDB and of MySQL since which a column's REFERENCES creates a foreign key."""


def parse_column(cursor: DdlCursor, name: str) -> ColumnText:
    """Parse a column's type and attributes, after its name."""
    column = ColumnText(name, parse_type(cursor))
    while not cursor.at_stop and cursor.keyword() not in ("FIRST", "AFTER", "PARTITION", "REMOVE"):
        column = _attribute(cursor, column)
    return column


def parse_type(cursor: DdlCursor) -> TypeText:
    word = cursor.next().keyword
    if word in _INTEGERS:
        return _signed(cursor, TypeText(_INTEGERS[word], _length(cursor)))
    if word in ("BOOL", "BOOLEAN"):
        return TypeText("tinyint", 1)
    if word == "SERIAL":
        return TypeText("bigint", unsigned=True, serial=True)
    if word in _DECIMALS:
        length, scale = _precision(cursor)
        if word == "NUMBER" and length is None:
            return _signed(cursor, TypeText("double"))
        return _signed(cursor, TypeText("decimal", 10 if length is None else length or 10, scale or 0))
    if word in ("FLOAT", "FLOAT4", "FLOAT8", "DOUBLE", "REAL"):
        return _signed(cursor, _floating(cursor, word))
    if word == "YEAR":
        _length(cursor)
        return _signed(cursor, TypeText("year"))
    if word in ("ENUM", "SET"):
        return TypeText(word.lower(), members=_members(cursor))
    if word in ("CHAR", "CHARACTER", "NCHAR", "NVARCHAR", "NATIONAL"):
        return _character(cursor, word)
    if word == "LONG":
        return _long(cursor)
    oracle = bool(cursor.sql_mode & ORACLE)
    if oracle and word in ("DATE", "BLOB"):
        return TypeText("datetime", 0) if word == "DATE" else TypeText("longblob")
    if word in _SIZED:
        return TypeText(_SIZED[word], _length(cursor))
    if word in _PLAIN:
        if word == "CLOB":
            _length(cursor)
        return TypeText(_PLAIN[word])
    raise cursor.surprise(f"a type before this ({word.lower()})")


def _length(cursor: DdlCursor) -> int | None:
    if not cursor.accept_sign("("):
        return None
    length = cursor.number()
    # Oracle's length unit: VARCHAR2(10 CHAR).
    cursor.accept_any("CHAR", "BYTE")
    cursor.expect_sign(")")
    return length


def _precision(cursor: DdlCursor) -> tuple[int | None, int | None]:
    if not cursor.accept_sign("("):
        return None, None
    length = cursor.number()
    scale = cursor.number() if cursor.accept_sign(",") else None
    cursor.expect_sign(")")
    return length, scale


def _signed(cursor: DdlCursor, found: TypeText) -> TypeText:
    while word := cursor.accept_any("UNSIGNED", "SIGNED", "ZEROFILL"):
        if word == "ZEROFILL":
            found = replace(found, zerofill=True, unsigned=True)
        elif word == "UNSIGNED":
            found = replace(found, unsigned=True)
    return found


def _floating(cursor: DdlCursor, word: str) -> TypeText:
    if word == "DOUBLE":
        cursor.accept("PRECISION")
    double = word in ("DOUBLE", "FLOAT8") or (word == "REAL" and not cursor.sql_mode & REAL_AS_FLOAT)
    length, scale = _precision(cursor)
    if not double and length is not None and scale is None:
        # FLOAT(p) requests p bits.
        return TypeText("double" if length > 24 else "float")
    return TypeText("double" if double else "float", length, scale)


def _members(cursor: DdlCursor) -> tuple[str, ...]:
    cursor.expect_sign("(")
    members = cursor.items(lambda: _member(cursor))
    cursor.expect_sign(")")
    return members


def _member(cursor: DdlCursor) -> str:
    if cursor.peek().form is DdlTokenKind.BITS:
        return bytes.fromhex(cursor.next().text).decode("utf8", "replace")
    if cursor.keyword().startswith("_"):
        cursor.next()
    return cursor.string()


def _character(cursor: DdlCursor, word: str) -> TypeText:
    national = word in ("NCHAR", "NVARCHAR", "NATIONAL")
    varying = word == "NVARCHAR"
    if word == "NATIONAL":
        following = cursor.accept_any("CHAR", "CHARACTER", "VARCHAR", "VARCHARACTER")
        varying = following.startswith("VAR")
        if not following:
            raise cursor.surprise("CHAR or VARCHAR")
    if cursor.accept_any("VARYING", "VARCHAR", "VARCHARACTER"):
        varying = True
    return TypeText("varchar" if varying else "char", _length(cursor), charset=NATIONAL_CHARSET if national else "")


def _long(cursor: DdlCursor) -> TypeText:
    if cursor.accept("VARBINARY"):
        return TypeText("mediumblob")
    cursor.accept("CHAR", "VARYING") or cursor.accept("CHARACTER", "VARYING") or cursor.accept_any("VARCHAR", "VARCHARACTER")
    return TypeText("mediumtext")


def _attribute(cursor: DdlCursor, column: ColumnText) -> ColumnText:
    if cursor.accept("NOT", "NULL"):
        return replace(column, nullable=False)
    if cursor.accept("NULL"):
        return replace(column, nullable=True)
    if cursor.accept("DEFAULT"):
        default = parse_default(cursor)
        return replace(column, default=default, null_default=default is None)
    if cursor.accept("ON", "UPDATE"):
        parse_default(cursor)
        return replace(column, on_update=True)
    if cursor.accept("AUTO_INCREMENT"):
        return replace(column, auto_increment=True)
    if cursor.accept("SERIAL", "DEFAULT", "VALUE"):
        return replace(column, auto_increment=True, nullable=False, unique=True)
    if cursor.accept("UNIQUE"):
        cursor.accept_any("KEY", "INDEX")
        return replace(column, unique=True)
    if cursor.accept("PRIMARY") or cursor.is_next("KEY"):
        cursor.accept("KEY")
        return replace(column, primary=True)
    if cursor.accept("COMMENT"):
        return replace(column, comment=cursor.string())
    if cursor.accept_setting("COLLATE"):
        return replace(column, collation=cursor.value_name())
    if accept_charset(cursor):
        return replace(column, charset=cursor.value_name())
    if word := cursor.accept_any("ASCII", "UNICODE", "BYTE"):
        return replace(column, charset={"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}[word])
    if cursor.accept_any("BINARY", "VISIBLE", "SIGNED"):
        # BINARY requests the character set's binary collation.
        return column
    if cursor.accept("INVISIBLE"):
        return replace(column, invisible=True)
    if cursor.accept("COMPRESSED"):
        if cursor.accept_sign("="):
            cursor.value_name()
        return replace(column, compressed=True)
    return _rarer_attribute(cursor, column)


def _rarer_attribute(cursor: DdlCursor, column: ColumnText) -> ColumnText:
    if cursor.is_next("GENERATED") or cursor.is_next("AS"):
        if cursor.accept("GENERATED"):
            cursor.expect("ALWAYS")
        cursor.expect("AS")
        if cursor.accept("ROW"):
            return replace(column, generated=f"row {cursor.next().keyword.lower()}", nullable=False)
        cursor.skip_parentheses()
        stored = cursor.accept_any("VIRTUAL", "STORED", "PERSISTENT") in ("STORED", "PERSISTENT")
        return replace(column, generated="stored" if stored else "virtual")
    if cursor.accept("REFERENCES"):
        counts = cursor.dialect.version >= _REFERENCES_COUNT[cursor.dialect.mariadb]
        references = parse_references(cursor)
        return replace(column, references=references) if counts else column
    if _skip_attribute(cursor):
        return column
    raise cursor.surprise("an attribute of a column")


def _skip_attribute(cursor: DdlCursor) -> bool:
    """Skip an attribute that is not part of the schema, if one comes next."""
    if cursor.accept("CONSTRAINT"):
        if not cursor.is_next("CHECK"):
            cursor.name()
    elif cursor.accept("CHECK"):
        cursor.skip_parentheses()
        skip_enforced(cursor)
    elif cursor.accept_any("WITH", "WITHOUT"):
        cursor.expect("SYSTEM", "VERSIONING")
    elif cursor.accept_setting("SRID") or cursor.accept_setting("REF_SYSTEM_ID"):
        cursor.number()
    elif cursor.accept_any("COLUMN_FORMAT", "STORAGE"):
        cursor.next()
    elif cursor.accept_setting("ENGINE_ATTRIBUTE") or cursor.accept_setting("SECONDARY_ENGINE_ATTRIBUTE"):
        cursor.string()
    elif cursor.accept("NOT", "SECONDARY"):
        return True
    elif cursor.dialect.mariadb and cursor.peek().form in (DdlTokenKind.WORD, DdlTokenKind.NAME) and cursor.sees("=", 1):
        # An attribute of the table's engine.
        cursor.next(), cursor.next(), cursor.next()
    else:
        return False
    return True


def accept_charset(cursor: DdlCursor) -> bool:
    """Skip CHARACTER SET in all its forms, and an equals sign."""
    return cursor.accept_setting("CHARACTER", "SET") or cursor.accept_setting("CHAR", "SET") or cursor.accept_setting("CHARSET")


def skip_enforced(cursor: DdlCursor) -> None:
    cursor.accept("ENFORCED") or cursor.accept("NOT", "ENFORCED")


def parse_references(cursor: DdlCursor) -> ReferencesText:
    found = ReferencesText(cursor.table(default_database=""))
    if cursor.accept_sign("("):
        found = replace(found, columns=cursor.items(cursor.name))
        cursor.expect_sign(")")
    while True:
        if cursor.accept("MATCH"):
            cursor.next()
        elif cursor.accept("ON", "DELETE"):
            found = replace(found, on_delete=_parse_action(cursor))
        elif cursor.accept("ON", "UPDATE"):
            found = replace(found, on_update=_parse_action(cursor))
        else:
            return found


def _parse_action(cursor: DdlCursor) -> ReferentialAction:
    if cursor.accept("CASCADE"):
        return ReferentialAction.CASCADE
    if cursor.accept("SET", "NULL"):
        return ReferentialAction.SET_NULL
    if cursor.accept("SET", "DEFAULT"):
        return ReferentialAction.SET_DEFAULT
    if not cursor.accept("NO", "ACTION"):
        cursor.expect("RESTRICT")
    return ReferentialAction.NONE


_OPERATORS: Final = frozenset("+-*/%|&^<>=!~")
_OPERATOR_WORDS: Final = ("DIV", "MOD", "AND", "OR", "XOR", "LIKE", "REGEXP", "RLIKE", "IS", "IN", "BETWEEN", "INTERVAL")


def parse_default(cursor: DdlCursor) -> DefaultText | None:
    """Parse a column's default; None for NULL."""
    start = cursor.peek()
    literal = _literal(cursor)
    if literal is not None and not _goes_on(cursor):
        return None if literal.text == _NULL else literal
    if literal is None:
        _operand(cursor)
    while _goes_on(cursor):
        cursor.next()
        if not _goes_on(cursor):
            _operand(cursor)
    return DefaultText(cursor.text_since(start), DefaultForm.EXPRESSION)


_NULL: Final = "\0NULL"
_WIDE: Final = frozenset({"_UCS2", "_UTF16", "_UTF16LE", "_UTF32"})
"""Introducers of character sets in which an ASCII character is not one byte."""


def _literal(cursor: DdlCursor) -> DefaultText | None:
    if cursor.keyword().startswith("_") and cursor.peek(1).form in (DdlTokenKind.STRING, DdlTokenKind.BITS):
        start = cursor.next()
        text = cursor.string() if cursor.peek().form is DdlTokenKind.STRING else None
        if text is not None and text.isascii() and start.keyword not in _WIDE:
            return DefaultText(text, DefaultForm.STRING)
        if text is None:
            cursor.next()
        # The server decodes these bytes in the named character set.
        return DefaultText(cursor.text_since(start), DefaultForm.EXPRESSION)
    token = cursor.peek()
    if token.form is DdlTokenKind.STRING:
        return DefaultText(cursor.string(), DefaultForm.STRING)
    if token.form is DdlTokenKind.NUMBER:
        return DefaultText(cursor.next().text, DefaultForm.NUMBER)
    if token.form is DdlTokenKind.BITS:
        return DefaultText(cursor.next().text, DefaultForm.BITS)
    if token.form is DdlTokenKind.SIGN and token.text in "+-" and cursor.peek(1).form is DdlTokenKind.NUMBER:
        cursor.next()
        return DefaultText(("-" if token.text == "-" else "") + cursor.next().text, DefaultForm.NUMBER)
    if cursor.accept("NULL"):
        return DefaultText(_NULL, DefaultForm.NUMBER)
    if word := cursor.accept_any("TRUE", "FALSE"):
        return DefaultText("1" if word == "TRUE" else "0", DefaultForm.NUMBER)
    if cursor.keyword() in ("DATE", "TIME", "TIMESTAMP") and cursor.peek(1).form is DdlTokenKind.STRING:
        cursor.next()
        return DefaultText(cursor.string(), DefaultForm.STRING)
    return None


def _goes_on(cursor: DdlCursor) -> bool:
    token = cursor.peek()
    return (token.form is DdlTokenKind.SIGN and token.text in _OPERATORS) or token.keyword in _OPERATOR_WORDS


def _operand(cursor: DdlCursor) -> None:
    if cursor.sees("("):
        cursor.skip_parentheses()
        return
    if cursor.accept("NEXT", "VALUE", "FOR") or cursor.accept("PREVIOUS", "VALUE", "FOR"):
        cursor.table()
        return
    if cursor.peek().form in (DdlTokenKind.STRING, DdlTokenKind.NUMBER, DdlTokenKind.BITS):
        cursor.next()
        return
    cursor.name()
    while cursor.accept_sign("."):
        cursor.name()
    if cursor.sees("("):
        cursor.skip_parentheses()
