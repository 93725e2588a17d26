"""A private PostgreSQL from Debian's package, with its own directory, port and process.

The server runs with logical decoding, listens on 127.0.0.1 only, has a random password, and refuses to run as root, so that under root it
runs as the package's own user. Its directory lies outside of the test's, which that user may not enter.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from headrace.demo.private_process import PrivateProcess, find_free_port
from headrace.errors import DefiniteError

PROGRAMS = Path("/usr/lib/postgresql")
_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "24",
    "max_wal_senders": "24",
    "fsync": "off",
    "timezone": "UTC",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
}


def find_postgres() -> Path:
    """The directory of the newest installed server's programs."""
    found = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: int(re.sub(r"\D", "", path.parts[-3]) or 0))
    if not found:
        raise DefiniteError("PostgreSQL's server is not installed", hint="install it: scripts/install-system-packages python3 record")
    return found[-1].parent


class PrivatePostgres(PrivateProcess):
    """One PostgreSQL server with one database. It stops at once, but in order; after a kill its children end by themselves."""

    stop_signal = signal.SIGINT
    database = "shop"
    user = "headrace"

    def __init__(self) -> None:
        super().__init__("PostgreSQL", Path(tempfile.mkdtemp(prefix="headrace-postgres-")))
        self.programs = find_postgres()
        self.password = secrets.token_hex(12)
        self.port = find_free_port()
        self._account = _account()

    def connect(self, database: str = "") -> psycopg.Connection[Any]:
        """A new connection in autocommit."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=self.password, dbname=database or self.database, autocommit=True
        )

    def drop_slots(self) -> None:
        """Drop the replication slots once no reader uses them: they would retain the log forever."""
        deadline = time.monotonic() + self.stop_timeout_s
        with self.connect() as connection:
            while connection.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone() and time.monotonic() < deadline:
                time.sleep(self.poll_s)
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def _prepare(self) -> None:
        if not (self.directory / "data").exists():
            self._initialise()

    def _command(self) -> list[str]:
        options = [argument for name, value in {**_OPTIONS, "port": str(self.port)}.items() for argument in ("-c", f"{name}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self.directory / "data"), *options]

    def _popen_options(self) -> dict[str, Any]:
        return self._account

    def _answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError as error:
            self._refusal = str(error)
            return False
        return True

    def _complete(self) -> None:
        with self.connect("postgres") as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.database]).fetchone():
                connection.execute(f"CREATE DATABASE {self.database}")

    def _initialise(self) -> None:
        secret = self.directory / "secret"
        secret.write_text(self.password)
        if self._account:
            for path in (self.directory, secret):
                os.chown(path, int(self._account["user"]), int(self._account["group"]))
        making = self.directory / "data.making"
        command = [str(self.programs / "initdb"), "-D", str(making), "-U", self.user, f"--pwfile={secret}", "-A", "scram-sha-256"]
        done = subprocess.run(
            [*command, "-E", "UTF8", "--locale=C", "--no-sync"],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            **self._account,
        )
        secret.unlink()
        if done.returncode:
            raise DefiniteError(f"initdb failed with code {done.returncode}:\n{done.stderr.decode(errors='replace')[-2000:]}")
        making.rename(self.directory / "data")


def _account() -> dict[str, Any]:
    """Return the user of the server: not root, which it refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise DefiniteError("there is no user under whom PostgreSQL could run", hint="create a user called postgres")
