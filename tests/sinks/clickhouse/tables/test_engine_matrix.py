"""Every engine, created or existing, with every kind of change: the target equals the source after each step, replayed and merged.

The rows come from a real server's log. Each table is read twice: by the sink's reader, and by SQL written here for each engine (`FINAL`,
the sum of signs, the last row of each key); both must equal the source's SELECT.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.model.change_block import ChangeBlock
from headrace.sinks.clickhouse.maintenance.tombstone_store import TombstoneCleanup, can_purge_tombstones
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_table import EngineFamily
from testkit.generators.scenario_steps import Scenario, run_scenario
from testkit.oracles.binlogs import Row, open_logbook, rows_of
from testkit.pipelines.embedded_access import target_of
from testkit.servers.clustered import CLUSTER, ClusteredServer
from testkit.servers.servers import FLAVOURS

# `orders` as a user creates it; then Headrace's columns, with any names.
ORDERS = "id Int32, part Int32, note Nullable(String), at DateTime64(3, 'UTC'), stamp UInt64"
SHOWN = {
    "orders": "toString(id), toString(part), note, toString(at), toString(stamp)",
    "loose": "toString(a), b",
}
WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"
FINAL = "SELECT {shown} FROM {table} FINAL"
SIGNED = FINAL + " WHERE _sign = 1"
SUMMED = "SELECT {columns} FROM {table} GROUP BY {columns}, {by} HAVING sum(_sign) > 0"
LAST = "SELECT {shown} FROM (SELECT * FROM {table} ORDER BY _version DESC LIMIT 1 BY id) WHERE _operation NOT IN ('delete', 'before')"


@dataclass(frozen=True)
class Case:
    """A target, and the SQL for its current rows."""

    name: str
    oracle_query: str
    family: EngineFamily = EngineFamily.REPLACING
    made: str = ""
    """The rest of CREATE TABLE of an existing table; empty: Headrace creates it."""
    choices: dict[str, Any] = field(default_factory=dict)
    moving: tuple[str, ...] = ("id",)
    table: str = "orders"
    over: str = ""
    """CREATE TABLE of a Distributed table over it."""
    shown: str = ""
    ours: bool = True


def found(name: str, oracle_query: str, made: str, family: EngineFamily = EngineFamily.REPLACING, **others: Any) -> Case:
    return Case(name, oracle_query, family, made, ours=False, **others)


CASES = (
    # Created by Headrace
    Case("made", FINAL),
    Case("made with is_deleted", FINAL, choices={"delete_column": "is_deleted", "version_column": "ver"}),
    # The row policy of Altinity's documents: USING sign != -1.
    Case(
        "made with a signed delete column",
        "SELECT {shown} FROM {table} FINAL WHERE sign != -1",
        choices={"delete_column": "sign", "delete_type": "int8"},
    ),
    Case(
        "made without a key, signed delete column",
        "SELECT {shown} FROM {table}_current",
        choices={"delete_column": "gone", "delete_type": "int8"},
        table="loose",
        moving=(),
    ),
    Case(
        "made with other names",
        "SELECT {shown} FROM {table} FINAL WHERE NOT gone AND sign != -1",
        choices={"sign_column": "sign", "version_column": "wo/`hin", "tombstone_column": "gone"},
    ),
    Case("made with hidden columns", FINAL, choices={"hidden_columns": True}),
    Case("made with a hidden is_deleted", FINAL, choices={"hidden_columns": True, "delete_column": "is_deleted"}),
    Case(
        "made without a key, hidden columns",
        "SELECT {shown} FROM {table}_current",
        choices={"hidden_columns": True},
        table="loose",
        moving=(),
    ),
    Case(
        "made as MaterializeMySQL",
        FINAL,
        choices={"sort_key": "materialize", "partition_by": "primary", "hidden_columns": True},
        moving=("id", "part", "note", "stamp"),
    ),
    Case("made with a sort key", FINAL, choices={"sort_key": ("toDate(at)", "part", "id")}, moving=("id", "at", "part")),
    Case("made with partitions", FINAL, choices={"partition_by": "toYYYYMM(at)"}, moving=("id", "at")),
    Case(
        "made with a mapping",
        FINAL,
        choices={
            "rename": (("id", "order id"), ("note", "no`te")),
            "low_cardinality": ("no*",),
            "codecs": (("stamp", "ZSTD(3)"),),
            "sort_key": ("part", "id"),
            "settings": (("index_granularity", "256"),),
        },
        moving=("id", "part"),
        shown="toString(`order id`), toString(part), `no\\`te`, toString(at), toString(stamp)",
    ),
    Case("made collapsing", SIGNED, EngineFamily.COLLAPSING, choices={"engine": "collapsing"}, moving=("id",)),
    Case(
        "made collapsing with partitions",
        SIGNED,
        EngineFamily.COLLAPSING,
        choices={"engine": "collapsing", "partition_by": "toYYYYMM(at)"},
        moving=("id", "at"),
    ),
    Case(
        "made versioned",
        SIGNED,
        EngineFamily.VERSIONED,
        choices={"engine": "versioned", "partition_by": "toYYYYMM(at)"},
        moving=("id", "at"),
    ),
    Case("made history", LAST, EngineFamily.HISTORY, choices={"engine": "history"}),
    Case("made without a key", "SELECT {shown} FROM {table}_current", table="loose", moving=()),
    Case(
        "made without a key, is_deleted", "SELECT {shown} FROM {table}_current", choices={"delete_column": "gone"}, table="loose", moving=()
    ),
    Case("made versioned without a key", SIGNED, EngineFamily.VERSIONED, choices={"engine": "versioned"}, table="loose", moving=()),
    Case(
        "made history without a key",
        "SELECT {columns} FROM (SELECT a, b, sum(if(_operation IN ('delete', 'before'), -1, 1)) AS n FROM {table} GROUP BY a, b)"
        " ARRAY JOIN range(toUInt64(n))",
        EngineFamily.HISTORY,
        choices={"engine": "history"},
        table="loose",
        moving=(),
    ),
    # Existing
    found("found (ver, is_deleted)", FINAL, f"({ORDERS}, ver UInt64, del UInt8) ENGINE = ReplacingMergeTree(ver, del) ORDER BY id"),
    # As MaterializedMySQL created it.
    found(
        "found with hidden columns",
        SIGNED,
        f"({ORDERS}, _sign Int8 MATERIALIZED 1, _version UInt64 MATERIALIZED 1) ENGINE = ReplacingMergeTree(_version) ORDER BY id",
    ),
    found(
        "found collapsing with a hidden sign",
        SIGNED,
        f"({ORDERS}, _sign Int8 MATERIALIZED 1) ENGINE = CollapsingMergeTree(_sign) ORDER BY id {WINDOW}",
        EngineFamily.COLLAPSING,
    ),
    found("found (ver) and _sign", SIGNED, f"({ORDERS}, _sign Int8, v Int64) ENGINE = ReplacingMergeTree(v) ORDER BY id"),
    found(
        "found (ver) and delete_column of 1",
        "SELECT {shown} FROM {table} FINAL WHERE gone = 0",
        f"({ORDERS}, v UInt64, gone Bool) ENGINE = ReplacingMergeTree(v) ORDER BY id",
        choices={"delete_column": "gone"},
    ),
    found(
        "found (ver) and delete_column of -1",
        "SELECT {shown} FROM {table} FINAL WHERE gone != -1",
        f"({ORDERS}, v UInt64, gone Int8) ENGINE = ReplacingMergeTree(v) ORDER BY id",
        choices={"delete_column": "gone"},
    ),
    found(
        "found with its own keys",
        FINAL,
        f"({ORDERS}, ver UInt64, del UInt8) ENGINE = ReplacingMergeTree(ver, del) PARTITION BY (toYYYYMM(at), stamp > 50)"
        " PRIMARY KEY part ORDER BY (part, lower(ifNull(note, '')), id)",
        moving=("id", "part", "note", "at", "stamp"),
    ),
    found(
        "found with computed keys",
        FINAL,
        f"({ORDERS}, month UInt32 MATERIALIZED toYYYYMM(at), bucket UInt8 DEFAULT part % 4, ver UInt64, del UInt8)"
        " ENGINE = ReplacingMergeTree(ver, del) PARTITION BY month ORDER BY (bucket, id)",
        moving=("id", "part", "at"),
    ),
    found(
        "found with other columns and types",
        FINAL,
        "(extra String DEFAULT 'x', at DateTime64(6, 'UTC'), id Int64, more Nullable(Int8), part Int64,"
        " note LowCardinality(Nullable(String)), stamp UInt64 CODEC(ZSTD), twice UInt64 ALIAS stamp * 2, _commit_time DateTime,"
        " _operation String, ver UInt64, del UInt8)"
        " ENGINE = ReplacingMergeTree(ver, del) ORDER BY id",
        shown="toString(id), toString(part), note, toString(toDateTime64(at, 3, 'UTC')), toString(stamp)",
    ),
    found(
        "found renamed",
        FINAL,
        "(`the id` Int32, part Int32, n Nullable(String), at DateTime64(3, 'UTC'), stamp UInt64, ver UInt64, del UInt8)"
        " ENGINE = ReplacingMergeTree(ver, del) ORDER BY (part, `the id`)",
        choices={"rename": (("id", "the id"), ("note", "n"))},
        moving=("id", "part"),
        shown="toString(`the id`), toString(part), n, toString(at), toString(stamp)",
    ),
    found(
        "found, completed",
        SIGNED,
        "(id Int32, v UInt64) ENGINE = ReplacingMergeTree(v) ORDER BY id",
        choices={"missing_columns": "add"},
    ),
    found(
        "found collapsing",
        SIGNED,
        f"({ORDERS}, _sign Int8) ENGINE = CollapsingMergeTree(_sign) ORDER BY id {WINDOW}",
        EngineFamily.COLLAPSING,
    ),
    found(
        "found collapsing by another key",
        SIGNED + " SETTINGS do_not_merge_across_partitions_select_final = 1",
        f"({ORDERS}, _sign Int8, _version UInt64) ENGINE = CollapsingMergeTree(_sign) PARTITION BY part % 3 ORDER BY (stamp, id)",
        EngineFamily.COLLAPSING,
        moving=("id", "part", "stamp"),
    ),
    found(
        "found versioned",
        SUMMED.replace("{by}", "ver"),
        f"({ORDERS}, _sign Int8, ver UInt64) ENGINE = VersionedCollapsingMergeTree(_sign, ver) ORDER BY (part, id) {WINDOW}",
        EngineFamily.VERSIONED,
        moving=("id", "part"),
    ),
    found(
        "found versioned by the server",
        SUMMED.replace("{by}", "ver"),
        f"({ORDERS}, _sign Int8, ver UInt64 MATERIALIZED sipHash64(tuple(id, part, note, at, stamp)))"
        " ENGINE = VersionedCollapsingMergeTree(_sign, ver) ORDER BY id",
        EngineFamily.VERSIONED,
    ),
    found(
        "found versioned by the source",
        SUMMED.replace("{by}", "stamp"),
        f"({ORDERS}, _sign Int8) ENGINE = VersionedCollapsingMergeTree(_sign, stamp) ORDER BY (id, part, at, ifNull(note, ''))",
        EngineFamily.VERSIONED,
        moving=("id", "part", "note", "at"),
    ),
    found(
        "found history",
        LAST,
        f"({ORDERS}, _operation LowCardinality(String), _version UInt64, _commit_time DateTime64(3, 'UTC'))"
        " ENGINE = MergeTree ORDER BY tuple()",
        EngineFamily.HISTORY,
    ),
    found(
        "found history by sign",
        "SELECT {shown} FROM (SELECT * FROM {table} ORDER BY v DESC LIMIT 1 BY id) WHERE _sign = 1",
        f"({ORDERS}, _sign Int8, v UInt64) ENGINE = MergeTree PARTITION BY part ORDER BY (stamp, id)",
        EngineFamily.HISTORY,
        choices={"version_column": "v"},
        moving=("id", "part", "stamp"),
    ),
    found(
        "found versioned without a key",
        SIGNED,
        "(a Nullable(Int32), b Nullable(String), _sign Int8, ver UInt64)"
        " ENGINE = VersionedCollapsingMergeTree(_sign, ver) ORDER BY tuple()",
        EngineFamily.VERSIONED,
        table="loose",
        moving=(),
    ),
    found(
        "found distributed",
        FINAL,
        f"({ORDERS}, _sign Int8, ver UInt64, del UInt8 MATERIALIZED _sign = -1) ENGINE = ReplacingMergeTree(ver, del) ORDER BY id",
        over="ENGINE = Distributed('{cluster}', '{database}', '{local}', cityHash64(part))",
        moving=("id", "part"),
    ),
    found(
        "found distributed with hidden columns",
        FINAL,
        f"({ORDERS}, _sign Int8 MATERIALIZED 1, ver UInt64 MATERIALIZED 0, del UInt8 MATERIALIZED _sign = -1)"
        " ENGINE = ReplacingMergeTree(ver, del) ORDER BY id",
        over="ENGINE = Distributed('{cluster}', '{database}', '{local}', cityHash64(part))",
        moving=("id", "part"),
    ),
    found(
        "found distributed versioned",
        SIGNED,
        f"({ORDERS}, _sign Int8, ver UInt64) ENGINE = VersionedCollapsingMergeTree(_sign, ver) ORDER BY id",
        EngineFamily.VERSIONED,
        over="ENGINE = Distributed('{cluster}', '{database}', '{local}', id)",
    ),
)


@pytest.fixture(scope="module")
def scenario(server: PrivateServer) -> Iterator[Scenario]:
    name = f"story_{secrets.token_hex(4)}"
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        with open_logbook(server, name) as book:
            yield run_scenario(book)
        cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with ClusteredServer(tmp_path_factory.mktemp("clickhouse") / "data") as started:
        yield started


class Trial:
    """One case against one scenario."""

    def __init__(self, case: Case, scenario: Scenario, engine: EmbeddedServer) -> None:
        self.case, self.schema = case, scenario.schemas[case.table]
        target = target_of(engine, database=f"m_{secrets.token_hex(4)}")
        self.sink = ClickHouseSink(target, ClickHouseOptions(tuple(case.choices.items())), pipe="matrix")
        self.place = f"{target.database}.{case.table}"
        if case.made:
            self.run(f"CREATE DATABASE {target.database}")
            local = f"{self.place}_local" if case.over else self.place
            self.run(f"CREATE TABLE {local} {case.made}")
            if case.over:
                over = case.over.format(cluster=CLUSTER, database=target.database, local=f"{case.table}_local")
                self.run(f"CREATE TABLE {self.place} AS {local} {over}")

    def run(self, sql: str) -> list[list[Any]]:
        return self.sink.reader().query(sql)[1]

    def read(self, step: Any) -> list[ChangeBlock]:
        needs = self.sink.requirements([self.schema])[self.schema.name]
        return list(step.blocks(self.schema, needs.key_columns))

    def write(self, blocks: list[ChangeBlock]) -> None:
        writer = self.sink.writer()
        for block in blocks:
            writer.write(block)
        writer.close()

    def shown(self) -> list[Row]:
        table = self.sink.reader().read_range(self.schema)
        return sorted(rows_of(self.schema, table.to_batches()), key=repr)

    def oracle_rows(self) -> list[Row]:
        shown = self.case.shown or SHOWN[self.case.table]
        sql = self.case.oracle_query.format(shown=shown, columns=shown, table=self.place)
        return sorted((tuple(row) for row in self.run(sql)), key=repr)

    def check(self, expected: list[Row], when: str) -> None:
        assert self.oracle_rows() == expected, f"{self.case.name}: {when}, by the engine"

    def check_both(self, expected: list[Row], when: str) -> None:
        assert self.shown() == expected, f"{self.case.name}: {when}"
        self.check(expected, when)


# Engines do not depend on the server's flavour: the second flavour has one case of each kind.
SECOND = (
    "made",
    "made as MaterializeMySQL",
    "made collapsing",
    "made versioned",
    "made history",
    "made without a key",
    "found with its own keys",
    "found collapsing by another key",
    "found versioned",
    "found versioned without a key",
    "found distributed",
)
TRIALS = [(FLAVOURS[0], case) for case in CASES] + [(FLAVOURS[1], case) for case in CASES if case.name in SECOND]


@pytest.mark.parametrize(
    ("flavour", "case"), TRIALS, indirect=["flavour"], scope="session", ids=[f"{flavour}-{case.name}" for flavour, case in TRIALS]
)
def test_the_target_shows_what_the_source_shows(case: Case, scenario: Scenario, engine: EmbeddedServer) -> None:
    trial = Trial(case, scenario, engine)
    trial.sink.prepare([trial.schema])
    trial.sink.prepare([trial.schema])
    layout = trial.sink.without_cache().target_table(trial.schema)
    assert (layout.family, layout.matches_plan, set(layout.key_dependencies)) == (case.family, case.ours, set(case.moving))
    written: list[list[ChangeBlock]] = []
    for step in scenario.steps:
        blocks = trial.read(step)
        written.append(blocks)
        trial.write(blocks)
        trial.check(step.rows[case.table], step.name)
        # A crash repeats a batch.
        trial.write(blocks)
    last = scenario.steps[-1].rows[case.table]
    trial.check_both(last, "all of it, replayed")
    if not layout.needs_ordered_writes:
        trial.write([block for blocks in reversed(written) for block in reversed(blocks)])
        trial.check(last, "all of it again, the last first")
    trial.run(f"OPTIMIZE TABLE {trial.place}{'_local' if case.over else ''} FINAL")
    trial.check_both(last, "merged")
    if can_purge_tombstones(layout):
        TombstoneCleanup(trial.sink.scope, trial.sink.without_cache().target_table(layout.schema)).run(nullcontext, lambda: True)
    trial.check(last, "cleaned")
    disconnect(trial.sink.target)
