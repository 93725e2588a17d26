"""A cluster with ScyllaDB's CDC log: the given ScyllaDB, or Cassandra behind the capture layer.

Tests that write through it also run on the server's own log (`make test-scylla`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.lexer import statements
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import list_tables
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.captured_session import CapturedSession, capture
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from testkit.servers.scylla_tables import add_generation, create_tables, make_generation


def is_scylla(session: CqlSession) -> bool:
    """Whether the server is ScyllaDB itself."""
    return "scylla_tables" in list_tables(session, "system_schema")


class LoggedCluster:
    """Tables of one keyspace whose changes are logged."""

    def __init__(self, session: CqlSession, keyspace: str, definitions: str, options: CdcOptions | None = None, *, ranges: int = 4) -> None:
        """`definitions`: CREATE statements of types and tables, which name the keyspace."""
        self.session, self.keyspace = session, keyspace
        self.options = options or CdcOptions(enabled=True)
        self.has_own_log = is_scylla(session)
        self.tables: Mapping[TableName, CqlTable] = CqlCatalog().apply_all(definitions).tables
        for statement in statements(definitions):
            made = statement.rstrip(";")
            if self.has_own_log and made.split()[1].lower() == "table":
                made += f" {'AND' if ' WITH ' in made else 'WITH'} cdc = {self.options}"
            session.execute(made)
        self._captured: CapturedSession | None = None
        if not self.has_own_log:
            create_tables(session, keyspace)
            add_generation(session, keyspace, make_generation(int(time.time() * 1000) - 60_000, ranges))
            self._captured = capture(session, self.tables, generations=keyspace, options=self.options)

    @property
    def choices(self) -> ScyllaOptions:
        """Options that read the log with a short delay."""
        where = {} if self.has_own_log else {"generations": self.keyspace, "tablets": self.keyspace}
        return ScyllaOptions(confidence=1.0, window=0.5, **where)

    @property
    def settings(self) -> list[str]:
        """The same, as flags of the command."""
        choices = self.choices
        names = ("confidence", "window", "generations", "tablets")
        return [part for name in names for part in ("--set", f"scylla.{name}={getattr(choices, name)}")]

    def execute(self, statement: str, parameters: Any = None) -> None:
        """Run a statement; the log records its change."""
        (self._captured or self.session).execute(statement, parameters)
