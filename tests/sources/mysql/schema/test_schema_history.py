"""The schema history: definitions by position, crash safety, and the effect of each statement on the selected tables.

With MINIMAL metadata the log names no columns: a reader that starts late reads each row by the definition of its time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import DropTable, RenameTable, SchemaCatalog
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.schema.information_schema import capture_catalog, parse_members, read_dialect
from headrace.sources.mysql.schema.schema_history import DdlOutcome, OutcomeKind, SchemaHistory
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, plan_tables, read_segment
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import Logbook, Place, Row, images_of, open_logbook, parts_of
from testkit.oracles.ddl import logged
from testkit.servers.servers import execute


@pytest.mark.parametrize(
    ("column_type", "members"),
    [
        ("enum('a')", ("a",)),
        ("enum('a','b','')", ("a", "b", "")),
        ("set('a','b c')", ("a", "b c")),
        ("enum('it''s','''','''''')", ("it's", "'", "''")),
        ("enum('a,b','(',')','enum(')", ("a,b", "(", ")", "enum(")),
        (r"enum('back\\slash','\\','\\\\')", ("back\\slash", "\\", "\\\\")),
        (r"enum('line\nbreak','nul\0','cr\r')", ("line\nbreak", "nul\0", "cr\r")),
        (r"enum('q\'uote','a\\','b')", ("q'uote", "a\\", "b")),
        ("enum('tab\there','new\nline')", ("tab\there", "new\nline")),
        ('enum("not names")', ()),
        ("enum('漢字','é')", ("漢字", "é")),
        ("enum(' lead','a\"b','%s')", (" lead", 'a"b', "%s")),
    ],
)
def test_members(column_type: str, members: tuple[str, ...]) -> None:
    assert parse_members(column_type) == members


STEPS = [
    ("INSERT INTO t VALUES (1, 10, 'one'), (2, 20, 'zwei')", ""),
    ("ALTER TABLE t ADD d DECIMAL(8,3) NOT NULL DEFAULT 1.5 AFTER id", "INSERT INTO t VALUES (3, 2.125, 30, 'drei')"),
    ("ALTER TABLE t MODIFY n BIGINT UNSIGNED FIRST, ADD e ENUM('x','y')", "INSERT INTO t VALUES (18446744073709551615, 4, 0, 'vier', 'y')"),
    ("ALTER TABLE t DROP COLUMN d, CHANGE s s TEXT CHARACTER SET latin1", "INSERT INTO t VALUES (5, 5, 'fünf', 'x')"),
    ("ALTER TABLE t MODIFY e ENUM('y','z','x')", "INSERT INTO t VALUES (6, 6, 'sechs', 'y')"),
    ("RENAME TABLE t TO away, spare TO t", "INSERT INTO t VALUES ('2001-02-03 04:05:06', 7)"),
    ("RENAME TABLE t TO spare, away TO t", "INSERT INTO t VALUES (8, 8, NULL, NULL)"),
]


def test_old_rows_are_read_by_their_own_schema(fresh_server: Callable[..., PrivateServer]) -> None:
    server = fresh_server(binlog_row_metadata="MINIMAL")
    execute(server, "CREATE DATABASE old")
    with open_logbook(server, "old") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, n INT, s VARCHAR(9))", "CREATE TABLE spare (at DATETIME, id INT PRIMARY KEY)")
        with closing(connect(book.address)) as connection:
            history = SchemaHistory(lambda name: name.table == "t", read_dialect(connection, book.address))
            history.begin(*capture_catalog(connection, book.address, lambda name: name.table == "t", 0))
        start = book.place()
        expected: list[Row] = []
        for statement, insert in STEPS:
            book.run(*filter(None, (statement, insert)))
            schema = book.schema("t")
            key = [column.name for column in schema.columns].index("id")
            rows = sorted(book.select(schema), key=operator.itemgetter(key))
            # The newest row has the highest id; before the first ALTER all rows are new.
            expected += rows[-1:] if insert else rows
        answers = [history.follow(*found) for found in logged(book, start)]
        assert [answer.outcome for answer in answers] == [OutcomeKind.CHANGED] * 4 + [OutcomeKind.RESYNC] * 2
        assert _read_late(book, history, start) == expected


def _read_late(book: Logbook, history: SchemaHistory, start: Place) -> list[Row]:
    """The rows of all inserts since `start`, each piece between two statements read by the definitions of its beginning."""
    whole = book.segment(start)
    cuts = [position.offset for _, position in logged(book, start) if position.offset < whole.end]
    rows: list[Row] = []
    for part in parts_of(whole, cuts):
        schemas = dict(history.as_of(BinlogPosition(part.file, part.start)).tables)
        keys = {name: schema.primary_key for name, schema in schemas.items()}
        catalog = ReadCatalog(plan_tables(schemas, keys), lambda name: name == TableName("old", "t"))
        rows += [image.row for image in images_of(list(read_segment(part, catalog))) if image.op is Op.INSERT]
    return rows


MYSQL = Dialect.of("9.7.0")


def name(table: str, database: str = "shop") -> TableName:
    return TableName(database, table)


def table(of: str, *columns: str) -> TableSchema:
    return TableSchema(name(of), tuple(Column(column, Kind.INT32, source_type="int") for column in columns), (), (), "utf8mb4")


def at(offset: int, file: int = 1) -> BinlogPosition:
    return BinlogPosition(f"binlog.{file:06}", offset)


CAPTURED = SchemaCatalog({name("t"): table("t", "a"), name("u"): table("u", "x"), name("aside"): table("aside", "z")}, {"shop": "utf8mb4"})


def wanted(one: TableName) -> bool:
    return one.database == "shop" and one.table in ("t", "u", "v")


def history(path: Path | None = None) -> SchemaHistory:
    made = SchemaHistory(wanted, MYSQL, path)
    if made.is_empty:
        made.begin(CAPTURED, at(100))
    return made


def follow(one: SchemaHistory, statement: str, offset: int, database: str = "shop") -> DdlOutcome:
    return one.follow(Query(database, statement), at(offset))


def columns(catalog: SchemaCatalog, of: str = "t") -> str:
    return " ".join(column.name for column in catalog.tables[name(of)].columns)


def test_definitions_by_position() -> None:
    one = history()
    follow(one, "ALTER TABLE t ADD b INT", 200)
    follow(one, "ALTER TABLE t DROP a", 300)
    follow(one, "DROP TABLE t", 400)
    follow(one, "CREATE TABLE t (c INT)", 500)
    found = [columns(one.as_of(at(offset))) for offset in (4, 100, 199, 200, 299, 300, 399)]
    assert found == ["a", "a", "a", "a b", "a b", "b", "b"]
    assert name("t") not in one.as_of(at(400)).tables
    assert columns(one.as_of(at(500))) == columns(one.as_of(at(4, file=2))) == columns(one.catalog) == "c"


def test_a_table_created_later_is_absent_before() -> None:
    one = history()
    follow(one, "CREATE TABLE v (a INT)", 200)
    assert name("v") not in one.as_of(at(199)).tables
    assert columns(one.as_of(at(200)), "v") == "a"


def test_what_was_captured_already_is_not_applied_twice() -> None:
    one = history()
    one.learn([table("t", "a", "b")], at(300))
    assert follow(one, "ALTER TABLE t ADD b INT", 200).outcome is OutcomeKind.NOTHING
    assert follow(one, "ALTER TABLE t ADD c INT", 301).outcome is OutcomeKind.CHANGED
    assert columns(one.catalog) == "a b c"
    assert (one.captured_at(name("t")), one.captured_at(name("u"))) == (at(300), at(100))


def test_tables_that_trade_places_when_one_was_captured_since(tmp_path: Path) -> None:
    """The current t was captured later; the table that was renamed from t, over a third name, must be captured again."""
    one = history(tmp_path / "schemas.jsonl")
    one.learn([table("t", "a", "b")], at(300))
    found = follow(one, "RENAME TABLE t TO x, u TO t, x TO u", 200)
    assert (found.outcome, found.recapture) == (OutcomeKind.RECAPTURE, {name("u")})
    assert (columns(one.catalog), name("u") in one.catalog.tables, name("x") in one.catalog.tables) == ("a b", False, False)
    assert sorted(map(str, history(tmp_path / "schemas.jsonl").catalog.tables)) == ["shop.aside", "shop.t"]


def test_a_statement_that_is_followed_again_gives_the_same_answer_and_changes_nothing() -> None:
    one = history()
    statements = ["ALTER TABLE t ADD b INT", "RENAME TABLE t TO v, u TO t", "TRUNCATE t", "DROP TABLE t, v"]
    first = [follow(one, statement, 200 + 10 * i) for i, statement in enumerate(statements)]
    assert [follow(one, statement, 200 + 10 * i) for i, statement in enumerate(statements)] == first
    assert sorted(map(str, one.catalog.tables)) == ["shop.aside"]


def test_a_table_that_is_followed_again_has_the_character_set_of_its_own_time(tmp_path: Path) -> None:
    one = history(tmp_path / "schemas.jsonl")
    follow(one, "ALTER DATABASE shop CHARACTER SET latin1", 100)
    first = follow(one, "CREATE TABLE n (s VARCHAR(9))", 200)
    follow(one, "ALTER DATABASE shop CHARACTER SET utf8mb4", 300)
    assert [column.charset for column in one.as_of(at(250)).tables[name("n")].columns] == ["latin1"]
    again = history(tmp_path / "schemas.jsonl")
    for known in (one, again):
        assert follow(known, "CREATE TABLE n (s VARCHAR(9))", 200) == first
        assert [known.as_of(at(offset)).charsets.get("shop") for offset in (150, 250, 300)] == ["latin1", "latin1", "utf8mb4"]
    again.compact(at(250))
    assert follow(again, "CREATE TABLE m (s VARCHAR(9))", 260) == follow(one, "CREATE TABLE m (s VARCHAR(9))", 260)


def test_a_log_survives_a_crash_inside_a_line(tmp_path: Path) -> None:
    path = tmp_path / "schema.jsonl"
    one = history(path)
    follow(one, "ALTER TABLE t ADD b INT", 200)
    whole = path.read_bytes()
    follow(one, "ALTER TABLE t ADD c INT", 300)
    torn = path.read_bytes()
    for end in range(len(whole), len(torn)):
        path.write_bytes(torn[:end])
        again = history(path)
        assert (columns(again.catalog), again.reached, path.read_bytes()) == ("a b", at(200), whole)
    follow(again, "ALTER TABLE t ADD c INT", 300)
    assert path.read_bytes() == torn
    assert columns(history(path).as_of(at(250))) == "a b"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schema.jsonl"
    history(path)
    path.write_bytes(b"{oops}\n" + path.read_bytes())
    with pytest.raises(DefiniteError, match="damaged"):
        history(path)


def test_compaction_keeps_what_later_readers_need(tmp_path: Path) -> None:
    path = tmp_path / "schema.jsonl"
    one = history(path)
    for i in range(10):
        follow(one, f"ALTER TABLE t ADD c{i} INT", 200 + 10 * i)
    follow(one, "CREATE TABLE v (a INT)", 400)
    one.learn([table("u", "x", "y")], at(450))
    size = path.stat().st_size
    one.compact(at(250))
    assert path.stat().st_size < size
    for again in (one, history(path)):
        assert [columns(again.as_of(at(offset))) for offset in (250, 265, 500)] == [
            "a c0 c1 c2 c3 c4 c5",
            "a c0 c1 c2 c3 c4 c5 c6",
            "a " + " ".join(f"c{i}" for i in range(10)),
        ]
        assert name("v") not in again.as_of(at(300)).tables
        assert columns(again.catalog, "u") == "x y"
        assert follow(again, "ALTER TABLE u ADD y INT", 440).outcome is OutcomeKind.NOTHING


def test_nothing() -> None:
    one = history()
    for statement in (
        "DROP TABLE aside",
        "CREATE TABLE other.t (a INT)",
        "GRANT ALL ON t TO me",
        "FROB aside",
    ):
        assert follow(one, statement, 200).outcome is OutcomeKind.NOTHING
    assert follow(one, "ALTER TABLE t ENGINE = InnoDB", 300) == DdlOutcome(Query("shop", "ALTER TABLE t ENGINE = InnoDB"), at(300))


def test_rows_that_are_gone() -> None:
    assert follow(history(), "TRUNCATE t", 200).emptied == {name("t")}
    dropped = follow(history(), "DROP TABLE t, aside", 200)
    assert (dropped.outcome, dropped.gone, dropped.changes) == (OutcomeKind.CHANGED, {name("t")}, (DropTable(name("t")),))
    assert follow(history(), "DROP DATABASE shop", 200).gone == {name("t"), name("u")}
    one = history()
    follow(one, "DROP TABLE t", 200)
    assert follow(one, "CREATE TABLE t (b INT)", 300).emptied == frozenset()


def test_a_selected_table_that_moves_among_selected_names_takes_its_rows_along() -> None:
    moved = follow(history(), "RENAME TABLE t TO v", 200)
    assert (moved.outcome, moved.moved, moved.gone, moved.arrived) == (
        OutcomeKind.CHANGED,
        {name("v"): name("t")},
        {name("t")},
        frozenset(),
    )
    swapped = follow(history(), "RENAME TABLE t TO tmp, u TO t, tmp TO u", 200)
    assert (swapped.moved, swapped.gone) == ({name("t"): name("u"), name("u"): name("t")}, frozenset())


def test_a_table_that_is_renamed_to_a_selected_name_has_rows_that_must_be_read() -> None:
    arrived = follow(history(), "RENAME TABLE t TO old, aside TO t", 200)
    assert (arrived.outcome, arrived.arrived, arrived.gone, arrived.recapture) == (
        OutcomeKind.RESYNC,
        {name("t")},
        frozenset(),
        frozenset(),
    )
    assert arrived.changes == (RenameTable(name("t"), name("old")), RenameTable(name("aside"), name("t")))
    unknown = follow(history(), "RENAME TABLE elsewhere.x TO v", 200)
    assert (unknown.outcome, unknown.arrived, unknown.recapture) == (OutcomeKind.RECAPTURE, {name("v")}, {name("v")})
    left = follow(history(), "RENAME TABLE t TO archive", 200)
    assert (left.outcome, left.gone, left.arrived) == (OutcomeKind.CHANGED, {name("t")}, frozenset())


def test_rows_that_change_without_row_events() -> None:
    disturbed = follow(history(), "ALTER TABLE aside EXCHANGE PARTITION p WITH TABLE t", 200)
    assert (disturbed.outcome, disturbed.disturbed) == (OutcomeKind.RESYNC, {name("t")})


def test_what_cannot_be_passed_over_is_an_error_that_names_the_statement() -> None:
    for statement, words in (
        ("INSERT INTO t VALUES (1)", "logged as a statement: INSERT INTO t"),
        ("UPDATE `shop`.`u` SET a = 1", "logged as a statement: UPDATE"),
        ("ALTER TABLE t FROBNICATE", "not understood .*FROBNICATE"),
    ):
        one = history()
        for _ in range(2):
            followed = follow(one, statement, 200, database="shop")
            with pytest.raises(DefiniteError, match=words) as error:
                followed.check()
            assert error.value.place == "binlog.000001:200"
    follow(history(), "TRUNCATE t", 200).check()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO seen VALUES (1)",
        "INSERT INTO `aside` VALUES (1)",
        "SELECT `shop`.`f`(1)",
        "DO f(1)",
        "WITH x AS (SELECT 1) UPDATE seen SET a = 1",
        "SET STATEMENT max_statement_time = 1 FOR DELETE FROM seen",
    ],
)
def test_a_row_change_that_names_no_selected_table_may_reach_one(statement: str) -> None:
    followed = follow(history(), statement, 200)
    assert (followed.outcome, followed.mentioned) == (OutcomeKind.DML, {name("t"), name("u")})
    with pytest.raises(DefiniteError, match=r"rows of shop\.t, shop\.u was .* \(it names none of them, but a view") as error:
        followed.check()
    assert statement in error.value.message
    assert "headrace resync" in error.value.hint


@pytest.mark.parametrize(
    ("statement", "database"),
    [
        ("INSERT INTO seen VALUES (1)", "other"),
        ("INSERT INTO mysql.rds_heartbeat2(id, value) values (1,2) ON DUPLICATE KEY UPDATE value = 2", "mysql"),
        ("SELECT `other`.`f`(1)", ""),
        # Old servers, for a MEMORY table after a restart.
        ("DELETE FROM `shop`.`aside`", "shop"),
    ],
)
def test_a_row_change_of_another_database_is_passed_over(statement: str, database: str) -> None:
    assert follow(history(), statement, 200, database=database).outcome is OutcomeKind.NOTHING


def test_definitions_without_text_are_captured_again() -> None:
    one = history()
    followed = follow(one, "CREATE TABLE v SELECT * FROM t", 200)
    assert (followed.outcome, followed.recapture, followed.why != "") == (OutcomeKind.RECAPTURE, {name("v")}, True)
    assert name("v") not in one.catalog.tables
    one.learn([table("v", "a")], at(250))
    assert follow(one, "ALTER TABLE v ADD b INT", 300).outcome is OutcomeKind.CHANGED
    assert columns(one.catalog, "v") == "a b"
