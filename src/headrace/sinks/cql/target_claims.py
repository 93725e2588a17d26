"""Claims on tables of a CQL cluster: the table `headrace_targets` in the keyspace of the target tables.

Plain writes and reads at the consistency of the address (LOCAL_QUORUM by default), no lightweight transactions: a read that follows a
write sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.cql.address import CqlAddress
from headrace.cql.schema_reader import list_keyspaces, list_tables
from headrace.cql.session import CqlSession, shared_session
from headrace.cql.types import quoted
from headrace.sinks.target_claims import Claim

log = logging.getLogger("headrace")

TABLE: Final = "headrace_targets"
_COLUMNS: Final = ("target", "state", "pipe", "source", "host", "directory", "claimed_us", "created")


@dataclass(frozen=True, slots=True)
class CqlClaims:
    """All claims of one cluster. `creates`: whether the table may be created."""

    address: CqlAddress
    creates: bool = True

    def read(self) -> list[Claim]:
        session, columns = self._session, ", ".join(_COLUMNS)
        return [Claim(*row) for keyspace in self._keyspaces for row in session.execute(f"SELECT {columns} FROM {quoted(keyspace)}.{TABLE}")]

    def write(self, claims: Sequence[Claim]) -> None:
        session, known = self._session, self._keyspaces
        for keyspace in sorted({_keyspace(claim.target) for claim in claims} - set(known)):
            if not self.creates:
                log.warning(
                    "a second pipe that writes to the same tables cannot be noticed: the keyspace %s has no table %s, and replay.missing "
                    "does not allow to create it",
                    keyspace,
                    TABLE,
                )
                continue
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{TABLE} (target text, state text, pipe text, source text, host text, "
                "directory text, claimed_us bigint, created boolean, PRIMARY KEY (target, state))"
            )
        for keyspace, claim in self._recorded(claims):
            values = tuple(getattr(claim, name) for name in _COLUMNS)
            marks = ", ".join(["%s"] * len(_COLUMNS))
            session.execute(f"INSERT INTO {quoted(keyspace)}.{TABLE} ({', '.join(_COLUMNS)}) VALUES ({marks})", values)

    def remove(self, claims: Sequence[Claim]) -> None:
        for keyspace, claim in self._recorded(claims):
            self._session.execute(f"DELETE FROM {quoted(keyspace)}.{TABLE} WHERE target = %s AND state = %s", (claim.target, claim.state))

    def existing(self, targets: Collection[str]) -> set[str]:
        there = set(list_keyspaces(self._session))
        wanted = {_keyspace(target) for target in targets} & there
        return {f"{keyspace}.{table}" for keyspace in wanted for table in list_tables(self._session, keyspace)}.intersection(targets)

    def last_seen_us(self, claim: Claim) -> int:
        """Return 0: pipes do not report to a cluster that they run."""
        del claim
        return 0

    @property
    def _session(self) -> CqlSession:
        return shared_session(self.address)

    @property
    def _keyspaces(self) -> list[str]:
        """Return the keyspaces that have the table."""
        rows = self._session.execute("SELECT keyspace_name, table_name FROM system_schema.tables")
        return sorted(row.keyspace_name for row in rows if row.table_name == TABLE)

    def _recorded(self, claims: Iterable[Claim]) -> list[tuple[str, Claim]]:
        """Return the claims in existing tables."""
        known = set(self._keyspaces)
        return [(_keyspace(claim.target), claim) for claim in claims if _keyspace(claim.target) in known]


def _keyspace(target: str) -> str:
    # No name of a keyspace has a dot.
    return target.partition(".")[0]
