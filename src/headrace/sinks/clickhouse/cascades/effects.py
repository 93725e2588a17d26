"""SQL of referential actions: which child rows a change of a parent changes, and how.

An *event* is a row of a parent's key log that removes or changes a referenced key. A child row takes the earliest event that matches its
foreign key and is not older than its version; the result has the version of the event. If several foreign keys match at the same version,
all of them apply. The result may match a later event, so statements run in rounds until a round changes nothing. Pure: definitions in, SQL
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.model.cascades import Cascade
from headrace.model.schema import ReferentialAction, TableName
from headrace.sinks.clickhouse.cascades.key_log import CHECKED, KeyLog, nullable_type
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.tables.target_table import INSERT_HIDDEN, MetadataRole, TargetTable
from headrace.sinks.clickhouse.tables.views import live_condition

SETTINGS: Final = {
    "join_use_nulls": "1",
    "transform_null_in": "0",
    "max_partitions_per_insert_block": "0",
    # Statements contain pairs of texts.
    "max_query_size": str(1 << 26),
    **INSERT_HIDDEN,
    # A row policy that hides tombstones before FINAL would make deleted rows visible again.
    "apply_row_policy_after_final": "1",
}
_NEVER: Final = (1 << 64) - 1
_DELETE, _TAKE_NEW, _SET_NULL = 1, 2, 3
_ON_DELETE: Final = {ReferentialAction.CASCADE: _DELETE, ReferentialAction.SET_NULL: _SET_NULL}
_ON_UPDATE: Final = {ReferentialAction.CASCADE: _TAKE_NEW, ReferentialAction.SET_NULL: _SET_NULL}
_EVENT: Final = "__event"
"""The version of the event that a row takes."""


@dataclass(frozen=True, slots=True)
class ChildTable:
    target: TargetTable
    cascades: tuple[Cascade, ...]
    logs: Mapping[TableName, KeyLog]
    work: str
    """The quoted name of its work table."""
    floor: int = 0
    """Rows with lower versions take no effects: a snapshot has replaced or deleted them, or will."""

    @property
    def is_only_deleted_from(self) -> bool:
        """Whether every event deletes the row, so that one round is enough."""
        return not any(cascade.keeps_row for cascade in self.cascades)

    # -- Rows of the target

    def delete_rows_sql(self) -> str:
        """Return the statement that deletes all matching rows. Only if `is_only_deleted_from`."""
        found = self._matches(self._current_rows(), self._version)
        return self._insert(f"({found}) WHERE {_EVENT} < {_NEVER}", _EVENT, self._event_time(), "0")

    def create_work_sql(self) -> str:
        """Return the statement that creates the work table: each affected row with its state after each round."""
        columns = [f"{quote_name(column.name)} {column.type}" for column in self.target.columns]
        own = ["__version UInt64", "__time DateTime64(6, 'UTC')", "__live UInt8", "__round UInt32"]
        return f"CREATE TABLE {self.work} ({', '.join([*columns, *own])}) ENGINE = MergeTree ORDER BY tuple()"

    def start_work_sql(self) -> str:
        """Return the statement that copies the rows which match any event."""
        columns = ", ".join(self._columns)
        own = f"{self._version}, toDateTime64(0, 6, 'UTC'), 1, 0"
        return f"INSERT INTO {self.work} SELECT {columns}, {own} FROM ({self._current_rows()})"

    def next_round_sql(self, number: int) -> str:
        """Return the statement that computes the states of a round from those of the round before."""
        rows = f"SELECT * FROM {self.work} WHERE __round = {number - 1} AND __live"
        columns = [self._changed(column.name, column.type) for column in self.target.columns]
        own = [_EVENT, self._event_time(), f"NOT ({self._deletes()})", str(number)]
        taken = ", ".join([*columns, *own])
        return f"INSERT INTO {self.work} SELECT {taken} FROM ({self._matches(rows, '__version')}) WHERE {_EVENT} < {_NEVER}"

    def count_round_sql(self, number: int) -> str:
        return f"SELECT count() FROM {self.work} WHERE __round = {number}"

    def write_results_sql(self) -> str:
        """Return the statement that writes the last states."""
        key = ", ".join(map(quote_name, self.target.key))
        last = f"SELECT * FROM {self.work} WHERE __round > 0 ORDER BY __round DESC LIMIT 1 BY {key}"
        return self._insert(f"({last})", "__version", "__time", "__live")

    # -- Events of a table of which each state is needed

    def write_events_sql(self, log: KeyLog) -> tuple[str, str]:
        """Return the statements that write the effects on this table from its own key log, which has all columns."""
        effects = f"(SELECT DISTINCT * FROM {log.qualified} WHERE derived AND version >= {self.floor})"
        moved = " OR ".join(_differ(log.old(name), log.new(name)) for name in self.target.key_dependencies)
        statements = []
        for made, live, condition in ((log.old, "0", f"op = 'delete' OR {moved}"), (log.new, "1", "op = 'update'")):
            columns = [f"CAST({made(column.source.name)} AS {column.type})" for column in self.target.columns]
            statements.append(self._insert(f"{effects} WHERE {condition}", "version", "commit_time", live, columns))
        return statements[0], statements[1]

    def derive_events_sql(self, log: KeyLog) -> str:
        """Return the statement that adds the effects on this table to its own key log, also as events for its children.

        A row of the log takes part as of its time: later changes of the same row do not hide it.
        """
        rows = self._intervals(log)
        deletes, time = self._deletes(), self._event_time()
        values = []
        for name in log.columns:
            stored = self.target.stored_column(name)
            values += [quote_name(stored.name), f"if({deletes}, NULL, {self._changed(stored.name, log.type_of(name))})"]
        listed = ", ".join(made(name) for name in log.columns for made in (log.old, log.new))
        return (
            f"INSERT INTO {log.qualified} (version, op, commit_time, {CHECKED}, derived, {listed}) "
            f"SELECT {_EVENT}, if({deletes}, 'delete', 'update'), {time}, 1, 1, {', '.join(values)} "
            f"FROM ({self._matches(rows, '__version')}) WHERE {_EVENT} < __until"
        )

    def spellings_sql(self, column: str, own_log: KeyLog | None) -> str:
        """Return a SELECT of all texts in a column of the foreign keys, also of rows that only the own key log has, and of later rounds."""
        name = quote_name(self.target.stored_column(column).name)
        places = [(name, self.target.qualified)]
        if own_log is not None:
            places += [(own_log.new(column), own_log.qualified), (name, own_log.base)]
        for cascade in self.cascades:
            if column in cascade.key.columns and cascade.key.on_update is ReferentialAction.CASCADE:
                given = self._new_key(cascade)[cascade.key.columns.index(column)]
                places.append((given, self.logs[cascade.parent].qualified))
        texts = (f"SELECT assumeNotNull({text}) AS __text FROM {table} WHERE {text} IS NOT NULL" for text, table in places)
        return f"SELECT DISTINCT __text FROM ({' UNION ALL '.join(texts)})"

    def _intervals(self, log: KeyLog) -> str:
        """Return a SELECT of all live states of the table's rows, with the versions at which they begin and end."""
        names = [quote_name(self.target.stored_column(name).name) for name in log.columns]
        # The table may have columns with the names of the log's.
        old = ", ".join(f"__log.{log.old(name)} AS {shown}" for name, shown in zip(log.columns, names, strict=True))
        new = ", ".join(f"__log.{log.new(name)} AS {shown}" for name, shown in zip(log.columns, names, strict=True))
        key = self.target.schema.row_key
        moved = " OR ".join(f"__log.{log.old(name)} != __log.{log.new(name)}" for name in key)
        changes = f"(SELECT DISTINCT * FROM {log.qualified}) AS __log"
        gone = f"__log.op = 'delete' OR (__log.op = 'update' AND ({moved}))"
        listed, version = ", ".join(names), self._version
        images = " UNION ALL ".join(
            (
                f"SELECT {new}, __log.version AS __version, 1 AS __live FROM {changes} WHERE __log.op != 'delete'",
                f"SELECT {old}, __log.version AS __version, 0 AS __live FROM {changes} WHERE {gone}",
                # The state before the batch. Its rows may have replaced it in the target.
                f"SELECT {listed}, __version, 1 AS __live FROM ({self._candidates(log.base, names, '__version')})",
                f"SELECT {listed}, {version} AS __version, 1 AS __live FROM ({self._current_rows()})",
            )
        )
        shown_key = ", ".join(map(quote_name, self.target.key))
        until = (
            f"leadInFrame(__version, 1, toUInt64({_NEVER})) OVER (PARTITION BY {shown_key} ORDER BY __version, __live DESC "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        )
        states = f"SELECT *, {until} AS __until FROM (SELECT DISTINCT * FROM ({images}))"
        return f"SELECT * FROM ({states}) WHERE __live AND __version < __until AND __version >= {self.floor}"

    # -- Matches

    def _current_rows(self) -> str:
        """Return a SELECT of the table's current rows that may match an event. The scan for them needs no FINAL."""
        shown = self._candidates(self.target.qualified, self._columns, self._version)
        live = live_condition(self.target)
        shown = f"{shown} AND {self._version} >= {self.floor}" if self.floor else shown
        return f"{shown} AND {live}" if live else shown

    def _candidates(self, table: str, columns: list[str], version: str) -> str:
        key = f"({', '.join(map(quote_name, self.target.key))})"
        conditions = []
        for place, cascade in enumerate(self.cascades):
            keys = ", ".join(f"__k{n}" for n in range(len(cascade.key.columns)))
            foreign = ", ".join(self._foreign_key(cascade))
            conditions.append(f"({foreign}) IN (SELECT {keys} FROM ({self._events(place)}))")
        found = f"SELECT {key} FROM {table} WHERE {' OR '.join(conditions)}"
        return f"SELECT {', '.join([*columns, version])} FROM {table} FINAL WHERE {key} IN ({found})"

    def _matches(self, rows: str, version: str) -> str:
        """Return a SELECT of the rows, each with the earliest event of each cascade, and the version of the earliest of all."""
        sql = rows
        for place, cascade in enumerate(self.cascades):
            news = "".join(f", __e.__n{n} AS __new_{place}_{n}" for n in range(len(cascade.key.columns)))
            equal = " AND ".join(f"__c.{column} = __e.__k{n}" for n, column in enumerate(self._foreign_key(cascade)))
            sql = (
                f"SELECT __c.*, ifNull(__e.__at, {_NEVER}) AS __version_{place}, __e.__act AS __act_{place}, "
                f"__e.__committed AS __time_{place}{news} FROM ({sql}) AS __c "
                f"ASOF LEFT JOIN ({self._events(place)}) AS __e ON {equal} AND __c.{version} <= __e.__at"
            )
        versions = ", ".join(f"__version_{place}" for place in range(len(self.cascades)))
        earliest = versions if len(self.cascades) == 1 else f"least({versions})"
        return f"SELECT *, {earliest} AS {_EVENT} FROM ({sql})"

    def _events(self, place: int) -> str:
        """Return a SELECT of a cascade's events: version, commit time, action, old key and new key, under names that no table has."""
        cascade = self.cascades[place]
        log, columns = self.logs[cascade.parent], cascade.key.parent_columns
        on_delete, on_update = _ON_DELETE.get(cascade.key.on_delete, 0), _ON_UPDATE.get(cascade.key.on_update, 0)
        pairs = [(log.old(name), new) for name, new in zip(columns, self._new_key(cascade), strict=True)]
        keys = "".join(f", {old} AS __k{n}, {new} AS __n{n}" for n, (old, new) in enumerate(pairs))
        known = " AND ".join(f"{log.old(name)} IS NOT NULL" for name in columns)
        unchanged = " AND ".join(f"ifNull({log.was(name)} = {log.new(name)}, 0)" for name in columns)
        if on_update == _TAKE_NEW:
            # A copy may have the new spelling already.
            unchanged = f"({unchanged}) OR ({' AND '.join(f'ifNull({old} = {new}, 0)' for old, new in pairs)})"
        kinds = []
        if on_delete:
            kinds.append("op = 'delete'")
        if on_update:
            kinds.append(f"(op = 'update' AND NOT ({unchanged}))")
        return (
            f"SELECT version AS __at, commit_time AS __committed, if(op = 'delete', {on_delete}, {on_update}) AS __act{keys} "
            f"FROM {log.events} WHERE {CHECKED} AND {known} AND ({' OR '.join(kinds)})"
        )

    def _applies(self, place: int, act: int) -> str:
        return f"(__version_{place} = {_EVENT} AND __act_{place} = {act})"

    def _deletes(self) -> str:
        return " OR ".join(self._applies(place, _DELETE) for place in range(len(self.cascades)))

    def _event_time(self) -> str:
        times = ", ".join(f"__version_{place} = {_EVENT}, assumeNotNull(__time_{place})" for place in range(len(self.cascades)))
        return f"multiIf({times}, toDateTime64(0, 6, 'UTC'))"

    def _changed(self, column: str, kind: str) -> str:
        name, cases = quote_name(column), []
        for place, cascade in enumerate(self.cascades):
            for n, own in enumerate(self._foreign_key(cascade)):
                if own == name and cascade.key.on_update is ReferentialAction.CASCADE:
                    cases.append(f"{self._applies(place, _TAKE_NEW)}, CAST(__new_{place}_{n} AS {nullable_type(kind)})")
                if own == name and ReferentialAction.SET_NULL in (cascade.key.on_delete, cascade.key.on_update):
                    cases.append(f"{self._applies(place, _SET_NULL)}, NULL")
        return name if not cases else f"CAST(multiIf({', '.join(cases)}, {name}) AS {kind})"

    def _new_key(self, cascade: Cascade) -> list[str]:
        """Return the values that an event gives to the columns of the key. The server shows a CHAR without trailing spaces, which its
        parent's VARCHAR may have.
        """
        news = [self.logs[cascade.parent].new(name) for name in cascade.key.parent_columns]
        are_char = [self.target.stored_column(name).source.is_char for name in cascade.key.columns]
        return [f"trimRight({new})" if is_char else new for new, is_char in zip(news, are_char, strict=True)]

    def _foreign_key(self, cascade: Cascade) -> list[str]:
        return [quote_name(self.target.stored_column(name).name) for name in cascade.key.columns]

    def _insert(self, source: str, version: str, time: str, live: str, columns: list[str] | None = None) -> str:
        """Return the statement that writes rows of `source` to the target. `columns`: their values; `live`: an expression, 0 or 1."""
        values = {
            MetadataRole.VERSION: version,
            MetadataRole.SIGN: f"if({live}, 1, -1)",
            MetadataRole.DELETED: f"if({live}, 0, 1)",
            MetadataRole.OPERATION: f"if({live}, 'update', 'delete')",
            MetadataRole.COMMIT_TIME: time,
        }
        marks = [mark for mark in self.target.metadata_columns if mark.role in values]
        names = ", ".join([*self._columns, *(quote_name(mark.name) for mark in marks)])
        taken = ", ".join([*(columns or self._columns), *(values[mark.role] for mark in marks)])
        return f"INSERT INTO {self.target.qualified} ({names}) SELECT {taken} FROM {source}"

    @property
    def _columns(self) -> list[str]:
        return [quote_name(column.name) for column in self.target.columns]

    @property
    def _version(self) -> str:
        mark = self.target.metadata_column(MetadataRole.VERSION)
        assert mark is not None  # a child without versions is refused
        return quote_name(mark.name)


def _differ(one: str, other: str) -> str:
    """Return the condition that two values that may be NULL differ."""
    return f"ifNull({one} != {other}, isNull({one}) != isNull({other}))"
