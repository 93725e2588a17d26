"""Values of Debezium's records, in every recorded mode, compared with the servers' SELECT."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.text_values import text_functions
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.parsed_events import ConnectField, RowFields, WireFormat, wire_type
from headrace.sources.debezium.events.records import KnownTable
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.debezium.schema_history_topic import apply_definitions, read_change, read_record
from headrace.sources.debezium.types.column_mapping import column_of, field_type, table_schema
from headrace.sources.debezium.types.connect_schema import field_of, field_of_avro, row_fields
from headrace.sources.debezium.types.inferred_fields import expected_fields
from headrace.sources.debezium.types.schema_widening import can_hold, widen_schema
from headrace.sources.debezium.types.values import convert_column, default_text
from headrace.sources.mysql.ddl.ast import ColumnText
from headrace.sources.mysql.ddl.column_definition import Setting, define_column
from headrace.sources.mysql.ddl.column_grammar import parse_type
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.ddl.token_cursor import DdlCursor
from testkit.recordings.debezium_recordings import as_batches, load_records, load_schemas, load_truth

MYSQL_TABLES = ("numbers", "texts", "times", "spans", "pairs")
BINARIES = {"texts": "hex", "doubles": "base64-url-safe"}
EXACT_DOUBLES = 15
"""Digits that a double keeps."""


@functools.cache
def _known(connector: str) -> dict[TableName, TableSchema]:
    """The tables by MySQL's topic of schema changes, and by MariaDB's type names (its topic is not recorded)."""
    if connector == "mysql":
        return _described_in("mysql-plain", "plain")
    dialect = Dialect.of("10.11.6-MariaDB")
    found = {}
    for table, truth in load_truth(connector).items():
        types = [(name, parse_type(DdlCursor(kind, "shop", dialect, 0))) for name, kind in truth.columns]
        columns = tuple(
            define_column(ColumnText(name, kind, nullable=name not in truth.key), Setting(dialect, "utf8mb4")) for name, kind in types
        )
        found[TableName("shop", table)] = TableSchema(TableName("shop", table), columns, truth.key)
    return found


def _described_in(recording: str, topic: str) -> dict[TableName, TableSchema]:
    tables: dict[TableName, TableSchema] = {}
    for record in load_records(recording):
        if record.topic == topic and record.value is not None:
            tables = apply_definitions(read_record(record.value), tables)
    return tables


def test_the_schema_topic_describes_the_tables_as_the_server_does() -> None:
    tables = _known("mysql")
    assert tables == _described_in("mysql-schema", "schema")
    for table, truth in load_truth("mysql").items():
        described = tables[TableName("shop", table)]
        assert [(column.name, column.source_type) for column in described.columns] == list(truth.columns)
        assert described.row_key == truth.key or not described.primary_key


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
def test_the_schema_topic_describes_odd_columns_as_the_server_does(connector: str) -> None:
    """Every spelling of types and defaults, with the schema that Headrace captured of the same table."""
    kept = json.loads((Path(__file__).parents[2] / "golden" / "debezium" / "odd-schemas.json").read_text())[connector]
    tables: dict[TableName, TableSchema] = {}
    for change in kept["changes"]:
        tables = apply_definitions(read_change(change), tables)
    captured = TableSchema.from_json(kept["captured"])
    described = tables[captured.name]
    # Debezium does not send generated columns and MySQL comments.
    plain = [replace(column, generated="", comment="") for column in captured.columns]
    assert [replace(column, comment="") for column in described.columns] == plain
    assert described.primary_key == captured.primary_key
    assert described.charset == captured.charset


def _rows(name: str, table: str) -> tuple[RowFields | None, list[dict[str, Any]]]:
    """The last schema of a table's events, and its final rows."""
    fields: RowFields | None = None
    rows: dict[str, dict[str, Any]] = {}
    events = []
    for record in load_records(name):
        if record.topic.endswith(f".{table}") and record.value is not None and record.key is not None:
            value, key = json.loads(record.value), json.loads(record.key)
            if "schema" in value:
                fields = row_fields(field_of(value["schema"]), field_of(key["schema"]))
                value, key = value["payload"], key["payload"]
            if value["op"] != "t":
                events.append((_place(value), json.dumps(key), value))
    for _, key, value in sorted(events, key=lambda event: event[:2]):
        rows.pop(key, None)
        if value["op"] != "d":
            rows[key] = value["after"]
    return fields, list(rows.values())


def _place(value: dict[str, Any]) -> tuple[Any, ...]:
    source = value["source"]
    where = (source["lsn"],) if source["connector"] == "postgresql" else (source["file"], source["pos"], source["row"])
    return (value["op"] != "r", *where, value["op"] == "c")


def _values(rows: list[dict[str, Any]], field: ConnectField, column: Column, binaries: str = "bytes") -> list[Any]:
    array = pa.array([row[field.name] for row in rows], wire_type(field, WireFormat.JSON))
    found = convert_column(array, field, column, WireFormat.JSON, binaries=binaries)
    assert found.array.type == column.arrow_type
    assert found.bad is None, found.reason(int(found.bad.argmax()))
    return _shown(found.array, column)


def _shown(array: Any, column: Column) -> list[Any]:
    """Values in the form of the recorded SELECT."""
    match column.kind:
        case Kind.GEOMETRY:
            return [None if value is None else value.hex().upper() for value in array.to_pylist()]
        case Kind.VECTOR:
            floats = [None if value is None else pa.array(value, pa.float32()).to_numpy().tobytes() for value in array.to_pylist()]
            return [None if value is None else value.hex().upper() for value in floats]
        case Kind.BYTES | Kind.FLOAT32 | Kind.FLOAT64:
            return list(array.to_pylist())
        case Kind.BIT:
            return [None if value is None else str(value) for value in array.to_pylist()]
    found = text_functions(column)
    assert found is not None
    return list(found[0](array).to_pylist())


def _same(ours: Any, theirs: Any, column: Column) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    if column.kind is Kind.FLOAT32:
        # Debezium's snapshot reads MySQL's text, which has six digits of a FLOAT.
        return f"{ours:.6g}" == f"{theirs:.6g}"
    if column.kind is Kind.JSON:
        return bool(json.loads(ours) == json.loads(theirs))
    if "zerofill" in column.source_type:
        return int(ours) == int(theirs)
    return bool(ours == theirs)


def _compare(
    connector: str, table: str, schema: TableSchema, fields: RowFields, rows: list[dict[str, Any]], skip: set[str], binaries: str
) -> int:
    truth = load_truth(connector)[table]
    names = [name for name, _ in truth.columns]
    named = {field.name: field for field in fields.row}
    assert set(named) == set(names)
    columns = {name: _values(rows, named[name], schema.column(name), binaries) for name in names if name not in skip}
    left_out: list[tuple[Any, ...]] = []
    ours = {tuple(columns[key][row] for key in truth.key): row for row in range(len(rows))}
    for expected in truth.rows:
        place = tuple(expected[names.index(key)] for key in truth.key)
        if place not in ours:
            left_out.append(place)
            continue
        row = ours[place]
        for name, value in zip(names, expected, strict=True):
            if name not in skip:
                assert _same(columns[name][row], value, schema.column(name)), (name, columns[name][row], value)
    assert len(left_out) == len(truth.rows) - len(rows)
    return len(rows)


@pytest.mark.parametrize(
    "name",
    [
        *(f"{connector}-{variant}" for connector in ("mysql", "mariadb") for variant in ("plain", "schema", "texts", "doubles")),
        "mysql-microseconds",
        "mysql-nanoseconds",
        "mysql-propagated",
    ],
)
def test_every_mode_gives_the_values_that_the_server_shows(name: str) -> None:
    connector, _, variant = name.partition("-")
    tables = {"microseconds": ("times",), "nanoseconds": ("times",)}.get(variant, MYSQL_TABLES)
    for table in tables:
        schema = _known(connector)[TableName("shop", table)]
        fields, rows = _rows(name, table)
        if not rows:
            continue
        if fields is None:
            fields = expected_fields(schema, DebeziumOptions())
        if variant == "nanoseconds":
            # Nanoseconds in 64 bits end in 2262: Debezium sends null for later values.
            late = [row for row in rows if row["d0"] is None and row["s0"] is not None]
            assert [row["id"] for row in late] == [2]
            rows = [row for row in rows if row not in late]
        wide = {column.name for column in schema.columns if column.kind is Kind.DECIMAL and column.precision > EXACT_DOUBLES}
        # Connect's converter writes the default where an optional field is null, unless replace.null.with.default=false.
        skip = {"def"}
        if variant == "doubles":
            # Connect's times have milliseconds, and doubles fifteen digits: the event does not have the rest.
            skip |= wide | {column.name for column in schema.columns if column.kind in (Kind.DATETIME, Kind.TIME) and column.precision > 3}
        assert _compare(connector, table, schema, fields, rows, skip, BINARIES.get(variant, "bytes")) > 0


ODD_POSTGRES = frozenset({"money", "tz", "iv", "vb", "ia", "ta", "na", "da", "r4", "rt", "p"})
"""Types with another form than PostgreSQL's text."""
PLAIN_POSTGRES = tuple(name for name, _ in load_truth("postgres")["kinds"].columns if name not in ODD_POSTGRES)


def _as_postgres(value: Any, kind: str) -> Any:
    """A Headrace value in PostgreSQL's text form."""
    if value is None:
        return None
    if kind == "boolean":
        return "true" if value == "1" else "false"
    if kind.startswith(("real", "double")):
        return float(value)
    if kind == "inet":
        return value if "/" in value else f"{value}/32"
    if kind == "bytea" and isinstance(value, str):
        return "\\x" + value
    if kind == "bytea":
        return "\\x" + value.hex()
    if kind.startswith("character("):
        return value.rstrip(" ")
    if kind == "numeric":
        # Debezium omits trailing zeros.
        return Decimal(value)
    if kind == "bit(9)":
        return f"{int(value):09b}"
    if kind.startswith("time") and "." in value:
        return value.rstrip("0").rstrip(".") + ("+00" if "with time" in kind and "without" not in kind else "")
    return value


@pytest.mark.parametrize("variant", ["schema", "texts", "microseconds", "nanoseconds", "intervals", "propagated"])
def test_values_of_postgresql(variant: str) -> None:
    fields, rows = _rows(f"postgres-{variant}", "kinds")
    assert fields is not None
    truth = load_truth("postgres")["kinds"]
    kinds = dict(truth.columns)
    named = {field.name: field for field in fields.row}
    shown = {name: _values(rows, named[name], column_of(named[name])) for name in PLAIN_POSTGRES}
    for expected in truth.rows:
        theirs = dict(zip(kinds, expected, strict=True))
        row = shown["id"].index(theirs["id"])
        late = variant == "nanoseconds" and theirs["id"] == "2"
        for name in PLAIN_POSTGRES:
            if late and name in ("ts", "ts3"):
                continue
            ours, value = _as_postgres(shown[name][row], kinds[name]), theirs[name]
            if kinds[name] in ("json", "jsonb") and value is not None:
                ours, value = json.loads(ours), json.loads(value)
            if kinds[name] == "numeric" and value is not None:
                value = Decimal(str(value))
            if kinds[name].startswith(("real", "double")) and value is not None:
                value = float(value)
                ours = float(f"{ours:.6g}") if kinds[name] == "real" else ours
            assert ours == value, (name, ours, value)


def test_lists_and_odd_types_of_postgresql() -> None:
    fields, rows = _rows("postgres-schema", "kinds")
    assert fields is not None
    named = {field.name: field for field in fields.row}
    numbers = [row["id"] for row in rows]
    shown = {
        name: _values(rows, named[name], column_of(named[name]))[numbers.index(2)] for name in ("ia", "ta", "na", "da", "tz", "r4", "iv")
    }
    assert json.loads(shown["ia"]) == [1, None, -3]
    assert json.loads(shown["ta"]) == ["a", None, ""]
    assert json.loads(shown["na"]) == ["1.50", None]
    assert json.loads(shown["da"]) == ["2024-02-29"]
    assert shown["r4"] == "[1,10)"


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
def test_what_is_expected_of_a_table_is_what_debezium_says_of_it(connector: str) -> None:
    for table in MYSQL_TABLES:
        fields, _ = _rows(f"{connector}-schema", table)
        schema = _known(connector)[TableName("shop", table)]
        expected = expected_fields(schema, DebeziumOptions())
        assert fields is not None
        assert {field.name: field_type(field) for field in expected.row} == {field.name: field_type(field) for field in fields.row}
        if connector == "mysql":
            assert [field.optional for field in expected.row] == [field.optional for field in fields.row]
        assert set(fields.key) == set(expected.key)
        # Events with schemas do not change a table that is known from the source.
        assert can_hold(schema, table_schema(schema.name, fields, default_text))


def test_types_that_the_connector_passes_on_are_the_sources() -> None:
    for table in ("numbers", "texts", "times"):
        fields, rows = _rows("mysql-propagated", table)
        assert fields is not None
        schema = _known("mysql")[TableName("shop", table)]
        for column in table_schema(schema.name, fields).columns:
            known = schema.column(column.name)
            assert (column.kind, column.precision, column.scale) == (known.kind, known.precision, known.scale), column.name
            assert column.members == known.members
            if "zerofill" not in known.source_type:
                assert column.source_type == known.source_type
        assert _compare("mysql", table, table_schema(schema.name, fields), fields, rows, {"def"}, "bytes") > 0


@pytest.mark.parametrize("connector", ["mysql", "postgres"])
def test_avro_schemas_say_what_json_schemas_say(connector: str) -> None:
    envelopes = [
        found
        for text in load_schemas(f"{connector}-avro").values()
        for found in [field_of_avro(json.loads(text))]
        if found.semantic.endswith(".Envelope")
    ]
    compared = 0
    for table in ("numbers", "texts", "times", "kinds", "sbtest1"):
        in_avro = [row_fields(found, None).row for found in envelopes if found.semantic.endswith(f".{table}.Envelope")]
        in_json, _ = _rows(f"{connector}-schema", table)
        if in_json is None:
            continue
        assert [_described(field) for field in in_json.row] in [[_described(field) for field in row] for row in in_avro]
        compared += 1
    assert compared >= 2


def _described(field: ConnectField) -> tuple[Any, ...]:
    inside = tuple(_described(part) for part in (*field.fields, *filter(None, [field.items])))
    return field.name, field.type, field.semantic, dict(field.parameters), field.optional, inside


def test_a_table_that_evolves_takes_all_its_events_in_any_order() -> None:
    schemas: list[TableSchema] = []
    for record in load_records("mysql-schema"):
        if record.topic.endswith(".evolving") and record.value is not None and record.key is not None:
            value, key = (json.loads(raw)["schema"] for raw in (record.value, record.key))
            schema = table_schema(TableName("shop", "evolving"), row_fields(field_of(value), field_of(key)), default_text)
            schemas += [schema] if schema not in schemas else []
    assert len(schemas) > 1
    results = []
    for order in (schemas, schemas[::-1]):
        known = order[0]
        for schema in order:
            known = widen_schema(known, schema).schema
        assert all(can_hold(known, schema) for schema in schemas)
        results.append({(column.name, column.kind, column.nullable) for column in known.columns})
    assert results[0] == results[1]
    assert {name for name, _, _ in results[0]} >= {name for name, _ in load_truth("mysql")["evolving"].columns}


def test_numeric_becomes_a_decimal_by_choice() -> None:
    batches = as_batches(record for record in load_records("postgres-schema") if record.topic.endswith(".kinds"))
    reader = DebeziumReader(DebeziumOptions(numeric="decimal(60,40)"))
    known: dict[TableName, KnownTable] = {}
    values: list[Any] = []
    for batch in batches:
        for found in reader.read(batch).found:
            known[found.schema.name] = KnownTable(found.schema)
        read = replace(reader, tables=known).read(batch)
        assert not read.found
        assert not read.refused
        values += [value for block in read.blocks for value in block.images["n"].to_pylist()]
    assert Decimal("12345678901234567890.12345678901234567890123456789") in values
    (table,) = known.values()
    assert (table.schema.column("n").kind, table.schema.column("n").scale) == (Kind.DECIMAL, 40)


def test_a_target_table_gives_enough_of_types_that_json_shows() -> None:
    """A target does not show that a time has a zone, or that a number is a year: the values do."""
    plainest = {Kind.TIMESTAMP: Kind.DATETIME, Kind.YEAR: Kind.UINT16, Kind.JSON: Kind.STRING}
    for table in ("times", "spans", "pairs"):
        name = TableName("shop", table)
        schema = _known("mysql")[name]
        columns = [replace(column, kind=plainest.get(column.kind, column.kind), source_type="of the target") for column in schema.columns]
        known = {name: KnownTable(replace(schema, columns=tuple(columns)))}
        truth = load_truth("mysql")[table]
        rows: set[tuple[Any, ...]] = set()
        for batch in as_batches(record for record in load_records("mysql-plain") if record.topic.endswith(f".{table}")):
            read = DebeziumReader(tables=known).read(batch)
            assert not read.found
            assert not read.refused
            for block in read.blocks:
                shown = [_shown(block.images[column.name], column) for column in block.schema.columns]
                rows |= set(zip(*shown, strict=True))
        assert rows >= set(truth.rows)
