"""`headrace verify` on real servers: exactly the differences, rows that are only behind, and repairs.

The reference is the comparison of all rows of both sides (`Pair.compare`). There is no pipe: a test sets its position.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema, ZeroDates
from headrace.model.table_selection import Selection
from headrace.settings.settings_file import parse_settings
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TargetEngine
from headrace.sources.mysql.server.connection import parse_mysql_url
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.verify import recheck, region_reader, regions
from headrace.verify.recheck import Rechecker
from headrace.verify.region_reader import Endpoints, RegionReader
from headrace.verify.table_spec import describe
from headrace.verify.verifier import Sample, SparkUse, TableResult, Verdict, VerifyOptions, verify_tables
from headrace.verify.watched_pipe import KnownPipe, find_watermark
from headrace.verify.watermark import PipePosition, Watermark
from testkit.oracles.pairs import Pair, open_pair
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.local_runtime import LocalRuntime

pytestmark = pytest.mark.slow(
    "mysql",
    because="the test itself on MariaDB; test_equal_rows_of_every_type_have_equal_digests_and_no_difference_is_missed[mysql]",
)

ROWS = 1000
NUMBERS = f"WITH RECURSIVE n AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS - 1})"
# Keys with the same order on both sides, and others: definition, key of row i, three keys to change, as ClickHouse literals.
KEYS: dict[str, tuple[str, str, tuple[str, str, str]]] = {
    "number": ("id BIGINT PRIMARY KEY", "i * 7 - 3000", ("-2993", "4", "id = -2986")),
    "pair": ("id INT, sub SMALLINT UNSIGNED, PRIMARY KEY (id, sub)", "i DIV 10, i % 10", ("7, 3", "7, 4", "id = 100 AND sub = 9")),
    "mixed": ("id INT, word VARCHAR(9), PRIMARY KEY (id, word)", "i DIV 10, CONCAT('W', i % 10)",
        ("7, 'W3'", "7, 'W4'", "id = 9 AND word = 'W1'")),
    "text": ("word VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY", "CONCAT('é', i)", ("'é17'", "'é1000'", "word = 'é3'")),
    "bytes": ("b VARBINARY(8) PRIMARY KEY", "UNHEX(LPAD(HEX(i * 5), 6, '0'))",
        ("unhex('000005')", "unhex('00000A')", "b = unhex('00000F')")),
    "money": ("d DECIMAL(12,2) PRIMARY KEY", "i / 4", ("0.25", "0.5", "d = 0.75")),
    "moment": ("t DATETIME(3) PRIMARY KEY", "'1969-12-31 23:50:00' + INTERVAL i * 500000 MICROSECOND",
        ("'1969-12-31 23:50:00.500'", "'1969-12-31 23:50:01'", "t = '1969-12-31 23:50:02.500'")),
    "span": ("t TIME(1) PRIMARY KEY", "SEC_TO_TIME(i - 100.5)", ("'-00:01:40.5'", "'-00:01:39.5'", "t = '00:00:00.5'")),
}  # fmt: skip


@pytest.fixture
def pair(server: PrivateServer, database: str, clickhouse: EmbeddedServer) -> Iterator[Pair]:
    with open_pair(parse_mysql_url(server.url(database)), clickhouse) as opened:
        yield opened
        opened.spoil("DROP DATABASE IF EXISTS headrace")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of a few rows, so that two thousand rows give as many levels as ten million."""
    monkeypatch.setattr(region_reader, "_READ_ROWS", 40)
    monkeypatch.setattr(region_reader, "_BUCKET_ROWS", 10)
    monkeypatch.setattr(regions, "_SINK_ROWS", 300)


def make(pair: Pair, table: str, definition: str, key: str) -> TableSchema:
    pair.run(
        f"CREATE TABLE `{table}` ({definition.replace('PRIMARY KEY (', 'v VARCHAR(20), n INT, PRIMARY KEY (')}"
        + ("" if "PRIMARY KEY (" in definition else ", v VARCHAR(20), n INT")
        + ")",
        "SET SESSION max_recursive_iterations = 100000" if pair.is_mariadb else "SET SESSION cte_max_recursion_depth = 100000",
        f"INSERT INTO `{table}` {NUMBERS} SELECT {key}, CONCAT('value ', i), IF(i % 3, i, NULL) FROM n",
        f"ANALYZE TABLE `{table}`",
    )
    return pair.schema(table)


def verify(
    pair: Pair, *schemas: TableSchema, options: VerifyOptions | None = None, watermark: Watermark | None = None
) -> list[TableResult]:
    chosen = options or VerifyOptions(chunk_rows=400, recheck=False)
    selection = Selection(tuple(str(schema.name) for schema in schemas))
    return list(verify_tables(pair.address, pair.sink, selection, replace(chosen, zero_dates=ZeroDates.NULL), watermark=watermark))


def watch(pair: Pair, wait_s: float = 0.5) -> Watermark:
    found = find_watermark(pair.sink, pair.address, "", KnownPipe(), wait_s)
    assert found is not None
    return found


@pytest.mark.usefixtures("small_parts")
def test_every_difference_is_found_for_any_key(pair: Pair) -> None:
    schemas = {name: make(pair, name, definition, key) for name, (definition, key, _) in KEYS.items()}
    pair.run(
        "CREATE TABLE keyless (a INT, b VARCHAR(20))", f"INSERT INTO keyless {NUMBERS} SELECT i DIV 2, 'x' FROM n", "ANALYZE TABLE keyless"
    )
    schemas["keyless"] = pair.schema("keyless")
    for schema in schemas.values():
        pair.copy(schema)
    equal = verify(pair, *schemas.values())
    assert [(result.comparison.rows, result.verdict, result.notes) for result in equal] == [(ROWS, Verdict.EQUAL, ())] * len(schemas)

    for name, (_, _, (changed, other, gone)) in KEYS.items():
        place = f"`{pair.address.database}`.`{name}`"
        version = 1 << 60
        pair.spoil(f"INSERT INTO {place} (* EXCEPT (_deleted)) SELECT {changed}, 'spoilt', NULL, 1, {version}")
        pair.spoil(f"INSERT INTO {place} (* EXCEPT (_deleted)) SELECT {other}, NULL, 5, 1, {version}")
        columns = ", ".join(f"`{column.name}`" for column in schemas[name].columns)
        pair.spoil(f"INSERT INTO {place} ({columns}, _sign, _version) SELECT {columns}, -1, {version} FROM {place} FINAL WHERE {gone}")
    pair.spoil(f"ALTER TABLE `{pair.address.database}`.keyless DELETE WHERE a = 7 SETTINGS mutations_sync = 2")
    for result in verify(pair, *schemas.values()):
        oracle = pair.compare(result.schema)
        assert result.verdict is Verdict.DIFFERENT
        assert result.comparison.total == oracle.total >= 2, result.schema.name
        assert set(result.comparison.differences) == set(oracle.differences), result.schema.name
        assert result.comparison.rows == ROWS


@pytest.mark.usefixtures("small_parts")
def test_tasks_of_a_runtime_find_what_threads_find(pair: Pair) -> None:
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.copy(schema)
    pair.spoil(f"ALTER TABLE `{pair.address.database}`.number DELETE WHERE {KEYS['number'][2][2]} SETTINGS mutations_sync = 2")
    options, selection = VerifyOptions(chunk_rows=400, recheck=False, spark=SparkUse.ALWAYS), Selection((str(schema.name),))
    [found] = verify_tables(pair.address, pair.sink, selection, options, runtime=LocalRuntime)
    assert found.verdict is Verdict.DIFFERENT
    assert [found.comparison] == [result.comparison for result in verify(pair, schema)]


@pytest.mark.usefixtures("small_parts")
def test_repairing_sets_missing_extra_and_different_rows_right(pair: Pair) -> None:
    schemas = [make(pair, name, *KEYS[name][:2]) for name in ("number", "text", "mixed", "moment")]
    for schema in schemas:
        pair.copy(schema)
    for name in ("number", "text", "mixed", "moment"):
        place, key = f"`{pair.address.database}`.`{name}`", KEYS[name][2]
        pair.spoil(f"INSERT INTO {place} (* EXCEPT (_deleted)) SELECT {key[0]}, 'spoilt', NULL, 1, {pair.log_end().version}")
        pair.spoil(f"ALTER TABLE {place} DELETE WHERE {key[2]} SETTINGS mutations_sync = 2")
    pair.run("DELETE FROM number WHERE id = 10", "DELETE FROM text WHERE word = 'é5'", "UPDATE mixed SET v = 'new' WHERE id = 3")
    pair.report_progress("pipe", pair.log_end())
    options = VerifyOptions(chunk_rows=400, repair=True)
    results = verify(pair, *schemas, options=options, watermark=watch(pair))
    assert [(result.verdict, result.comparison.total, result.notes) for result in results] == [(Verdict.EQUAL, 0, ())] * 4
    assert {result.schema.name.table: result.repaired for result in results} == {"number": 3, "text": 3, "mixed": 12, "moment": 2}
    assert all(pair.is_equal(schema) for schema in schemas)
    # A repaired row keeps its version: the next change wins.
    pair.run("UPDATE number SET v = 'later' WHERE id = -2993")
    pair.copy(schemas[0])
    assert pair.is_equal(schemas[0])
    assert [result.repaired for result in verify(pair, *schemas, options=options, watermark=watch(pair))] == [0] * 4


def test_what_cannot_be_repaired_says_why_and_what_to_do(pair: Pair) -> None:
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.run("CREATE TABLE keyless (a INT)", "INSERT INTO keyless VALUES (1), (1)")
    keyless, place = pair.schema("keyless"), f"`{pair.address.database}`.number"
    pair.copy(schema)
    pair.copy(keyless)
    pair.spoil(f"INSERT INTO {place} (* EXCEPT (_deleted)) VALUES (4, 'garbage', NULL, 1, {1 << 62})")
    pair.run("INSERT INTO keyless VALUES (2)")
    options = VerifyOptions(repair=True, recheck=False)
    [_, unknown] = verify(pair, schema, keyless, options=options)
    assert "name it with --state or --pipe" in unknown.notes[0]
    pair.report_progress("pipe", pair.log_end())
    [without, garbage] = verify(pair, schema, keyless, options=options, watermark=watch(pair))
    assert (without.verdict, without.repaired) == (Verdict.DIFFERENT, 0)
    assert f"headrace resync {keyless.name}" in without.notes[0]
    assert (garbage.verdict, garbage.comparison.total, garbage.repaired) == (Verdict.DIFFERENT, 1, 0)
    assert f"({1 << 62}) above the position" in garbage.notes[0]
    # Its remedy works.
    pair.spoil(garbage.notes[0].partition("take it away (")[2].partition(") and repair")[0] + " SETTINGS mutations_sync = 2")
    assert [result.verdict for result in verify(pair, schema, options=options, watermark=watch(pair))] == [Verdict.EQUAL]


def test_the_summary_names_rows_that_are_pending(
    pair: Pair, server: PrivateServer, clickhouse: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It must not end in "0 differences" while the sink lacks rows because the pipe stopped."""
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.run("CREATE TABLE keyless (a INT)", "INSERT INTO keyless VALUES (1)")
    keyless = pair.schema("keyless")
    for one in (schema, keyless):
        pair.copy(one)
    copied = pair.log_end()
    pair.report_progress("pipe", copied, silent_s=100.0)
    sink = url_of(clickhouse)
    command = ["verify", server.url(pair.address.database), sink, "--pipe", "pipe", "--wait", "0.5"]
    pair.run(*(f"INSERT INTO number VALUES ({10**6 + n}, 'new', 1)" for n in range(3)))
    assert cli.main(command) == 3
    output = capsys.readouterr().out.splitlines()
    assert f"{schema.name}: {ROWS + 3} rows, 0 different, 3 missing (pipe stopped at {copied}) (behind)" in output
    assert output[-1] == f"verify: 2 tables, {ROWS + 4} rows, 0 different, 3 missing (pipe stopped at {copied})"
    pair.run("UPDATE number SET v = 'changed' WHERE id = 3", "DELETE FROM number WHERE id = 10", "INSERT INTO keyless VALUES (2), (3)")
    pair.run("CREATE TABLE later (id INT PRIMARY KEY)")
    assert cli.main(command) == 3
    expected = f"1 different, 5 missing, 1 extra, 1 not compared (pipe stopped at {copied})"
    assert capsys.readouterr().out.splitlines()[-1] == f"verify: 3 tables, {ROWS + 5} rows, {expected}"


def test_a_sink_that_is_behind_is_not_called_different(pair: Pair) -> None:
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.copy(schema)
    copied = pair.log_end()
    pair.run("UPDATE number SET v = 'changed' WHERE id < 0", "DELETE FROM number WHERE id = 10", "CREATE TABLE later (id INT PRIMARY KEY)")
    pair.run("CREATE TABLE altered (id INT PRIMARY KEY)")
    pair.copy(pair.schema("altered"))
    pair.run("ALTER TABLE altered ADD COLUMN v INT")
    later, altered = pair.schema("later"), pair.schema("altered")
    for silent_s in (0.0, 100.0):
        pair.report_progress("pipe", copied, silent_s=silent_s)
        [unlike, missing, behind] = verify(pair, schema, later, altered, watermark=watch(pair))
        assert (unlike.verdict, missing.verdict, behind.verdict, behind.comparison.total) == (*[Verdict.BEHIND] * 3, 0)
        assert "v" in unlike.notes[0]
        assert behind.behind == 430
        assert ("does not run now" in behind.notes[-1]) == bool(silent_s)
        assert str(copied) in behind.notes[-1]
        assert str(pair.log_end()) in behind.notes[-1]
    # The pipe has reached the position; remaining differences are real.
    pair.report_progress("pipe", pair.log_end())
    with pytest.raises(DefiniteError, match="altered is there, but"):
        verify(pair, altered, watermark=watch(pair))
    [missing, different] = verify(pair, schema, later, watermark=watch(pair))
    assert (missing.verdict, different.verdict, different.comparison.total) == (Verdict.DIFFERENT, Verdict.DIFFERENT, 430)
    assert "there is no table" in missing.notes[0]
    pair.report_progress("pipe", pair.log_end(), incomplete=(str(schema.name),))
    [reading] = verify(pair, schema, watermark=watch(pair))
    assert (reading.verdict, reading.comparison.total) == (Verdict.BEHIND, 0)


def test_rows_that_change_while_they_are_compared(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.copy(schema)
    pair.run("UPDATE number SET v = 'on its way' WHERE id < -2900", "UPDATE number SET n = 0 WHERE id = 10")
    asked = 0

    def ask() -> PipePosition:
        """A pipe that applies all changes whenever its position is read, while one row changes repeatedly."""
        nonlocal asked
        asked += 1
        pair.copy(schema)
        reached = pair.log_end()
        pair.run(f"UPDATE number SET n = {asked} WHERE id = 10")
        return PipePosition(reached, is_running=True)

    [result] = verify(pair, schema, watermark=Watermark("pipe", ask, 5.0))
    assert (result.verdict, result.comparison.total, result.changing) == (Verdict.CHANGING, 0, 1)
    # A wrong row is found among changing ones.
    pair.run("DELETE FROM number WHERE id = 17")
    with RegionReader(Endpoints(pair.address, pair.sink)) as rows_reader:
        monkeypatch.setattr(recheck, "_ROUNDS", 3)
        rechecker = Rechecker(rows_reader, Watermark("pipe", ask, 5.0), pair.log_end, lambda: None)
        table = describe(schema, pair.sink)
        keys = pair.rows(schema).select(["id"]).slice(0, 500)
        found = rechecker.recheck(table, pa.concat_tables([keys, pa.table({"id": pa.array([17], pa.int64())}, schema=keys.schema)]))
    assert (found.comparison.total, found.changing, found.keys.to_pylist()) == (1, 1, [{"id": 17}])


def test_a_change_that_the_log_has_before_the_source_shows_it(pair: Pair) -> None:
    """The sink may be ahead of the source's readers for a moment: that is not a difference."""
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.run("UPDATE number SET v = 'logged' WHERE id = 10")
    pair.copy(schema)
    pair.run("UPDATE number SET v = 'before' WHERE id = 10", "UPDATE number SET v = 'other' WHERE id = 17")
    keys = pair.rows(schema).select(["id"])
    shown: list[str] = []

    def becomes_visible() -> None:
        shown.append("now")
        pair.run("UPDATE number SET v = 'logged' WHERE id = 10")

    with RegionReader(Endpoints(pair.address, pair.sink)) as rows_reader:
        watermark = Watermark("pipe", lambda: PipePosition(pair.log_end(), is_running=True), 5.0)
        found = Rechecker(rows_reader, watermark, pair.log_end, becomes_visible).recheck(describe(schema, pair.sink), keys)
    assert (found.keys.to_pylist(), found.changing, found.behind, len(shown)) == ([{"id": 17}], 0, 0, 2)


def test_a_row_that_comes_and_goes_again_is_not_called_different(pair: Pair) -> None:
    """Absent whenever the source is read, but present in the sink, which is one change behind."""
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.copy(schema)
    place = f"`{pair.address.database}`.number"
    asked = 0

    def ask() -> PipePosition:
        nonlocal asked
        asked += 1
        # The row was inserted and deleted; the sink has it in the first round only.
        pair.spoil(f"INSERT INTO {place} (* EXCEPT (_deleted)) VALUES (11, 'brief', 1, {1 if asked == 1 else -1}, {(1 << 60) + asked})")
        return PipePosition(pair.log_end(), is_running=True)

    keys = pa.table({"id": pa.array([11], pa.int64())}, schema=pair.rows(schema).select(["id"]).schema)
    with RegionReader(Endpoints(pair.address, pair.sink)) as rows_reader:
        rechecker = Rechecker(rows_reader, Watermark("pipe", ask, 5.0), pair.log_end, lambda: None)
        found = rechecker.recheck(describe(schema, pair.sink), keys)
    assert (found.comparison.total, found.changing, found.behind, asked) == (0, 0, 0, 2)


def test_a_sample_is_the_same_for_the_same_seed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "_LEAST_SAMPLE_CHUNK", 120)
    schemas = [make(pair, name, *KEYS[name][:2]) for name in ("number", "text")]
    for schema in schemas:
        pair.copy(schema)
    options = VerifyOptions(recheck=False, sample=Sample(1, share=0.25))
    first = [result.comparison.rows for result in verify(pair, *schemas, options=options)]
    again = [result.comparison.rows for result in verify(pair, *schemas, options=options)]
    other = [result.comparison.rows for result in verify(pair, *schemas, options=replace(options, sample=Sample(2, rows=250)))]
    assert first == again != other
    assert all(150 < rows < 350 for rows in first + other)
    pair.spoil(f"TRUNCATE TABLE `{pair.address.database}`.number")
    [result] = verify(pair, schemas[0], options=options)
    assert result.comparison.total == first[0]


KEY_COLUMNS = {
    "f": ("FLOAT", ("0.1", "-3.4028234e38", "16777216")),
    "d": ("DOUBLE", ("0.1", "5e-324", "1e22")),
    "e": ("ENUM('a', 'it''s', 'é')", ("'a'", "'it''s'", "'é'")),
    "st": ("SET('a', 'b')", ("''", "'a'", "'a,b'")),
    "b": ("BIT(64)", ("0", "18446744073709551615", "5")),
    "y": ("YEAR", ("0", "1901", "2155")),
    "day": ("DATE", ("'0000-01-01'", "'1969-12-31'", "'9999-12-31'")),
    "dt": ("DATETIME(6)", ("'0001-01-01'", "'1969-12-31 23:59:59.999999'", "'9999-12-31 23:59:59'")),
    "ts": ("TIMESTAMP(2)", ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07.99'", "'2024-03-31 01:30:00'")),
    "t": ("TIME(6)", ("'-838:59:59'", "'-00:00:00.000001'", "'100:00:00'")),
    "c": ("VARCHAR(9) CHARACTER SET ucs2", ("''", "'漢'", "'it''s'")),
    "vb": ("VARBINARY(9)", ("''", "x'00'", "x'27ff5c'")),
    "n": ("DECIMAL(65,30)", ("0", "-0.000000000000000000000000000001", f"{'9' * 35}.{'9' * 30}")),
    "u": ("BIGINT UNSIGNED", ("0", "18446744073709551615", "9223372036854775808")),
}
MARIADB_KEY_COLUMNS = {
    "uu": (
        "UUID",
        ("'00000000-0000-0000-0000-000000000000'", "'123e4567-e89b-12d3-a456-426655440000'", "'f00e4567-e89b-72d3-8456-4266554400ff'"),
    ),
    "i4": ("INET4", ("'0.0.0.0'", "'255.255.255.255'", "'1.2.3.4'")),
    "i6": ("INET6", ("'::'", "'2001:db8::1'", "'::ffff:1.2.3.4'")),
}


def test_rows_are_found_by_keys_of_every_kind(pair: Pair) -> None:
    """Each row's key as literals of either server selects exactly that row."""
    columns = KEY_COLUMNS
    if pair.is_mariadb:
        columns = {**{name: KEY_COLUMNS[name] for name in KEY_COLUMNS if name not in ("u", "y")}, **MARIADB_KEY_COLUMNS}
    defined = ", ".join(f"{name} {kind} NOT NULL" for name, (kind, _) in columns.items())
    pair.run(f"CREATE TABLE keyed ({defined}, v INT, PRIMARY KEY ({', '.join(columns)}))")
    for row in range(3):
        pair.run(f"INSERT INTO keyed VALUES ({', '.join(values[row] for _, values in columns.values())}, {row})")
    schema = pair.schema("keyed")
    pair.copy(schema)
    table, rows = describe(schema, pair.sink), pair.rows(schema)
    with RegionReader(Endpoints(pair.address, pair.sink, ZeroDates.NULL)) as rows_reader:
        for keys, expected in ((rows, [0, 1, 2]), *((rows.slice(i, 1), rows.column("v")[i : i + 1].to_pylist()) for i in range(3))):
            wanted = keys.select(list(schema.row_key))
            assert sorted(rows_reader.source_by_key(table, wanted).column("v").to_pylist()) == expected
            assert sorted(rows_reader.sink_by_key(table, wanted).column("v").to_pylist()) == expected


COLUMNS = {
    "i": ("INT", ("-5", "7")),
    "f": ("FLOAT", ("0.1", "-0.0")),
    "d": ("DECIMAL(12,3)", ("-1.500", "0.001")),
    "y": ("YEAR", ("2024", "0")),
    "b": ("BIT(5)", ("5", "31")),
    "b1": ("BIT(1)", ("1", "0")),
    "u": ("BIGINT UNSIGNED", ("5", "9007199254740993")),
    "flag": ("TINYINT(1)", ("1", "0")),
    "e": ("ENUM('a', 'b', 'c,d')", ("'a'", "'c,d'")),
    "s": ("SET('a', 'b', 'c') NOT NULL", ("''", "'a,c'")),
    "day": ("DATE", ("'1999-12-31'", "'2024-02-29'")),
    "dt": ("DATETIME", ("'1999-12-31 23:59:59'", "'2024-02-29 00:00:00'")),
    "dt3": ("DATETIME(3)", ("'1999-12-31 23:59:59.999'", "'2024-02-29 00:00:00'")),
    "ts": ("TIMESTAMP(2) NULL", ("'1999-12-31 23:59:59.99'", "'2024-07-29 00:00:00'")),
    "t": ("TIME", ("'-00:00:01'", "'800:10:59'")),
    "t3": ("TIME(3)", ("'-00:00:00.001'", "'100:00:00.5'")),
    "bin": ("BINARY(16)", ("x'00112233445566778899aabbccddeeff'", "x'00'")),
    "uu": ("CHAR(36)", ("'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'")),
    "v": ("VARCHAR(9)", ("'a'", "'b,c'")),
    "js": ("LONGTEXT", ("'{\"a\": 1}'", "'{\"b\": [1, 2]}'")),
    "p": ("POINT", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(2 1)')")),
}
# Column settings of a settings file, and the columns that must be read then.
CHOICES: dict[str, tuple[str, set[str]]] = {
    "numbers": (
        """datetime = "micro"\ntime = "int64"\nuint64 = "decimal"\nenum = "enum"\nset = "array"\ntinyint1 = "bool"\nbit = "bool"
        types = {i = "Int128", f = "Float64", d = "Decimal(30, 6)", bin = "UUID", uu = "UUID", day = "Date"}""",
        set(),
    ),
    "texts": (
        """datetime = "string"\ndecimal = "string"\ntime = "string"\nuint64 = "string"\nyear = "string"\nbit = "string"
        enum = "string"\nset = "string"\ntypes = {i = "String", day = "String", f = "String"}""",
        {"b", "b1", "f"},
    ),
    "others": (
        """uint64 = "int64"\nzone = "Europe/Berlin"\ngeometry = "geo"
        types = {i = "Float64", dt = "DateTime('UTC')", t = "Time", bin = "FixedString(16)", v = "FixedString(12)", js = "JSON"}""",
        {"js", "p"},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_columns_in_other_types_are_compared_as_exactly(pair: Pair, name: str) -> None:
    settings, read = CHOICES[name]
    pair.sink = replace(pair.sink, options=parse_settings(f"[sink]\n{settings}", "test.toml").sink)
    columns = ", ".join(f"`{column}` {kind}" for column, (kind, _) in COLUMNS.items())
    pair.run(f"CREATE TABLE typed (id INT PRIMARY KEY, {columns})")
    # Rows 0, 1, ... hold the first values, rows 100, 101, ... the second ones, the last row holds NULLs.
    for value, first in ((0, 0), (1, 100)):
        rows = [f"({first + i}, {', '.join(values[value] for _, values in COLUMNS.values())})" for i in range(len(COLUMNS))]
        pair.run(f"INSERT INTO typed VALUES {', '.join(rows)}")
    pair.run("INSERT INTO typed (id, s) VALUES (200, 'b')")
    schema = pair.schema("typed")
    pair.copy(schema)
    assert set(pair.sink.digests().undigested(schema)) == read
    [equal] = verify(pair, schema)
    assert (equal.verdict, equal.comparison.rows) == (Verdict.EQUAL, 2 * len(COLUMNS) + 1), equal
    assert any("read on both sides" in note for note in equal.notes) == bool(read)
    # In each row one column is changed: exactly those must be found.
    for i, (column, (kind, values)) in enumerate(COLUMNS.items()):
        other = values[0] if "NOT NULL" in kind else "NULL"
        pair.run(f"UPDATE typed SET `{column}` = {values[1]} WHERE id = {i}", f"UPDATE typed SET `{column}` = {other} WHERE id = {100 + i}")
    [different] = verify(pair, schema)
    found = {(*one.key, one.column) for one in different.comparison.differences}
    assert found == {(first + i, column) for i, column in enumerate(COLUMNS) for first in (0, 100)}


@pytest.mark.parametrize("engine_choice", ["collapsing", "versioned", "history"])
def test_tables_of_every_engine_are_compared(pair: Pair, engine_choice: str) -> None:
    pair.sink = replace(pair.sink, options=ClickHouseOptions((("engine", TargetEngine(engine_choice)),)))
    schema = make(pair, "number", *KEYS["number"][:2])
    pair.copy(schema)
    pair.report_progress("pipe", pair.log_end())
    [equal] = verify(pair, schema, watermark=watch(pair))
    assert (equal.verdict, equal.comparison.rows) == (Verdict.EQUAL, ROWS)
    pair.run("UPDATE number SET v = 'changed' WHERE id = 10", "DELETE FROM number WHERE id = 17")
    pair.report_progress("pipe", pair.log_end())
    [different] = verify(pair, schema, options=VerifyOptions(repair=True), watermark=watch(pair))
    assert (different.comparison.total, different.repaired) == (2, 0)
    assert {(one.key, one.kind) for one in different.comparison.differences} == {((10,), "different"), ((17,), "extra")}
    assert f"headrace resync {schema.name}" in different.notes[0]


def test_the_command(server: PrivateServer, pair: Pair, clickhouse: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*options: str) -> tuple[int, list[str]]:
        code = cli.main(["verify", server.url(pair.address.database), url_of(clickhouse), *options])
        printed = capsys.readouterr()
        assert server.password not in printed.out + printed.err
        return code, (printed.out or printed.err).splitlines()

    schema = make(pair, "number", *KEYS["number"][:2])
    pair.copy(schema)
    pair.report_progress("pipe", pair.log_end())
    code, lines = command("--sample", "50%", "--seed", "7")
    assert (code, lines[-2]) == (0, "verify: a sample of 50%, --seed 7")
    pair.spoil(f"INSERT INTO `{pair.address.database}`.number (* EXCEPT (_deleted)) VALUES (11, 'spoilt', 7, 1, {pair.log_end().version})")
    code, lines = command("--pipe", "pipe")
    assert (code, lines) == (
        1,
        [
            f"{schema.name}: {ROWS} rows, 1 differences (different)",
            "  id=11: only in the sink",
            f"verify: 1 tables, {ROWS} rows, 1 differences",
        ],
    )
    code, lines = command("--json")
    output = json.loads("".join(lines))
    assert (code, output["verdict"], output["tables"][0]["first"]) == (
        1,
        "different",
        [{"key": [11], "kind": "extra", "column": "", "source": None, "target": None}],
    )
    pair.run("INSERT INTO number VALUES (11, 'more', 1)")
    stopped = BinlogPosition.from_json({**pair.log_end().to_json(), "pos": 4})
    pair.report_progress("pipe", stopped, silent_s=100)
    code, lines = command("--repair")
    assert (code, lines[-1]) == (3, f"verify: 1 tables, {ROWS + 1} rows, 1 different (pipe stopped at {stopped})")
    code, lines = command("--pipe", "nobody")
    assert (code, "pipes that it knows: pipe" in lines[-1]) == (2, True)
    code, lines = command("--sample", "none")
    assert (code, "--sample 1%" in lines[-1]) == (2, True)
