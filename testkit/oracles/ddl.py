"""A schema history that follows the server's log, compared with the server's own description of its tables.

It follows the text in the log, not the text that was sent: servers rewrite some statements.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE, QUERY_EVENT, Query, parse_query
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.schema.schema_history import DdlOutcome, SchemaHistory
from headrace.sources.mysql.server.connection import connect, query
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import Logbook, Place

INERT = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT")


def logged(book: Logbook, start: Place, end: Place | None = None) -> list[tuple[Query, BinlogPosition]]:
    """The statements in the log since `start`, each with the place where it ends."""
    segment = book.segment(start, end)
    data = book.bytes_of(segment)
    found = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if data[at + 4] == QUERY_EVENT:
            body = data[at + HEADER_SIZE : at + size - (CHECKSUM_SIZE if segment.checksum else 0)]
            statement = parse_query(body, f"{start.file}:{segment.start + at}")
            if statement.statement.upper() not in INERT:
                found.append((statement, BinlogPosition(start.file, segment.start + at + size)))
        at += size
    return found


def dialect_of(book: Logbook) -> Dialect:
    version, folds = book.fetch("SELECT VERSION(), @@lower_case_table_names")[0]
    return Dialect.of(version, folds_case=int(folds) > 0)


class Follower:
    """A history over some databases of a server, which reads the log on demand."""

    def __init__(self, book: Logbook, databases: tuple[str, ...], wanted: Callable[[TableName], bool] | None = None) -> None:
        self.book, self.databases = book, databases
        self.place = book.place()
        self.history = SchemaHistory(wanted or (lambda name: name.database in databases), dialect_of(book))
        self.history.begin(self.captured(), BinlogPosition(self.place.file, self.place.offset))

    def catch_up(self) -> list[DdlOutcome]:
        """Follow the statements that were logged since the last call."""
        end = self.book.place()
        if end.file != self.place.file:
            self.place = Place(end.file, 4)
        answers = [self.history.follow(*found) for found in logged(self.book, self.place, end)]
        self.place = end
        return answers

    def captured(self) -> SchemaCatalog:
        """Return the server's current description."""
        with closing(connect(self.book.address)) as connection:
            schemas = capture_schemas(connection, self.book.address, lambda name: name.database in self.databases)
            charsets = query(
                connection,
                self.book.address,
                "SELECT schema_name, default_character_set_name FROM information_schema.schemata WHERE schema_name IN %s",
                (list(self.databases),),
            )
        return SchemaCatalog({schema.name: schema for schema in schemas}, dict(charsets))

    def differences(self) -> list[str]:
        """Return the differences between the followed catalogue and the server's description."""
        followed, captured = self.history.catalog, self.captured()
        found = []
        for name in sorted({name for name in followed.tables if name.database in self.databases} | captured.tables.keys()):
            mine, theirs = followed.tables.get(name), captured.tables.get(name)
            if mine is None or theirs is None:
                found.append(f"{name}: {'is not followed' if mine is None else 'is not there'}")
            else:
                found += _table_differences(mine, theirs)
        for name, charset in captured.charsets.items():
            if followed.charsets.get(name) != charset:
                found.append(f"database {name}: followed {followed.charsets.get(name)}, is {charset}")
        return found


def _table_differences(mine: TableSchema, theirs: TableSchema) -> list[str]:
    mine, theirs = _comparable(mine), _comparable(theirs)
    found = []
    if [column.name for column in mine.columns] != [column.name for column in theirs.columns]:
        return [f"{mine.name}: columns {[c.name for c in mine.columns]}, are {[c.name for c in theirs.columns]}"]
    for one, other in zip(mine.columns, theirs.columns, strict=True):
        found += [
            f"{mine.name}.{one.name}: {key} followed {value!r}, is {other.to_json()[key]!r}"
            for key, value in one.to_json().items()
            if value != other.to_json()[key]
        ]
    for key in ("primary_key", "indexes", "charset", "comment"):
        if getattr(mine, key) != getattr(theirs, key):
            found.append(f"{mine.name}: {key} followed {getattr(mine, key)!r}, is {getattr(theirs, key)!r}")
    return found


def _comparable(schema: TableSchema) -> TableSchema:
    """Without what the statement's text cannot give: the server's format of expressions; characters that it cannot show."""
    # The indexed prefix of a long column depends on the server's page size, and matters for unique indexes only.
    long = {column.name for column in schema.columns if re.match("tiny|medium|long|text|blob", column.source_type)}
    indexes = tuple(index if index.unique and long.isdisjoint(index.columns) else replace(index, whole=True) for index in schema.indexes)
    return replace(schema, columns=tuple(_comparable_column(column) for column in schema.columns), indexes=indexes)


def _comparable_column(column: Column) -> Column:
    default = column.default
    if default is not None and default.startswith("(") and not default.startswith("(current_timestamp("):
        default = "(...)"
    if "COMPRESSED" in column.source_type:
        # MariaDB reports an empty default that no statement gave.
        default = default or None if default != "0x" else None
    if column.kind is Kind.BYTES and default is not None and not default.startswith(("0x", "(")):
        # MariaDB prints a number that is the default of bytes as a number or as bytes, depending on the statement that gave it.
        default = f"0x{default.encode().hex().upper()}"
    members = tuple(_shown(member) for member in column.members)
    return replace(column, default=default, members=members, source_type=_shown(column.source_type))


def _shown(text: str) -> str:
    return re.sub(r"[?\u0080-\U0010ffff]+", "?", text.replace("\0", "").replace("\\0", ""))
