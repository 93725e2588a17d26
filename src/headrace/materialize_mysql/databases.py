"""Databases that are pipes: created with their pipe, shown, dropped with it.

The order of steps makes every crash harmless. A database is entered in `headrace.pipes` before its pipe starts, and removed last when it is
dropped: the same statement can be repeated. An embedded sink has one owner at a time, so it is closed here before the pipe, which owns it
while it runs, is started. A statement that a client sent to the embedded server is different: the server waits for it, so a pipe that owns
the server must not wait for the server's end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote

from headrace.embedded.database_statements import OWN_STATEMENT
from headrace.embedded.pipe_bridge import PIPES
from headrace.errors import DefiniteError, HeadraceError
from headrace.materialize_mysql import keeper
from headrace.materialize_mysql.background_pipe import PYTHON, REPLICATE, BackgroundPipe
from headrace.materialize_mysql.pipe_plan import PipePlan, plan_pipe
from headrace.materialize_mysql.statement_parser import HIDDEN, CreateMaterializedDatabase, parse_statement
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.state.pipe_registry import PipeEntry, all_pipes, find_pipe, register
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.server.url import PASSWORD_VARIABLE as SINK_PASSWORD
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.connector import NamedSink
from headrace.sources.mysql.server.connection import PASSWORD_VARIABLE as SOURCE_PASSWORD
from headrace.sources.mysql.server.connection import connect, parse_mysql_url

log = logging.getLogger(__name__)

_EMBEDDED: Final = "chdb:"
_HIDDEN_VARIABLES: Final = (SOURCE_PASSWORD, SINK_PASSWORD)


class DatabaseExists(DefiniteError):
    """There is already a database or a pipe of this name."""


@dataclass(frozen=True, slots=True)
class Databases:
    """The databases of one sink that are pipes."""

    sink: str
    """The sink's address."""
    served: bool = False
    """Whether the sink's embedded server waits for the statement."""

    def create(self, statement: CreateMaterializedDatabase) -> str:
        """Create the database and start its pipe, or start it again; return a message."""
        plan = plan_pipe(statement)
        pipe = BackgroundPipe(self._directory(statement.name))
        secrets = self._secrets(statement, pipe)
        with open_clickhouse_sink(self.sink, creates=True) as named:
            there = find_pipe(named.sink.own_tables(), statement.name)
            self._check(named, statement, there)
        if there is not None and pipe.is_running:
            return f"{statement.name} is there, and its pipe is running"
        if not plan.starts_without_source:
            _check_source_reachable(plan, secrets[SOURCE_PASSWORD])
        with open_clickhouse_sink(self.sink, choices=plan.chosen.sink) as named:
            if there is None:
                options = {"settings": plan.settings}
                entry = PipeEntry(plan.name, plan.source, options=options, state=str(pipe.directory), statement=statement.redacted)
                register(named.sink.progress_store(), entry)
        self._start(plan, pipe, secrets)
        try:
            pipe.await_started(even_without_source=plan.starts_without_source)
        except HeadraceError:
            if there is None:
                self._undo(statement.name, statement.cluster, pipe)
            raise
        return f"{statement.name} is replicated from {plan.source}; its log is {pipe.log}"

    def drop(self, name: str, cluster: str = "") -> bool:
        """Stop the pipe and drop the database; False if the database is not a pipe."""
        entry = self._own_entry(name, cluster)
        if entry is None:
            return False
        self._undo(entry.name, entry.chosen.sink.cluster, self._pipe(entry))
        return True

    def detach(self, name: str, cluster: str = "") -> bool:
        """Stop the pipe and detach the database; False if the database is not a pipe. `attach` or the start of a host continues it."""
        entry = self._own_entry(name, cluster)
        if entry is None:
            return False
        pipe = self._pipe(entry)
        if self.served and pipe.owns_server(self._root):
            # The server ends with the pipe, after this statement. A detached database would fail the pipe's last batch.
            pipe.request_stop()
            return True
        pipe.stop()
        with open_clickhouse_sink(self.sink) as named:
            if _has_database(named, name):
                _execute(named, f"DETACH DATABASE {quote_name(name)}{_on_cluster(entry.chosen.sink.cluster)}")
        return True

    def attach(self, name: str, cluster: str = "") -> bool:
        """Attach the database and start its pipe; False if the database is not a pipe."""
        entry = self._own_entry(name, cluster)
        if entry is None:
            return False
        pipe = self._pipe(entry)
        if pipe.is_running:
            raise DatabaseExists("the database is attached, and its pipe is running", place=f"database {name}")
        with open_clickhouse_sink(self.sink) as named:
            if not _has_database(named, name):
                _execute(named, f"ATTACH DATABASE {quote_name(name)}{_on_cluster(entry.chosen.sink.cluster)}")
        pipe.restart(_HIDDEN_VARIABLES)
        pipe.await_started(even_without_source=True)
        return True

    def resume(self) -> None:
        """Start the background pipes of an embedded sink that do not run. One that cannot start does not keep others from it."""
        for pipe in self._background_pipes():
            try:
                if not pipe.is_running:
                    pipe.restart(_HIDDEN_VARIABLES)
            except HeadraceError as error:
                log.error("the pipe of %s did not resume: %s", pipe.directory, error)

    def stop(self) -> None:
        """Stop the background pipes of an embedded sink: all get the signal before one is awaited."""
        pipes = [pipe for pipe in self._background_pipes() if pipe.is_running]
        for pipe in pipes:
            pipe.request_stop()
        for pipe in pipes:
            pipe.stop()

    def release_directory(self) -> bool:
        """Stop the background pipes if one of them serves the directory of an embedded sink; return whether one does."""
        serves = any(pipe.owns_server(self._root) for pipe in self._background_pipes())
        if serves:
            self.stop()
        return serves

    def reject(self, verb: str, name: str) -> NoReturn:
        """Raise for a statement that would take a database away from its pipe."""
        raise DefiniteError(
            f"{verb} DATABASE would pull the database from under its pipe",
            place=f"database {name}",
            hint="DETACH DATABASE stops the pipe, and DROP DATABASE ends it",
        )

    def show(self, name: str) -> str | None:
        """Return the statement that created the database, without its password; None if it is not a pipe."""
        entry = self.find(name)
        return entry.statement or None if entry is not None else None

    def pipes(self) -> list[list[str]]:
        """Return every pipe of the sink: name, source, status, reason, and log if it runs in the background."""
        with open_clickhouse_sink(self.sink) as named:
            return [[entry.name, entry.source, *_status(entry)] for entry in all_pipes(named.sink.own_tables())]

    def find(self, name: str) -> PipeEntry | None:
        with open_clickhouse_sink(self.sink) as named:
            return find_pipe(named.sink.own_tables(), name)

    def _check(self, named: NamedSink[ClickHouseSink], statement: CreateMaterializedDatabase, there: PipeEntry | None) -> None:
        place = f"database {statement.name}"
        if there is None:
            if _has_database(named, statement.name):
                raise DatabaseExists(
                    "a database of this name is there, and it is not a pipe", place=place, hint="choose another name, or drop it"
                )
            return
        _check_here(there)
        if not there.statement:
            raise DatabaseExists(f"there is a pipe of this name, from {there.source}", place=place, hint="choose another name")
        if not statement.if_not_exists:
            raise DatabaseExists(
                "the database already exists", place=place, hint="write CREATE DATABASE IF NOT EXISTS to start its pipe again"
            )
        if _without_secret(parse_statement(there.statement)) != _without_secret(statement):
            raise DatabaseExists(
                f"the database was made by another statement: {there.statement}",
                place=place,
                hint="give that one, or drop the database first",
            )

    def _undo(self, name: str, cluster: str, pipe: BackgroundPipe) -> None:
        """Remove a database and its pipe. Repeatable."""
        statement = f"DROP DATABASE IF EXISTS {quote_name(name)}{_on_cluster(cluster)}"
        if self.served and pipe.owns_server(self._root):
            # SYNC would wait for a query whose suspended client does not read its result.
            with pipe.frozen():
                self._remove(name, statement, pipe)
            return
        pipe.stop()
        self._remove(name, f"{statement} SYNC", pipe)

    def _remove(self, name: str, statement: str, pipe: BackgroundPipe) -> None:
        with open_clickhouse_sink(self.sink) as named:
            _execute(named, statement)
            if pipe.directory.exists():
                pipe.remove()
            named.sink.own_tables().delete_pipe(name)

    def _own_entry(self, name: str, cluster: str) -> PipeEntry | None:
        """Return the entry of a database that a statement created; its pipe must be on this machine, and a given cluster its own."""
        entry = self.find(name)
        if entry is None or not entry.statement:
            return None
        _check_here(entry)
        if cluster and cluster != entry.chosen.sink.cluster:
            raise DefiniteError(f"the database is not on the cluster {cluster}", place=f"database {name}", hint="leave ON CLUSTER out")
        return entry

    def _pipe(self, entry: PipeEntry) -> BackgroundPipe:
        # A client of the embedded server can write to `headrace.pipes`, so a path from there must not be used for it.
        return BackgroundPipe(self._directory(entry.name) if self.served else Path(entry.state))

    def _start(self, plan: PipePlan, pipe: BackgroundPipe, secrets: Mapping[str, str]) -> None:
        command = (*PYTHON, "headrace", REPLICATE, plan.source, self._address, *plan.arguments)
        pipe.write(command, plan.settings, secrets, plan.retry_ms)
        pipe.start(_HIDDEN_VARIABLES)

    def _background_pipes(self) -> list[BackgroundPipe]:
        return [BackgroundPipe(found) for found in sorted((self._root / PIPES).glob("*")) if found.is_dir()]

    def _secrets(self, statement: CreateMaterializedDatabase, pipe: BackgroundPipe) -> dict[str, str]:
        password = statement.password
        if password == HIDDEN:
            found = os.environ.get(SOURCE_PASSWORD)
            if found is None:
                found = _stored_password(statement, pipe)
            if found is None:
                hint = f"write it in the statement, or put it into {SOURCE_PASSWORD}"
                raise DefiniteError("the password is hidden", place=f"database {statement.name}", hint=hint)
            password = found
        secrets = {SOURCE_PASSWORD: password}
        if not self.sink.startswith(_EMBEDDED):
            secrets[SINK_PASSWORD] = parse_target(self.sink).password
        return secrets

    @property
    def _address(self) -> str:
        """The sink's address for the pipe: without password, and independent of the working directory."""
        if self.sink.startswith(_EMBEDDED):
            return f"{_EMBEDDED}{self._root}"
        return str(parse_target(self.sink))

    @property
    def _root(self) -> Path:
        """The directory of an embedded sink."""
        return Path(self.sink.removeprefix(_EMBEDDED)).resolve()

    def _directory(self, name: str) -> Path:
        """Return the directory of a database's pipe: in an embedded sink's directory, or in the user's state directory."""
        if self.sink.startswith(_EMBEDDED):
            around = self._root / PIPES
        else:
            chosen = os.environ.get("XDG_STATE_HOME", "")
            home = Path(chosen) if chosen.startswith("/") else Path.home() / ".local" / "state"
            around = home / "headrace" / "pipes" / _file_name(str(replace(parse_target(self.sink), database=None)))
        return around / _file_name(name)


def _has_database(named: NamedSink[ClickHouseSink], name: str) -> bool:
    return bool(named.sink.reader().query(f"SELECT 1 FROM system.databases WHERE name = {quote_text(name)}")[1])


def _execute(named: NamedSink[ClickHouseSink], statement: str) -> None:
    """Run a statement in the server itself: an embedded server would pass it to the pipe's owner."""
    named.sink.reader().query(statement, {"log_comment": OWN_STATEMENT})


def _on_cluster(cluster: str) -> str:
    return f" ON CLUSTER {quote_name(cluster)}" if cluster else ""


def _check_source_reachable(plan: PipePlan, password: str) -> None:
    """Raise unless the source can be reached with these credentials; called before anything is created."""
    connect(replace(parse_mysql_url(plan.source), password=password)).close()


def _check_here(entry: PipeEntry) -> None:
    if not entry.is_here:
        raise DefiniteError(
            f"the pipe runs on another machine, {entry.host}", place=f"database {entry.name}", hint=f"give the statement on {entry.host}"
        )


def _status(entry: PipeEntry) -> tuple[str, str, str]:
    """Return a pipe's status, failure reason and log."""
    pipe = BackgroundPipe(Path(entry.state))
    if not entry.is_here:
        return f"on {entry.host}", "", ""
    if not entry.statement:
        return keeper.RUNNING if pipe.is_running else keeper.STOPPED, "", ""
    status = pipe.status
    state, reason = str(status.get("state", keeper.STOPPED)), str(status.get("failed", ""))
    # The keeper's status is valid only while it runs, unless it failed.
    alive = pipe.is_running or state == keeper.FAILED
    return state if alive else keeper.STOPPED, reason if alive else "", str(pipe.log)


def _stored_password(statement: CreateMaterializedDatabase, pipe: BackgroundPipe) -> str | None:
    """Return the password that the pipe was started with. Another host must not get it, whatever `headrace.pipes` contains."""
    found = pipe.secrets().get(SOURCE_PASSWORD)
    if found is None:
        return None
    source = pipe.source()
    known = parse_mysql_url(source) if source else None
    if known is None or (known.host, known.port, known.user) != (statement.host.lower(), statement.port, statement.user):
        raise DefiniteError(
            "the stored password belongs to another host, port or user",
            place=f"database {statement.name}",
            hint="write the password in the statement",
        )
    return found


def _without_secret(statement: object) -> object:
    assert isinstance(statement, CreateMaterializedDatabase)
    return replace(statement, password="", redacted="", if_not_exists=False)


def _file_name(text: str) -> str:
    """Return a file name that is unique to the text and readable."""
    return quote(text, safe="").replace(".", "%2E") if text.startswith(".") else quote(text, safe="")
