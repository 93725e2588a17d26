"""The contract of `headrace.sinks.base` for every registered sink.

- Table stores: order, repetition and interruption of writes do not change the rows.
- Append-only sinks: every change appears, and a repeated block only repeats changes with the same versions.

`test_cdc_log_contract.py` is the suite of CDC-log sinks.

A sink joins the suite by a fixture named after its connector. `test_every_registered_sink_has_a_case` fails if one is missing.
"""

from __future__ import annotations

import json
import pickle
import random
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DefiniteError
from headrace.kafka.mypipe.wire_format import read_position
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sinks.base import BatchCommit, Sink
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.kafka.options import KafkaOptions
from headrace.sinks.registry import SINK_CONNECTORS
from headrace.sinks.schema_changes import Step
from testkit.generators.kind_values import block_of_rows
from testkit.oracles.topics import read_topic
from testkit.pipelines.sink_places import Place
from testkit.servers.broker import PrivateBroker

Row = tuple[int, str, str | None]
Image = tuple[int, Op, Row]
COLUMNS = (Column("id", Kind.INT64, False), Column("part", Kind.STRING, False), Column("value", Kind.STRING))
TABLE_STORES = ("clickhouse", "embedded_clickhouse")
APPEND_ONLY = ("kafka", "producer", "stdout")


def test_every_registered_sink_has_a_case() -> None:
    assert {one.name for one in SINK_CONNECTORS if one.open is not None} == {*TABLE_STORES, *APPEND_ONLY}
    assert {one.name for one in SINK_CONNECTORS if one.has_table_store} == set(TABLE_STORES)


# -- table stores


@dataclass(frozen=True)
class Subject:
    """A sink under test and a way to see its rows."""

    sink: Sink
    show: Callable[[TableSchema], set[Row]]


@pytest.fixture(scope="module", params=TABLE_STORES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    place: Place = request.getfixturevalue(f"{request.param}_place")
    with place.open(request.param, tmp_path_factory.mktemp("state")) as named:
        sink = named.sink
        assert isinstance(sink, ClickHouseSink)

        def show(schema: TableSchema) -> set[Row]:
            rows = [tuple(row.values()) for row in sink.reader().read_range(schema).to_pylist()]
            assert len(rows) == len(set(rows)) == sink.reader().count(schema)
            return set(rows)

        yield Subject(sink, show)
        disconnect(sink.target)


def new_table(subject: Subject, prefix: str = "t") -> TableSchema:
    schema = TableSchema(TableName("contract", f"{prefix}_{secrets.token_hex(6)}"), COLUMNS, ("id", "part"))
    subject.sink.prepare([schema])
    return schema


def block(schema: TableSchema, *images: Image) -> ChangeBlock:
    rows, ops = [row for _, _, row in images], [op for _, op, _ in images]
    return block_of_rows(schema, rows, ops, versions=[version for version, _, _ in images])


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


def test_the_store_deletes_stale_rows_and_partial_snapshots(subject: Subject) -> None:
    schema, store = new_table(subject), subject.sink.table_store()
    assert store is not None
    assert not subject.sink.append_only
    assert (store.holds_rows(schema), store.newest_version(schema)) == (False, None)
    write(subject, block(schema, (10, Op.SNAPSHOT, (1, "a", "old")), (20, Op.SNAPSHOT, (2, "a", "new"))))
    assert (store.holds_rows(schema), store.newest_version(schema)) == (True, 20)
    for _ in range(2):
        store.delete_stale(schema, 15)
        assert subject.show(schema) == {(2, "a", "new")}
    store.replace(schema)
    assert list(store.target_names([schema])) == [schema.name]


def test_a_copied_sink_is_the_same_sink(subject: Subject) -> None:
    schema = new_table(subject)
    copied = pickle.loads(pickle.dumps(subject.sink))
    write(Subject(copied, subject.show), block(schema, (1, Op.INSERT, (1, "a", "x"))))
    assert subject.show(schema) == {(1, "a", "x")}


keys = st.tuples(st.integers(1, 3), st.sampled_from(["a", "b"]))
steps = st.lists(st.tuples(keys, st.sampled_from(["put", "take", "move"]), keys, st.none() | st.sampled_from("xyz")), max_size=25)


def life_of(steps_taken: list[tuple[tuple[int, str], str, tuple[int, str], str | None]]) -> tuple[list[Image], set[Row]]:
    """Return the log images of the steps, and the final rows."""
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


@pytest.mark.slow("embedded_clickhouse", because="test_blocks_cut_anywhere_in_any_order_and_repeated_show_the_same[clickhouse]")
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


# -- append-only sinks


@dataclass(frozen=True)
class Appended:
    """An append-only sink and a way to read the changes of a table: each with its version, in the order of arrival."""

    sink: Sink
    read: Callable[[TableSchema], list[tuple[int, str]]]


PRODUCER = """
import headrace

class Lines(headrace.Producer):
    def __init__(self, folder):
        self.folder = folder

    def write(self, block):
        rows = zip(block.version.to_pylist(), block.op.to_pylist(), block.images.to_pylist())
        with open(f"{self.folder}/{block.schema.name}", "a") as lines:
            lines.writelines(f"{version} {op} {row}\\n" for version, op, row in rows)
"""


@pytest.fixture
def producer_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Place, Callable[[Sink, TableSchema], list[tuple[int, str]]]]:
    (tmp_path / "contract_producer.py").write_text(PRODUCER)
    monkeypatch.syspath_prepend(tmp_path)

    def read(sink: Sink, schema: TableSchema) -> list[tuple[int, str]]:
        path = tmp_path / sink.target_of(schema.name)
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.partition(" ")[0]), line) for line in lines]

    return Place("class:contract_producer:Lines", {"folder": str(tmp_path)}), read


@pytest.fixture
def kafka_place(broker: PrivateBroker) -> tuple[Place, Callable[[Sink, TableSchema], list[tuple[int, str]]]]:
    def read(sink: Sink, schema: TableSchema) -> list[tuple[int, str]]:
        found = read_topic(broker, sink.target_of(schema.name))
        return [(read_position(message.position)[0], f"{message.key!r} {message.value!r}") for message in found]

    return Place(broker.url(), KafkaOptions(partitions=1)), read


@pytest.fixture
def stdout_place(capsysbinary: pytest.CaptureFixture[bytes]) -> tuple[Place, Callable[[Sink, TableSchema], list[tuple[int, str]]]]:
    printed: list[str] = []

    def read(sink: Sink, schema: TableSchema) -> list[tuple[int, str]]:
        printed.extend(capsysbinary.readouterr().out.decode().splitlines())
        lines = [(json.loads(line), line) for line in printed]
        return [(one["version"], line) for one, line in lines if f"{one['database']}.{one['table']}" == sink.target_of(schema.name)]

    return Place("stdout:?format=json"), read


@pytest.fixture(params=APPEND_ONLY)
def appended(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Appended]:
    place, read = request.getfixturevalue(f"{request.param}_place")
    with place.open(request.param, tmp_path / "state") as named:
        yield Appended(named.sink, lambda schema: read(named.sink, schema))


def changes(schema: TableSchema, *images: tuple[Op, Row], first: int) -> ChangeBlock:
    """A block of one transaction."""
    ops, rows = zip(*images, strict=True)
    versions = [pack_version(0, 1, first + place) for place in range(len(rows))]
    return block_of_rows(schema, rows, ops, versions=versions, transactions=["0-1-7"] * len(rows), order=True)


def append(sink: Sink, *blocks: ChangeBlock) -> None:
    writer = pickle.loads(pickle.dumps(sink)).writer()
    for one in blocks:
        writer.write(one)
    writer.close()
    sink.commit_batch(BatchCommit("binlog.000001:900", pack_version(0, 1, 900)))


LIFE = [(Op.INSERT, (1, "a", "x")), (Op.BEFORE, (1, "a", "x")), (Op.UPDATE, (1, "a", None)), (Op.DELETE, (1, "a", None))]


def prepared(appended: Appended) -> TableSchema:
    schema = TableSchema(TableName("contract", f"t_{secrets.token_hex(6)}"), COLUMNS, ("id", "part"))
    appended.sink.check_target_conflicts([schema])
    appended.sink.prepare([schema])
    return schema


def test_every_change_is_appended_in_order(appended: Appended) -> None:
    schema = prepared(appended)
    append(appended.sink, changes(schema, *LIFE, first=400), changes(schema, (Op.INSERT, (1, "a", "again")), first=500))
    versions = [version for version, _ in appended.read(schema)]
    assert versions == sorted(versions)
    assert {pack_version(0, 1, 400), pack_version(0, 1, 402), pack_version(0, 1, 403), pack_version(0, 1, 500)} <= set(versions)


def test_a_repeated_block_only_repeats_changes(appended: Appended) -> None:
    schema = prepared(appended)
    one, other = changes(schema, *LIFE, first=400), changes(schema, (Op.INSERT, (2, "a", "y")), first=500)
    append(appended.sink, one, other)
    first = appended.read(schema)
    appended.sink.prepare([schema])
    append(appended.sink.for_replay().without_cache(), one, other)
    assert set(appended.read(schema)) == set(first)
    assert appended.read(schema)[: len(first)] == first


def test_nothing_is_deleted_or_altered(appended: Appended) -> None:
    sink, schema = appended.sink, prepared(appended)
    append(sink, changes(schema, *LIFE, first=400))
    before = appended.read(schema)
    assert sink.append_only
    assert (sink.table_store(), sink.tombstone_store(), sink.progress_store()) == (None, None, None)
    requirement = sink.requirements([schema])[schema.name]
    assert requirement.exact
    assert requirement.keeps
    applier = sink.schema_applier()
    assert not applier.plan_removal(schema).steps
    assert not applier.plan_keeping(schema, "_kept", again=True).steps
    with pytest.raises(DefiniteError, match="no tables to alter"):
        applier.run_step(Step(("ALTER TABLE t",)))
    sink.snapshot_restarted(schema, pack_version(0, 1, 400))
    assert appended.read(schema) == before
