"""Translations of source statements to the exact statements for the target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.commands.ddl_dry_run import DdlDryRun, DryRunResult, describe, read_statements, strict_query
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import Policy, SchemaPolicy
from headrace.sinks.clickhouse.server.options import BitAs, ClickHouseOptions, DecimalAs, GeometryAs, SetAs, TimeAs, UnsignedAs
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.ddl.dialect import Dialect

MYSQL = Dialect(mariadb=False, version=90700)
TABLES = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20) NOT NULL, d DECIMAL(5,2), e ENUM('x','y'), dt DATETIME(3))",
    "CREATE TABLE u (x INT, y VARCHAR(9))",
    "CREATE TABLE o (id INT PRIMARY KEY)",
)
IDLE_MERGES = "min_age_to_force_merge_seconds = 20, min_age_to_force_merge_on_partition_only = 1"
A, AT = "ALTER TABLE `s`.`t` ", "ALTER TABLE `s`.`u` "


def planned_dry_run(choices: ClickHouseOptions | None = None, tables: Sequence[str] = TABLES) -> DdlDryRun:
    settings = PipeSettings(Selection(("s.*",), ("s.private*",)), Path("nowhere"), name="p")
    sink = ClickHouseSink(parse_target("clickhouse://default@127.0.0.1:1"), choices or ClickHouseOptions())
    return DdlDryRun(describe(tables, "s", MYSQL), MYSQL, settings, sink)


def dry_run_of(
    statement: str, *policy: str, choices: ClickHouseOptions | None = None, tables: Sequence[str] = TABLES
) -> tuple[DryRunResult, ...]:
    return planned_dry_run(choices, tables).dry_run(
        strict_query(statement, "s"), SchemaPolicy.from_dict(dict(pair.split("=") for pair in policy))
    )


# The rest of an ALTER TABLE t, and the rest of each ALTER TABLE `s`.`t` that follows it.
IN_PLACE: list[tuple[str, list[str]]] = [
    ("ADD COLUMN c INT", ["ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) AFTER `dt`"]),
    ("ADD COLUMN c INT DEFAULT 5 FIRST", ["ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) DEFAULT 5 FIRST"]),
    ("ADD COLUMN c INT NOT NULL AFTER a", ["ADD COLUMN IF NOT EXISTS `c` Int32 DEFAULT 0 AFTER `a`"]),
    (
        "ADD COLUMN c VARCHAR(9) NOT NULL DEFAULT 'it''s' COMMENT 'why\\\\not'",
        ["ADD COLUMN IF NOT EXISTS `c` String DEFAULT 'it\\'s' COMMENT 'why\\\\not' AFTER `dt`"],
    ),
    (
        "ADD COLUMN c DECIMAL(9,3) NOT NULL DEFAULT 1.5, ADD COLUMN c2 DATE DEFAULT '2001-02-03' AFTER id",
        [
            "ADD COLUMN IF NOT EXISTS `c2` Nullable(Date32) DEFAULT CAST(addDays(toDate32('1970-01-01'), 11356), 'Nullable(Date32)')"
            " AFTER `id`",
            "ADD COLUMN IF NOT EXISTS `c` Decimal(9, 3) DEFAULT CAST('1.500', 'Decimal(9, 3)') AFTER `dt`",
        ],
    ),
    ("DROP COLUMN a", ["DROP COLUMN IF EXISTS `a`"]),
    (
        "DROP COLUMN a, ADD COLUMN a INT DEFAULT 1 AFTER id",
        ["DROP COLUMN IF EXISTS `a`", "ADD COLUMN IF NOT EXISTS `a` Nullable(Int32) DEFAULT 1 AFTER `id`"],
    ),
    ("RENAME COLUMN a TO z", ["RENAME COLUMN IF EXISTS `a` TO `z`"]),
    ("DROP COLUMN a, RENAME COLUMN b TO a", ["DROP COLUMN IF EXISTS `a`", "RENAME COLUMN IF EXISTS `b` TO `a`"]),
    (
        "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        [
            "RENAME COLUMN IF EXISTS `b` TO `_headrace_b`",
            "RENAME COLUMN IF EXISTS `a` TO `b`",
            "RENAME COLUMN IF EXISTS `_headrace_b` TO `a`",
        ],
    ),
    (
        "CHANGE a z BIGINT NOT NULL",
        ["RENAME COLUMN IF EXISTS `a` TO `z`", "MODIFY COLUMN `z` Int64 DEFAULT defaultValueOfTypeName('Int64')"],
    ),
    ("MODIFY a BIGINT", ["MODIFY COLUMN `a` Nullable(Int64)"]),
    ("MODIFY a TINYINT", ["MODIFY COLUMN `a` Nullable(Int8)"]),
    ("MODIFY a INT NOT NULL", ["MODIFY COLUMN `a` Int32 DEFAULT defaultValueOfTypeName('Int32')"]),
    ("MODIFY b VARCHAR(20) NULL", ["MODIFY COLUMN `b` Nullable(String)"]),
    ("MODIFY b VARCHAR(40) NOT NULL", []),
    ("MODIFY b VARCHAR(9) NOT NULL", ["UPDATE `b` = substringUTF8(`b`, 1, 9) WHERE `b` != substringUTF8(`b`, 1, 9)"]),
    ("MODIFY b CHAR(20) NOT NULL", ["UPDATE `b` = trimRight(`b`, ' ') WHERE `b` != trimRight(`b`, ' ')"]),
    ("MODIFY d DECIMAL(9,4)", ["MODIFY COLUMN `d` Nullable(Decimal(9, 4))"]),
    ("MODIFY e ENUM('x','y','z')", []),
    ("MODIFY e VARCHAR(9)", ["MODIFY COLUMN `e` Nullable(String)"]),
    ("MODIFY a VARCHAR(11)", ["MODIFY COLUMN `a` Nullable(String)"]),
    (
        "ADD COLUMN c TIME(3) DEFAULT '-01:00:00.5'",
        ["ADD COLUMN IF NOT EXISTS `c` Nullable(Time64(3)) DEFAULT CAST('-01:00:00.500000', 'Nullable(Time64(3))') AFTER `dt`"],
    ),
    ("MODIFY dt DATETIME(6)", ["MODIFY COLUMN `dt` Nullable(DateTime64(6, 'UTC'))"]),
    ("MODIFY a INT FIRST", ["MODIFY COLUMN `id` Int32 AFTER `a`"]),
    ("MODIFY d DECIMAL(5,2) FIRST", ["MODIFY COLUMN `d` Nullable(Decimal(5, 2)) FIRST"]),
    ("MODIFY id INT AFTER d", ["MODIFY COLUMN `id` Int32 AFTER `d`"]),
    ("MODIFY a INT COMMENT 'new'", ["COMMENT COLUMN IF EXISTS `a` 'new'"]),
    ("COMMENT = 'of it'", ["MODIFY COMMENT 'of it'"]),
    ("ADD INDEX (a)", []),
    ("ALTER a SET DEFAULT 9", []),
    ("DEFAULT CHARACTER SET latin1", []),
]


@pytest.mark.parametrize(("clauses", "expected"), IN_PLACE, ids=lambda value: str(value)[:60])
def test_columns_follow_in_place(clauses: str, expected: list[str]) -> None:
    found = dry_run_of(f"ALTER TABLE t {clauses}")
    assert [statement for one in found for statement in one.statements] == [A + text for text in expected]
    assert {one.outcome for one in found} <= {"applied"}


# The rest of an ALTER TABLE t, the rest of the immediate statement, and the reason to read the table again.
READ_AGAIN: list[tuple[str, list[str], str]] = [
    ("ADD COLUMN c DATETIME DEFAULT NOW()", ["ADD COLUMN IF NOT EXISTS `c` Nullable(DateTime64(0, 'UTC')) AFTER `dt`"], "computes it"),
    ("MODIFY b INT NOT NULL", ["DROP COLUMN IF EXISTS `b`", "ADD COLUMN IF NOT EXISTS `b` Int32 AFTER `a`"], "converted its values"),
    ("MODIFY d DECIMAL(9,1)", ["DROP COLUMN IF EXISTS `d`", "ADD COLUMN IF NOT EXISTS `d` Nullable(Decimal(9, 1)) AFTER `b`"], "rounded"),
    ("MODIFY e ENUM('X','y')", [], "converted its values"),
    ("MODIFY id VARCHAR(5)", [], "converted its values"),
]


@pytest.mark.parametrize(("clauses", "expected", "why"), READ_AGAIN)
def test_values_known_only_to_the_source_are_reread(clauses: str, expected: list[str], why: str) -> None:
    [found] = dry_run_of(f"ALTER TABLE t {clauses}")
    assert list(found.statements) == [A + text for text in expected]
    assert found.outcome == "read again"
    assert why in found.detail


def rebuilt(found: DryRunResult) -> tuple[str, str]:
    """Return how the table is rebuilt: its sort key, and the values of its columns."""
    dropped, made, filled, swapped, *rest = found.statements
    assert (name := re.fullmatch(r"DROP TABLE IF EXISTS (`s`\.`headrace_rebuilt_[0-9a-f]{16}`) SYNC", dropped))
    assert swapped == f"EXCHANGE TABLES `s`.`t` AND {name[1]}"
    assert rest[0] == dropped
    order, _, settings = made.rpartition(" ORDER BY ")[2].partition(" SETTINGS ")
    assert settings == ("" if "_occurrence" in order else IDLE_MERGES), "as a new table"
    return order, filled.partition(" SELECT ")[2]


@pytest.mark.parametrize(
    ("clauses", "key", "filled"),
    [
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)", "(`id`, `b`)", "`id`, `a`, `b`, `d`, `e`, `dt`, 1, 68719477736 FROM `s`.`t` FINAL"),
        ("MODIFY id BIGINT", "(`id`)", "CAST(`id`, 'Int64'), `a`, `b`, `d`, `e`, `dt`, 1, 68719477736 FROM `s`.`t` FINAL"),
        (
            "RENAME COLUMN id TO k, DROP COLUMN a, ADD COLUMN n INT NOT NULL DEFAULT 3 FIRST",
            "(`k`)",
            "3, `id`, `b`, `d`, `e`, `dt`, 1, 68719477736 FROM `s`.`t` FINAL",
        ),
        (
            "RENAME COLUMN id TO a, RENAME COLUMN a TO id",
            "(`a`)",
            "`id`, `a`, `b`, `d`, `e`, `dt`, 1, 68719477736 FROM `s`.`t` FINAL",
        ),
        (
            "DROP PRIMARY KEY",
            "(`_row`, `_occurrence`)",
            "`id`, `a`, `b`, `d`, `e`, `dt`, 1, 68719477736, rowNumberInAllBlocks() FROM `s`.`t` FINAL"
            " SETTINGS max_threads = 1, max_insert_threads = 1",
        ),
        ("DROP PRIMARY KEY, ADD UNIQUE (b)", "(`b`)", "`id`, `a`, `b`, `d`, `e`, `dt`, 1, 68719477736 FROM `s`.`t` FINAL"),
    ],
)
def test_another_key_rebuilds_the_table_next_to_the_old_one(clauses: str, key: str, filled: str) -> None:
    [found] = dry_run_of(f"ALTER TABLE t {clauses}")
    assert found.outcome == "applied"
    assert rebuilt(found) == (key, filled)


def test_hidden_columns_stay_hidden() -> None:
    hidden = ClickHouseOptions(all_tables=(("hidden_columns", True),))
    [added] = dry_run_of("ALTER TABLE t ADD COLUMN c INT", choices=hidden)
    assert added.statements == (A + "ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) AFTER `dt`",)
    other_key = "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, id)"
    [found] = dry_run_of(other_key, choices=hidden)
    assert rebuilt(found) == rebuilt(dry_run_of(other_key)[0])
    [made] = [statement for statement in found.statements if statement.startswith("CREATE TABLE")]
    assert "`_sign` Int8 MATERIALIZED 1, `_version` UInt64 MATERIALIZED 0 COMMENT" in made
    # Readers of a table without a key need the columns.
    keyless = "ALTER TABLE t DROP PRIMARY KEY"
    assert dry_run_of(keyless, choices=hidden)[0].statements == dry_run_of(keyless)[0].statements


def test_a_table_becomes_a_view_when_its_key_goes_and_the_reverse() -> None:
    views = ClickHouseOptions(all_tables=(("keyless_views", True),))
    [found] = dry_run_of("ALTER TABLE t DROP PRIMARY KEY", choices=views)
    renamed, made = found.statements[-2:]
    assert renamed == "RENAME TABLE IF EXISTS `s`.`t` TO `s`.`t__rows`"
    assert made.startswith("CREATE VIEW IF NOT EXISTS `s`.`t` AS SELECT")
    [found] = dry_run_of("ALTER TABLE u ADD PRIMARY KEY (x)", choices=views)
    assert any(one.startswith("EXCHANGE TABLES `s`.`u__rows` AND `s`.`headrace_rebuilt_") for one in found.statements)
    assert found.statements[-1] == "RENAME TABLE IF EXISTS `s`.`u__rows` TO `s`.`u`"


def test_a_table_without_a_key_is_altered_with_its_hash_and_its_view() -> None:
    [added] = dry_run_of("ALTER TABLE u ADD z INT DEFAULT 1")
    assert added.statements[0] == AT + "ADD COLUMN IF NOT EXISTS `z` Nullable(Int32) DEFAULT 1 AFTER `y`"
    assert added.statements[1] == "DROP VIEW IF EXISTS `s`.`u_current`"
    assert added.statements[2].startswith("CREATE VIEW IF NOT EXISTS `s`.`u_current` AS SELECT `x`, `y`, `z` FROM")
    [dropped] = dry_run_of("ALTER TABLE u DROP COLUMN y")
    assert dropped.statements[:2] == (
        AT + "MODIFY COLUMN _row UInt64 MATERIALIZED cityHash64(tuple(`x`))",
        AT + "DROP COLUMN IF EXISTS `y`",
    )
    [keyed] = dry_run_of("ALTER TABLE u ADD PRIMARY KEY (x)")
    assert any(statement.endswith("ARRAY JOIN range(toUInt64(greatest(`__headrace_times`, 0))))") for statement in keyed.statements)
    assert keyed.statements[-1] == "DROP VIEW IF EXISTS `s`.`u_current`"
    [cut] = dry_run_of("ALTER TABLE u MODIFY y VARCHAR(2)")
    assert "substringUTF8(`y`, 1, 2)" in cut.statements[2], "a hash over the column must be recomputed"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("TRUNCATE TABLE t", {"s.t": ["TRUNCATE TABLE IF EXISTS `s`.`t`"]}),
        ("DROP TABLE t, o", {"s.t": ["DROP TABLE IF EXISTS `s`.`t`"], "s.o": ["DROP TABLE IF EXISTS `s`.`o`"]}),
        ("DROP TABLE u", {"s.u": ["DROP VIEW IF EXISTS `s`.`u_current`", "DROP TABLE IF EXISTS `s`.`u`"]}),
        ("RENAME TABLE t TO n", {"s.n": ["RENAME TABLE IF EXISTS `s`.`t` TO `s`.`n`"]}),
        (
            "RENAME TABLE o TO n, t TO o",
            {"s.n": [], "s.o": ["RENAME TABLE IF EXISTS `s`.`o` TO `s`.`n`", "RENAME TABLE IF EXISTS `s`.`t` TO `s`.`o`"]},
        ),
        ("RENAME TABLE t TO x, o TO t, x TO o", {"s.t": [], "s.o": ["EXCHANGE TABLES `s`.`o` AND `s`.`t`"]}),
        ("RENAME TABLE t TO private_t", {"s.t": ["DROP TABLE IF EXISTS `s`.`t`"]}),
    ],
)
def test_whole_tables(statement: str, expected: dict[str, list[str]]) -> None:
    found = {one.table: list(one.statements) for one in dry_run_of(statement)}
    shared = [text for texts in expected.values() for text in texts]
    assert found == {name: texts or shared for name, texts in expected.items()}


def test_a_cycle_of_renames_uses_exchanges() -> None:
    found = dry_run_of("RENAME TABLE t TO x, o TO t, u TO o, x TO u")
    assert [text for text in found[0].statements if "VIEW" not in text] == [
        "EXCHANGE TABLES `s`.`o` AND `s`.`t`",
        "EXCHANGE TABLES `s`.`u` AND `s`.`o`",
    ]


def test_a_new_table_is_made() -> None:
    [found] = dry_run_of("CREATE TABLE n (id INT PRIMARY KEY COMMENT 'key') COMMENT = 'new'")
    assert found.statements[0] == "CREATE DATABASE IF NOT EXISTS `s`"
    assert found.statements[1].startswith("CREATE TABLE IF NOT EXISTS `s`.`n` (`id` Int32 COMMENT 'key', ")
    [like] = dry_run_of("CREATE TABLE n LIKE t")
    assert "`dt` Nullable(DateTime64(3, 'UTC'))" in like.statements[1]


@pytest.mark.parametrize(
    ("statement", "policy", "outcome", "statements"),
    [
        ("DROP TABLE t", "drop_table=keep", "kept", ["RENAME TABLE IF EXISTS `s`.`t` TO `s`.`t_dropped_000001_1000`"]),
        ("DROP TABLE t", "drop_table=ignore", "ignored", []),
        ("TRUNCATE t", "truncate_table=ignore", "ignored", []),
        ("CREATE TABLE n (id INT)", "create_table=ignore", "ignored", []),
        ("ALTER TABLE t ADD c INT", "add_column=ignore", "ignored", []),
        ("ALTER TABLE t ADD c INT", "add_column=resync", "read again", [A + "ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) AFTER `dt`"]),
        ("ALTER TABLE t DROP a", "drop_column=ignore", "ignored", []),
        (
            "ALTER TABLE t DROP b",
            "drop_column=ignore",
            "ignored",
            [A + "MODIFY COLUMN `b` String DEFAULT defaultValueOfTypeName('String')"],
        ),
        ("ALTER TABLE t MODIFY b VARCHAR(3) NOT NULL", "modify_column=ignore", "ignored", []),
        (
            "ALTER TABLE t DROP a, ADD c INT",
            "drop_column=ignore",
            "applied",
            [A + "ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) AFTER `dt`"],
        ),
        ("RENAME TABLE t TO n", "rename_table=resync", "read again", []),
    ],
)
def test_policies(statement: str, policy: str, outcome: str, statements: list[str]) -> None:
    found = dry_run_of(statement, policy)[0]
    assert (found.outcome, list(found.statements)) == (outcome, statements)


def test_a_truncated_table_may_be_kept() -> None:
    [found] = dry_run_of("TRUNCATE t", "truncate_table=keep")
    assert found.outcome == "kept"
    assert found.statements[0] == "RENAME TABLE IF EXISTS `s`.`t` TO `s`.`t_truncated_000001_1000`"
    assert found.statements[1].startswith("CREATE TABLE IF NOT EXISTS `s`.`t` (")


@pytest.mark.parametrize(
    "statement", ["DROP TABLE t", "ALTER TABLE t ADD c INT", "ALTER TABLE t DROP PRIMARY KEY", "RENAME TABLE t TO n", "TRUNCATE t"]
)
def test_a_halt_says_what_to_do(statement: str) -> None:
    with pytest.raises(DefiniteError, match="is set to halt") as caught:
        dry_run_of(statement, "all=halt")
    assert "--schema-changes" in caught.value.hint


def test_a_modification_that_the_old_column_cannot_hold_is_not_ignored() -> None:
    with pytest.raises(DefiniteError, match="cannot be ignored") as caught:
        dry_run_of("ALTER TABLE t MODIFY a VARCHAR(20)", "modify_column=ignore")
    assert "column a" in caught.value.place
    [held] = dry_run_of("ALTER TABLE t MODIFY b INT NOT NULL", "modify_column=ignore")
    assert (held.outcome, held.statements) == ("ignored", ()), "text holds numbers"


def test_engines_that_count_and_histories() -> None:
    history = ClickHouseOptions(all_tables=(("engine", "history"),))
    for statement in ("TRUNCATE t", "DROP TABLE t"):
        [found] = dry_run_of(statement, choices=history)
        assert (found.outcome, found.statements) == ("kept", ()), "a history keeps old rows"
    [narrowed] = dry_run_of("ALTER TABLE t MODIFY a INT NOT NULL, MODIFY b VARCHAR(3) NOT NULL", choices=history)
    assert narrowed.statements == (), "old rows do not change"
    [widened] = dry_run_of("ALTER TABLE t MODIFY a BIGINT", choices=history)
    assert widened.statements == (A + "MODIFY COLUMN `a` Nullable(Int64)",)
    versioned = ClickHouseOptions(all_tables=(("engine", "versioned"),))
    [hashed] = dry_run_of("ALTER TABLE t ADD c INT", choices=versioned)
    assert hashed.statements[3].startswith("EXCHANGE TABLES `s`.`t` AND `s`.`headrace_rebuilt_"), "rows are hashed again"
    collapsing = ClickHouseOptions(all_tables=(("engine", "collapsing"),))
    assert dry_run_of("ALTER TABLE t ADD c INT", choices=collapsing, tables=TABLES[:1])[0].statements == (
        A + "ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) AFTER `dt`",
    )


def test_clusters() -> None:
    cluster = ClickHouseOptions(cluster="main")
    [added] = dry_run_of("ALTER TABLE t ADD c INT", choices=cluster)
    assert added.statements == (
        "ALTER TABLE `s`.`t_local` ON CLUSTER `main` ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) AFTER `dt`",
        "ALTER TABLE `s`.`t` ON CLUSTER `main` ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) AFTER `dt`",
    )
    [cut] = dry_run_of("ALTER TABLE t MODIFY b VARCHAR(9) NOT NULL", choices=cluster)
    assert [statement.split(" UPDATE ")[0] for statement in cut.statements] == ["ALTER TABLE `s`.`t_local` ON CLUSTER `main`"]
    [keyed] = dry_run_of("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)", choices=cluster)
    assert keyed.outcome == "read again"
    [dropped] = dry_run_of("DROP TABLE t", choices=cluster)
    assert dropped.statements == (
        "DROP TABLE IF EXISTS `s`.`t` ON CLUSTER `main`",
        "DROP TABLE IF EXISTS `s`.`t_local` ON CLUSTER `main`",
    )
    with pytest.raises(DefiniteError, match="not renamed"):
        dry_run_of("RENAME TABLE t TO n", choices=cluster)


def test_choices_of_the_target_are_kept() -> None:
    renamed = ClickHouseOptions(
        all_tables=(("rename", (("a", "amount"), ("c", "added"))), ("codecs", (("c", "ZSTD(3)"),)), ("target", "other.place"))
    )
    [found] = dry_run_of("ALTER TABLE t MODIFY a BIGINT, ADD c INT DEFAULT 1", choices=renamed, tables=TABLES[:1])
    assert found.statements == (
        "ALTER TABLE `other`.`place` MODIFY COLUMN `amount` Nullable(Int64)",
        "ALTER TABLE `other`.`place` ADD COLUMN IF NOT EXISTS `added` Nullable(Int32) DEFAULT 1 CODEC(ZSTD(3)) AFTER `dt`",
    )


def test_every_policy_is_shown_with_what_it_leads_to(tmp_path: Path) -> None:
    choices = dict(planned_dry_run().choices(strict_query("DROP TABLE t", "s")))
    assert list(choices) == [Policy.APPLY, Policy.IGNORE, Policy.HALT, Policy.KEEP]
    assert isinstance(choices[Policy.HALT], DefiniteError)
    file = tmp_path / "schema.sql"
    file.write_text("-- tables\nCREATE TABLE a (\n  id INT -- key\n);\n\nCREATE TABLE b (id INT);\n")
    assert [text.split("(")[0] for text in read_statements(str(file))] == ["CREATE TABLE a ", "CREATE TABLE b "]
    assert read_statements("CREATE TABLE a (id INT)") == ["CREATE TABLE a (id INT)"]
    with pytest.raises(DefiniteError, match="not understood"):
        dry_run_of("FROBNICATE t")
    with pytest.raises(DefiniteError, match="not understood"):
        describe(["CREATE TABLE a AS SELECT 1"], "s", MYSQL)


SPELLED = "CREATE TABLE w (id INT PRIMARY KEY, d DECIMAL(5,2), t TIME, b BIT(3), s SET('p','q'), g POINT, u BIGINT UNSIGNED, i INT)"
CHOSEN = ClickHouseOptions(
    (
        ("decimal", DecimalAs.STRING),
        ("time", TimeAs.STRING),
        ("bit", BitAs.STRING),
        ("set", SetAs.ARRAY),
        ("geometry", GeometryAs.GEO),
        ("uint64", UnsignedAs.STRING),
    )
)


@pytest.mark.parametrize(
    ("clause", "outcome"),
    [
        ("MODIFY d DECIMAL(9,4)", "read again"),
        ("MODIFY t TIME(3)", "read again"),
        ("MODIFY b BIT(9)", "read again"),
        ("MODIFY s VARCHAR(9)", "read again"),
        ("MODIFY g GEOMETRY", "read again"),
        ("MODIFY i DECIMAL(12,2)", "read again"),
        ("MODIFY s SET('p','q','r')", "applied"),
        ("MODIFY i BIGINT UNSIGNED", "applied"),
        ("MODIFY u BIGINT", "applied"),
        ("RENAME COLUMN d TO e", "applied"),
        ("MODIFY d DECIMAL(5,2) NOT NULL", "applied"),
    ],
)
def test_clickhouse_does_not_convert_values_in_headrace_formats(clause: str, outcome: str) -> None:
    [found] = dry_run_of(f"ALTER TABLE w {clause}", choices=CHOSEN, tables=[SPELLED])
    assert found.outcome == outcome, found
