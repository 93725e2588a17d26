"""What every sink promises: order, repetition and interruption of writes leave no trace in what it shows.

A sink joins the suite by a `Subject`: the sink, and how its rows are read back.
"""

from __future__ import annotations

import pickle
import random
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.embedded.process import EmbeddedServer
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.base import Sink
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.pipelines.embedded_access import target_of

Row = tuple[int, str, str | None]
Image = tuple[int, Op, Row]
COLUMNS = (Column("id", Kind.INT64, False), Column("part", Kind.STRING, False), Column("value", Kind.STRING))


@dataclass(frozen=True)
class Subject:
    """A sink under test and a way to see what it shows."""

    sink: Sink
    show: Callable[[TableSchema], set[Row]]


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with EmbeddedServer(tmp_path_factory.mktemp("clickhouse") / "data") as server:
        target = target_of(server)
        sink = ClickHouseSink(target)

        def show(schema: TableSchema) -> set[Row]:
            rows = [tuple(row.values()) for row in sink.reader().read_range(schema).to_pylist()]
            assert len(rows) == len(set(rows)) == sink.reader().count(schema)
            return set(rows)

        yield Subject(sink, show)
        disconnect(target)


@pytest.fixture(scope="module", params=["clickhouse"])
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.getfixturevalue(request.param)
    return found


def new_table(subject: Subject, prefix: str = "t") -> TableSchema:
    schema = TableSchema(TableName("contract", f"{prefix}_{secrets.token_hex(6)}"), COLUMNS, ("id", "part"))
    subject.sink.prepare([schema])
    return schema


def block(schema: TableSchema, *images: Image) -> ChangeBlock:
    rows = [row for _, _, row in images]
    columns = [pa.array([row[i] for row in rows], c.arrow_type) for i, c in enumerate(schema.columns)]
    return ChangeBlock(
        schema,
        pa.record_batch(columns, schema=schema.arrow_schema),
        pa.array([op for _, op, _ in images], pa.uint8()),
        pa.array([version for version, _, _ in images], pa.uint64()),
        pa.array([0] * len(images), pa.int64()),
    )


def write(subject: Subject, *blocks: ChangeBlock) -> None:
    writer = subject.sink.writer()
    for one in blocks:
        writer.write(one)
    writer.close()


def test_inserts_and_snapshot_rows_are_shown_as_soon_as_written(subject: Subject) -> None:
    schema = new_table(subject)
    writer = subject.sink.writer()
    writer.write(block(schema, (1, Op.INSERT, (1, "a", "x")), (2, Op.SNAPSHOT, (2, "a", None))))
    assert subject.show(schema) == {(1, "a", "x"), (2, "a", None)}
    writer.close()


def test_an_update_replaces_and_a_delete_removes(subject: Subject) -> None:
    schema = new_table(subject)
    write(subject, block(schema, (1, Op.INSERT, (1, "a", "x")), (2, Op.INSERT, (2, "a", "y"))))
    write(subject, block(schema, (3, Op.UPDATE, (1, "a", None)), (4, Op.DELETE, (2, "a", "y"))))
    assert subject.show(schema) == {(1, "a", None)}


def test_a_deleted_key_may_come_back(subject: Subject) -> None:
    schema = new_table(subject)
    life = [(1, Op.INSERT, (1, "a", "x")), (2, Op.DELETE, (1, "a", "x")), (3, Op.INSERT, (1, "a", "again"))]
    write(subject, *(block(schema, image) for image in life))
    assert subject.show(schema) == {(1, "a", "again")}


def test_all_in_one_block_is_the_same_as_one_by_one(subject: Subject) -> None:
    schema = new_table(subject)
    write(subject, block(schema, (1, Op.INSERT, (1, "a", "x")), (2, Op.UPDATE, (1, "a", "y")), (3, Op.DELETE, (1, "a", "y"))))
    assert subject.show(schema) == set()
    write(subject, block(schema, (4, Op.INSERT, (1, "a", "z")), (5, Op.UPDATE, (1, "a", "w"))))
    assert subject.show(schema) == {(1, "a", "w")}


def test_a_changed_key_leaves_nothing_under_the_old_one(subject: Subject) -> None:
    schema = new_table(subject)
    assert subject.sink.requirements([schema])[schema.name].key_columns == ("id", "part")
    write(subject, block(schema, (1, Op.INSERT, (1, "a", "x")), (2, Op.INSERT, (2, "a", "y"))))
    moved = block(schema, (3, Op.BEFORE, (1, "a", "x")), (4, Op.UPDATE, (1, "b", "x")))
    swapped = block(
        schema,
        (5, Op.BEFORE, (2, "a", "y")),
        (6, Op.UPDATE, (1, "a", "y")),
        (7, Op.BEFORE, (1, "b", "x")),
        (8, Op.UPDATE, (2, "a", "x")),
    )
    write(subject, moved, swapped)
    assert subject.show(schema) == {(1, "a", "y"), (2, "a", "x")}


def test_a_tombstone_that_arrives_first_still_wins(subject: Subject) -> None:
    schema = new_table(subject)
    write(subject, block(schema, (9, Op.DELETE, (1, "a", "x"))), block(schema, (3, Op.INSERT, (1, "a", "x"))))
    assert subject.show(schema) == set()


def test_a_snapshot_row_never_covers_a_later_change(subject: Subject) -> None:
    schema = new_table(subject)
    write(subject, block(schema, (50, Op.UPDATE, (1, "a", "new")), (51, Op.DELETE, (2, "a", "gone"))))
    write(
        subject, block(schema, (40, Op.SNAPSHOT, (1, "a", "old")), (40, Op.SNAPSHOT, (2, "a", "old")), (40, Op.SNAPSHOT, (3, "a", "old")))
    )
    assert subject.show(schema) == {(1, "a", "new"), (3, "a", "old")}


def test_preparing_again_is_harmless(subject: Subject) -> None:
    schema = new_table(subject)
    write(subject, block(schema, (1, Op.INSERT, (1, "a", "x"))))
    subject.sink.prepare([schema])
    subject.sink.prepare(iter([schema]))
    assert subject.show(schema) == {(1, "a", "x")}


def test_preparing_nothing_and_writing_nothing_is_harmless(subject: Subject) -> None:
    subject.sink.prepare([])
    schema = new_table(subject)
    write(subject, block(schema))
    assert subject.show(schema) == set()


def test_one_writer_serves_several_tables_alternately(subject: Subject) -> None:
    one, two = new_table(subject, "one"), new_table(subject, "two")
    writer = subject.sink.writer()
    for version in range(1, 7):
        writer.write(block((one, two)[version % 2], (version, Op.INSERT, (version, "a", None))))
    writer.close()
    assert {row[0] for row in subject.show(one)} == {2, 4, 6}
    assert {row[0] for row in subject.show(two)} == {1, 3, 5}


def test_tasks_that_write_at_the_same_time_do_not_disturb_each_other(subject: Subject) -> None:
    schema = new_table(subject)
    blocks = [block(schema, *((100 * step + key, Op.UPDATE, (key, "a", str(step))) for key in range(50))) for step in range(1, 13)]
    with ThreadPoolExecutor(4) as pool:
        # Every block twice, the older ones last.
        for done in [pool.submit(write, subject, one) for one in reversed(blocks + blocks)]:
            done.result()
    assert subject.show(schema) == {(key, "a", "12") for key in range(50)}


def test_a_copied_sink_is_the_same_sink(subject: Subject) -> None:
    schema = new_table(subject)
    copied = pickle.loads(pickle.dumps(subject.sink))
    write(Subject(copied, subject.show), block(schema, (1, Op.INSERT, (1, "a", "x"))))
    assert subject.show(schema) == {(1, "a", "x")}


keys = st.tuples(st.integers(1, 3), st.sampled_from(["a", "b"]))
steps = st.lists(st.tuples(keys, st.sampled_from(["put", "take", "move"]), keys, st.none() | st.sampled_from("xyz")), max_size=25)


def life_of(steps_taken: list[tuple[tuple[int, str], str, tuple[int, str], str | None]]) -> tuple[list[Image], set[Row]]:
    """The images a log would hold for the steps, and the rows that are left."""
    images: list[Image] = []
    rows: dict[tuple[int, str], str | None] = {}

    def log(op: Op, key: tuple[int, str], value: str | None) -> None:
        images.append((10 + len(images), op, (*key, value)))

    for key, step, other, value in steps_taken:
        if step == "put":
            log(Op.UPDATE if key in rows else Op.INSERT, key, value)
            rows[key] = value
        elif key in rows and step == "take":
            log(Op.DELETE, key, rows.pop(key))
        elif key in rows and other not in rows:
            log(Op.BEFORE, key, rows[key])
            rows[other] = rows.pop(key)
            log(Op.UPDATE, other, rows[other])
    return images, {(*key, value) for key, value in rows.items()}


@given(steps, st.randoms(use_true_random=False))
def test_blocks_cut_anywhere_in_any_order_and_repeated_show_the_same(
    subject: Subject, steps_taken: list[tuple[tuple[int, str], str, tuple[int, str], str | None]], chance: random.Random
) -> None:
    images, expected = life_of(steps_taken)
    schema = new_table(subject)
    cuts = sorted(chance.sample(range(len(images) + 1), min(4, len(images) + 1)))
    pieces = [images[a:b] for a, b in zip([0, *cuts], [*cuts, len(images)], strict=True)]
    blocks = [block(schema, *piece) for piece in pieces if piece]
    replayed = blocks + chance.sample(blocks, len(blocks) // 2)
    chance.shuffle(replayed)
    write(subject, *replayed)
    assert subject.show(schema) == expected
