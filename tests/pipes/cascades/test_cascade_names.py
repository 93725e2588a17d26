"""Columns of tables with the names that the SQL of the cascades has."""

from __future__ import annotations

import pytest

from testkit.pipelines.cascade_replica import Replica

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")

NAMES = ("version", "op", "commit_time", "checked", "derived", "text", "act", "c", "e", "k0", "n0", "old_0", "new_0", "new_1", "was_0")


@ON_MYSQL
def test_columns_with_the_names_of_the_key_log(replica: Replica) -> None:
    columns = ", ".join(f"`{name}` INT NOT NULL DEFAULT 7" for name in NAMES)
    replica.begin(
        "CREATE TABLE p (op VARCHAR(20) PRIMARY KEY)",
        f"CREATE TABLE moving ({columns.replace('`op` INT', '`op` VARCHAR(20)', 1)}, PRIMARY KEY (op, version),"
        " FOREIGN KEY (op) REFERENCES p (op) ON DELETE CASCADE ON UPDATE CASCADE)",
        f"CREATE TABLE middle ({columns}, text2 VARCHAR(20), PRIMARY KEY (version, op),"
        " FOREIGN KEY (text2) REFERENCES p (op) ON DELETE CASCADE)",
        "CREATE TABLE child (event INT PRIMARY KEY, version INT, op INT, text VARCHAR(20),"
        " FOREIGN KEY (version, op) REFERENCES middle (version, op) ON DELETE CASCADE,"
        " FOREIGN KEY (text) REFERENCES p (op) ON DELETE SET NULL ON UPDATE CASCADE)",
        "INSERT INTO p VALUES ('a'), ('b'), ('d')",
        "INSERT INTO moving (op, version) VALUES ('a', 1), ('b', 2), ('d', 3)",
        "INSERT INTO middle (version, op, text2) VALUES (1, 11, 'a'), (2, 12, 'b'), (3, 13, NULL)",
        "INSERT INTO child VALUES (1, 1, 11, 'a'), (2, 2, 12, 'b'), (3, 3, 13, 'd')",
    )
    replica.step(
        "UPDATE moving SET checked = 1, version = 5 WHERE version = 1",
        "UPDATE middle SET derived = 0, version = 6 WHERE version = 3 AND op = 99",
        "UPDATE p SET op = 'x' WHERE op = 'd'",
        "INSERT INTO moving (op, version) VALUES ('a', 1)",
        "DELETE FROM p WHERE op = 'a'",
        "INSERT INTO p VALUES ('A')",
        "INSERT INTO middle (version, op, text2) VALUES (1, 11, 'A')",
    )
    replica.step("DELETE FROM p WHERE op = 'b'", "INSERT INTO middle (version, op) VALUES (2, 12)", "UPDATE p SET op = 'y' WHERE op = 'X'")
