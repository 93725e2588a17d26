"""The preflight checks: each evaluates a server's answers and returns findings. `docs/mysql.md` has the table of tested versions, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.cascades import Cascade, source_obstacles
from headrace.model.schema import ForeignKey, TableName, TableSchema
from headrace.model.setting_values import CascadeMode
from headrace.model.table_selection import Selection, is_pattern
from headrace.sources.mysql.preflight.server_facts import Check, ServerFacts, TableFacts, refusal, try_replication
from headrace.sources.mysql.server.connection import TRANSACTIONAL_ENGINES, Version, default_tls, parse_version
from headrace.sources.preflight import Finding, failure, ok, warning

_DAY_S: Final = 86_400
_RECONNECT: Final = "-- sessions already open keep theirs until they reconnect"
OLDEST_MYSQL: Final = (5, 6)
"""Older servers send no checksums and have no variables of GTIDs, which replication queries."""
TESTED: Final = {"MariaDB": ("10.11", "11.8"), "MySQL": ("9.7",)}
"""The release series that the tests run on."""


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """What differs from the tested versions in a range of versions, from `first` on and before `end`."""

    product: str
    first: tuple[int, int]
    end: tuple[int, int]
    text: str

    def applies_to(self, product: str, version: Version) -> bool:
        return product == self.product and self.first <= version[:2] < self.end


Definitions = Mapping[TableName, TableSchema | DefiniteError]
"""The definition of each child and parent table of a cascade, or why it is not replicated."""

_ANY: Final = (10_000, 0)
KNOWN_DIFFERENCES: Final = (
    KnownDifference("MySQL", (5, 6), (5, 7), "binlog_format is STATEMENT by default"),
    KnownDifference("MySQL", (5, 6), (8, 0), "no binlog_row_metadata: the schema history names the columns"),
    KnownDifference(
        "MySQL", (8, 0), (8, 1), "binlog_row_metadata from 8.0.1, partial JSON from 8.0.3, compressed transactions from 8.0.20"
    ),
    KnownDifference("MySQL", (5, 6), (8, 2), "the log's position comes from SHOW MASTER STATUS"),
    KnownDifference("MySQL", (5, 6), (9, 6), "foreign-key cascades are in no log: Headrace applies them in ClickHouse"),
    KnownDifference("MySQL", (5, 6), (8, 3), "no tagged GTIDs"),
    KnownDifference("MySQL", (5, 6), (9, 0), "no VECTOR type"),
    KnownDifference("MySQL", (9, 8), _ANY, "newer than the tests: an event type that Headrace does not know halts the pipe"),
    KnownDifference("MariaDB", (0, 0), (10, 5), "no binlog_row_metadata: the schema history names the columns"),
    KnownDifference("MariaDB", (0, 0), (10, 7), "no UUID type"),
    KnownDifference("MariaDB", (0, 0), (10, 10), "no INET4 type"),
    KnownDifference("MariaDB", (0, 0), (11, 5), "TIMESTAMP ends in 2038"),
    KnownDifference("MariaDB", (0, 0), (11, 7), "no VECTOR type; the log has the position of every event (later: binlog_legacy_event_pos)"),
    KnownDifference(
        "MariaDB",
        (11, 9),
        _ANY,
        "newer than the tests: row events in parts (PARTIAL_ROW_DATA) and logs in InnoDB (binlog_storage_engine) are not supported; an "
        "event type that Headrace does not know halts the pipe",
    ),
)


def is_tested(product: str, version: Version) -> bool:
    return f"{version[0]}.{version[1]}" in TESTED[product]


def judge_version(product: str, text: str) -> Finding:
    version, value = parse_version(text), f"{product} {text}"
    names = "; ".join(f"{name} {' and '.join(series)}" for name, series in TESTED.items())
    if product == "MySQL" and version[:2] < OLDEST_MYSQL:
        repair = "upgrade the server, or copy its log files: headrace replicate binlog:DIRECTORY"
        meaning = "a MySQL server before 5.6 sends no checksums and no GTIDs; only its copied log files are read"
        return failure("server", value, meaning, repair)
    if is_tested(product, version):
        return ok("server", value, f"one of the versions that the tests run on ({names})")
    differences = [known.text for known in KNOWN_DIFFERENCES if known.applies_to(product, version)]
    meaning = f"the tests do not run on this version (they run on {names})"
    if differences:
        meaning += f"; known differences: {'; '.join(differences)}"
    return warning("server", value, meaning, "compare the copy with the source: headrace verify")


def _expect(good: bool, name: str, value: str, meaning: str, repair: str) -> Finding:
    """Return an ok finding, or a warning with its meaning and its remedy."""
    return ok(name, value) if good else warning(name, value, meaning, repair)


def _version(facts: ServerFacts) -> Iterator[Finding]:
    yield judge_version(facts.product, facts.version)


def _log(facts: ServerFacts) -> Iterator[Finding]:
    if facts.is_on("log_bin"):
        yield ok("log_bin", "ON")
    else:
        yield failure("log_bin", "OFF", "the source writes no binary log", "set log_bin in the server's configuration and restart it")


def _wanted(name: str, wanted: str, repair: str) -> Check:
    """Check a setting that must have one value. Servers without the setting behave as if it had that value."""

    def check(facts: ServerFacts) -> Iterator[Finding]:
        value = facts.variable(name, wanted)
        if value.upper() == wanted:
            if name in facts.variables:
                yield ok(name, value or "''")
        else:
            yield failure(name, value, f"the source has {name} = {value or repr('')}", repair)

    return check


def _sessions(facts: ServerFacts) -> Iterator[Finding]:
    """Check formats that sessions have set for themselves. Only MySQL's performance schema shows them."""
    sql = "SELECT COUNT(*) FROM performance_schema.variables_by_thread WHERE variable_name = 'binlog_format' AND variable_value <> 'ROW'"
    found = facts.fetch_if_allowed(sql) if facts.is_on("performance_schema") and not facts.mariadb else None
    name = "binlog_format of sessions"
    if found is None:
        yield ok(name, "not visible", "a change logged as a statement stops replication with an error that names it")
    elif int(found[0][0]):
        meaning = "these sessions log their changes as statements, which cannot be replicated exactly"
        yield warning(name, f"{found[0][0]} sessions", meaning, "let them reconnect, or SET SESSION binlog_format = ROW in them")
    else:
        yield ok(name, "all ROW")


def _metadata(facts: ServerFacts) -> Iterator[Finding]:
    value = facts.variable("binlog_row_metadata")
    meaning = "the log does not name columns: only the recorded history shows how tables changed"
    repair = "SET GLOBAL binlog_row_metadata = FULL" if value else "use a server that has it: MySQL 8.0.1, MariaDB 10.5, or newer"
    yield _expect(value.upper() == "FULL", "binlog_row_metadata", value or "unknown to the server", meaning, repair)


def _readable(name: str, meaning: str) -> Check:
    """Report a setting whose values are all supported, if the server has it."""

    def check(facts: ServerFacts) -> Iterator[Finding]:
        if name in facts.variables:
            yield ok(name, facts.variable(name) or "''", meaning)

    return check


def _checksum(facts: ServerFacts) -> Iterator[Finding]:
    value = facts.variable("binlog_checksum", "NONE")
    repair = "SET GLOBAL binlog_checksum = CRC32"
    yield _expect(value.upper() != "NONE", "binlog_checksum", value, "damage to the log would go unnoticed", repair)


def _gtid(facts: ServerFacts) -> Iterator[Finding]:
    if facts.mariadb:
        strict = facts.is_on("gtid_strict_mode")
        meaning = "servers may log transactions in different orders, so that a GTID does not name one place in each log"
        yield _expect(strict, "gtid_strict_mode", "ON" if strict else "OFF", meaning, "SET GLOBAL gtid_strict_mode = ON")
        return
    mode = facts.variable("gtid_mode", "OFF")
    meaning = "no failover to another server by GTID, and positions are noted under a short global lock (RELOAD)"
    steps = "; ".join(f"SET GLOBAL gtid_mode = {step}" for step in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"))
    yield _expect(mode.upper() == "ON", "gtid_mode", mode, meaning, f"SET GLOBAL enforce_gtid_consistency = ON; {steps}")
    consistency = facts.variable("enforce_gtid_consistency", "OFF")
    if consistency.upper() == "ON":
        yield ok("enforce_gtid_consistency", consistency)
    elif mode.upper() == "ON":
        yield warning("enforce_gtid_consistency", consistency, "GTIDs may be broken", "SET GLOBAL enforce_gtid_consistency = ON")


def _server_id(facts: ServerFacts) -> Iterator[Finding]:
    value = facts.variable("server_id", "0")
    if value == "0":
        yield failure("server_id", value, "the source has server_id = 0 and serves no replicas", "SET GLOBAL server_id = 101")
    elif facts.mariadb and value == "1":
        meaning = "1 is the default of every server; it is the only identity of a MariaDB server"
        yield warning("server_id", value, meaning, "SET GLOBAL server_id = 101 -- and another on every other server")
    else:
        yield ok("server_id", value)


def _replica(facts: ServerFacts) -> Iterator[Finding]:
    """Check that a replica logs the changes that it replicates."""
    name = "log_slave_updates" if facts.mariadb or "log_replica_updates" not in facts.variables else "log_replica_updates"
    if facts.is_on(name):
        yield ok(name, "ON")
        return
    replica = facts.is_replica()
    repair = f"set {name} = ON in the server's configuration and restart it, or replicate from its own source"
    if replica:
        yield failure(name, "OFF", "the source is a replica, and its log lacks what it replicates", repair)
    elif replica is None:
        meaning = "if the source is a replica, its log lacks the replicated changes (the user may not see whether it is one)"
        yield warning(name, "OFF", meaning, repair)
    else:
        yield ok(name, "OFF", "the source is not a replica")


def _durability(facts: ServerFacts) -> Iterator[Finding]:
    for name, loses in (("sync_binlog", "the end of its log"), ("innodb_flush_log_at_trx_commit", "its last transactions")):
        value = facts.variable(name, "1")
        meaning = f"a crash of the source's machine may lose {loses}, which may have been replicated already"
        yield _expect(value == "1", name, value, meaning, f"SET GLOBAL {name} = 1")


def _sql_mode(facts: ServerFacts) -> Iterator[Finding]:
    modes = set(facts.variable("sql_mode").upper().split(","))
    strict = modes & {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "TRADITIONAL"}
    if strict and ("TRADITIONAL" in modes or {"NO_ZERO_DATE", "NO_ZERO_IN_DATE"} <= modes):
        yield ok("sql_mode", "no zero dates")
    else:
        meaning = (
            "dates that do not exist, such as 0000-00-00, may be stored; replication stops at one, or makes it NULL with --zero-dates null"
        )
        repair = "SET GLOBAL sql_mode = CONCAT(@@GLOBAL.sql_mode, ',STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE')"
        yield warning("sql_mode", "zero dates allowed", meaning, repair)


def _time_zones(facts: ServerFacts) -> Iterator[Finding]:
    found = facts.fetch_if_allowed("SELECT COUNT(*) FROM mysql.time_zone_name")
    loaded = "not visible" if found is None else "loaded" if int(found[0][0]) else "not loaded"
    yield ok("time zone tables", loaded, "not needed: everything is read in UTC, whatever the server's time_zone")


def _names(facts: ServerFacts) -> Iterator[Finding]:
    value = facts.variable("lower_case_table_names", "0")
    if value == "2":
        meaning = "names keep their spelling but are compared without case: statements may spell a table in two ways"
        yield warning("lower_case_table_names", value, meaning, "spell names in one way, or run the source with 0 or 1")
    else:
        yield ok("lower_case_table_names", value, "names are kept in lower case" if value == "1" else "")


def _statements(facts: ServerFacts) -> Iterator[Finding]:
    name = "binlog_annotate_row_events" if facts.mariadb else "binlog_rows_query_log_events"
    yield ok(name, facts.variable(name, "OFF"), "whether changes can carry the text of their statement")


def _encryption(facts: ServerFacts) -> Iterator[Finding]:
    cipher = str(dict(facts.fetch("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).get("Ssl_cipher", ""))
    forced = "the server demands it" if facts.is_on("require_secure_transport") else ""
    if cipher:
        yield ok("TLS", cipher, forced)
    elif facts.address.socket or default_tls(facts.address.host) == default_tls(""):
        yield ok("TLS", "none", "nothing leaves this machine")
    else:
        yield warning(
            "TLS", "none", "rows and the log cross the network unencrypted", "add ?tls=required or tls=verify-identity to the address"
        )


def _prepared(facts: ServerFacts) -> Iterator[Finding]:
    found = facts.fetch_if_allowed("XA RECOVER")
    if found is None:
        meaning = "the user may not see transactions that were prepared and never ended"
        yield warning("XA RECOVER", "not visible", meaning, f"GRANT XA_RECOVER_ADMIN ON *.* TO {facts.account}")
    elif found:
        meaning = "prepared transactions hold their rows and locks until they are ended; a consistent snapshot waits for them"
        names = ", ".join(str(row[3]) for row in found[:3])
        yield warning("XA RECOVER", f"{len(found)} prepared: {names}", meaning, "XA COMMIT or XA ROLLBACK each of them")
    else:
        yield ok("XA RECOVER", "none prepared")


SERVER_CHECKS: Final[tuple[Check, ...]] = (
    _version,
    _log,
    _wanted("binlog_format", "ROW", f"SET GLOBAL binlog_format = ROW {_RECONNECT}"),
    _sessions,
    _wanted("binlog_row_image", "FULL", f"SET GLOBAL binlog_row_image = FULL {_RECONNECT}"),
    _readable("binlog_row_value_options", "partial updates of JSON are read"),
    _metadata,
    # Of MariaDB and of MySQL.
    _readable("log_bin_compress", "compressed events are read"),
    _readable("binlog_transaction_compression", "compressed events are read"),
    _checksum,
    _gtid,
    _server_id,
    _replica,
    _durability,
    _sql_mode,
    _time_zones,
    _names,
    _statements,
    _encryption,
    _prepared,
)
"""The checks that do not depend on the selected tables, in the order in which problems should be repaired."""


def check_log_rights(facts: ServerFacts) -> Iterator[Finding]:
    """Check the replication privilege by trying it."""
    if not facts.is_on("log_bin"):
        return
    second = "BINLOG MONITOR" if facts.mariadb else "REPLICATION CLIENT"
    status = refusal(facts.log_filters)
    if status is not None:
        grant = f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {facts.account}"
        yield failure(second, "no", f"the user may not see the position of the log: {status.message}", grant)
        return
    yield ok(second, "yes")
    error = refusal(lambda: try_replication(facts.connection, facts.address))
    if error is not None:
        yield failure("REPLICATION SLAVE", "no", error.message, error.hint)
    else:
        yield ok("REPLICATION SLAVE", "yes")
    reload = facts.has_privilege("RELOAD")
    meaning = "needed for consistent snapshots, and to note positions on MySQL without GTIDs"
    yield _expect(reload, "RELOAD", "yes" if reload else "no", meaning, f"GRANT RELOAD ON *.* TO {facts.account}")


def check_retention(facts: ServerFacts) -> Iterator[Finding]:
    """Check how long the log is kept: a purged file that was not read yet is lost."""
    seconds = float(facts.variable("binlog_expire_logs_seconds", "0")) or float(facts.variable("expire_logs_days", "0")) * _DAY_S
    if not facts.is_on("binlog_expire_logs_auto_purge", "ON"):
        seconds = 0.0
    name = "binlog_expire_logs_seconds"
    oldest = facts.oldest_log()
    reach = f"; the oldest, {oldest[0]}, is {_span(oldest[1])} old" if oldest is not None else ""
    value = (_span(seconds) if seconds else "for ever") + reach
    if 0 < seconds < _DAY_S:
        meaning = "if replication stops for longer than the log is kept, it must start over"
        known = name in facts.variables
        yield warning("retention", value, meaning, f"SET GLOBAL {name} = 604800" if known else "SET GLOBAL expire_logs_days = 7")
    else:
        yield ok("retention", value, "" if seconds else "nothing removes old logs: watch the source's disk")


def _span(seconds: float) -> str:
    for size, unit in ((_DAY_S, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def check_selection(facts: ServerFacts, tables: list[TableFacts], selection: Selection, cascades: CascadeMode) -> Iterator[Finding]:
    """Check the selected tables. Tables that a pattern matches may be created later; tables that are named must exist."""
    repair = f"check --tables and the database; GRANT SELECT ON *.* TO {facts.account}"
    if not tables and facts.lacks_database(selection):
        yield failure("tables", "none", f"the source has no database {facts.address.database}, or the user may not see it", repair)
        return
    yield ok("tables", f"{len(tables)} selected")
    for chosen in selection.unmatched(table.name for table in tables):
        if is_pattern(chosen):
            meaning = f"no table matches {chosen}, or the user may not see it; a table that is created later will be replicated"
            yield warning(f"tables {chosen}", "none", meaning, repair)
        else:
            yield failure(f"table {chosen}", "none", f"there is no table {chosen}, or the user may not see it", repair)
    yield from check_hidden_databases(facts, {table.name.database for table in tables})
    definitions = _describe_tables(facts, tables, cascades)
    for table in tables:
        yield from _check_select(facts, table)
        yield from report_cascades(facts, table, definitions, {one.name for one in tables}, cascades)
        if not table.keyed:
            meaning = f"table {table.name} has no key: rows are identified by all their columns, which costs more"
            yield warning(f"key of {table.name}", "none", meaning, f"ALTER TABLE {table.quoted} ADD PRIMARY KEY (...)")
        if table.engine.lower() not in TRANSACTIONAL_ENGINES:
            meaning = (
                f"{table.engine} has no transactions: table {table.name} may change while its snapshot is taken, and a crash may tear it"
            )
            yield warning(f"engine of {table.name}", table.engine, meaning, f"ALTER TABLE {table.quoted} ENGINE = InnoDB")


def _check_select(facts: ServerFacts, table: TableFacts) -> Iterator[Finding]:
    # Not a constant false condition: MySQL would answer without checking the column privileges.
    try:
        facts.fetch(f"SELECT * FROM {table.quoted} LIMIT 0")
    except DefiniteError as error:
        grant = f"GRANT SELECT ON {table.quoted} TO {facts.account}"
        yield failure(f"SELECT on {table.name}", "no", f"the user may not read table {table.name}: {error.message}", grant)


def check_hidden_databases(facts: ServerFacts, databases: Iterable[str]) -> Iterator[Finding]:
    """Check for filters that keep a selected database out of the log."""
    if refusal(facts.log_filters) is not None:
        return
    only, without = facts.log_filters()
    hidden = sorted(name for name in databases if (only and name not in only) or name in without)
    name, value = ("binlog_do_db", ", ".join(only)) if only else ("binlog_ignore_db", ", ".join(without))
    repair = f"remove {name} from the server's configuration and restart it"
    if hidden:
        yield failure(name, value, f"the source keeps changes of {', '.join(hidden)} out of its log ({name} = {value})", repair)
    elif only or without:
        meaning = "changes made while another database is in use may be kept out of the log"
        yield warning(name, value, meaning, repair)


def check_cascades_of(facts: ServerFacts, table: TableFacts) -> Iterator[Finding]:
    """Check foreign keys that change the table: InnoDB executes them without logging (MySQL logs them from 9.6 on), so the copy would
    diverge.
    """
    if not table.cascades or facts.logs_cascades:
        return
    for cascade in table.cascades:
        meaning = f"table {table.name} is changed by the foreign key {cascade.name}, and {facts.product} does not log such changes"
        repair = f"{_cascade_repair(facts)}, or leave the table out with --exclude"
        yield failure(f"foreign key of {table.name}", cascade.name, meaning, repair)


def _describe_tables(facts: ServerFacts, tables: list[TableFacts], mode: CascadeMode) -> Definitions:
    is_applied = mode is CascadeMode.APPLY and not facts.logs_cascades
    children = [table for table in tables if table.cascades] if is_applied else []
    involved = {key.parent for table in children for key in table.cascades} | {table.name for table in children}
    return facts.describe([table.name for table in tables if table.name in involved])


def report_cascades(
    facts: ServerFacts, table: TableFacts, definitions: Definitions, selected: Collection[TableName], mode: CascadeMode
) -> Iterator[Finding]:
    """Report what a pipe of the selected tables does about foreign keys that change the table without logging it."""
    if mode is CascadeMode.HALT:
        yield from check_cascades_of(facts, table)
    elif not facts.logs_cascades:
        for key in table.cascades:
            name, unlogged = f"foreign key of {table.name}", f"{facts.product} does not log the rows of {table.name} that it changes"
            if mode is CascadeMode.IGNORE:
                meaning = f'{unlogged}, and cascades = "ignore" leaves them as they are'
                yield warning(name, key.name, meaning, 'set cascades = "apply"')
            elif why := _obstacles(facts, key, table, definitions, selected):
                meaning = f"{unlogged}, and Headrace cannot apply it exactly: {why}"
                yield failure(name, key.name, meaning, f"{_obstacle_repair(key, table, selected)}, or {_cascade_repair(facts)}")
            else:
                yield ok(name, key.name, f"{unlogged}; Headrace applies it in ClickHouse")


def _obstacles(facts: ServerFacts, key: ForeignKey, table: TableFacts, definitions: Definitions, selected: Collection[TableName]) -> str:
    involved = {table.name, key.parent} & set(selected)
    if not definitions.keys() >= involved:
        return ""  # the account may not read a table, which has its own finding
    refused = [definition.message for name in sorted(involved) if isinstance(definition := definitions[name], DefiniteError)]
    schemas = {name: definition for name, definition in definitions.items() if isinstance(definition, TableSchema)}
    return "; ".join(refused or source_obstacles(Cascade(table.name, key), schemas, facts.ignores_trailing_spaces))


def _obstacle_repair(key: ForeignKey, table: TableFacts, selected: Collection[TableName]) -> str:
    if key.parent not in selected:
        return f"select {key.parent} too"
    return f"leave the table out with --exclude {table.name}" if table.keyed else f"ALTER TABLE {table.quoted} ADD PRIMARY KEY (...)"


def _cascade_repair(facts: ServerFacts) -> str:
    native = "innodb_native_foreign_keys" in facts.variables
    return "set innodb_native_foreign_keys = OFF in the server's configuration and restart it" if native else "make the key RESTRICT"
