"""The private servers have the properties that other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from headrace.demo.private_server import PrivateServer, Program, find_mariadb, render_options
from headrace.errors import DefiniteError
from testkit.servers.accounts import Account
from testkit.servers.servers import execute, mysqlbinlog

FreshServer = Callable[..., PrivateServer]


def fetch_all(server: PrivateServer, sql: str) -> list[tuple[Any, ...]]:
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def fill(server: PrivateServer) -> None:
    execute(
        server,
        "CREATE DATABASE kept",
        "CREATE TABLE kept.rows_here (id INT PRIMARY KEY, word VARCHAR(20))",
        "INSERT INTO kept.rows_here VALUES (1, 'first'), (2, 'second')",
    )


def is_running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    # A zombie has ended; its parent has not read its exit code.
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until_ended(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_logs_whole_rows_with_metadata(server: PrivateServer) -> None:
    sql = "SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata, @@skip_name_resolve, @@bind_address, @@port"
    assert fetch_all(server, sql) == [(1, "ROW", "FULL", "FULL", 1, "127.0.0.1", server.port)]


def test_the_server_has_the_stated_flavour_and_version(server: PrivateServer) -> None:
    [(version,)] = fetch_all(server, "SELECT VERSION()")
    assert version.startswith({"mariadb": "10.11.", "mysql": "9."}[server.flavour])
    assert version.removesuffix("-log") == server.program.version


def test_writes_gtids(server: PrivateServer) -> None:
    expected = {"mariadb": ("@@gtid_strict_mode", 1), "mysql": ("@@gtid_mode", "ON")}[server.flavour]
    assert fetch_all(server, f"SELECT {expected[0]}") == [(expected[1],)]


def test_does_not_read_the_machines_configuration(server: PrivateServer) -> None:
    assert fetch_all(server, "SELECT @@datadir") == [(f"{server.data_dir}/",)]
    assert server.pid is not None
    command_line = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
    assert f"--defaults-file={server.directory}/server.cnf".encode() in command_line


def test_root_needs_its_password(server: PrivateServer) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        server.root_connection(password="")


def test_password_is_kept_from_other_users(server: PrivateServer) -> None:
    assert server.directory.stat().st_mode & 0o077 == 0
    assert server.pid is not None
    assert server.password.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_binlog_lies_in_its_directory(server: PrivateServer, database: str) -> None:
    with server.root_connection(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE logged (id INT PRIMARY KEY)")
        cursor.execute("SHOW BINARY LOGS")
        names = {row[0] for row in cursor.fetchall()}
    assert names
    assert {path.name for path in server.binlog_dir.glob("binlog.0*")} == names


def test_its_own_mysqlbinlog_reads_the_log(server: PrivateServer, database: str) -> None:
    with server.root_connection(database) as connection, connection.cursor() as cursor:
        # A new log file: the session's server has a long log with many bytes.
        cursor.execute("FLUSH LOGS")
        cursor.execute("CREATE TABLE logged (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO logged VALUES (424242)")
    newest = max(server.binlog_dir.glob("binlog.0*"))
    done = subprocess.run([*mysqlbinlog(server.flavour), "-vv", str(newest)], check=True, capture_output=True, text=True)
    assert f"INSERT INTO `{database}`.`logged`" in done.stdout
    assert "@1=424242 /* INT" in done.stdout


def test_each_test_has_an_empty_database(server: PrivateServer, database: str) -> None:
    assert fetch_all(server, f"SHOW TABLES FROM `{database}`") == []


def test_two_instances_do_not_collide(fresh_server: FreshServer) -> None:
    one, other = fresh_server(), fresh_server()
    assert one.port != other.port
    fill(one)
    assert "kept" not in {row[0] for row in fetch_all(other, "SHOW DATABASES")}
    assert fetch_all(one, "SELECT @@server_id") != fetch_all(other, "SELECT @@server_id")
    if one.flavour == "mysql":
        assert fetch_all(one, "SELECT @@server_uuid") != fetch_all(other, "SELECT @@server_uuid")


def test_killed_server_keeps_data_and_port(fresh_server: FreshServer) -> None:
    server = fresh_server()
    fill(server)
    port, pid = server.port, server.pid
    server.kill()
    assert server.pid is None
    with pytest.raises(pymysql.err.OperationalError):
        server.root_connection()
    server.start()
    assert (server.port, server.pid == pid) == (port, False)
    assert fetch_all(server, "SELECT * FROM kept.rows_here ORDER BY id") == [(1, "first"), (2, "second")]


def test_restarted_server_keeps_data_and_opens_a_new_log(fresh_server: FreshServer) -> None:
    server = fresh_server()
    fill(server)
    before = fetch_all(server, "SHOW BINARY LOGS")
    server.restart()
    assert fetch_all(server, "SELECT COUNT(*) FROM kept.rows_here") == [(2,)]
    assert len(fetch_all(server, "SHOW BINARY LOGS")) == len(before) + 1


def test_starting_twice_and_stopping_twice_is_harmless(fresh_server: FreshServer) -> None:
    server = fresh_server()
    pid = server.pid
    assert server.start().pid == pid
    server.stop()
    server.stop()
    server.kill()
    assert server.pid is None


def test_settings_override_the_defaults(fresh_server: FreshServer) -> None:
    server = fresh_server(binlog_row_image="MINIMAL", max_binlog_size=65536)
    assert fetch_all(server, "SELECT @@binlog_row_image, @@max_binlog_size") == [("MINIMAL", 65536)]


def test_binlog_can_be_off(fresh_server: FreshServer) -> None:
    server = fresh_server(log_bin=None, skip_log_bin=True)
    assert fetch_all(server, "SELECT @@log_bin") == [(0,)]


def test_wrong_setting_is_a_definite_error_with_the_servers_words(fresh_server: FreshServer) -> None:
    with pytest.raises(DefiniteError, match="no_such_setting"):
        fresh_server(no_such_setting=1)


def test_dies_with_its_parent(server: PrivateServer, tmp_path: Path) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from testkit.servers.servers import build
        print(build(sys.argv[1], Path(sys.argv[2])).start().pid, flush=True)
        time.sleep(60)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    arguments = [sys.executable, "-c", textwrap.dedent(script), server.flavour, str(tmp_path / "orphan")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    assert wait_until_ended(pid)


def test_replica_account_reads_logs_and_rows_but_writes_nothing(server: PrivateServer, database: str, replica_account: Account) -> None:
    status = {"mariadb": "SHOW MASTER STATUS", "mysql": "SHOW BINARY LOG STATUS"}[server.flavour]
    account = {"user": replica_account.user, "password": replica_account.password}
    with server.root_connection(**account) as connection, connection.cursor() as cursor:
        cursor.execute(status)
        [row] = cursor.fetchall()
        assert row[0].startswith("binlog.")
        cursor.execute("SHOW BINARY LOGS")
        assert cursor.fetchall()
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            cursor.execute(f"CREATE TABLE `{database}`.refused (id INT)")


def test_missing_mariadb_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(DefiniteError, match="apt-get install mariadb-server-core mariadb-client"):
        find_mariadb()


def test_a_machine_that_resolves_no_host_name_can_initialise(tmp_path: Path) -> None:
    """As in a container without /etc/hosts: neither the host name nor localhost has an address."""
    empty, data = tmp_path / "empty", tmp_path / "data"
    empty.touch()
    data.mkdir()
    hide = f"mount --bind {empty} /etc/hosts && mount --bind {empty} /etc/resolv.conf && hostname nameless && ! getent hosts localhost"
    code = (
        f"from pathlib import Path; from headrace.demo.private_server import find_mariadb; find_mariadb().initialise(Path({str(data)!r}))"
    )
    alone = ["unshare", "--net", "--mount", "--uts"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        assert os.environ.get("CI") != "true", "namespaces are not allowed here"
        pytest.skip("NOT TESTED: namespaces (unshare) are not allowed here")
    done = subprocess.run(
        [*alone, "sh", "-ec", f'{hide}; exec "$0" -c "$1"', sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (data / "mysql").is_dir()


def test_failed_initialisation_leaves_no_data_directory_behind(tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise DefiniteError("no room")

    program = Program("mariadb", "0", ("false",), (), fail, {})
    server = PrivateServer(program, tmp_path / "server")
    with pytest.raises(DefiniteError, match="no room"):
        server.start()
    assert not server.data_dir.exists()


def test_options_are_rendered_as_the_servers_read_them() -> None:
    settings = {"port": 1, "gtid_mode": True, "mysqlx": False, "skip_log_bin": True, "skip_name_resolve": False, "unset": None}
    assert render_options(settings).split("\n") == ["[server]", "port = 1", "gtid_mode = ON", "mysqlx = OFF", "skip_log_bin", ""]
