"""After a failover the schema history drops the statements of an uncommitted batch: the new server sends them again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.pipes.mysql.startup import committed_position, rewind_history
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.position import BinlogPosition

NAME = TableName("shop", "t")
ADD = Query("shop", "ALTER TABLE t ADD COLUMN more INT")


def committed_at(directory: Path, position: BinlogPosition) -> SimpleNamespace:
    """A state directory whose last committed batch ended there."""
    for part, text in (("offsets", f"v1\n{{}}\n{json.dumps(position.to_json())}"), ("commits", "v1\n{}")):
        (directory / part).mkdir(exist_ok=True)
        (directory / part / "0").write_text(text)
    return SimpleNamespace(checkpoint=directory)


def columns_at(history: SchemaHistory, position: BinlogPosition) -> list[str]:
    return [column.name for column in history.as_of(position).tables[NAME].columns]


def test_the_history_rewinds_until_a_batch_of_the_new_epoch_is_committed(tmp_path: Path) -> None:
    history = SchemaHistory(lambda name: name == NAME, Dialect.of("9.7.0"))
    start, left, later = (BinlogPosition("binlog.000001", offset) for offset in (4, 500, 900))
    history.begin(
        SchemaCatalog({NAME: TableSchema(NAME, (Column("id", Kind.INT32, nullable=False),), ("id",))}, {"shop": "utf8mb4"}), start
    )
    history.follow(ADD, later)
    assert columns_at(history, later) == ["id", "more"]
    directory = committed_at(tmp_path, left)
    moved = BinlogPosition("other.000007", 4, epoch=1)
    state = SimpleNamespace(start=moved.to_json(), epoch=1)
    assert committed_position(directory, state) == moved
    for _ in range(2):
        # The second time as after a crash: the statement was applied again and is still not committed.
        rewind_history(history, directory, state)
        assert columns_at(history, moved) == ["id"]
        history.follow(ADD, BinlogPosition("other.000007", 800, epoch=1))
        assert columns_at(history, BinlogPosition("other.000007", 800, epoch=1)) == ["id", "more"]
    committed_at(tmp_path, BinlogPosition("other.000007", 800, epoch=1))
    rewind_history(history, directory, state)
    assert columns_at(history, BinlogPosition("other.000007", 900, epoch=1)) == ["id", "more"]
