"""Parses statements that change data.

All of CQL's INSERT, UPDATE, DELETE and BATCH, except what only a server can evaluate: conditions (IF), functions, JSON. Those are
rejected. Positions in the text are recorded, so that a timestamp can be inserted without printing the statement again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

from headrace.cql.language.lexer import CqlCursor, CqlTokenKind, shortened
from headrace.cql.language.terms import NULL, Markers, Parentheses, Term, read_term
from headrace.errors import DefiniteError
from headrace.model.schema import TableName

LIST_INDEX = "scylla_timeuuid_list_index"


class AssignmentKind(StrEnum):
    SET = "set"
    ADD = "add"
    PREPEND = "prepend"
    SUBTRACT = "subtract"
    ELEMENT = "element"
    LIST_KEY = "list key"
    FIELD = "field"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assignment of an UPDATE, value of an INSERT, or (with null) column of a DELETE."""

    column: str
    does: AssignmentKind
    value: Term
    key: Term | None = None
    """An element's key or index, a list's timeuuid."""
    field: str = ""
    key_span: tuple[int, int] = (0, 0)
    """Position of the text in square brackets."""


@dataclass(frozen=True, slots=True)
class Relation:
    """`columns operator value`; several columns are in parentheses."""

    columns: tuple[str, ...]
    operator: str
    value: Term
    is_tuple: bool = False


@dataclass(frozen=True, slots=True)
class Using:
    timestamp: Term | None = None
    ttl: Term | None = None
    timeout: Term | None = None
    """ScyllaDB's USING TIMEOUT; does not influence what is written."""
    timeout_span: tuple[int, int] = (0, 0)
    """Position of the timeout in the text, with its connecting words: Cassandra does not accept it."""


@dataclass(frozen=True, slots=True)
class ChangeStatement:
    """An INSERT, UPDATE or DELETE."""

    verb: str
    table: TableName
    assignments: tuple[Assignment, ...]
    where: tuple[Relation, ...]
    using: Using
    text: str
    """Without its timeout."""
    first_marker: int
    """Number of markers before this statement in its batch."""
    markers: int
    """Number of markers in this statement."""
    timestamp_at: int
    """Position in the text at which a timestamp can be inserted."""
    timestamp_marker: int
    """Number of its markers before that position."""
    timestamp_form: str
    """The text to insert; `{}` is the timestamp."""


@dataclass(frozen=True, slots=True)
class StatementBatch:
    """One or more changes that are written together."""

    changes: tuple[ChangeStatement, ...]
    timestamp: Term | None = None
    timeout: Term | None = None

    @property
    def timeouts(self) -> tuple[Term, ...]:
        return tuple(term for term in (self.timeout, *(change.using.timeout for change in self.changes)) if term is not None)


@lru_cache(4096)
def parse(text: str, keyspace: str = "") -> StatementBatch:
    """Parse a statement; a single statement becomes a batch of one. `keyspace`: the default for table names."""
    cursor = CqlCursor(text)
    markers = Markers()
    if not cursor.skip_word("begin"):
        change = _change(cursor, markers, keyspace)
        cursor.end()
        return StatementBatch((change,))
    if cursor.is_word("counter"):
        raise _unsupported(cursor, "counters are not in ScyllaDB's log", "leave them out")
    cursor.skip_word("unlogged")
    cursor.word("batch")
    using, _, _ = _using(cursor, markers)
    if using.ttl is not None:
        raise _unsupported(cursor, "a BATCH has no TTL", "write it at its statements")
    cursor.skip_sign(";")
    changes = []
    while not cursor.is_word("apply"):
        changes.append(_change(cursor, markers, keyspace))
        cursor.skip_sign(";")
    cursor.word("apply", "batch")
    cursor.end()
    if using.timestamp is not None and any(change.using.timestamp is not None for change in changes):
        raise _unsupported(cursor, "a timestamp is set on the BATCH and on its statements", "write one of them")
    return StatementBatch(tuple(changes), using.timestamp, using.timeout)


def _unsupported(cursor: CqlCursor, why: str, hint: str) -> DefiniteError:
    return DefiniteError(why, place=f"statement {shortened(cursor.text)}", hint=hint)


def _change(cursor: CqlCursor, markers: Markers, keyspace: str) -> ChangeStatement:
    start, first = cursor.peek.start, markers.count
    read = next((read for verb, read in _READERS.items() if cursor.skip_word(verb)), None)
    if read is None:
        raise cursor.unexpected("INSERT, UPDATE, DELETE or BEGIN BATCH")
    found = read(cursor, markers, keyspace)
    _reject_condition(cursor)
    # Replace by spaces, to keep all positions.
    first_away, last_away = found.using.timeout_span
    whole = cursor.text[:first_away] + " " * (last_away - first_away) + cursor.text[last_away:]
    text = whole[start : cursor.peek.start].rstrip()
    spans = tuple(replace(one, key_span=(one.key_span[0] - start, one.key_span[1] - start)) for one in found.assignments)
    return replace(
        found,
        text=text,
        assignments=spans,
        first_marker=first,
        markers=markers.count - first,
        timestamp_at=min(found.timestamp_at - start, len(text)),
        timestamp_marker=found.timestamp_marker - first,
    )


def _reject_condition(cursor: CqlCursor) -> None:
    if cursor.is_word("if"):
        raise _unsupported(cursor, "only the server can evaluate a condition (IF)", "write without IF; ScyllaDB logs such writes itself")


def _table(cursor: CqlCursor, keyspace: str) -> TableName:
    found = cursor.table_name(keyspace)
    if not found.database:
        raise _unsupported(cursor, f"{found.table} is in no keyspace", f"write keyspace.{found.table}")
    return found


def _using(cursor: CqlCursor, markers: Markers) -> tuple[Using, int, str]:
    """Parse USING, and return where and how a timestamp can be inserted."""
    at = cursor.peek.start
    if not cursor.skip_word("using"):
        return Using(), at, " USING TIMESTAMP {} "
    found: dict[str, Term] = {}
    bounds: list[int] = []
    """Start of each part (from the second on with its AND), and the end of the last one."""
    while True:
        bounds.append(cursor.peek.start)
        if found:
            cursor.word("and")
        word = next((word for word in ("timestamp", "ttl", "timeout") if cursor.skip_word(word)), None)
        if word is None:
            raise cursor.unexpected("TIMESTAMP, TTL or TIMEOUT")
        if word in found:
            raise _unsupported(cursor, f"{word.upper()} is set twice", "write it once")
        found[word] = read_term(cursor, markers)
        if not cursor.is_word("and"):
            break
    bounds.append(cursor.peek.start)
    return _used(found, bounds, at)


def _used(found: Mapping[str, Term], bounds: Sequence[int], at: int) -> tuple[Using, int, str]:
    """Parse a USING clause at a position; also return where and how a timestamp can be inserted after its timeout is removed."""
    using = Using(found.get("timestamp"), found.get("ttl"), found.get("timeout"))
    if using.timeout is None:
        return using, bounds[0], "TIMESTAMP {} AND "
    if len(found) == 1:
        return replace(using, timeout_span=(at, bounds[-1])), at, " USING TIMESTAMP {} "
    place = list(found).index("timeout")
    # Removing the first part also removes the AND of the second.
    end = bounds[place + 1] if place else bounds[1] + len("and")
    return replace(using, timeout_span=(bounds[place], end)), bounds[0], "TIMESTAMP {} AND "


def _made(
    verb: str, table: TableName, assignments: list[Assignment], where: list[Relation], using: tuple[Using, int, str], before: int
) -> ChangeStatement:
    chosen, at, form = using
    return ChangeStatement(verb, table, tuple(assignments), tuple(where), chosen, "", 0, 0, at, before, form)


def _insert(cursor: CqlCursor, markers: Markers, keyspace: str) -> ChangeStatement:
    cursor.word("into")
    table = _table(cursor, keyspace)
    if cursor.is_word("json"):
        why = "INSERT JSON is not supported: only the server can evaluate it"
        raise _unsupported(cursor, why, "write INSERT INTO … (columns) VALUES (…)")
    columns = cursor.names()
    cursor.word("values")
    values = read_term(cursor, markers)
    if not isinstance(values, Parentheses) or len(values.items) != len(columns):
        raise _unsupported(cursor, "columns and values differ in number", "give each column one value")
    _reject_condition(cursor)
    before = markers.count
    using = _using(cursor, markers)
    assignments = [Assignment(column, AssignmentKind.SET, value) for column, value in zip(columns, values.items, strict=True)]
    return _made("INSERT", table, assignments, [], using, before)


def _update(cursor: CqlCursor, markers: Markers, keyspace: str) -> ChangeStatement:
    table = _table(cursor, keyspace)
    before = markers.count
    using = _using(cursor, markers)
    cursor.word("set")
    assignments = cursor.items(lambda: _assignment(cursor, markers))
    return _made("UPDATE", table, assignments, _where(cursor, markers), using, before)


def _assignment(cursor: CqlCursor, markers: Markers) -> Assignment:
    column = cursor.name()
    if cursor.is_sign("["):
        place = _element(cursor, markers, column)
        cursor.sign("=")
        return replace(place, value=read_term(cursor, markers))
    if cursor.skip_sign("."):
        field = cursor.name()
        cursor.sign("=")
        return Assignment(column, AssignmentKind.FIELD, read_term(cursor, markers), field=field)
    if cursor.skip_sign("+="):
        return Assignment(column, AssignmentKind.ADD, read_term(cursor, markers))
    if cursor.skip_sign("-="):
        return Assignment(column, AssignmentKind.SUBTRACT, read_term(cursor, markers))
    cursor.sign("=")
    return _plain_assignment(cursor, markers, column)


def _plain_assignment(cursor: CqlCursor, markers: Markers, column: str) -> Assignment:
    """`x`, `column + x`, `column - x` or `x + column`."""
    sign = cursor.ahead(1)
    if (
        cursor.peek.kind in (CqlTokenKind.NAME, CqlTokenKind.QUOTED)
        and cursor.peek.text == column
        and sign.kind is CqlTokenKind.SIGN
        and sign.text in {"+", "-"}
    ):
        cursor.take()
        cursor.take()
        return Assignment(column, AssignmentKind.ADD if sign.text == "+" else AssignmentKind.SUBTRACT, read_term(cursor, markers))
    value = read_term(cursor, markers)
    if not cursor.skip_sign("+"):
        return Assignment(column, AssignmentKind.SET, value)
    if cursor.name() != column:
        raise cursor.unexpected(f"the column {column} itself")
    return Assignment(column, AssignmentKind.PREPEND, value)


def _element(cursor: CqlCursor, markers: Markers, column: str) -> Assignment:
    """`[key]` after a column's name."""
    cursor.sign("[")
    start = cursor.peek.start
    if cursor.is_word(LIST_INDEX):
        cursor.take()
        cursor.sign("(")
        key = read_term(cursor, markers)
        cursor.sign(")")
        does = AssignmentKind.LIST_KEY
    else:
        key, does = read_term(cursor, markers), AssignmentKind.ELEMENT
    span = (start, cursor.peek.start)
    cursor.sign("]")
    return Assignment(column, does, NULL, key, key_span=span)


def _delete(cursor: CqlCursor, markers: Markers, keyspace: str) -> ChangeStatement:
    targets = [] if cursor.is_word("from") else cursor.items(lambda: _target(cursor, markers))
    cursor.word("from")
    table = _table(cursor, keyspace)
    before = markers.count
    using = _using(cursor, markers)
    if using[0].ttl is not None:
        raise _unsupported(cursor, "a DELETE has no TTL", "leave it out")
    return _made("DELETE", table, targets, _where(cursor, markers), using, before)


def _target(cursor: CqlCursor, markers: Markers) -> Assignment:
    column = cursor.name()
    if cursor.is_sign("["):
        return _element(cursor, markers, column)
    if cursor.skip_sign("."):
        return Assignment(column, AssignmentKind.FIELD, NULL, field=cursor.name())
    return Assignment(column, AssignmentKind.SET, NULL)


def _where(cursor: CqlCursor, markers: Markers) -> list[Relation]:
    cursor.word("where")
    found = [_relation(cursor, markers)]
    while cursor.skip_word("and"):
        found.append(_relation(cursor, markers))
    return found


def _relation(cursor: CqlCursor, markers: Markers) -> Relation:
    if cursor.is_word("token"):
        raise _unsupported(cursor, "token() is not allowed in statements that change data", "name the partition's key")
    is_tuple = cursor.is_sign("(")
    columns = tuple(cursor.names()) if is_tuple else (cursor.name(),)
    if cursor.skip_word("in"):
        operator = "IN"
    elif cursor.peek.kind is CqlTokenKind.SIGN and cursor.peek.text in {"=", "<", ">", "<=", ">="}:
        operator = cursor.take().text
    else:
        raise cursor.unexpected("=, <, >, <=, >= or IN")
    return Relation(columns, operator, read_term(cursor, markers), is_tuple)


_READERS: Final = {"insert": _insert, "update": _update, "delete": _delete}
