"""Cascades that are forbidden, ignored, or refused because they cannot be exact."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pymysql.err import IntegrityError

from headrace import cli
from headrace.errors import DefiniteError
from headrace.model.setting_values import CascadeMode, ZeroDates
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, Deletes, OnRefusedRow, SetAs, TargetEngine
from testkit.pipelines.cascade_replica import PAIR, Replica

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")


@ON_MYSQL
def test_the_user_may_forbid_or_ignore_cascades(replica: Replica, caplog: pytest.LogCaptureFixture) -> None:
    replica.book.run(*PAIR)
    with pytest.raises(DefiniteError, match=r'foreign key up of .*\.c changes rows .*cascades = "halt"'):
        replica.restart(cascades=CascadeMode.HALT)
    replica.restart(cascades=CascadeMode.IGNORE)
    assert "the changes that foreign key up of" in caplog.text
    replica.book.run("DELETE FROM p WHERE id = 1")
    replica.pipe.catch_up()
    with pytest.raises(AssertionError):
        replica.compare()


COLLAPSING = ClickHouseOptions(all_tables=(("engine", TargetEngine.COLLAPSING),))
OBSTACLES: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "a moving row with an array": (
        ("ALTER TABLE c ADD s SET('x', 'y') NOT NULL DEFAULT 'x', DROP PRIMARY KEY, MODIFY p INT NOT NULL, ADD PRIMARY KEY (id, p)",),
        {"choices": ClickHouseOptions(all_tables=(("set", SetAs.ARRAY),))},
        "it moves rows of .* to other keys, and a key log cannot hold its column s",
    ),
    "a sort key that is set to NULL": (
        (
            "ALTER TABLE p ADD p INT",
            "ALTER TABLE c DROP FOREIGN KEY up",
            "ALTER TABLE c ADD CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL",
        ),
        {"choices": ClickHouseOptions(all_tables=(("partition_by", "ifNull(p, 0) % 4"),))},
        "it sets p to NULL, which is part of the key",
    ),
    "a child without a key": (("ALTER TABLE c DROP PRIMARY KEY",), {}, "the child table has no key"),
    "an excluded parent": ((), {"exclude": ("*.p",)}, "its parent .*p is not replicated"),
    "an ENUM key": (
        (
            "CREATE TABLE t (k ENUM('x', 'y') PRIMARY KEY)",
            "UPDATE c SET p = NULL",
            "ALTER TABLE c DROP FOREIGN KEY up",
            "ALTER TABLE c MODIFY p ENUM('x', 'y'), ADD CONSTRAINT up FOREIGN KEY (p) REFERENCES t (k) ON DELETE CASCADE",
        ),
        {},
        "its columns are of type ENUM or SET",
    ),
    "a text that the server pads": (
        (
            "CREATE TABLE t (k CHAR(8) COLLATE {pad} PRIMARY KEY)",
            "UPDATE c SET p = NULL",
            "ALTER TABLE c DROP FOREIGN KEY up",
            "ALTER TABLE c MODIFY p VARCHAR(8) COLLATE {pad}, ADD CONSTRAINT up FOREIGN KEY (p) REFERENCES t (k) ON UPDATE CASCADE",
        ),
        {},
        "it copies texts of a CHAR to p",
    ),
    "a text that the server compares with its padding": (
        (
            "CREATE TABLE t (k VARCHAR(8) COLLATE {nopad} PRIMARY KEY)",
            "UPDATE c SET p = NULL",
            "ALTER TABLE c DROP FOREIGN KEY up",
            "ALTER TABLE c MODIFY p CHAR(8) COLLATE {nopad}, ADD CONSTRAINT up FOREIGN KEY (p) REFERENCES t (k) ON DELETE CASCADE",
        ),
        {},
        "either p or k is a CHAR",
    ),
    "a date that may be replaced": (
        (
            "CREATE TABLE t (k DATE PRIMARY KEY)",
            "UPDATE c SET p = NULL",
            "ALTER TABLE c DROP FOREIGN KEY up",
            "ALTER TABLE c MODIFY p DATE, ADD CONSTRAINT up FOREIGN KEY (p) REFERENCES t (k) ON DELETE CASCADE",
        ),
        {"zero_dates": ZeroDates.NULL},
        "it connects dates, of which zero_dates replaces some",
    ),
    "deletes that are ignored": ((), {"choices": ClickHouseOptions(all_tables=(("deletes", Deletes.IGNORE),))}, "keeps deleted rows"),
    "a generated column": (("ALTER TABLE c ADD g INT AS (p + 1)",), {}, "the table has generated columns"),
    "an engine that counts": (
        (),
        {"choices": COLLAPSING},
        "is not a ReplacingMergeTree",
    ),
    "rows that wait": (
        (),
        {"choices": ClickHouseOptions(all_tables=(("on_refused_row", OnRefusedRow.DEAD_LETTER),))},
        "on_refused_row = dead_letter",
    ),
    "a masked column": ((), {"settings": {"transforms": {"*.c": {"mask": {"p": "null"}}}}}, "are transformed"),
}


@ON_MYSQL
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_cascades_that_cannot_be_exact_are_refused(replica: Replica, obstacle: str) -> None:
    statements, settings, why = OBSTACLES[obstacle]
    nopad = "utf8mb4_general_nopad_ci" if replica.book.server.flavour == "mariadb" else "utf8mb4_0900_ai_ci"
    replica.book.run(*PAIR, *(statement.format(pad="utf8mb4_general_ci", nopad=nopad) for statement in statements))
    with pytest.raises(DefiniteError, match=f"foreign key up of .* cannot apply it exactly: .*{why}") as raised:
        replica.restart(**settings)
    child = f"{replica.book.database}.c"
    remedies = f'leave the table out with --exclude {child}, make the key RESTRICT, or accept different rows with cascades = "ignore"'
    assert raised.value.hint == remedies
    # Each remedy of the message, with a new state and new targets.
    state, place = replica.state, f"DROP DATABASE IF EXISTS `{replica.book.database}`"
    excluded = (*settings.get("exclude", ()), child)
    for remedy in ({"exclude": excluded}, {"cascades": CascadeMode.IGNORE}, {}):
        if not remedy:
            [[_, made]] = replica.book.fetch("SHOW CREATE TABLE c")
            [key] = re.findall(r"FOREIGN KEY \(`p`\) REFERENCES `\w+` \(`\w+`\)", made)
            replica.book.run("ALTER TABLE c DROP FOREIGN KEY up", f"ALTER TABLE c ADD {key}")
        replica.client.command(place)
        replica.state = state.with_name("-".join(["remedy", *remedy]))
        replica.restart(shared_target=True, **{**settings, **remedy})
        replica.pipe.catch_up()


def test_a_sink_that_only_appends(replica: Replica, capsys: pytest.CaptureFixture[str]) -> None:
    replica.book.run(*PAIR)
    url = replica.book.server.url(replica.book.database)
    assert cli.main(["replicate", url, "stdout:", "--once", "--state", str(replica.state)]) == 2
    shown = "".join(capsys.readouterr())
    assert f"foreign key up of {replica.book.database}.c" in shown
    assert "cannot apply it exactly: the sink only appends" in shown


def test_a_key_that_sets_defaults(replica: Replica) -> None:
    """MariaDB stores it as RESTRICT; MySQL shows it, and behaves as if it were."""
    key = "CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET DEFAULT"
    replica.book.run(*PAIR[:1], f"CREATE TABLE c (id INT PRIMARY KEY, p INT DEFAULT 2, {key})", *PAIR[2:])
    with pytest.raises(IntegrityError):
        replica.book.run("DELETE FROM p WHERE id = 1")
    [[_, made]] = replica.book.fetch("SHOW CREATE TABLE c")
    if "SET DEFAULT" in made:
        with pytest.raises(DefiniteError, match="it sets defaults, which no tested server does"):
            replica.restart()
        replica.book.run("ALTER TABLE c DROP FOREIGN KEY up", "ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id)")
    replica.restart()
    replica.step("DELETE FROM c WHERE id = 1", "DELETE FROM p WHERE id = 1")
