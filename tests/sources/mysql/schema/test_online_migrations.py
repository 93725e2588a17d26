"""The statements of gh-ost and pt-online-schema-change: ghost tables are ignored, the swap is recognised."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.model.change_block import Op
from headrace.model.schema import TableName
from headrace.model.schema_change import RenameTable
from headrace.sources.mysql.schema.schema_history import DdlOutcome, OutcomeKind
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, plan_tables, read_segment
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.machine.wait_condition import wait_until
from testkit.oracles.binlogs import Logbook, Place, images_of, open_logbook, parts_of
from testkit.oracles.ddl import Follower, logged


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(9), KEY (v))", "INSERT INTO t (v) VALUES ('a'), ('b'), ('c')")
    return book


def migrate_as_ghost(book: Logbook) -> None:
    """gh-ost's statements, the cut-over with its two connections and its lock included."""
    db = book.database
    book.run(
        f"""create /* gh-ost */ table `{db}`.`_t_ghc` (
            id bigint unsigned auto_increment,
            last_update timestamp not null DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
            hint varchar(64) charset ascii not null,
            value varchar(4096) charset ascii not null,
            primary key(id),
            unique key hint_uidx(hint)
        ) auto_increment=256 comment='gh-ost changelog'""",
        f"create /* gh-ost */ table `{db}`.`_t_gho` like `{db}`.`t`",
        f"alter /* gh-ost */ table `{db}`.`_t_gho` ADD COLUMN n INT NOT NULL DEFAULT 7, MODIFY v VARCHAR(20)",
        f"""insert /* gh-ost */ into `{db}`.`_t_ghc` (id, hint, value) values (NULLIF(2, 0), 'state', 'GhostTableMigrated')
            on duplicate key update last_update=NOW(), value=VALUES(value)""",
        f"""insert /* gh-ost `{db}`.`t` */ ignore into `{db}`.`_t_gho` (`id`, `v`)
            (select `id`, `v` from `{db}`.`t` force index (`PRIMARY`) where (((`id` > 0)) and ((`id` < 100))) lock in share mode)""",
        "INSERT INTO t (v) VALUES ('during')",
        f"replace /* gh-ost `{db}`.`_t_gho` */ into `{db}`.`_t_gho` (`id`, `v`) values (4, 'during')",
        "DELETE FROM t WHERE id = 1",
        f"delete /* gh-ost `{db}`.`_t_gho` */ from `{db}`.`_t_gho` where ((`id` = 1))",
        f"create /* gh-ost */ table `{db}`.`_t_del` (id int auto_increment primary key) engine=InnoDB comment='ghost-cut-over-sentry'",
        f"lock /* gh-ost */ tables `{db}`.`t` write, `{db}`.`_t_del` write",
    )
    swap = f"rename /* gh-ost */ table `{db}`.`t` to `{db}`.`_t_del`, `{db}`.`_t_gho` to `{db}`.`t`"
    with open_logbook(book.server, db) as other, open_logbook(book.server, db) as watcher:
        renaming = threading.Thread(target=other.run, args=(swap,))
        renaming.start()
        wait_until(lambda: any(row[7] == swap for row in watcher.fetch("SHOW FULL PROCESSLIST")), 30)
        book.run(f"drop /* gh-ost */ table if exists `{db}`.`_t_del`", "unlock tables")
        renaming.join()
    book.run(
        "INSERT INTO t (v, n) VALUES ('after', 8)",
        f"drop /* gh-ost */ table if exists `{db}`.`_t_ghc`",
        f"drop /* gh-ost */ table if exists `{db}`.`_t_del`",
    )


def migrate_as_percona(book: Logbook) -> None:
    """pt-online-schema-change's statements, triggers included."""
    db = book.database
    [(_, made)] = book.fetch("SHOW CREATE TABLE t")
    book.run(
        str(made).replace("CREATE TABLE `t`", f"CREATE TABLE `{db}`.`_t_new`", 1),
        f"ALTER TABLE `{db}`.`_t_new` ADD COLUMN n INT NOT NULL DEFAULT 7, MODIFY v VARCHAR(20)",
        f"""CREATE TRIGGER `pt_osc_{db}_t_del` AFTER DELETE ON `{db}`.`t` FOR EACH ROW BEGIN
            DECLARE CONTINUE HANDLER FOR 1146 begin end;
            DELETE IGNORE FROM `{db}`.`_t_new` WHERE `{db}`.`_t_new`.`id` <=> OLD.`id`; END""",
        f"""CREATE TRIGGER `pt_osc_{db}_t_ins` AFTER INSERT ON `{db}`.`t` FOR EACH ROW BEGIN
            DECLARE CONTINUE HANDLER FOR 1146 begin end;
            REPLACE INTO `{db}`.`_t_new` (`id`, `v`) VALUES (NEW.`id`, NEW.`v`);END""",
        f"""INSERT LOW_PRIORITY IGNORE INTO `{db}`.`_t_new` (`id`, `v`) SELECT `id`, `v` FROM `{db}`.`t` FORCE INDEX(`PRIMARY`)
            WHERE ((`id` >= '1')) AND ((`id` <= '100')) LOCK IN SHARE MODE /*pt-online-schema-change 4711 copy nibble*/""",
        "INSERT INTO t (v) VALUES ('during')",
        "DELETE FROM t WHERE id = 1",
        f"ANALYZE TABLE `{db}`.`_t_new` /* pt-online-schema-change */",
        f"RENAME TABLE `{db}`.`t` TO `{db}`.`_t_old`, `{db}`.`_t_new` TO `{db}`.`t`",
        f"DROP TABLE IF EXISTS `{db}`.`_t_old`",
        f"DROP TRIGGER IF EXISTS `{db}`.`pt_osc_{db}_t_del`",
        f"DROP TRIGGER IF EXISTS `{db}`.`pt_osc_{db}_t_ins`",
        "INSERT INTO t (v, n) VALUES ('after', 8)",
    )


MIGRATIONS = pytest.mark.parametrize("migrate", [migrate_as_ghost, migrate_as_percona], ids=["gh-ost", "pt-osc"])


@MIGRATIONS
def test_an_online_migration_is_one_resync(book: Logbook, migrate: Callable[[Logbook], None]) -> None:
    table = TableName(book.database, "t")
    follower = Follower(book, (book.database,), lambda name: name == table)
    start = follower.place
    migrate(book)
    answers = follower.catch_up()
    [swap] = [answer for answer in answers if answer.outcome is not OutcomeKind.NOTHING]
    assert (swap.outcome, swap.arrived, swap.gone, swap.recapture) == (OutcomeKind.RESYNC, {table}, frozenset(), frozenset())
    assert [type(change) for change in swap.changes] == [RenameTable, RenameTable]
    assert follower.differences() == []
    assert _inserted(book, follower, start) == [("4", "during"), ("5", "after", "8")]
    assert sorted(row[1] for row in book.select(book.schema("t"))) == ["after", "b", "c", "during"]


@MIGRATIONS
def test_where_ghost_tables_are_replicated_too_the_rows_move_along(book: Logbook, migrate: Callable[[Logbook], None]) -> None:
    follower = Follower(book, (book.database,))
    migrate(book)
    answers = follower.catch_up()
    [swap] = [answer for answer in answers if answer.moved]
    assert (swap.outcome, swap.arrived) == (OutcomeKind.CHANGED, frozenset())
    assert swap.moved[TableName(book.database, "t")].table in ("_t_gho", "_t_new")
    assert _kinds(answers) == {OutcomeKind.NOTHING, OutcomeKind.CHANGED} or _kinds(answers) == {OutcomeKind.CHANGED}
    assert follower.differences() == []


def _kinds(answers: list[DdlOutcome]) -> set[OutcomeKind]:
    return {answer.outcome for answer in answers}


def _inserted(book: Logbook, follower: Follower, start: Place) -> list[tuple[object, ...]]:
    """The rows inserted into t, each read by the definition of its time."""
    table = TableName(book.database, "t")
    whole = book.segment(start, follower.place)
    cuts = [position.offset for _, position in logged(book, start, follower.place) if position.offset < whole.end]
    rows: list[tuple[object, ...]] = []
    for part in parts_of(whole, cuts):
        schemas = dict(follower.history.as_of(BinlogPosition(part.file, part.start)).tables)
        catalog = ReadCatalog(
            plan_tables(schemas, {name: schema.primary_key for name, schema in schemas.items()}), lambda name: name == table
        )
        rows += [image.row for image in images_of(list(read_segment(part, catalog))) if image.op is Op.INSERT]
    return rows
