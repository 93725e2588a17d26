"""`headrace check`: its findings are true for real servers, and its repairs work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from testkit.servers.accounts import Account, account_with
from testkit.servers.broker import PrivateBroker
from testkit.servers.servers import execute, execute_in

FreshServer = Callable[..., PrivateServer]
Findings = dict[str, dict[str, str]]


class Checkup:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def text(self, url: str, *options: str) -> tuple[int, str]:
        code = cli.main(["check", url, *options])
        output = "".join(self._capsys.readouterr())
        assert "Traceback" not in output
        return code, output

    def __call__(self, url: str, *options: str) -> tuple[int, Findings]:
        code, output = self.text(url, "--json", *options)
        found = json.loads(output)
        findings = {finding["name"]: finding for finding in found["findings"]}
        assert len(findings) == len(found["findings"]), "every name once"
        levels = [finding["level"] for finding in found["findings"]]
        assert (found["errors"], found["warnings"]) == (levels.count("error"), levels.count("warning"))
        assert code == (2 if found["errors"] else 0)
        assert all(finding["repair"] and finding["meaning"] for finding in found["findings"] if finding["level"] != "ok")
        return code, findings


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Checkup:
    return Checkup(capsys)


def levels_of(findings: Findings, *names: str) -> list[str]:
    return [findings[name]["level"] for name in names]


def test_a_sound_server(server: PrivateServer, database: str, replica_account: Account, check: Checkup) -> None:
    engine = "Aria" if server.flavour == "mariadb" else "MyISAM"
    execute_in(
        server,
        database,
        "CREATE TABLE good (id INT PRIMARY KEY)",
        "CREATE TABLE keyless (a INT)",
        "CREATE TABLE half (a INT NOT NULL, b INT, UNIQUE (a, b))",
        "CREATE TABLE other (a INT NOT NULL, UNIQUE (a))",
        f"CREATE TABLE old (id INT PRIMARY KEY) ENGINE = {engine}",
    )
    code, findings = check(replica_account.url(database))
    assert code == 0
    assert findings["tables"]["value"] == "5 selected"
    good = [
        "log_bin",
        "binlog_format",
        "binlog_row_image",
        "binlog_row_metadata",
        "binlog_checksum",
        "server_id",
        "REPLICATION SLAVE",
        "TLS",
    ]
    assert levels_of(findings, *good, "retention", "time zone tables") == ["ok"] * (len(good) + 2)
    assert "old" in findings["retention"]["value"]
    warned = [f"key of {database}.keyless", f"key of {database}.half", f"engine of {database}.old", "RELOAD", "sync_binlog"]
    assert levels_of(findings, *warned) == ["warning"] * len(warned)
    assert f"key of {database}.other" not in findings
    assert findings[f"engine of {database}.old"]["repair"] == f"ALTER TABLE `{database}`.`old` ENGINE = InnoDB"
    code, text = check.text(replica_account.url(database), "--tables", "good")
    assert code == 0
    assert "1 selected" in text
    assert "repair: SET GLOBAL sync_binlog = 1" in text
    assert text.splitlines()[-1].startswith("check: 0 errors, ")
    assert replica_account.password not in text


def test_nothing_selected(replica_account: Account, check: Checkup) -> None:
    code, findings = check(replica_account.url("no_such_database"))
    assert (code, findings["tables"]["level"]) == (2, "error")


def repair(server: PrivateServer, findings: Findings) -> list[str]:
    """Run the repairs of the findings; return the findings that no statement repairs."""
    left = []
    for name, finding in findings.items():
        if finding["level"] == "ok":
            continue
        if finding["repair"].startswith(("SET GLOBAL ", "GRANT ", "ALTER TABLE ")) and "(...)" not in finding["repair"]:
            execute(server, *finding["repair"].split("; "))
        else:
            left.append(name)
    return left


def test_missing_privileges_are_named_and_granted(server: PrivateServer, database: str, check: Checkup) -> None:
    """An account with few rights gets the missing ones until the check passes."""
    execute_in(server, database, "CREATE TABLE good (id INT PRIMARY KEY, v INT)")
    with account_with(server, f"SELECT (id), INSERT ON `{database}`.good") as account:
        url = account.url(database)
        code, findings = check(url)
        assert code == 2
        second = "BINLOG MONITOR" if server.flavour == "mariadb" else "REPLICATION CLIENT"
        assert levels_of(findings, second, f"SELECT on {database}.good") == ["error", "error"]
        grants = {name: finding for name, finding in findings.items() if finding["repair"].startswith("GRANT")}
        assert repair(server, grants) == []
        code, findings = check(url)
        assert code == 0
        assert levels_of(findings, second, "REPLICATION SLAVE", "XA RECOVER") == ["ok"] * 3
        assert repair(server, {"RELOAD": findings["RELOAD"]}) == []
        assert check(url)[1]["RELOAD"]["level"] == "ok"
    with account_with(server, "SELECT, REPLICATION CLIENT ON *.*") as account:
        code, findings = check(account.url(database))
        assert (code, findings["REPLICATION SLAVE"]["level"]) == (2, "error")
        assert "GRANT" in findings["REPLICATION SLAVE"]["repair"]


def test_topics(broker: PrivateBroker, check: Checkup) -> None:
    topic = broker.create_topic()
    code, findings = check(broker.url(topic))
    assert (code, findings["topics"]["level"], findings["topics"]["value"]) == (0, "ok", "1 selected")
    code, findings = check(broker.url("no.such.topic"))
    assert (code, findings["topics"]["level"]) == (0, "warning")
    code, text = check.text(broker.url())
    assert (code, "no topics are named" in text, "name them in the address" in text) == (2, True, True)
    code, text = check.text(broker.url(topic), "--tables", "shop.*")
    assert (code, "--tables and --exclude select tables of a database" in text) == (2, True)


def test_log_files(server: PrivateServer, tmp_path: Path, check: Checkup) -> None:
    code, text = check.text(f"binlog:{tmp_path}")
    assert (code, str(tmp_path) in text) == (2, True)
    execute(server, "FLUSH BINARY LOGS")
    file = min(server.binlog_dir.glob("binlog.[0-9]*"))
    shutil.copy(file, tmp_path)
    code, findings = check(f"binlog:{tmp_path}")
    assert (code, findings["log files"]["level"]) == (0, "ok")
    assert findings["log files"]["value"] == f"{file.name}:4 to {file.name}:{file.stat().st_size}"
    assert server.program.version.split("-")[0] in findings["log files"]["meaning"]


def test_foreign_keys_that_are_not_logged(fresh_server: FreshServer, flavour: str, check: Checkup) -> None:
    server = fresh_server(**({"innodb_native_foreign_keys": True} if flavour == "mysql" else {}))
    execute(server, "CREATE DATABASE shop")
    key = "CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE"
    execute_in(server, "shop", "CREATE TABLE p (id INT PRIMARY KEY)", f"CREATE TABLE c (id INT NOT NULL, p INT, {key})")
    name, url = "foreign key of shop.c", server.url("shop")
    code, findings = check(url)
    assert (code, findings[name]["level"], "the child table has no key" in findings[name]["meaning"]) == (2, "error", True)
    execute_in(server, "shop", "ALTER TABLE c ADD PRIMARY KEY (id)")
    code, findings = check(url, "--tables", "shop.c")
    assert (code, findings[name]["level"], "its parent shop.p is not replicated" in findings[name]["meaning"]) == (2, "error", True)
    assert levels_of(check(url, "--tables", "shop.c", "--tables", "shop.p")[1], name) == ["ok"]
    # What else a pipe refuses because of the source's tables: all of it, in the pipe's words.
    execute_in(
        server,
        "shop",
        "CREATE TABLE e (k ENUM('x', 'y') PRIMARY KEY)",
        "CREATE TABLE by_number (id INT PRIMARY KEY, k ENUM('x', 'y'), FOREIGN KEY (k) REFERENCES e (k) ON DELETE CASCADE)",
        "CREATE TABLE kept (id INT, p INT, g INT AS (id + 1), FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL)",
        "CREATE TABLE gone (id INT PRIMARY KEY, p INT, g INT AS (id + 1), FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    )
    code, findings = check(url)
    assert (code, levels_of(findings, name, "foreign key of shop.gone")) == (2, ["ok", "ok"])
    by_number, kept = (findings[f"foreign key of shop.{child}"]["meaning"] for child in ("by_number", "kept"))
    assert by_number.endswith("cannot apply it exactly: its columns are of type ENUM or SET, which the source compares by number")
    generated = "the table has generated columns, which the server computes again"
    assert kept.endswith(f"cannot apply it exactly: the child table has no key, so its rows cannot be told apart; {generated}")


def test_prepared_transactions(server: PrivateServer, database: str, check: Checkup) -> None:
    execute_in(server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    with server.root_connection(database) as connection, connection.cursor() as cursor:
        for statement in ("XA START 'forgotten'", "INSERT INTO t VALUES (1)", "XA END 'forgotten'", "XA PREPARE 'forgotten'"):
            cursor.execute(statement)
        try:
            _, findings = check(server.url(database))
        finally:
            cursor.execute("XA ROLLBACK 'forgotten'")
    assert findings["XA RECOVER"]["level"] == "warning"
    assert "forgotten" in findings["XA RECOVER"]["value"]
    assert check(server.url(database))[1]["XA RECOVER"]["level"] == "ok"


def test_printed_repairs_fix_every_wrong_setting(fresh_server: FreshServer, flavour: str, check: Checkup) -> None:
    """A server with every setting wrong: after the printed repairs, only settings that need a restart are left."""
    wrong: dict[str, Any] = {
        "binlog_format": "STATEMENT",
        "binlog_row_image": "MINIMAL",
        "binlog_row_metadata": "MINIMAL",
        "binlog_checksum": "NONE",
        "sql_mode": '""',
        "binlog_expire_logs_seconds": 3600,
        "binlog_ignore_db": "hidden",
        "log_slave_updates": False,
    }
    if flavour == "mariadb":
        wrong |= {"gtid_strict_mode": False, "server_id": 1}
        follow = "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'"
    else:
        wrong |= {"gtid_mode": False, "enforce_gtid_consistency": False, "innodb_native_foreign_keys": True}
        wrong |= {"log_replica_updates": wrong.pop("log_slave_updates"), "binlog_row_value_options": "PARTIAL_JSON"}
        follow = "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'nobody'"
    server = fresh_server(**wrong)
    execute(server, "CREATE DATABASE shop", "CREATE DATABASE hidden", "CREATE TABLE hidden.t (id INT PRIMARY KEY)")
    execute_in(server, "shop", "CREATE TABLE parent (id INT PRIMARY KEY)")
    key = "FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE"
    execute_in(server, "shop", f"CREATE TABLE child (id INT PRIMARY KEY, parent INT, CONSTRAINT up {key})", follow)
    code, findings = check(server.url("shop"))
    assert code == 2
    updates = "log_slave_updates" if flavour == "mariadb" else "log_replica_updates"
    assert levels_of(findings, "binlog_format", "binlog_row_image", updates) == ["error"] * 3
    assert levels_of(findings, "foreign key of shop.child") == ["ok"], "Headrace applies it"
    expected = ["binlog_row_metadata", "binlog_checksum", "sql_mode", "retention", "sync_binlog", "binlog_ignore_db"]
    expected += ["gtid_strict_mode", "server_id"] if flavour == "mariadb" else ["gtid_mode"]
    assert levels_of(findings, *expected) == ["warning"] * len(expected)
    assert check(server.url("hidden"))[1]["binlog_ignore_db"]["level"] == "error"
    assert sorted(repair(server, findings)) == sorted(["binlog_ignore_db", updates])
    after = check(server.url("shop"))[1]
    assert {name for name, finding in after.items() if finding["level"] != "ok"} == {"binlog_ignore_db", updates}
