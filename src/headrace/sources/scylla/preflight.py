"""Checks a cluster before its logs are replicated: `headrace check scylla://…`. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.cql.address import STRONG_CONSISTENCIES
from headrace.cql.errors import server_errors
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.schema_reader import describe_all, describe_options
from headrace.cql.session import CqlSession
from headrace.cql.timeuuid import micros
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection, is_pattern
from headrace.sources.preflight import Finding, failure, ok, warning
from headrace.sources.scylla.generations import ServerCatalog
from headrace.sources.scylla.log_tables import check_log, check_options, enabling, log_name, log_ttl, select_tables
from headrace.sources.scylla.position import moment, start_us
from headrace.sources.scylla.snapshot.options import ScyllaOptions

_SHORT_S: Final = 4 * 3600
"""Shorter TTLs of a log would lose changes in an outage of one night."""


def examine(session: CqlSession, wanted: Selection, options: ScyllaOptions, now_us: Callable[[], int]) -> list[Finding]:
    """Return all findings; `now_us` is the local time."""
    checkup = _PreflightChecks(session, wanted, options, ServerCatalog(session, options), now_us)
    return [*checkup.server(), *checkup.agreement(), *checkup.clocks(), *checkup.reading(), *checkup.tables()]


@dataclass(frozen=True, slots=True)
class _PreflightChecks:
    session: CqlSession
    wanted: Selection
    options: ScyllaOptions
    catalog: ServerCatalog
    now_us: Callable[[], int]

    def server(self) -> Iterator[Finding]:
        [row] = self.session.execute("SELECT cluster_name, release_version FROM system.local")
        if self._may("SELECT keyspace_name FROM system_schema.scylla_tables LIMIT 1") is None:
            yield ok("server", f"ScyllaDB, cluster {row.cluster_name}")
        else:
            yield warning(
                "server",
                f"Apache Cassandra {row.release_version}, cluster {row.cluster_name}",
                "it writes no CDC log of ScyllaDB's kind by itself",
                "use ScyllaDB, or write through headrace.sources.scylla.capture, which also writes such a log",
            )

    def agreement(self) -> Iterator[Finding]:
        [own] = self.session.execute("SELECT schema_version FROM system.local")
        others = self.session.execute("SELECT schema_version FROM system.peers")
        versions = {row.schema_version for row in (own, *others)} - {None}
        if len(versions) == 1:
            yield ok("schema", "all nodes agree")
        else:
            remedy = "wait, or see nodetool describecluster"
            yield warning("schema", f"{len(versions)} versions", "nodes do not agree on the schema", remedy)

    def clocks(self) -> Iterator[Finding]:
        """Check clocks: rows are read once they are older than the confidence time; clocks that differ by more hide rows."""
        ahead = {}
        for host in self.session.driver.cluster.metadata.all_hosts():
            if host.is_up:
                with server_errors(self.session.address, "SELECT now() FROM system.local"):
                    now = self.session.driver.execute("SELECT now() FROM system.local", host=host).one()
                ahead[str(host.address)] = (micros(now[0]) - self.now_us()) / 1e6
        spread, limit = max(ahead.values()) - min(ahead.values()), self.options.confidence
        shown = ", ".join(f"{host} {seconds:+.1f} s" for host, seconds in sorted(ahead.items()))
        if spread > limit / 2:
            judged = failure if spread > limit else warning
            yield judged(
                "clocks of nodes",
                shown,
                f"they differ by {spread:.1f} s, and rows are read {limit:g} s after their timestamps: some may come too late to be seen",
                "set the clocks by NTP, or raise the confidence time: --set scylla.confidence=SECONDS",
            )
        else:
            yield ok("clocks of nodes", shown, "relative to the local clock; windows use the servers' clock")

    def reading(self) -> Iterator[Finding]:
        address = self.session.address
        if address.consistency in STRONG_CONSISTENCIES:
            yield ok("consistency", address.consistency)
        else:
            yield warning(
                "consistency",
                address.consistency,
                "a node may not yet have a row that others have acknowledged: that row would be missed",
                "leave consistency= out of the address (quorum), unless each keyspace has one replica",
            )
        if address.shows_password:
            yield warning("encryption", "none", "the password is sent unencrypted", "add tls=verify-identity to the address")
        yield ok("confidence", f"{self.options.confidence:g} s", "a change is visible about this long after it was made")

    def tables(self) -> Iterator[Finding]:
        chosen = select_tables(self.session, self.wanted)
        for name in chosen.unlogged:
            judged = warning if chosen.logged else failure
            yield judged(f"table {name}", "no log", "it has no CDC log and is not replicated", enabling(name))
        for pattern in self.wanted.unmatched((*chosen.logged, *chosen.unlogged)):
            repair = "check the keyspace in the address, --tables, and the account's privileges"
            if is_pattern(pattern):
                meaning = f"no table matches {pattern}; a table that is created later, with a CDC log, will be replicated"
                yield warning(f"tables {pattern}", "none", meaning, repair)
            else:
                yield failure(f"table {pattern}", "none", f"there is no table {pattern}", repair)
        for name in chosen.logged:
            yield from self._table(name)

    def _table(self, name: TableName) -> Iterator[Finding]:
        subject = f"table {name}"
        for target in (name, log_name(name)):
            refused = self._may(f"SELECT * FROM {table_name(target)} LIMIT 1")
            if refused is not None:
                yield failure(subject, "cannot be read", refused.message, f"GRANT SELECT ON {table_name(target)} TO …")
                return
        options = describe_options(self.session, name)
        try:
            described = describe_all(self.session, [name, log_name(name)])
            check_log(described[name].table, described[log_name(name)].table)
            check_options(name, options)
            generations = self.catalog.generations(name)
            streams = sum(map(len, self.catalog.streams(name, generations[-1])))
        except DefiniteError as error:
            yield failure(subject, "cannot be read", error.message, error.hint)
            return
        kind = "tablets" if self.catalog.has_tablets(name) else "vnodes"
        known = f"{len(generations)} generations, the last since {moment(start_us(generations[-1]))}"
        yield ok(subject, f"{streams} streams of {kind}", known)
        yield self._life(name, log_ttl(self.session, name, options, self.options))

    def _life(self, name: TableName, ttl: int) -> Finding:
        subject, longer = f"log of {name}", f"{enabling(name).removesuffix('}')}, 'ttl': 259200}}"
        if not ttl:
            return warning(subject, "kept for ever", "it grows without limit, unless the server does not report its TTL", longer)
        if ttl < _SHORT_S:
            return warning(subject, f"kept for {ttl} s", "a pipe that stops for longer misses changes", longer)
        return ok(subject, f"kept for {ttl} s", "a pipe may stop for this long")

    def _may(self, query: str) -> HeadraceError | None:
        """Return why a query is rejected; None if it is accepted."""
        try:
            self.session.execute(query)
        except DefiniteError as error:
            return error
        return None
