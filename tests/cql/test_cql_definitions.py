"""CREATE, ALTER and DROP statements to tables and types, and back to CQL; log tables as ScyllaDB describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_log_table, create_table, create_type, types_used
from headrace.cql.language.lexer import CqlTokenKind, statements, tokens
from headrace.cql.log import log_table
from headrace.cql.options import CdcOptions
from headrace.cql.tables import ColumnRole
from headrace.errors import DefiniteError
from headrace.model.schema import TableName

SCRIPT = """
-- a keyspace, its types and tables
CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = true;
USE shop;
CREATE TYPE street (name text, number int);
create type if not exists shop.address (street frozen<street>, "Zip" text, tags set<text>); // tags are frozen inside
CREATE TABLE "Orders" (
    region ascii, customer uuid, at timestamp, /* two
    lines; with a semicolon */ "Line" smallint,
    total decimal, home address, boxed frozen<address>, items list<frozen<tuple<int, text>>>, "select" varchar,
    note text STATIC, embedding vector<float, 3>, counts map<text, frozen<map<int, bigint>>>,
    PRIMARY KEY ((region, customer), at, "Line")
) WITH CLUSTERING ORDER BY (at DESC, "Line" ASC) AND comment = 'it''s; fine' AND cdc = {'enabled': true, 'preimage': 'full', 'ttl': 3600}
  AND compaction = {'class': 'LeveledCompactionStrategy'};
CREATE INDEX ON "Orders" (total);
CREATE TABLE plain (k int PRIMARY KEY, v int);
"""


@pytest.fixture(scope="module")
def known() -> CqlCatalog:
    return CqlCatalog().apply_all(SCRIPT)


def test_a_script_of_definitions_is_read(known: CqlCatalog) -> None:
    orders = known.named('shop."Orders"')
    assert [column.name for column in orders.partition_key] == ["region", "customer"]
    assert [(column.name, column.descending) for column in orders.clustering] == [("at", True), ("Line", False)]
    assert [column.name for column in orders.static] == ["note"]
    assert [column.name for column in orders.regular] == sorted(["total", "home", "boxed", "items", "select", "embedding", "counts"])
    assert not orders.column("home").type.is_atomic
    assert orders.column("boxed").type.is_atomic
    assert orders.column("home").type.fields == ("street", "Zip", "tags")
    assert str(orders.column("home").type.args[2]) == "frozen<set<text>>"
    assert str(orders.column("items").type) == "list<tuple<int, text>>"
    assert known.cdc[orders.name] == CdcOptions(enabled=True, preimage="full", ttl=3600)
    assert not known.cdc[TableName("shop", "plain")].enabled


def test_definitions_survive_printing(known: CqlCatalog) -> None:
    """Printed definitions parse to the same tables, types and options."""
    types = "\n".join(create_type(kind) for kind in types_used(known.tables.values()))
    tables = "\n".join(create_table(table, known.cdc[name]) for name, table in known.tables.items())
    again = CqlCatalog().apply_all(types + "\n" + tables)
    assert (dict(again.tables), dict(again.types), dict(again.cdc)) == (dict(known.tables), dict(known.types), dict(known.cdc))


def test_tables_and_types_are_altered(known: CqlCatalog) -> None:
    changed = known.apply_all("""
        ALTER TABLE shop.plain ADD a int, b map<int, text>;
        ALTER TABLE plain ADD (s text STATIC, c int);
        ALTER TABLE plain DROP v;
        ALTER TABLE plain DROP (a, c);
        ALTER TABLE plain RENAME k TO key;
        ALTER TABLE plain WITH cdc = {'enabled': 'true', 'delta': 'keys'};
        ALTER TYPE street ADD floor int;
        ALTER TYPE street ADD IF NOT EXISTS floor int;
        ALTER TYPE IF EXISTS missing ADD floor int;
        ALTER TABLE IF EXISTS shop.missing ADD a int;
        ALTER TYPE shop.street RENAME name TO title AND number TO no;
    """)
    plain = changed.named("plain")
    assert [(column.name, str(column.type), column.role) for column in plain.columns] == [
        ("key", "int", ColumnRole.PARTITION),
        ("s", "text", ColumnRole.STATIC),
        ("b", "map<int, text>", ColumnRole.REGULAR),
    ]
    assert changed.cdc[plain.name] == CdcOptions(enabled=True, delta="keys")
    inner = changed.named('"Orders"').column("boxed").type.args[0]
    assert inner.fields == ("title", "no", "floor")
    assert inner.frozen
    assert changed.types["shop", "address"].args[0] == inner
    gone = changed.apply_all("DROP TABLE IF EXISTS shop.plain; DROP KEYSPACE shop")
    assert not gone.tables
    assert not gone.types


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE t (k int PRIMARY KEY)", "in no keyspace"),
        ("CREATE TABLE ks.t (k int)", "no primary key"),
        ("CREATE TABLE ks.t (k int, PRIMARY KEY (k, c))", "column c of the key is not defined"),
        ("CREATE TABLE ks.t (k in, PRIMARY KEY (k))", "unknown CQL type 'in'"),
        ("CREATE TABLE ks.t (k int PRIMARY KEY) WITH cdc = {'enabled': 'maybe'}", 'Invalid value for CDC option "enabled": maybe'),
        ("CREATE TABLE ks.t (k int PRIMARY KEY) WITH cdc = {'on': true}", "Invalid CDC option: on"),
        ("CREATE TABLE ks.t (k int PRIMARY KEY) WITH COMPACT STORAGE", "COMPACT STORAGE"),
        ("ALTER TABLE ks.t ADD v int", "no table ks.t"),
        ("CREATE TYPE ks.u (a int); ALTER TYPE ks.u ADD a int", "has the field a already"),
        ("SELECT * FROM ks.t", "no definition"),
        ("CREATE TABLE ks.t (k int PRIMARY KEY) 'oops", "cannot read"),
        ("CREATE TABLE ks.t (k int PRIMARY KEY v int)", "is expected"),
    ],
)
def test_errors_are_reported(statement: str, said: str) -> None:
    with pytest.raises(DefiniteError, match=said):
        CqlCatalog().apply_all(statement)


def test_statements_end_at_their_semicolons() -> None:
    script = "BEGIN UNLOGGED BATCH; UPDATE t SET a = ';' WHERE k = 1; DELETE FROM t WHERE k = 2; APPLY BATCH; USE x -- ; end\n;;"
    assert [one.split()[0] for one in statements(script)] == ["BEGIN", "USE"]


def test_tokens_are_distinguished() -> None:
    text = "a \"B\"\"\" 'it''s' $$it's$$ 1 2.5 1e3 0xAF 12h30m P1Y2MT3S P2W 550e8400-e29b-41d4-a716-446655440000 ? p1 {1:a}"
    found = [(token.kind, token.text) for token in tokens(text)]
    assert found[:14] == [
        (CqlTokenKind.NAME, "a"),
        (CqlTokenKind.QUOTED, 'B"'),
        (CqlTokenKind.STRING, "it's"),
        (CqlTokenKind.STRING, "it's"),
        (CqlTokenKind.INTEGER, "1"),
        (CqlTokenKind.FLOAT, "2.5"),
        (CqlTokenKind.FLOAT, "1e3"),
        (CqlTokenKind.BLOB, "0xAF"),
        (CqlTokenKind.DURATION, "12h30m"),
        (CqlTokenKind.DURATION, "P1Y2MT3S"),
        (CqlTokenKind.DURATION, "P2W"),
        (CqlTokenKind.UUID, "550e8400-e29b-41d4-a716-446655440000"),
        (CqlTokenKind.BIND, "?"),
        (CqlTokenKind.NAME, "p1"),
    ]
    assert [token.text for token in tokens("{1:a}")] == ["{", "1", ":", "a", "}", ""]


def test_a_log_table_has_all_columns_and_options(known: CqlCatalog) -> None:
    orders = known.named('"Orders"')
    log = {column.name: str(column.type) for column in log_table(orders).columns}
    assert list(log)[:3] == ["cdc$stream_id", "cdc$time", "cdc$batch_seq_no"]
    assert log["items"] == "frozen<map<timeuuid, tuple<int, text>>>"
    assert log["cdc$deleted_elements_items"] == "frozen<set<timeuuid>>"
    assert log["home"] == "frozen<address>"
    assert log["cdc$deleted_elements_home"] == "frozen<set<smallint>>"
    assert log["counts"] == "frozen<map<text, frozen<map<int, bigint>>>>"
    assert "cdc$deleted_elements_boxed" not in log
    assert "cdc$deleted_region" not in log
    text = create_log_table(orders, known.cdc[orders.name])
    assert "compaction_window_size': '3'" in text
    assert "gc_grace_seconds = 0" in text
    assert "comment = 'CDC log for shop.Orders'" in text
    assert "gc_grace_seconds" not in create_log_table(orders, CdcOptions(enabled=True, ttl=0))
    assert "default_time_to_live" not in text
    assert "default_time_to_live = 3600" in create_log_table(orders, CdcOptions(enabled=True, ttl=3600), cassandra=True)
    again = known.apply_all(text)
    assert again.tables[log_table(orders).name] == log_table(orders)


def test_the_command_prints_the_log_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schema.cql"
    file.write_text("CREATE TABLE ks.t (pk int, ck int, v map<int, text>, PRIMARY KEY (pk, ck)) WITH cdc = {'enabled': true};")
    assert main(["scylla", "log-schema", str(file), "--table", "ks.t"]) == 0
    assert capsys.readouterr().out == (
        "CREATE TABLE ks.t_scylla_cdc_log (\n"
        '    "cdc$stream_id" blob,\n'
        '    "cdc$time" timeuuid,\n'
        '    "cdc$batch_seq_no" int,\n'
        '    "cdc$deleted_elements_v" frozen<set<int>>,\n'
        '    "cdc$deleted_v" boolean,\n'
        '    "cdc$end_of_batch" boolean,\n'
        '    "cdc$operation" tinyint,\n'
        '    "cdc$ttl" bigint,\n'
        "    ck int,\n"
        "    pk int,\n"
        "    v frozen<map<int, text>>,\n"
        '    PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")\n'
        ') WITH CLUSTERING ORDER BY ("cdc$time" ASC, "cdc$batch_seq_no" ASC)\n'
        "    AND caching = {'enabled': 'false', 'keys': 'NONE', 'rows_per_partition': 'NONE'}\n"
        "    AND comment = 'CDC log for ks.t'\n"
        "    AND compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_size': '60', "
        "'compaction_window_unit': 'MINUTES', 'expired_sstable_check_frequency_seconds': '1800'}\n"
        "    AND gc_grace_seconds = 0;\n"
    )


def test_the_command_refuses_counters_and_unknown_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schema.cql"
    file.write_text("CREATE TABLE ks.t (pk int PRIMARY KEY, c counter);")
    assert main(["scylla", "log-schema", str(file)]) == 2
    assert "Cannot create CDC log for table ks.t. Counter support not implemented." in capsys.readouterr().err
    assert main(["scylla", "log-schema", str(file), "--table", "ks.other"]) == 2
    assert "there is no table ks.other" in capsys.readouterr().err
    assert main(["scylla", "log-schema", str(tmp_path / "none.cql")]) == 2
    assert "there is no file" in capsys.readouterr().err
