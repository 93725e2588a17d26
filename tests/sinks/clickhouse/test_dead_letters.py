"""Rows that a table refuses: the pipe halts and names them, or stores them in `headrace.errors` and retries them."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli import main
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sinks.clickhouse.bookkeeping.dead_letters import waiting_dead_letters
from headrace.sinks.clickhouse.dead_letter_retry import ORDER_COUNTS, retry_dead_letters
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, OnRefusedRow, TargetEngine
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink

Image = tuple[Op, int, int | None, str | None]
"""Operation, id, day, text."""


@pytest.fixture
def sink(target: ClickHouseTarget) -> ClickHouseSink:
    chosen = ClickHouseOptions(all_tables=(("on_refused_row", OnRefusedRow.DEAD_LETTER),))
    return ClickHouseSink(target, chosen, pipe=secrets.token_hex(4), label=f"pipe-{target.database}")


def schema_of(sink: ClickHouseSink, *, key: tuple[str, ...] = ("id",)) -> TableSchema:
    columns = (Column("id", Kind.INT32, False), Column("day", Kind.DATE), Column("text", Kind.STRING))
    return TableSchema(TableName(f"shop_{sink.target.database}", "t"), columns, key)


def block_of(schema: TableSchema, *images: Image, first: int = 100) -> ChangeBlock:
    """Images with rising versions."""
    rows = len(images)
    arrays = [
        pa.array([image[1] for image in images], pa.int32()),
        pa.array([image[2] for image in images], pa.int32()).view(pa.date32()),
        pa.array([image[3] for image in images], pa.string()),
    ]
    return ChangeBlock(
        schema,
        pa.record_batch(arrays, schema=schema.arrow_schema),
        pa.array([image[0] for image in images], pa.uint8()),
        pa.array([pack_version(0, 3, first + row) for row in range(rows)], pa.uint64()),
        pa.array([1_700_000_000_000_000] * rows, pa.int64()),
        order=pa.array(range(rows), pa.uint64()),
    )


def shown(sink: ClickHouseSink, columns: str = "id, text") -> list[list[Any]]:
    return sink.reader().query(f"SELECT {columns} FROM {sink.target.database}.t FINAL ORDER BY id")[1]


def errors(sink: ClickHouseSink, columns: str, condition: str = "1") -> list[list[Any]]:
    where = f"pipe = '{sink.label}' AND {condition}"
    return sink.reader().query(f"SELECT {columns} FROM headrace.errors FINAL WHERE {where} ORDER BY version, operation")[1]


def halting(sink: ClickHouseSink) -> ClickHouseSink:
    return replace(sink, options=ClickHouseOptions())


BAD = -1_000_000
PLAIN: Sequence[Image] = [(Op.INSERT, 1, 0, "a"), (Op.INSERT, 2, BAD, "b"), (Op.INSERT, 3, None, "c")]


def test_a_halt_names_the_key_the_column_the_value_and_the_place(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    sink.prepare([schema])
    with pytest.raises(DefiniteError) as caught:
        halting(sink).writer().write(block_of(schema, *PLAIN))
    assert re.search(r"day = .* is outside", caught.value.message)
    assert caught.value.place == f"table {schema.name}, row id=2, column day, log file 3, offset 101"
    assert "dead_letter" in caught.value.hint
    assert shown(sink) == []


def test_a_refused_row_is_kept_once_and_the_rest_is_written(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    sink.prepare([schema])
    for _ in range(2):
        # The second time is a replay.
        sink.writer().write(block_of(schema, *PLAIN))
    assert shown(sink) == [[1, "a"], [3, "c"]]
    [[table, state, key, column, reason, operation, version, position, row, tries]] = errors(
        sink, "table, state, key, column, reason, operation, version, position, row, tries"
    )
    assert [table, state, key, column, operation, tries] == [str(schema.name), "waiting", "id=2", "day", "insert", 1]
    assert "is outside" in reason
    assert (version, position) == (pack_version(0, 3, 101), "log file 3, offset 101")
    assert json.loads(row)["text"] == "b"
    [letter] = waiting_dead_letters(sink.own_tables(), pipe=sink.label)
    assert letter.schema == schema


def test_a_deletion_is_not_lost_because_of_a_value_that_it_deletes(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    sink.prepare([schema])
    life: Sequence[Image] = [(Op.INSERT, 1, 0, "good"), (Op.UPDATE, 1, BAD, "bad"), (Op.DELETE, 1, BAD, "bad"), (Op.INSERT, 2, 0, "x")]
    sink.writer().write(block_of(schema, *life))
    assert shown(sink) == [[2, "x"]]
    assert errors(sink, "operation, key") == [["update", "id=1"]]


def constrain(sink: ClickHouseSink) -> None:
    sink.reader().query(f"ALTER TABLE {sink.target.database}.t ADD CONSTRAINT short CHECK length(coalesce(text, '')) < 5")


def relax(sink: ClickHouseSink) -> None:
    sink.reader().query(f"ALTER TABLE {sink.target.database}.t DROP CONSTRAINT short")


def test_what_the_server_refuses_is_found_by_halves(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    sink.prepare([schema])
    constrain(sink)
    images: list[Image] = [(Op.INSERT, number, 0, "too long" if number in (17, 301) else "ok") for number in range(500)]
    with pytest.raises(DefiniteError) as caught:
        halting(sink).writer().write(block_of(schema, *images))
    assert "the row is refused: ClickHouse error 469" in caught.value.message
    assert caught.value.place == f"table {schema.name}, row id=17, log file 3, offset 117"
    sink.writer().write(block_of(schema, *images))
    assert len(shown(sink)) == 498
    assert errors(sink, "key, column") == [["id=17", ""], ["id=301", ""]]
    # A fault of the table does not refuse single rows.
    sink.reader().query(f"DROP TABLE {sink.target.database}.t SYNC")
    with pytest.raises(DefiniteError, match="60"):
        sink.writer().write(block_of(schema, *images))
    assert len(errors(sink, "key")) == 2


def test_a_block_with_too_many_partitions_is_written_in_pieces(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    chosen = replace(halting(sink), options=ClickHouseOptions(all_tables=(("partition_by", "id"),)))
    chosen.prepare([schema])
    chosen.writer().write(block_of(schema, *[(Op.INSERT, number, 0, "x") for number in range(250)]))
    assert len(shown(sink)) == 250


def test_retry_writes_what_the_table_takes_now_and_later_changes_still_win(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    sink.prepare([schema])
    constrain(sink)
    first: Sequence[Image] = [(Op.INSERT, number, 0, "too long") for number in range(1, 6)]
    sink.writer().write(block_of(schema, *first))
    assert [one.written for one in retry_dead_letters(sink, pipe=sink.label)] == [False] * 5
    assert errors(sink, "state, tries") == [["waiting", 2]] * 5
    # Of the five, one is changed and one deleted before the retry; a third has another fault.
    sink.writer().write(block_of(schema, (Op.UPDATE, 1, 0, "new"), (Op.DELETE, 2, 0, "gone"), first=200))
    relax(sink)
    sink.reader().query(f"ALTER TABLE {sink.target.database}.t ADD CONSTRAINT other CHECK id != 3")
    outcomes = {one.letter.key: one for one in retry_dead_letters(sink, pipe=sink.label)}
    assert [key for key, one in outcomes.items() if not one.written] == ["id=3"]
    assert "other" in outcomes["id=3"].reason
    assert shown(sink) == [[1, "new"], [4, "too long"], [5, "too long"]]
    assert sorted(map(tuple, errors(sink, "key, state, tries"))) == [
        ("id=1", "done", 3),
        ("id=2", "done", 3),
        ("id=3", "waiting", 3),
        ("id=4", "done", 3),
        ("id=5", "done", 3),
    ]
    assert list(retry_dead_letters(sink, pipe=sink.label, ids=("none such",))) == []


def test_a_new_read_supersedes_pending_rows(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    sink.prepare([schema])
    constrain(sink)
    sink.writer().write(block_of(schema, (Op.INSERT, 1, 0, "too long"), first=100))
    sink.writer().write(block_of(schema, (Op.INSERT, 2, 0, "too long"), first=500))
    # The source's table was truncated at 300: an older row must not come back.
    sink.table_store().delete_stale(schema, pack_version(0, 3, 300))
    relax(sink)
    assert [one.letter.key for one in retry_dead_letters(sink, pipe=sink.label)] == ["id=2"]
    assert shown(sink) == [[2, "too long"]]
    assert errors(sink, "key, state") == [["id=1", "superseded"], ["id=2", "done"]]


@pytest.mark.parametrize("shared", [False, True])
def test_a_resync_leaves_the_waiting_rows_of_another_pipe_alone(sink: ClickHouseSink, shared: bool) -> None:
    """Two pipes may have a table of the same name: with a target each, or merged into one."""
    schema = schema_of(sink)
    target = sink.target if shared else replace(sink.target, database=f"{sink.target.database}_other")
    other = replace(sink, target=target, pipe=secrets.token_hex(4), label=f"{sink.label}-other")
    for one in (sink, other):
        one.prepare([schema])
        if one is sink or not shared:
            constrain(one)
        one.writer().write(block_of(schema, (Op.INSERT, 1, 0, "too long")))
    sink.table_store().delete_stale(schema, pack_version(0, 9, 0))
    assert not waiting_dead_letters(sink.own_tables(), pipe=sink.label)
    assert [letter.key for letter in waiting_dead_letters(sink.own_tables(), pipe=other.label)] == ["id=1"]


def test_a_snapshot_that_begins_again_supersedes_what_its_first_attempt_left_waiting(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    chosen = replace(sink, options=replace(sink.options, all_tables=(*sink.options.all_tables, ("engine", TargetEngine.HISTORY))))
    chosen.prepare([schema])
    chosen.writer().write(block_of(schema, *PLAIN, first=100))
    chosen.table_store().discard_partial_snapshot(schema, pack_version(0, 3, 100))
    chosen.writer().write(block_of(schema, *PLAIN, first=200))
    assert errors(sink, "key, state") == [["id=2", "superseded"], ["id=2", "waiting"]]


@pytest.mark.parametrize("engine", [TargetEngine.HISTORY, TargetEngine.VERSIONED, TargetEngine.REPLACING])
def test_tables_that_count_rows_get_each_once(sink: ClickHouseSink, engine: TargetEngine) -> None:
    """The last engine is that of a table without a key."""
    schema = schema_of(sink, key=("id",) if engine is not TargetEngine.REPLACING else ())
    chosen = replace(sink, options=replace(sink.options, all_tables=(*sink.options.all_tables, ("engine", engine), ("view", True))))
    chosen.prepare([schema])
    for _ in range(2):
        chosen.writer().write(block_of(schema, *PLAIN))
    assert errors(sink, "key, state") == [["id=2" if schema.row_key else "", "waiting"]]
    view = f"SELECT count() FROM {sink.target.database}.t" + ("_current" if engine is not TargetEngine.HISTORY else "")
    assert sink.reader().query(view)[1] == [[2]]
    # The day is stored as text from now on.
    sink.reader().query(f"ALTER TABLE {sink.target.database}.t MODIFY COLUMN day Nullable(String)")
    wider = replace(
        chosen.without_cache(), options=replace(chosen.options, all_tables=(*chosen.options.all_tables, ("types", (("day", "String"),))))
    )
    for _ in range(2):
        assert [one.written for one in retry_dead_letters(wider, pipe=sink.label)] == [True]
        assert sink.reader().query(view)[1] == [[3]]
        # A crash before the state change of the written row: it is retried.
        sink.reader().query(
            f"INSERT INTO headrace.errors SELECT * REPLACE('waiting' AS state) FROM headrace.errors FINAL WHERE pipe = '{sink.label}'"
        )


def test_tables_in_which_the_order_counts_are_refused(sink: ClickHouseSink) -> None:
    schema = schema_of(sink)
    chosen = replace(sink, options=replace(sink.options, all_tables=(*sink.options.all_tables, ("engine", TargetEngine.COLLAPSING))))
    with pytest.raises(DefiniteError, match="the order of writing counts"):
        chosen.prepare([schema])
    sink.prepare([replace(schema, name=TableName("shop", "u"))])
    constrained = replace(schema, name=TableName("shop", "u"))
    sink.reader().query(f"ALTER TABLE {sink.target.database}.u ADD CONSTRAINT c CHECK id != 2")
    sink.writer().write(block_of(constrained, (Op.INSERT, 2, 0, "x")))
    sink.reader().query(f"DROP TABLE {sink.target.database}.u SYNC")
    halted = replace(chosen.without_cache(), options=ClickHouseOptions(all_tables=(("engine", TargetEngine.COLLAPSING),)))
    halted.prepare([constrained])
    assert [one.reason for one in retry_dead_letters(halted, pipe=sink.label)] == [ORDER_COUNTS]


def test_the_command_lists_writes_and_reports(sink: ClickHouseSink, clickhouse: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of(sink)
    sink.prepare([schema])
    constrain(sink)
    sink.writer().write(block_of(schema, (Op.INSERT, 1, 0, "too long"), (Op.INSERT, 2, 0, "too long, too")))
    address = f"clickhouse://127.0.0.1:{clickhouse.port}/{sink.target.database}"
    only = ("--pipe", sink.label, "--table", f"{schema.name.database}.*")
    assert main(["retry", address, "--list", *only]) == 0
    assert "retry: 2 rows wait" in capsys.readouterr().out
    assert main(["retry", address, *only]) == 1
    assert "id=1: still refused: ClickHouse error 469" in capsys.readouterr().out
    relax(sink)
    assert main(["retry", address, *only]) == 0
    assert "retry: 2 rows written, 0 not" in capsys.readouterr().out
    assert len(shown(sink)) == 2
