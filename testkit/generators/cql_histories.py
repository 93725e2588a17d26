"""Random tables and random histories of statements, fit for Apache Cassandra, ScyllaDB and the capture in process.

Keys and values come from small pools and timestamps from a narrow span, so that everything meets everything: cells with equal timestamps,
collections cleared just before their elements, rows under ranges and partitions that are deleted. TTLs are long and never equal, so that
nothing expires in a test and ties between expiring cells do not depend on the second of the write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from hypothesis import strategies as st

from headrace.cql.language.ddl import sorted_table
from headrace.cql.language.ddl_printer import create_table, create_type, table_name, types_used
from headrace.cql.language.lexer import CqlCursor
from headrace.cql.language.terms import Markers, Parameters, read_term
from headrace.cql.language.value_encoder import serialize
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType, quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.log_rows import LogRow
from headrace.sources.scylla.capture.statement_capture import Capture

START: Final = 1_700_000_000_000_000
"""The first timestamp of a history; the others are a few microseconds later."""
_NOW: Final = 1_790_000_000_000_000


@dataclass(frozen=True)
class Statement:
    """A statement with the timestamp that it names (a batch: its first timestamp)."""

    text: str
    timestamp: int


@dataclass(frozen=True)
class History:
    table: CqlTable
    udts: tuple[CqlType, ...]
    statements: tuple[Statement, ...]

    @property
    def definitions(self) -> list[str]:
        """Return the statements that create the table and its types, without CDC options."""
        return [*(create_type(kind, if_not_exists=True) for kind in self.udts), create_table(self.table)]

    def __str__(self) -> str:
        return "\n".join([*self.definitions, *(statement.text + ";" for statement in self.statements)])


def random_history(seed: int, statements: int, *, keyspace: str = "ks", start: int = START) -> History:
    """Return the history of a seed: a table `t<seed>` and statements that a server accepts."""
    random = Random(seed)
    table = random_table(random, TableName(keyspace, f"t{seed}"))
    return History(table, tuple(types_used([table])), tuple(random_statements(random, table, statements, start)))


def histories(statements: int = 30) -> st.SearchStrategy[History]:
    """Histories for hypothesis; smaller ones are tried when one fails."""
    sizes = st.integers(1, statements)
    return st.tuples(st.integers(0, 1 << 32), sizes).map(lambda made: random_history(*made))


# --- tables

_POOLS: Final[dict[str, list[str]]] = {
    "ascii": ["'a'", "'b'", "'it''s'", "'a longer one'"],
    "bigint": ["0", "1", "-1", "9223372036854775807"],
    "blob": ["0x00", "0xff", "0x0001fe", "0x6162"],
    "boolean": ["true", "false"],
    "date": ["'1970-01-01'", "'2024-02-29'", "'1969-12-31'", "'2100-01-01'"],
    "decimal": ["0", "1.5", "-2.25", "123456789012345678901234567890.5"],
    "double": ["0.0", "1.5", "-2.5", "1e300"],
    "duration": ["1d", "2h30m", "-1mo2d", "89h4m48s"],
    "float": ["0.0", "1.5", "-2.5", "1e20"],
    "inet": ["'127.0.0.1'", "'10.0.0.255'", "'2001:db8::1'", "'::'"],
    "int": ["0", "1", "2", "-1", "2147483647"],
    "smallint": ["0", "1", "-2", "32767"],
    "text": ["'a'", "'b'", "'ä€😀'", "'x y'"],
    "time": ["'00:00:00'", "'12:34:56.789012345'", "'23:59:59.999999999'"],
    "timestamp": ["'1970-01-01 00:00:00.000+0000'", "'2024-05-06 07:08:09.123+0000'", "-1", "1700000000000"],
    "timeuuid": [
        "50554d6e-29bb-11e5-b345-feff819cdc9f",
        "8ac6d1e0-29bb-11e5-b345-feff819cdc9f",
        "50554d6e-29bb-11e5-8345-0eff819cdc9f",
    ],
    "tinyint": ["0", "1", "-128", "127"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-4000-8000-000000000000", "ffffffff-ffff-4fff-bfff-ffffffffffff"],
    "varint": ["0", "1", "-129", "123456789012345678901234567890"],
}
_KEY_TYPES: Final = sorted(set(_POOLS) - {"duration"})
_SIMPLE_KEYS: Final = ["int", "text", "bigint", "uuid", "timestamp", "int", "text"]


def random_table(random: Random, name: TableName) -> CqlTable:
    """A table with all kinds of columns."""
    udt = _random_udt(random, name)
    columns = [CqlColumn(f"p{i}", _key_type(random), ColumnRole.PARTITION) for i in range(random.choice([1, 1, 2]))]
    clustering = random.choice([0, 1, 1, 2, 2])
    columns += [CqlColumn(f"c{i}", _key_type(random), ColumnRole.CLUSTERING, random.random() < 0.4) for i in range(clustering)]
    if clustering:
        columns += [CqlColumn(f"s{i}", _cell_type(random, udt), ColumnRole.STATIC) for i in range(random.choice([0, 0, 1, 2]))]
    columns += [CqlColumn(_column_name(random, i), _cell_type(random, udt)) for i in range(random.randint(1, 5))]
    return sorted_table(name, columns)


def _column_name(random: Random, number: int) -> str:
    return random.choice([f"v{number}"] * 8 + [f"V {number}", f"{number}ü"])


def _random_udt(random: Random, name: TableName) -> CqlType:
    kinds = tuple(_inner_type(random, 1) for _ in range(random.randint(1, 3)))
    return CqlType("udt", kinds, keyspace=name.database, udt=f"{name.table}_type", fields=tuple(f"f{i}" for i in range(len(kinds))))


def _key_type(random: Random) -> CqlType:
    return CqlType(random.choice(_SIMPLE_KEYS if random.random() < 0.7 else _KEY_TYPES))


def _inner_type(random: Random, depth: int, *, key: bool = False) -> CqlType:
    """An element type of a collection, a tuple or a user type."""
    if depth == 0 or random.random() < 0.7:
        return CqlType(random.choice(_KEY_TYPES if key else sorted(_POOLS)))
    return _frozen(random, depth - 1, key=key)


def _frozen(random: Random, depth: int, *, key: bool) -> CqlType:
    made = random.choice(["list", "set", "map", "tuple", "vector"])
    keys, inner = _inner_type(random, depth, key=True), _inner_type(random, depth, key=key)
    if made == "vector":
        return CqlType("vector", (CqlType(random.choice(["float", "int", "text"])),), size=random.randint(1, 3))
    if made == "tuple":
        return CqlType("tuple", (keys, inner))
    return CqlType(made, {"list": (inner,), "set": (keys,), "map": (keys, inner)}[made], frozen=True)


def _cell_type(random: Random, udt: CqlType) -> CqlType:
    made = random.choice(["atomic", "atomic", "frozen", "map", "set", "list", "udt", "frozen udt"])
    keys, inner = _inner_type(random, 1, key=True), _inner_type(random, 1)
    if made == "atomic":
        return CqlType(random.choice(sorted(_POOLS)))
    if made == "frozen":
        return _frozen(random, 1, key=False)
    if made.endswith("udt"):
        return replace(udt, frozen=made.startswith("frozen"))
    return CqlType(made, {"list": (inner,), "set": (keys,), "map": (keys, inner)}[made])


# --- values


def literal(random: Random, kind: CqlType) -> str:
    """A value of a type, as CQL writes it; never null."""
    if kind.name in _POOLS:
        return random.choice(_POOLS[kind.name])
    if kind.name == "udt":
        chosen = [i for i in range(len(kind.fields)) if random.random() < 0.7] or [0]
        return "{" + ", ".join(f"{quoted(kind.fields[i])}: {literal(random, kind.args[i])}" for i in chosen) + "}"
    if kind.name == "tuple":
        return "(" + ", ".join(literal(random, arg) for arg in kind.args) + ")"
    size = kind.size if kind.name == "vector" else random.randint(1, 3)
    items = [literal(random, kind.args[0]) for _ in range(size)]
    if kind.name == "map":
        return "{" + ", ".join(f"{key}: {literal(random, kind.args[1])}" for key in _distinct(kind.args[0], items)) + "}"
    return "{" + ", ".join(_distinct(kind.args[0], items)) + "}" if kind.name == "set" else "[" + ", ".join(items) + "]"


def _distinct(kind: CqlType, literals: Sequence[str]) -> list[str]:
    """Literals of a type, each value once: {1, 2} and {2, 1} are the same."""
    return list({serialize(kind, read_term(CqlCursor(text), Markers()), Parameters()): text for text in literals}.values())


# --- statements


def random_statements(
    random: Random, table: CqlTable, count: int, start: int = START, keys: Mapping[str, Sequence[str]] | None = None
) -> list[Statement]:
    """Return random statements. A statement that depends on a list's length is made for the contents after the statements before it.

    `keys` are the values of some columns of the key, by name: so that several histories can share a table.
    """
    return [statement for statement, _ in random_log(random, table, count, start, keys)]


def random_log(
    random: Random, table: CqlTable, count: int, start: int = START, keys: Mapping[str, Sequence[str]] | None = None
) -> list[tuple[Statement, list[LogRow]]]:
    """Return random statements, each with the log rows that ScyllaDB would write."""
    capture = Capture([table], lambda: _NOW, seed=0)
    making = _Making(random, table, capture, start, max(3, count // 2), keys=keys or {})
    found: list[tuple[Statement, list[LogRow]]] = []
    while len(found) < count:
        statement = making.statement()
        try:
            rows = capture.log(statement.text)
        except DefiniteError as error:
            # A list that two statements of one batch shorten; a server refuses it too.
            if "out of bound" not in str(error):
                raise
            continue
        found.append((statement, rows))
    return found


@dataclass
class _Making:
    random: Random
    table: CqlTable
    capture: Capture
    start: int
    span: int
    ttls: int = 0
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def statement(self) -> Statement:
        if self.random.random() < 0.15:
            return self._batch()
        timestamp = self._timestamp()
        return Statement(self._change(f"TIMESTAMP {timestamp}"), timestamp)

    def _batch(self) -> Statement:
        kind = self.random.choice(["", "UNLOGGED "])
        count = self.random.randint(2, 4)
        timestamps = [self._timestamp() for _ in range(count)]
        if self.random.random() < 0.5:
            changes = [self._change("") for _ in range(count)]
            return Statement(f"BEGIN {kind}BATCH USING TIMESTAMP {timestamps[0]} " + "; ".join(changes) + "; APPLY BATCH", timestamps[0])
        changes = [self._change(f"TIMESTAMP {timestamp}") for timestamp in timestamps]
        return Statement(f"BEGIN {kind}BATCH " + "; ".join(changes) + "; APPLY BATCH", timestamps[0])

    def _timestamp(self) -> int:
        return self.start + self.random.randint(1, self.span)

    def _change(self, timestamp: str) -> str:
        make: Callable[[str], str] = self.random.choices(
            [self._insert, self._update, self._delete_columns, self._delete_row, self._delete_range, self._delete_partition],
            [28, 40, 12, 8, 9 if self.table.clustering else 0, 3],
        )[0]
        return make(timestamp)

    def _using(self, timestamp: str, *, ttl: bool) -> str:
        parts = [timestamp] if timestamp else []
        if ttl and self.random.random() < 0.2:
            self.ttls += 1
            parts.insert(self.random.randint(0, len(parts)), f"TTL {1_000_000 + 10_000 * self.ttls}")
        return f" USING {' AND '.join(parts)}" if parts else ""

    @property
    def _name(self) -> str:
        return table_name(self.table.name)

    def _insert(self, timestamp: str) -> str:
        chosen = [column for column in self.table.cells if self.random.random() < 0.6]
        columns = [*self.table.partition_key, *self.table.clustering, *chosen]
        values = [self._key(column) for column in columns[: len(columns) - len(chosen)]]
        values += ["null" if self.random.random() < 0.2 else self._value(column.type) for column in chosen]
        names = ", ".join(quoted(column.name) for column in columns)
        return f"INSERT INTO {self._name} ({names}) VALUES ({', '.join(values)}){self._using(timestamp, ttl=True)}"

    def _value(self, kind: CqlType) -> str:
        is_collection = kind.name in {"list", "set", "map"}
        if is_collection and self.random.random() < 0.1:
            return "[]" if kind.name == "list" else "{}"
        return literal(self.random, kind)

    def _key(self, column: CqlColumn) -> str:
        """A key's value: one of three, so that statements change the same rows."""
        return self.random.choice(self.keys.get(column.name) or _POOLS[column.type.name][:3])

    def _update(self, timestamp: str) -> str:
        columns, where = self._columns_and_rows()
        assignments = [one for column in columns for one in self._assignments(column, where)]
        return f"UPDATE {self._name}{self._using(timestamp, ttl=True)} SET {', '.join(assignments)} WHERE {where.text}"

    def _columns_and_rows(self) -> tuple[list[CqlColumn], _Where]:
        """Some columns, and the rows (static columns alone: the partitions) in which they are changed."""
        pool = self.table.static if self.table.static and self.random.random() < 0.2 else self.table.cells
        columns = self.random.sample(pool, self.random.randint(1, min(3, len(pool))))
        return columns, self._where(rows=any(column.role is ColumnRole.REGULAR for column in columns), several=True)

    def _where(self, *, rows: bool, several: bool = False) -> _Where:
        relations = []
        keys = [*self.table.partition_key, *(self.table.clustering if rows else ())]
        is_single = True
        for column in keys:
            is_last = column is keys[-1] or column is self.table.partition_key[-1]
            if several and is_last and self.random.random() < 0.06:
                values = dict.fromkeys(self._key(column) for _ in range(2))
                relations.append(f"{quoted(column.name)} IN ({', '.join(values)})")
                is_single = False
            else:
                relations.append(f"{quoted(column.name)} = {self._key(column)}")
        return _Where(" AND ".join(relations), is_single)

    def _assignments(self, column: CqlColumn, where: _Where) -> list[str]:
        name, kind = quoted(column.name), column.type
        if kind.is_atomic or self.random.random() < 0.35:
            return [f"{name} = {'null' if self.random.random() < 0.2 else self._value(kind)}"]
        if kind.name == "udt":
            fields = self.random.sample(range(len(kind.fields)), self.random.randint(1, len(kind.fields)))
            return [f"{name}.{quoted(kind.fields[i])} = {self._or_null(kind.args[i])}" for i in fields]
        if kind.name == "list":
            return [self._list_assignment(column, where)]
        if kind.name == "map" and self.random.random() < 0.4:
            return [f"{name}[{literal(self.random, kind.args[0])}] = {self._or_null(kind.args[1])}"]
        if self.random.random() < 0.35:
            keys = replace(kind, name="set", args=kind.args[:1])
            return [f"{name} = {name} - {literal(self.random, keys)}"]
        return [f"{name} = {name} + {literal(self.random, kind)}"]

    def _or_null(self, kind: CqlType) -> str:
        return "null" if self.random.random() < 0.3 else literal(self.random, kind)

    def _list_assignment(self, column: CqlColumn, where: _Where) -> str:
        name, kind, draw = quoted(column.name), column.type, self.random.random()
        size = self._list_size(column, where)
        if draw < 0.25 and size:
            return f"{name}[{self.random.randrange(size)}] = {self._or_null(kind.args[0])}"
        if draw < 0.45:
            return f"{name} = {name} - {literal(self.random, kind)}"
        if draw < 0.65:
            return f"{name} = {literal(self.random, kind)} + {name}"
        return f"{name} = {name} + {literal(self.random, kind)}"

    def _list_size(self, column: CqlColumn, where: _Where) -> int:
        """Return how many elements a list has before the statement; 0 if the statement changes several rows."""
        if not where.is_single:
            return 0
        probe = f"UPDATE {self._name} SET {quoted(column.name)}[2147483647] = null WHERE {where.text}"
        try:
            self.capture.write(probe)
        except DefiniteError as error:
            return int(error.message.rsplit(" ", 1)[1]) if "out of bound" in error.message else 0
        return 0

    def _delete_columns(self, timestamp: str) -> str:
        columns, where = self._columns_and_rows()
        targets = [self._target(column, where) for column in columns]
        return f"DELETE {', '.join(targets)} FROM {self._name}{self._using(timestamp, ttl=False)} WHERE {where.text}"

    def _target(self, column: CqlColumn, where: _Where) -> str:
        name, kind = quoted(column.name), column.type
        if kind.is_atomic or self.random.random() < 0.4:
            return name
        if kind.name == "udt":
            return f"{name}.{quoted(self.random.choice(kind.fields))}"
        if kind.name == "list":
            size = self._list_size(column, where)
            return f"{name}[{self.random.randrange(size)}]" if size else name
        return f"{name}[{literal(self.random, kind.args[0])}]"

    def _delete_row(self, timestamp: str) -> str:
        return f"DELETE FROM {self._name}{self._using(timestamp, ttl=False)} WHERE {self._where(rows=True, several=True).text}"

    def _delete_partition(self, timestamp: str) -> str:
        return f"DELETE FROM {self._name}{self._using(timestamp, ttl=False)} WHERE {self._where(rows=False).text}"

    def _delete_range(self, timestamp: str) -> str:
        clustering = self.table.clustering
        relations = [self._where(rows=False).text]
        fixed = self.random.randrange(len(clustering))
        relations += [f"{quoted(column.name)} = {self._key(column)}" for column in clustering[:fixed]]
        if fixed == 0 or self.random.random() < 0.8:
            relations += self._cuts(clustering[fixed:])
        return f"DELETE FROM {self._name}{self._using(timestamp, ttl=False)} WHERE {' AND '.join(relations)}"

    def _cuts(self, columns: Sequence[CqlColumn]) -> list[str]:
        """One bound, or one on each side; of several columns at once where their orders allow it."""
        several = len(columns) > 1 and len({column.descending for column in columns}) == 1 and self.random.random() < 0.3
        signs = [self.random.choice([">", ">="]), self.random.choice(["<", "<="])]
        chosen = signs if self.random.random() < 0.5 else [self.random.choice(signs)]
        if not several:
            return [f"{quoted(columns[0].name)} {sign} {self._key(columns[0])}" for sign in chosen]
        names = ", ".join(quoted(column.name) for column in columns)
        return [f"({names}) {sign} ({', '.join(self._key(column) for column in columns)})" for sign in chosen]


@dataclass(frozen=True)
class _Where:
    text: str
    is_single: bool
