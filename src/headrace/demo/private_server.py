"""Private MySQL and MariaDB servers, each with its own process, data directory and port.

A `PrivateServer` does not read the machine's configuration, listens on 127.0.0.1 only and protects its root account with a random password.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from headrace.demo.private_process import PrivateProcess, find_free_port
from headrace.errors import DefiniteError

Setting = str | int | bool | None
"""A server setting; `True` and `False` become ON and OFF, `None` leaves the setting to the server's default."""

COMMON_SETTINGS: Mapping[str, Setting] = {
    "bind_address": "127.0.0.1",
    "skip_name_resolve": True,
    "character_set_server": "utf8mb4",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "max_connections": 200,
    "performance_schema": False,
    "innodb_buffer_pool_size": "64M",
    # The log reaches the kernel at every commit: enough for a killed process, not for a power cut.
    "innodb_flush_log_at_trx_commit": 2,
    "sync_binlog": 0,
}


@dataclass(frozen=True, slots=True)
class Program:
    """An installed database server: how to run it and how to make a data directory for it."""

    flavour: str
    """`mariadb` or `mysql`."""
    version: str
    command: tuple[str, ...]
    """The server's argument vector, without options."""
    mysqlbinlog: tuple[str, ...]
    """The argument vector of the log reader that belongs to the server."""
    initialise: Callable[[Path], None]
    """Fill an empty directory with a new data directory whose root account has no password."""
    settings: Mapping[str, Setting]


class PrivateServer(PrivateProcess):
    """A MySQL or MariaDB server. Not thread-safe."""

    def __init__(self, program: Program, directory: Path, settings: Mapping[str, Setting] | None = None) -> None:
        super().__init__(program.flavour, directory)
        self.program = program
        self.settings: dict[str, Setting] = {**COMMON_SETTINGS, **program.settings, **(settings or {})}
        self.port = find_free_port()
        self.user = "root"
        self.password = secrets.token_hex(12)

    @property
    def flavour(self) -> str:
        return self.program.flavour

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def binlog_dir(self) -> Path:
        """Where the binary log files lie; they are called `binlog.NNNNNN`."""
        return self.directory / "binlog"

    def root_connection(self, database: str | None = None, **options: Any) -> Connection[Any]:
        """Open a connection as root, in autocommit mode; `options` override both."""
        defaults = {"host": "127.0.0.1", "port": self.port, "user": self.user, "password": self.password, "database": database}
        return pymysql.connect(**{**defaults, "autocommit": True, "charset": "utf8mb4", "connect_timeout": 10, **options})

    def url(self, database: str = "", user: str | None = None, password: str | None = None) -> str:
        """Return the server's address for the `headrace` command."""
        return f"mysql://{user or self.user}:{self.password if password is None else password}@127.0.0.1:{self.port}/{database}"

    def _prepare(self) -> None:
        if self.data_dir.exists():
            return
        self.directory.chmod(0o700)
        for part in (self.binlog_dir, self.directory / "tmp"):
            part.mkdir(exist_ok=True)
        # The next start must not take an incomplete data directory for a complete one.
        making = self.directory / "data.making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        self.program.initialise(making)
        making.rename(self.data_dir)

    def _write_options(self) -> Path:
        accounts = self.directory / "accounts.sql"
        _write_private(accounts, _accounts_sql(self.password))
        paths: dict[str, Setting] = {
            "port": self.port,
            "server_id": self.port,
            "datadir": str(self.data_dir),
            # Relative to the data directory: an absolute path may exceed the 107 bytes a socket address holds.
            "socket": "server.sock",
            "pid_file": str(self.directory / "server.pid"),
            "tmpdir": str(self.directory / "tmp"),
            "log_error": str(self.log_file),
            "log_bin": str(self.binlog_dir / "binlog"),
            "init_file": str(accounts),
        }
        options = self.directory / "server.cnf"
        _write_private(options, render_options({**paths, **self.settings}))
        return options

    def _command(self) -> list[str]:
        return [*self.program.command, f"--defaults-file={self._write_options()}", *as_current_user()]

    def _answers(self) -> bool:
        try:
            self.root_connection().close()
        except pymysql.err.OperationalError as error:
            self._refusal = str(error)
            return False
        return True


def mariadb(directory: Path, **settings: Setting) -> PrivateServer:
    """Return a private MariaDB server in `directory`, not started yet."""
    return PrivateServer(find_mariadb(), directory, settings)


def find_mariadb() -> Program:
    server = _find_program("mariadbd")
    install = _find_program("mariadb-install-db")
    version = subprocess.run([server, "--no-defaults", "--version"], check=True, capture_output=True, text=True).stdout

    def initialise(data_dir: Path) -> None:
        # Without --force the program refuses a machine that cannot resolve its own name, as many containers cannot.
        options = ("--force", "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=48M")
        run_to_end([install, "--no-defaults", f"--datadir={data_dir}", *options, *as_current_user()])

    return Program(
        flavour="mariadb",
        version=version.split("Ver ")[1].split()[0],
        command=(server,),
        mysqlbinlog=(_find_program("mariadb-binlog"), "--no-defaults"),
        initialise=initialise,
        settings={"binlog_format": "ROW", "gtid_strict_mode": True, "innodb_log_file_size": "48M"},
    )


def render_options(settings: Mapping[str, Setting]) -> str:
    lines = ["[server]"]
    for name, value in settings.items():
        if value is None:
            continue
        if isinstance(value, bool) and name.startswith("skip_"):
            # These are flags: their presence is their value.
            lines += [name] if value else []
        else:
            words = {True: "ON", False: "OFF"}
            lines.append(f"{name} = {words[value] if isinstance(value, bool) else value}")
    return "\n".join(lines) + "\n"


def run_to_end(command: list[str], script: bytes = b"") -> None:
    """Run a set-up command that reads `script` from its standard input; when it fails, its output is the message."""
    done = subprocess.run(command, check=False, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise DefiniteError(f"{Path(command[0]).name} failed with code {done.returncode}:\n{done.stdout.decode(errors='replace')[-4000:]}")


def _find_program(name: str) -> str:
    # Debian keeps servers in /usr/sbin, which is not on an ordinary user's path.
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if path is None:
        raise DefiniteError(f"the program {name} is not installed", hint="install it: apt-get install mariadb-server-core mariadb-client")
    return path


def as_current_user() -> list[str]:
    """Return the option that lets a server run as root, if this process does."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _accounts_sql(password: str) -> str:
    statements = [
        "SET SESSION sql_log_bin = 0",
        f"CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '{password}'",
        f"ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY '{password}'",
        f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}'",
        "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION",
    ]
    return "".join(f"{statement};\n" for statement in statements)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
