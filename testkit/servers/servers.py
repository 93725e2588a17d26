"""Private servers for tests and benchmarks, quick to start.

Initialising a data directory takes seconds, so it is done once per version and kept as a template in the cache directory; each server
starts from a copy. The template has no server uuid: each copy gets its own.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headrace.demo.private_server import PrivateServer, Program, Setting, as_current_user, find_mariadb, run_to_end
from testkit.servers.cache import cache_dir, hold_lock
from testkit.servers.debian_fetch import MARIADB, MYSQL, bundle_version, fetch_bundle, unpacked_command
from testkit.servers.mariadb_plugins import plugin_dir

FLAVOURS = ("mariadb", "mysql")
NEWER_MARIADB = "mariadb11"
"""MariaDB of Debian 13, for the tests of server versions; its `Program.flavour` is `mariadb`."""
WHOLE_SUITE = "HEADRACE_TEST_MARIADB"
"""If this environment variable is `11`, the flavour `mariadb` is the newer MariaDB in all tests."""

TEMPLATE_GENERATION = 1
"""Increase it when the initialisation of data directories changes."""


def build(flavour: str, directory: Path, **settings: Setting) -> PrivateServer:
    """A private server of the flavour in `directory`, not started yet."""
    return PrivateServer(find_program(flavour), directory, settings)


def mariadb(directory: Path, **settings: Setting) -> PrivateServer:
    """A private MariaDB server (the machine's package) in `directory`, not started yet."""
    return build("mariadb", directory, **settings)


def mysql(directory: Path, **settings: Setting) -> PrivateServer:
    """A private Oracle MySQL server (fetched if necessary) in `directory`, not started yet."""
    return build("mysql", directory, **settings)


def execute(server: PrivateServer, *statements: str) -> None:
    """Run statements in one session of root."""
    execute_in(server, None, *statements)


def execute_in(server: PrivateServer, database: str | None, *statements: str) -> None:
    """Run statements in one session of root that uses `database`."""
    with server.root_connection(database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@functools.cache
def find_program(flavour: str) -> Program:
    """The flavour's server, with data directories made from the cached template."""
    mariadb = _find_newer_mariadb_for_all if os.environ.get(WHOLE_SUITE) == "11" else _find_mariadb_with_plugins
    program = {"mariadb": mariadb, NEWER_MARIADB: find_newer_mariadb, "mysql": find_mysql}[flavour]()
    return replace(program, initialise=functools.partial(_copy_template, program))


def mysqlbinlog(flavour: str) -> tuple[str, ...]:
    """The argument vector of the flavour's own log reader."""
    return find_program(flavour).mysqlbinlog


def _find_mariadb_with_plugins() -> Program:
    program = find_mariadb()
    return replace(program, settings={**program.settings, "plugin_dir": str(plugin_dir(program.version))})


def find_mysql() -> Program:
    """Oracle MySQL from the cache, fetched on the first call."""
    root = fetch_bundle(MYSQL)
    places: dict[str, Setting] = {
        "basedir": str(root / "usr"),
        "plugin_dir": str(root / "usr/lib/mysql/plugin"),
        "lc_messages_dir": str(root / "usr/share/mysql"),
        "character_sets_dir": str(root / "usr/share/mysql/charsets"),
    }
    return Program(
        flavour="mysql",
        version=bundle_version(root),
        command=unpacked_command(root, "usr/sbin/mysqld"),
        mysqlbinlog=(*unpacked_command(root, "usr/bin/mysqlbinlog"), "--no-defaults"),
        initialise=_mysql_initialiser(root, places),
        settings={
            **places,
            # The server refuses to start if its built-in default directory does not exist.
            "secure_file_priv": "NULL",
            "mysqlx": False,
            "gtid_mode": True,
            "enforce_gtid_consistency": True,
            "innodb_redo_log_capacity": "48M",
        },
    )


def find_newer_mariadb() -> Program:
    """MariaDB of Debian 13 from the cache, fetched on the first call."""
    root = fetch_bundle(MARIADB)
    command = unpacked_command(root, "usr/sbin/mariadbd")
    places: dict[str, Setting] = {
        "basedir": str(root / "usr"),
        "plugin_dir": str(root / "usr/lib/mysql/plugin"),
        "lc_messages_dir": str(root / "usr/share/mariadb"),
        "character_sets_dir": str(root / "usr/share/mariadb/charsets"),
    }

    def initialise(data_dir: Path) -> None:
        # What mariadb-install-db does: that script runs programs with the machine's dynamic linker.
        parts = [(root / "usr/share/mariadb" / name).read_bytes() for name in _SYSTEM_TABLES]
        script = b"".join([b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n", *parts])
        options = [f"--{name.replace('_', '-')}={value}" for name, value in places.items()]
        quick = ["--innodb-log-file-size=48M", "--max-allowed-packet=8M", "--net-buffer-length=16K", "--log-warnings=0"]
        run_to_end([*command, "--no-defaults", "--bootstrap", *as_current_user(), f"--datadir={data_dir}", *options, *quick], script)

    return Program(
        flavour="mariadb",
        version=bundle_version(root),
        command=command,
        mysqlbinlog=(*unpacked_command(root, "usr/bin/mariadb-binlog"), "--no-defaults"),
        initialise=initialise,
        settings={**places, "binlog_format": "ROW", "gtid_strict_mode": True, "innodb_log_file_size": "48M"},
    )


def _find_newer_mariadb_for_all() -> Program:
    program = find_newer_mariadb()
    # Tests list log files by their names, and the index files have similar ones.
    return replace(program, settings={**program.settings, "binlog_gtid_index": False})


_SYSTEM_TABLES = (
    "mariadb_system_tables.sql",
    "mariadb_performance_tables.sql",
    "mariadb_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "mariadb_sys_schema.sql",
)


def _mysql_initialiser(root: Path, places: dict[str, Setting]) -> Callable[[Path], None]:
    def initialise(data_dir: Path) -> None:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in places.items()]
        quick = ["--innodb-redo-log-capacity=48M", "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin", "--secure-file-priv=NULL"]
        command = unpacked_command(root, "usr/sbin/mysqld")
        run_to_end([*command, "--no-defaults", "--initialize-insecure", *as_current_user(), f"--datadir={data_dir}", *options, *quick])

    return initialise


def _copy_template(program: Program, data_dir: Path) -> None:
    template = cache_dir() / f"data-{program.flavour}-{program.version}-{TEMPLATE_GENERATION}"
    with hold_lock(f"data-{program.flavour}"):
        if not template.exists():
            _make_template(program, template)
    run_to_end(["cp", "-a", "--sparse=always", "--reflink=auto", f"{template}/.", str(data_dir)])


def _make_template(program: Program, template: Path) -> None:
    making = template.with_name(f"{template.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    program.initialise(making)
    # Two servers with one uuid would take each other's transactions as their own.
    (making / "auto.cnf").unlink(missing_ok=True)
    making.rename(template)
