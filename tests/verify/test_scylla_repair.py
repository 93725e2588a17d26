"""`headrace verify --repair` of pipes from ScyllaDB removes what the source deleted without a log entry, and nothing else.

Rows are written through the log, and deleted by writing around it. The oracle is the source's own SELECT, compared with the view.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.cql.blocks import LogBlock
from headrace.cql.decode.pages import read_rows
from headrace.cql.log import log_table
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.cql.types import quoted
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.log_tables import log_name
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import server_time
from headrace.verify.result import TableResult, Verdict
from headrace.verify.scylla.verifier import verify_logged
from testkit.generators.cql_blocks import write
from testkit.oracles.cell_views import selected, shown
from testkit.servers.logged_cluster import LoggedCluster

HOUR_US = 3600 * 1_000_000
TYPE = "CREATE TYPE {ks}.ut (a int, b text);"
REGULAR = (
    "v int, b blob, dc decimal, tu frozen<tuple<int, text>>, m map<text, int>, st set<int>, l list<int>, ut ut, "
    "fm map<int, frozen<list<text>>>, fs set<frozen<tuple<int, text>>>"
)
VALUES = {
    "v": "1",
    "b": "0x00ff",
    "dc": "-1.50",
    "tu": "(1, 'x')",
    "m": "{'a': 1, 'b': 2}",
    "st": "{1, 2}",
    "l": "[1, 2, 3]",
    "ut": "{a: 1, b: 'b'}",
    "fm": "{1: ['x'], 2: ['y', '']}",
    "fs": "{(1, 'x'), (2, 'y')}",
}
STATICS = {"s": "'static'", "sv": "7", "sm": "{'a': 1, 'b': 2}", "sl": "[1, 2]", "su": "{a: 1, b: 'b'}"}
COLLECTION_CHANGES = "m['a'] = null, st = st - {1}, l = l - [2], ut.a = null, fm[1] = null, fs = fs - {(1, 'x')}"


class _Replica:
    """A logged table on a real server, and its copy in ClickHouse."""

    def __init__(self, cql: CqlSession, keyspace: str, target: ClickHouseTarget, columns: str, *, merges: bool | None = None) -> None:
        self.cql, self.name = cql, f"{keyspace}.t"
        self.cluster = LoggedCluster(cql, keyspace, f"{TYPE.format(ks=keyspace)} CREATE TABLE {self.name} ({columns});")
        self.table: CqlTable = self.cluster.tables[TableName(keyspace, "t")]
        self.sink = CellSink(ClickHouseSink(target), merges=merges)
        self.sink.prepare([self.table])

    def logged(self, *statements: str) -> None:
        for statement in statements:
            self.cluster.execute(statement.replace(" t ", f" {self.name} "))

    def unlogged(self, *statements: str) -> None:
        for statement in statements:
            self.cql.execute(statement.replace(" t ", f" {self.name} "))

    def insert(self, key: dict[str, int], values: dict[str, str]) -> None:
        row = {**{name: str(value) for name, value in key.items()}, **values}
        self.logged(f"INSERT INTO t ({', '.join(row)}) VALUES ({', '.join(row.values())})")

    def log(self) -> list[LogBlock]:
        """Return all rows of the log."""
        names = [column.name for column in log_table(self.table).columns]
        query = f"SELECT {', '.join(map(quoted, names))} FROM {self.table.name.database}.{quoted(log_name(self.table.name).table)}"
        pages = [pa.RecordBatch.from_arrays(page.columns, names=names) for page in read_rows(self.cql, query)]
        return [LogBlock(self.table, page, pa.nulls(page.num_rows, pa.int64())) for page in pages if page.num_rows]

    def deliver(self) -> list[LogBlock]:
        """Write the whole log to the sink."""
        blocks = self.log()
        write(self.sink, *blocks)
        return blocks

    def verify(self, repair: ScyllaOptions | None = None) -> TableResult:
        [found] = verify_logged(self.cql, self.sink, Selection((f"{self.table.name.database}.*",)), repair=repair)
        return found

    def repair(self) -> TableResult:
        return self.verify(ScyllaOptions(confidence=0))

    def check_shown(self) -> None:
        assert shown(self.sink, self.table) == selected(self.cql, self.table)

    def check_equal(self) -> None:
        self.check_shown()
        found = self.verify()
        assert (found.verdict, found.comparison.differences, found.notes) == (Verdict.EQUAL, (), ())

    def check_repair(self) -> None:
        """Repair; the copy is equal then, and stays so when older log rows come again."""
        older = self.log()
        repaired = self.repair()
        assert (repaired.verdict, repaired.comparison.differences) == (Verdict.EQUAL, ())
        assert repaired.repaired > 0
        self.check_shown()
        write(self.sink, *older)
        self.check_equal()


def _nulls(values: dict[str, str]) -> str:
    return ", ".join(values)


def test_rows_with_static_columns_are_repaired(cql: CqlSession, keyspace: str, target: ClickHouseTarget) -> None:
    statics = "s text static, sv int static, sm map<text, int> static, sl list<int> static, su ut static"
    replica = _Replica(cql, keyspace, target, f"p int, c int, {statics}, {REGULAR}, PRIMARY KEY (p, c)")
    for p in range(1, 12):
        for c in range(3):
            replica.insert({"p": p, "c": c}, VALUES)
        replica.insert({"p": p}, STATICS)
    for p in (20, 21, 22):
        replica.insert({"p": p}, STATICS)
    replica.insert({"p": 30, "c": 1}, VALUES)
    replica.insert({"p": 31, "c": 1}, {})
    replica.logged("UPDATE t SET v = 1, m = {'a': 1} WHERE p = 32 AND c = 1")
    replica.logged("UPDATE t USING TTL 86400 SET v = 1, m = m + {'a': 1} WHERE p = 33 AND c = 1")
    replica.logged("UPDATE t SET b = 0x01 WHERE p = 33 AND c = 1")
    replica.deliver()
    replica.check_shown()
    replica.unlogged(
        "DELETE FROM t WHERE p = 1 AND c = 1",
        f"DELETE {_nulls(VALUES)} FROM t WHERE p = 2 AND c = 1",
        "DELETE v, dc, tu, l FROM t WHERE p = 2 AND c = 2",
        f"UPDATE t SET {COLLECTION_CHANGES} WHERE p = 3 AND c = 1",
        "DELETE s, sl FROM t WHERE p = 4",
        "UPDATE t SET sm['a'] = null, su.a = null, sl = sl - [1] WHERE p = 5",
        f"DELETE {_nulls(STATICS)} FROM t WHERE p = 6",
        # The rows of a partition, and not its static values.
        *(f"DELETE FROM t WHERE p = 7 AND c = {c}" for c in range(3)),
        "DELETE FROM t WHERE p = 8 AND c >= 1",
        "DELETE FROM t WHERE p = 9",
        # A row is deleted, and static values.
        "DELETE FROM t WHERE p = 10 AND c = 0",
        "DELETE sv, sm FROM t WHERE p = 10",
        "DELETE s, sl FROM t WHERE p = 20",
        f"DELETE {_nulls(STATICS)} FROM t WHERE p = 21",
        "DELETE FROM t WHERE p = 22",
        "DELETE FROM t WHERE p = 30 AND c = 1",
        "DELETE FROM t WHERE p = 31 AND c = 1",
        "DELETE FROM t WHERE p = 32 AND c = 1",
        "DELETE v, m FROM t WHERE p = 33 AND c = 1",
    )
    replica.check_repair()
    for p in (1, 2, 3, 7, 9):
        replica.logged(f"UPDATE t SET v = 9, dc = 9.5, m = m + {{'a': 9}}, l = l + [9], ut.a = 9, sv = 9 WHERE p = {p} AND c = 1")
    replica.logged("UPDATE t SET sm = sm + {'a': 9}, su.a = 9, sl = sl + [9] WHERE p = 21")
    replica.insert({"p": 31, "c": 1}, {})
    replica.deliver()
    replica.check_equal()


def test_rows_without_static_columns_are_repaired(cql: CqlSession, keyspace: str, target: ClickHouseTarget) -> None:
    replica = _Replica(cql, keyspace, target, f"p int, c float, d text, {REGULAR}, PRIMARY KEY (p, c, d)")
    for p in range(1, 5):
        for c in range(2):
            replica.insert({"p": p, "c": c}, {"d": "'d'", **VALUES})
    replica.deliver()
    replica.unlogged(
        "DELETE FROM t WHERE p = 1 AND c = 1 AND d = 'd'",
        f"UPDATE t SET v = null, {COLLECTION_CHANGES} WHERE p = 2 AND c = 1 AND d = 'd'",
        "DELETE FROM t WHERE p = 3",
    )
    replica.check_repair()
    replica.insert({"p": 3, "c": 1}, {"d": "'d'", "v": "9"})
    replica.deliver()
    replica.check_shown()


def test_rows_without_clustering_columns_are_repaired(cql: CqlSession, keyspace: str, target: ClickHouseTarget) -> None:
    """The view merges cells at each query."""
    replica = _Replica(cql, keyspace, target, f"p int, q decimal, {REGULAR}, PRIMARY KEY ((p, q))", merges=False)
    for p in range(1, 6):
        replica.insert({"p": p, "q": 0}, VALUES)
    replica.deliver()
    replica.unlogged(
        "DELETE FROM t WHERE p = 1 AND q = 0",
        f"UPDATE t SET dc = null, {COLLECTION_CHANGES} WHERE p = 2 AND q = 0",
        f"DELETE {_nulls(VALUES)} FROM t WHERE p = 3 AND q = 0",
    )
    replica.check_repair()
    replica.logged("UPDATE t SET m = m + {'a': 9}, v = 9 WHERE p = 1 AND q = 0")
    replica.deliver()
    replica.check_shown()


def test_a_repair_deletes_at_the_write_times_of_the_deleted_cells(cql: CqlSession, keyspace: str, target: ClickHouseTarget) -> None:
    """A client may write with an older timestamp after the repair; what the source then shows, the copy shows too."""
    replica = _Replica(cql, keyspace, target, "p int, c int, v int, m map<text, int>, s int static, PRIMARY KEY (p, c)")
    now = server_time(cql)
    # The log of the capture begins a minute before the table.
    written, deleted, later = (now - seconds * 1_000_000 for seconds in (50, 40, 30))
    values = "(p, c, v, m, s) VALUES (1, 1, 1, {'a': 1}, 1)"
    replica.logged(f"INSERT INTO t {values} USING TIMESTAMP {written}")
    replica.deliver()
    replica.unlogged(f"DELETE v, s, m FROM t USING TIMESTAMP {deleted} WHERE p = 1 AND c = 1")
    replica.check_repair()
    replica.logged(f"UPDATE t USING TIMESTAMP {later} SET v = 2, s = 2, m = m + {{'a': 2}} WHERE p = 1 AND c = 1")
    replica.deliver()
    assert shown(replica.sink, replica.table) == [{"p": 1, "c": 1, "v": 2, "m": [("a", 2)], "s": 2}]
    replica.check_equal()


def test_cells_that_were_written_after_the_read_stay(cql: CqlSession, keyspace: str, target: ClickHouseTarget) -> None:
    """The confidence time: the log may not have delivered what happened since, so nothing is known of these cells."""
    replica = _Replica(cql, keyspace, target, "p int, c int, v int, m map<text, int>, s int static, PRIMARY KEY (p, c)")
    written = server_time(cql) + HOUR_US
    replica.logged(f"INSERT INTO t (p, c, v, m, s) VALUES (1, 1, 1, {{'a': 1}}, 1) USING TIMESTAMP {written}")
    replica.deliver()
    before = shown(replica.sink, replica.table)
    replica.unlogged(f"DELETE FROM t USING TIMESTAMP {written} WHERE p = 1")
    found = replica.repair()
    assert (found.verdict, found.repaired) == (Verdict.DIFFERENT, 0)
    assert shown(replica.sink, replica.table) == before
    found = replica.verify(ScyllaOptions(confidence=-2 * 3600))
    assert (found.verdict, found.repaired) == (Verdict.EQUAL, 1)
    replica.check_equal()
