"""The schema history: every table's definition as of every position of the log, derived from the DDL statements in it.

It begins with a capture of the server at a position (all tables of the databases with replicated ones, because a RENAME or a LIKE may refer
to any of them). Then it applies each statement of the log, in order. `as_of` returns the catalog for any later position, so a reader that
is behind an ALTER reads old rows by the old definition. Applying a statement again, or one before a table's capture, changes nothing:
replays are harmless. What a statement's text does not determine is reported, never guessed.

The file is append-only JSON lines, each synced before `follow` returns. A line that a crash cut short is removed at the next start.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.jsonl import MISSHAPEN, Journal
from headrace.model.schema import TableName, TableSchema
from headrace.model.schema_change import (
    DropTable,
    RenameTable,
    SchemaCatalog,
    SchemaChange,
    apply,
    change_from_json,
    change_to_json,
    tables_of,
)
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.ddl.statement_effects import StatementEffects, interpret
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.schema.ddl_outcome import DdlOutcome, OutcomeKind, assess
from headrace.sources.mysql.server.position import BinlogPosition

__all__ = ["DdlOutcome", "OutcomeKind", "SchemaHistory"]

log = logging.getLogger("headrace")

_Versions = list[tuple[BinlogPosition, TableSchema | None]]
_START_OVER: Final = "to start over, remove the state directory and the target tables"


class SchemaHistory:
    def __init__(self, wanted: Callable[[TableName], bool], dialect: Dialect, file: Path | Journal | None = None) -> None:
        """Open the history in the file, if there is one. `wanted` selects the tables."""
        self._wanted, self._dialect = wanted, dialect
        self._journal = Journal(file) if isinstance(file, Path) else file
        self._clear()
        if self._journal is not None:
            for number, entry in enumerate(self._journal.read(), 1):
                try:
                    self._replay(entry)
                except MISSHAPEN as error:
                    raise self._journal.damaged(number, repr(error)) from error

    @property
    def is_empty(self) -> bool:
        """Whether nothing was captured yet: a new file."""
        return self._reached is None

    @property
    def reached(self) -> BinlogPosition:
        """The position up to which statements were applied; at first, the position of the capture."""
        if self._reached is None:
            raise DefiniteError("the schema history is empty", hint=_START_OVER)
        return self._reached

    @property
    def catalog(self) -> SchemaCatalog:
        return SchemaCatalog(self._tables, self._charsets)

    def begin(self, captured: SchemaCatalog, position: BinlogPosition) -> None:
        """Start over from a capture at `position`."""
        if self._journal is not None:
            self._journal.rewrite([_captured_entry(captured, position)])
        self._clear()
        self._begin(captured, position)

    def learn(self, schemas: Iterable[TableSchema], position: BinlogPosition) -> None:
        """Store tables captured at `position`: statements up to there are already part of their definitions."""
        schemas = list(schemas)
        self._append({"position": position.to_json(), "learned": [schema.to_json() for schema in schemas]})
        self._learn(schemas, position)

    def follow(self, query: Query, position: BinlogPosition) -> DdlOutcome:
        """Apply a statement that ends at `position`. The change is durable on return.

        A statement that was applied before gives the same outcome again and is not applied twice, so a caller that crashed before acting on
        an outcome gets it once more. Only changes that a table's later capture contains are omitted, so learn a table last.
        """
        again = position < self.reached or (position == self.reached and query.statement == self._last)
        known = self._before(position) if again else self.catalog
        meaning = self._unseen(interpret(query, known, self._dialect), position)
        followed = assess(query, position, meaning, known, self._wanted, folds_case=self._dialect.folds_case)
        if not again and (meaning.changes or meaning.opaque):
            entry = {
                "position": position.to_json(),
                "statement": query.statement,
                "changes": [change_to_json(change) for change in meaning.changes],
                "lost": [[name.database, name.table] for name in meaning.opaque],
            }
            self._append(entry)
            self._take(query.statement, meaning.changes, meaning.opaque, position)
        if followed.outcome is OutcomeKind.NOTHING:
            log.debug("a statement at %s touches no replicated table: %s", position, query.statement)
        return followed

    def as_of(self, position: BinlogPosition) -> SchemaCatalog:
        """Return the catalog for events after `position`: statements that end at or before it have taken effect.

        Before its capture, a table has its captured definition, because nothing older is known.
        """
        if self._newest is not None and position >= self._newest:
            return SchemaCatalog(dict(self._tables), self._charsets_at(position, bisect_right))
        return self._at(position, bisect_right)

    def _before(self, position: BinlogPosition) -> SchemaCatalog:
        return self._at(position, bisect_left)

    def _at(self, position: BinlogPosition, bisect: Callable[..., int]) -> SchemaCatalog:
        tables = {}
        for name, versions in self._versions.items():
            at = bisect(versions, position, key=lambda version: version[0])
            schema = versions[max(at - 1, 0)][1]
            if schema is not None and (at or name in self._first):
                tables[name] = schema
        return SchemaCatalog(tables, self._charsets_at(position, bisect))

    def _charsets_at(self, position: BinlogPosition, bisect: Callable[..., int]) -> dict[str, str]:
        """Return the default character sets of databases, which determine the meaning of a CREATE TABLE after `position` when it is
        replayed.
        """
        at = bisect(self._charset_versions, position, key=lambda version: version[0])
        return dict(self._charset_versions[max(at - 1, 0)][1]) if self._charset_versions else {}

    def captured_at(self, name: TableName) -> BinlogPosition | None:
        """Return the position of a table's capture, if any: its definition contains all statements up to there."""
        return self._captured.get(name)

    def compact(self, before: BinlogPosition) -> None:
        """Drop what only readers of events before `before` need. Call it when no reader is behind that position."""
        if self._journal is None or self._reached is None:
            return
        later = [entry for entry in self._journal.read() if BinlogPosition.from_json(entry["position"]) > before]
        base = self.as_of(before)
        captured = [[name.database, name.table, place.to_json()] for name, place in self._captured.items() if place > before]
        first = {**_captured_entry(base, min(before, self.reached)), "seen": captured}
        self._journal.rewrite([first, *later])
        self._clear()
        for entry in self._journal.read():
            self._replay(entry)

    # -- state

    def _clear(self) -> None:
        self._tables: dict[TableName, TableSchema] = {}
        self._charsets: dict[str, str] = {}
        self._charset_versions: list[tuple[BinlogPosition, dict[str, str]]] = []
        self._versions: dict[TableName, _Versions] = {}
        self._first: set[TableName] = set()
        self._captured: dict[TableName, BinlogPosition] = {}
        self._reached: BinlogPosition | None = None
        self._newest: BinlogPosition | None = None
        self._last = ""

    def _begin(self, captured: SchemaCatalog, position: BinlogPosition) -> None:
        self._charsets = dict(captured.charsets)
        self._charset_versions.append((position, self._charsets))
        self._learn(captured.tables.values(), position)
        self._reached = position

    def _learn(self, schemas: Iterable[TableSchema], position: BinlogPosition) -> None:
        for schema in schemas:
            name = schema.name
            if not any(known is not None for _, known in self._versions.get(name, [])):
                self._first.add(name)
            self._note(name, schema, position)
            self._captured[name] = position

    def _note(self, name: TableName, schema: TableSchema | None, position: BinlogPosition) -> None:
        versions = self._versions.setdefault(name, [])
        if versions and versions[-1][0] >= position:
            # A recent capture, learned while older statements are applied, or several changes of one statement.
            versions[:] = [version for version in versions if version[0] < position]
        versions.append((position, schema))
        self._newest = position if self._newest is None else max(self._newest, position)
        if schema is None:
            self._tables.pop(name, None)
        else:
            self._tables[name] = schema

    def _take(self, statement: str, changes: Iterable[SchemaChange], opaque: Iterable[TableName], position: BinlogPosition) -> None:
        before = self.catalog
        after = SchemaCatalog(dict(self._tables), dict(self._charsets))
        touched: set[TableName] = set(opaque)
        for change in changes:
            after = apply(change, after)
            touched |= set(tables_of(change))
        # A new name of a parent, or of its columns, changes the foreign keys of its children.
        touched |= {name for name, schema in after.tables.items() if self._tables.get(name) is not schema}
        for name in sorted(touched):
            schema = None if name in opaque else after.tables.get(name)
            if schema is not None or name in before.tables:
                self._note(name, schema, position)
        if after.charsets != self._charsets:
            self._charsets = dict(after.charsets)
            self._charset_versions.append((position, self._charsets))
        self._reached, self._last = position, statement

    def _unseen(self, meaning: StatementEffects, position: BinlogPosition) -> StatementEffects:
        """Return the meaning without changes that are part of a table's later capture."""

        def seen(name: TableName) -> bool:
            captured = self._captured.get(name)
            return captured is not None and position <= captured

        names = {name for change in meaning.changes for name in tables_of(change)} | {*meaning.opaque, *meaning.disturbed, *meaning.filled}
        if not any(seen(name) for name in names):
            return meaning
        changes: list[SchemaChange] = []
        opaque = [name for name in meaning.opaque if not seen(name)]
        lost: set[TableName] = set()
        for change in meaning.changes:
            fresh = [name for name in tables_of(change) if not seen(name)]
            if isinstance(change, RenameTable) and change.table in lost:
                # The table is renamed again: gamma to aside, alpha to gamma, aside to alpha.
                lost.discard(change.table)
                opaque.remove(change.table)
                lost |= set(fresh) & {change.new_table}
                opaque += [change.new_table] if change.new_table in lost else []
            elif len(fresh) == len(tables_of(change)):
                changes.append(change)
            elif isinstance(change, RenameTable) and fresh == [change.table]:
                changes.append(DropTable(change.table))
            elif isinstance(change, RenameTable) and fresh == [change.new_table]:
                # The table captured under the old name is not the one that was renamed.
                opaque.append(change.new_table)
                lost.add(change.new_table)
        return replace(
            meaning,
            changes=tuple(changes),
            disturbed=tuple(name for name in meaning.disturbed if not seen(name)),
            opaque=tuple(opaque),
            filled=tuple(name for name in meaning.filled if not seen(name)),
        )

    # -- file

    def _append(self, entry: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(entry)

    def _replay(self, entry: dict[str, Any]) -> None:
        position = BinlogPosition.from_json(entry["position"])
        if "captured" in entry:
            schemas = [TableSchema.from_json(raw) for raw in entry["captured"]]
            self._begin(SchemaCatalog({schema.name: schema for schema in schemas}, entry["charsets"]), position)
            for database, table, seen in entry.get("seen", ()):
                self._captured[TableName(database, table)] = BinlogPosition.from_json(seen)
        elif "learned" in entry:
            self._learn([TableSchema.from_json(raw) for raw in entry["learned"]], position)
        else:
            changes = [change_from_json(raw) for raw in entry["changes"]]
            self._take(entry["statement"], changes, [TableName(*name) for name in entry["lost"]], position)


def _captured_entry(captured: SchemaCatalog, position: BinlogPosition) -> dict[str, Any]:
    return {
        "position": position.to_json(),
        "captured": [captured.tables[name].to_json() for name in sorted(captured.tables)],
        "charsets": dict(captured.charsets),
    }
