"""A ScyllaDB-style log for Apache Cassandra: statements and their log rows, written in one logged batch.

A captured session writes a log that readers of ScyllaDB's log can read. A logged batch is atomic, so log and table agree, also after a
crash. Every statement gets an explicit timestamp, so that cells and log rows have the same one.

Limits: writes outside captured sessions are not in the log. Cassandra chooses list keys by its own clock, and the log's keys are chosen
here, so the order of elements that two sessions add to one list at the same time may differ. Elements that a statement names by index or
value are looked up before the write: values in the table, keys in this session's state or the log; if neither has them, the statement is
rejected. Images are also read before the write. As in ScyllaDB, neither is atomic with other writers. Cassandra limits the size of a
batch, which includes the log rows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cassandra.cluster import ExecutionProfile, Session
from cassandra.cqltypes import DurationType
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement, PreparedStatement, SimpleStatement

from headrace.cql.address import parse_cql_url
from headrace.cql.bounded_connection import RawPageHandler, read_whole_page
from headrace.cql.errors import server_errors
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_log_table, table_name
from headrace.cql.language.lexer import CqlCursor, shortened
from headrace.cql.language.terms import Marker, Parameters, SerializedValue, Term
from headrace.cql.language.value_encoder import serialize
from headrace.cql.log import SUFFIX, log_table
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe, describe_options, describe_types, list_tables
from headrace.cql.session import RAW, CqlSession
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import CqlType, quoted
from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.log_rows import LogRow
from headrace.sources.scylla.capture.mutations import select_rows
from headrace.sources.scylla.capture.partition_state_loader import PartitionStateLoader
from headrace.sources.scylla.capture.statement_capture import Capture, Clock, Given, wall_clock
from headrace.sources.scylla.capture.statements import AssignmentKind, ChangeStatement, parse
from headrace.sources.scylla.capture.stream_ids import Generations, prepare_generations, read_generations
from headrace.sources.scylla.log_tables import check_log, default_ttl, log_name

_CHANGES: Final = frozenset({"insert", "update", "delete", "begin"})
_MARKS: Final = re.compile(r"%(?:%|s|\((\w+)\)s)")
_FIRST: Final = re.compile(r"(?:\s+|--[^\n]*|//[^\n]*|/\*.*?\*/)*(\w+)", re.DOTALL)
_STAMP: Final = "headrace_timestamp"
_PROTOCOL: Final = 4
_GENERATIONS_US: Final = 10_000_000
"""Refresh interval of generations; ScyllaDB announces them longer before they begin."""


class CapturedSession:
    """A session that logs the changes to some tables. Statements are executed one after the other, from any thread."""

    def __init__(
        self,
        session: CqlSession,
        tables: Iterable[CqlTable],
        generations: Generations | str,
        options: CdcOptions | Mapping[TableName, CdcOptions] | None = None,
        clock: Clock = wall_clock,
    ) -> None:
        """`generations`: the generations, or the keyspace of the tables that list them."""
        self.session = session
        self._clock = clock
        self._told_by = generations if isinstance(generations, str) else ""
        self._generations = generations if isinstance(generations, Generations) else Generations(())
        self._queried_at = -_GENERATIONS_US
        self._lock = threading.Lock()
        self._capture = Capture(tables, clock, options, generations=self._generations, keyspace=session.address.keyspace)
        self._learning = self._capture.state_loader = PartitionStateLoader(session, self._capture.state, self._current, clock)
        for name in self._capture.tables:
            self._capture.default_ttls[name] = default_ttl(session, name)

    @property
    def tables(self) -> Mapping[TableName, CqlTable]:
        return self._capture.tables

    def execute(self, statement: Any, parameters: Given | None = None) -> list[Any]:
        """Execute a statement: text, or a statement object of the driver. Changes of captured tables are logged."""
        text, given = _text_and_parameters(statement, parameters)
        verb = _first_word(text)
        if verb == "alter" and self._changes_captured(text):
            return self._alter(text)
        if verb not in _CHANGES or not self._is_captured(text):
            with server_errors(self.session.address, about=shortened(text)):
                return list(self.session.driver.execute(statement, parameters))
        with self._lock:
            self._write(text, given, getattr(statement, "consistency_level", None))
        return []

    def _is_captured(self, text: str) -> bool:
        tables = {change.table for change in parse(text, self.session.address.keyspace).changes}
        captured = tables & self._capture.tables.keys()
        if captured and captured != tables:
            other = next(iter(tables - captured))
            message, place = f"the batch changes {other} too, which is not captured", f"statement {shortened(text)}"
            raise DefiniteError(message, place=place, hint="write it apart, or capture it")
        return bool(captured)

    # --- generations

    def _current(self) -> Generations:
        """Return the generations, refreshed if they are old."""
        if self._told_by and self._clock() - self._queried_at >= _GENERATIONS_US:
            self._generations = read_generations(self.session, self._told_by)
            self._queried_at = self._clock()
        return self._generations

    # --- writing

    def _write(self, text: str, given: Given, consistency: int | None) -> None:
        self._learning.begin()
        self._capture.generations = self._current()
        written = self._capture.write(text, given)
        batch = BatchStatement(BatchType.LOGGED, consistency_level=consistency)
        for change, timestamp in zip(written.batch.changes, written.timestamps, strict=True):
            self._add_base(batch, change, timestamp, given)
        for row in written.log:
            batch.add(self._log_statement(row))
        limits = [_timeout_s(term, Parameters(given)) for term in written.batch.timeouts]
        if 0 in limits:
            # The driver would send the statement, and the answer may arrive before its timer fires.
            raise TransientError("the statement timed out before it was sent", place=f"statement {shortened(text)}")
        with server_errors(self.session.address, about=shortened(text)):
            self.session.driver.execute(batch, **({"timeout": min(limits)} if limits else {}))
        self._learning.done(self._capture.tables, written.base)

    def _add_base(self, batch: BatchStatement, change: ChangeStatement, timestamp: int, given: Given) -> None:
        text, dropped = self._without_list_keys(change, Parameters(given))
        own = change.using.timestamp is None
        if change.markers == len(dropped):
            batch.add(SimpleStatement(_stamped(change, text, str(timestamp)) if own else text))
            return
        if isinstance(given, Mapping):
            names = dict(given) | ({_STAMP: timestamp} if own else {})
            prepared = self.session.prepare(_stamped(change, text, f":{_STAMP}") if own else text)
            batch.add(_bound(prepared, {column.name: names[column.name] for column in prepared.column_metadata}))
            return
        places = [i for i in range(change.first_marker, change.first_marker + change.markers) if i not in dropped]
        values = [given[i] for i in places]
        if own:
            values.insert(sum(i < change.first_marker + change.timestamp_marker for i in places), timestamp)
        batch.add(_bound(self.session.prepare(_stamped(change, text, "?") if own else text), values))

    def _without_list_keys(self, change: ChangeStatement, given: Parameters) -> tuple[str, set[int]]:
        """Return the statement with list indexes instead of keys, which Cassandra does not accept, and the markers that are removed."""
        timeout = change.using.timeout
        text, dropped = change.text, {timeout.number} if isinstance(timeout, Marker) else set()
        for assignment in sorted(change.assignments, key=lambda one: one.key_span, reverse=True):
            if assignment.does is AssignmentKind.LIST_KEY and assignment.key is not None:
                start, end = assignment.key_span
                text = text[:start] + str(self._index_of_key(change, assignment.column, assignment.key, given)) + text[end:]
                dropped |= {assignment.key.number} if isinstance(assignment.key, Marker) else set()
        return text, dropped

    def _index_of_key(self, change: ChangeStatement, column: str, key: Any, given: Parameters) -> int:
        table = self._capture.table(change.table)
        selected = select_rows(table, change.where, given)
        wanted = serialize(CqlType("timeuuid"), key, given)
        is_static = table.column(column) in table.static
        if len(selected.partitions) == 1 and len(selected.prefixes) == 1:
            place = selected.partitions[0], None if is_static else selected.prefixes[0]
            self._learning(table, place[0], [place[1]], [(place[1], column)])
            found = self._capture.state.list_elements(table, *place, column, self._clock() // 1_000_000)
            keys = [element for element, _ in found]
            if wanted in keys:
                return keys.index(wanted)
        message = "Cassandra chooses the keys of lists itself: only an existing element can be named by its key, in one row"
        raise DefiniteError(message, place=f"statement {shortened(change.text)}", hint="append or prepend it, or write to ScyllaDB")

    def _log_statement(self, row: LogRow) -> BoundStatement:
        table = log_table(row.table)
        names = [column.name for column in table.columns]
        ttl = self._capture.options(row.table.name).ttl
        marks = ", ".join("?" * len(names))
        columns = ", ".join(map(quoted, names))
        prepared = self.session.prepare(f"INSERT INTO {table_name(table.name)} ({columns}) VALUES ({marks}) USING TTL ? AND TIMESTAMP ?")
        bound = BoundStatement(prepared)
        values = [row.values.get(name, UNSET_VALUE) for name in names]
        bound.values = [*values, ttl.to_bytes(4, "big"), row.timestamp.to_bytes(8, "big", signed=True)]
        return bound

    # --- definitions

    def _changes_captured(self, text: str) -> bool:
        """Return whether an ALTER changes a captured table, or a type of such a table's keyspace."""
        cursor = CqlCursor(text)
        cursor.take()
        what = cursor.name()
        cursor.skip_word("if", "exists")
        if what not in {"table", "type"}:
            return False
        name = cursor.table_name(self.session.address.keyspace)
        return name in self._capture.tables if what == "table" else name.database in {one.database for one in self._capture.tables}

    def _alter(self, text: str) -> list[Any]:
        """Execute ALTER TABLE or ALTER TYPE, alter the log tables and update the captured definitions."""
        with self._lock:
            known = self._definitions()
            changed = known.apply(text)
            for name, new in changed.tables.items():
                if new != known.tables[name] and name in self._capture.tables:
                    # The log has a column before the base table has it, and after it.
                    for column in _added_columns(known.tables[name], new):
                        self.session.execute(f"ALTER TABLE {table_name(log_name(name))} ADD {quoted(column.name)} {column.type}")
            self.session.execute(text)
            for name in list(self._capture.tables):
                new = describe(self.session, name)
                for column in _added_columns(new, self._capture.tables[name]):
                    self.session.execute(f"ALTER TABLE {table_name(log_name(name))} DROP {quoted(column.name)}")
                self._capture.define(new)
                self._capture.default_ttls[name] = default_ttl(self.session, name)
        return []

    def _definitions(self) -> CqlCatalog:
        types = {
            (keyspace, kind): found
            for keyspace in {name.database for name in self._capture.tables}
            for kind, found in describe_types(self.session, keyspace).items()
        }
        return CqlCatalog(self.session.address.keyspace, dict(self._capture.tables), types)


def _added_columns(old: CqlTable, new: CqlTable) -> list[CqlColumn]:
    """Return the columns of the log of `new` that the log of `old` does not have."""
    known = {column.name for column in log_table(old).columns}
    return [column for column in log_table(new).columns if column.name not in known]


def capture(
    session: CqlSession | Session,
    tables: Iterable[TableName | str],
    generations: Generations | str,
    options: CdcOptions | Mapping[TableName, CdcOptions] | None = None,
    *,
    create: bool = True,
    clock: Clock = wall_clock,
) -> CapturedSession:
    """Return a session that logs changes to these tables (`keyspace.table`), on a server without a log of its own.

    `generations` is the keyspace of the tables that list generations and streams, or the generations themselves. With `create`, missing
    log tables are created, and so are those tables with a first generation.
    """
    ours = session if isinstance(session, CqlSession) else adopted(session)
    names = [name if isinstance(name, TableName) else _parsed(name, ours) for name in tables]
    found = [describe(ours, name) for name in names]
    for table in found:
        own = describe_options(ours, table.name)
        if own is not None and own.enabled:
            message = f"ScyllaDB writes the log of {table.name} itself"
            raise DefiniteError(message, place=str(ours.address), hint="write to it without a capture")
        chosen_options = options if isinstance(options, CdcOptions) else (options or {}).get(table.name)
        if create:
            ours.execute(create_log_table(table, chosen_options, cassandra=True, if_not_exists=True).rstrip(";"))
        _check_log_table(ours, table)
    if create and isinstance(generations, str):
        prepare_generations(ours, generations, clock())
    return CapturedSession(ours, found, generations, options, clock)


def _check_log_table(session: CqlSession, table: CqlTable) -> None:
    """Raise if a table's log does not exist, or another table has its name."""
    name = log_name(table.name)
    if name.table not in list_tables(session, name.database):
        raise DefiniteError(f"{table.name} has no log table {name}", place=str(session.address), hint="leave out create=False to create it")
    try:
        check_log(table, describe(session, name))
    except DefiniteError as error:
        message = f"the table {name} exists and is not the log of {table.name}: {error.message}"
        hint = f"drop that table (a table of CQL cannot be renamed); the log of {table.name} needs its name"
        raise DefiniteError(message, place=f"table {name}", hint=hint) from error


def adopted(driver: Session) -> CqlSession:
    """Adapt a plain driver session. Its protocol handler is replaced by one that can return pages as bytes."""
    cluster = driver.cluster
    contact = cluster.contact_points[0]
    host, port = contact if isinstance(contact, tuple) else (contact, cluster.port)
    address = parse_cql_url(f"scylla://{f'[{host}]' if ':' in str(host) else host}:{port}/{driver.keyspace or ''}")
    if RAW not in cluster.profile_manager.profiles:
        cluster.add_execution_profile(RAW, ExecutionProfile(row_factory=read_whole_page))
    driver.client_protocol_handler = RawPageHandler
    return CqlSession(address, driver)


def _parsed(name: str, session: CqlSession) -> TableName:
    cursor = CqlCursor(name)
    found = cursor.table_name(session.address.keyspace)
    cursor.end()
    if not found.database or found.table.endswith(SUFFIX):
        raise DefiniteError(f"{name} is not the full name of a base table", hint="write keyspace.table")
    return found


def _text_and_parameters(statement: Any, parameters: Given | None) -> tuple[str, Given]:
    if isinstance(statement, BoundStatement):
        return str(statement.prepared_statement.query_string), [SerializedValue(value) for value in statement.values]
    if isinstance(statement, PreparedStatement):
        return str(statement.query_string), parameters if parameters is not None else ()
    if isinstance(statement, str | SimpleStatement):
        text = statement if isinstance(statement, str) else str(statement.query_string)
        return (text, ()) if parameters is None else (_with_markers(text), parameters)
    raise DefiniteError(
        f"a {type(statement).__name__} cannot be captured",
        hint="give the text of a BATCH, or the driver's simple, prepared or bound statements",
    )


def _with_markers(text: str) -> str:
    """Replace the driver's parameter markers (`%s`, `%(name)s`) by those of CQL."""
    if all(match[0] == "%%" for match in _MARKS.finditer(text)):
        return text
    return _MARKS.sub(lambda match: "%" if match[0] == "%%" else f":{match[1]}" if match[1] else "?", text)


def _first_word(text: str) -> str:
    """Return the first keyword of a statement; the rest need not be valid."""
    match = _FIRST.match(text)
    return match[1].lower() if match else ""


def _stamped(change: ChangeStatement, text: str, timestamp: str) -> str:
    """Return the statement with a timestamp. Replaced keys may have shifted the text, so USING is located from its own end."""
    moved = len(text) - len(change.text) if change.verb == "DELETE" else 0
    at = change.timestamp_at + moved
    return text[:at] + change.timestamp_form.format(timestamp) + text[at:]


def _timeout_s(term: Term, given: Parameters) -> float:
    """Return the seconds of ScyllaDB's USING TIMEOUT."""
    raw = serialize(CqlType("duration"), term, given)
    found = DurationType.deserialize(raw, _PROTOCOL) if raw is not None else None
    if found is None or found.months or found.days or found.nanoseconds < 0 or found.nanoseconds % 1_000_000:
        message = f"USING TIMEOUT {term} is not a whole number of milliseconds"
        raise DefiniteError(message, place="USING TIMEOUT", hint="write a duration such as 500ms or 10s")
    return float(found.nanoseconds / 1e9)


def _bound(prepared: PreparedStatement, values: Sequence[Any] | Mapping[str, Any]) -> BoundStatement:
    """Bind parameters, some of which may be serialized already."""
    ordered = [values[column.name] for column in prepared.column_metadata] if isinstance(values, Mapping) else list(values)
    bound = BoundStatement(prepared)
    serialised = []
    for column, value in zip(prepared.column_metadata, ordered, strict=True):
        if isinstance(value, SerializedValue):
            serialised.append(value.value)
        else:
            is_plain = value is not None and value is not UNSET_VALUE
            serialised.append(column.type.serialize(value, prepared.protocol_version) if is_plain else value)
    bound.values = serialised
    return bound
