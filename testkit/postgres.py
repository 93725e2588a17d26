"""A private PostgreSQL from Debian's package: a directory, a port and a process of our own.

The server runs with logical decoding, listens on 127.0.0.1 only, asks for a random password, and refuses to run as root, so that under
root it runs as the package's own user. Its directory lies outside of the test's, which that user may not enter.
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
from typing import Any, Self

import psycopg

from headrace.demo.server import find_free_port, spawn_reaper
from headrace.errors import DefiniteError, TransientError

PROGRAMS = Path("/usr/lib/postgresql")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.05
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


class PrivatePostgres:
    """One PostgreSQL server with one database."""

    database = "shop"
    user = "headrace"

    def __init__(self) -> None:
        self.programs = find_postgres()
        self.password = secrets.token_hex(12)
        self.port = find_free_port()
        self._account = _account()
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server, on the data it had if it ran before."""
        new = not (self.directory / "data").exists()
        if new:
            self._initialise()
        options = [argument for name, value in {**_OPTIONS, "port": str(self.port)}.items() for argument in ("-c", f"{name}={value}")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.directory / "data"), *options],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._account,
            )
        self._reaper = spawn_reaper(self._process.pid)
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        if new:
            with self.connect("postgres") as connection:
                connection.execute(f"CREATE DATABASE {self.database}")
        return self

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    def connect(self, database: str = "") -> psycopg.Connection[Any]:
        """A new connection in autocommit."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=self.password, dbname=database or self.database, autocommit=True
        )

    def drop_slots(self) -> None:
        """Replication slots hold the log back for ever: they go as soon as nobody reads from them."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with self.connect() as connection:
            while connection.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def stop(self) -> None:
        """Shut the server down at once, but in order."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise TransientError(f"PostgreSQL did not stop in {STOP_TIMEOUT_S:.0f} s", place=str(self.log_file)) from None
        self._forget()

    def kill(self) -> None:
        """SIGKILL to the server's main process; its children end when they notice."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

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

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._process.poll() is not None:
                raise DefiniteError(
                    f"PostgreSQL ended with code {self._process.returncode}:\n{self.log_file.read_text(errors='replace')[-2000:]}"
                )
            try:
                self.connect("postgres").close()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise TransientError(f"PostgreSQL takes no connection after {START_TIMEOUT_S:.0f} s ({error})") from error
                time.sleep(POLL_S)
            else:
                return

    def _forget(self) -> None:
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.wait()
            if self._reaper.stdin is not None:
                self._reaper.stdin.close()
        self._process = self._reaper = None


def _account() -> dict[str, Any]:
    """Whom the server runs as: under root somebody else, because it refuses root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise DefiniteError("there is no user under whom PostgreSQL could run", hint="create a user called postgres")
