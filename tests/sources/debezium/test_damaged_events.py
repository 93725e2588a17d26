"""Damaged records of Debezium: refused, halted with a reason, or read as Python's parser reads them."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.sources.debezium.events.records import DecodedRecords, KnownTable, Records
from headrace.sources.debezium.reader import DebeziumReader
from testkit.recordings.debezium_recordings import as_batches, load_records
from testkit.recordings.debezium_replay import Replay

pytestmark = pytest.mark.scaled

ROUNDS = 150


def _damaged(text: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(text))
    match dice.randrange(5):
        case 0:
            return text[:place]
        case 1:
            return text[:place] + bytes([dice.randrange(256)]) + text[place + 1 :]
        case 2:
            return text[:place] + text[place + dice.randrange(1, 9) :]
        case 3:
            return text[:place] + dice.choice([b'"', b"\\", b"{", b"}", b",", b":", b"0", b"null", b"\xc3", b" "]) + text[place:]
    other = dice.randrange(len(text))
    return text[:place] + text[other : other + dice.randrange(1, 40)] + text[place:]


def _read(reader: DebeziumReader, records: Records, text: bytes) -> DecodedRecords | str:
    try:
        return reader.read(replace(records, value=pa.array([text], pa.binary())))
    except DefiniteError as error:
        return error.message


@pytest.mark.parametrize("name", ["mysql-plain", "mysql-flat", "postgres-plain", "mysql-schema"])
def test_damaged_events_are_refused_or_read_as_python_reads_them(name: str) -> None:
    dice = random.Random(name)
    tables = [records for records in as_batches(load_records(name)) if records.topic.endswith((".sbtest1", ".pairs", ".whole"))]
    replay = Replay(DebeziumReader())
    for records in tables:
        replay.feed(records)
    reader = DebeziumReader(
        tables={name: KnownTable(table.schema, table.keys, table.order) for name, table in replay.reader.tables.items()}
    )
    outcomes: dict[str, int] = {}
    for _ in range(ROUNDS):
        whole = dice.choice(tables)
        row = dice.choice([row for row in range(whole.rows) if whole.value[row].is_valid])
        one = replace(
            whole, offset=whole.offset[row : row + 1], key=whole.key[row : row + 1], timestamp=whole.timestamp[row : row + 1], headers=None
        )
        text = _damaged(whole.value[row].as_py(), dice)
        found = _read(reader, one, text)
        if isinstance(found, str):
            outcomes["halted"] = outcomes.get("halted", 0) + 1
            continue
        parts = (
            len(found.refused)
            + len(found.found)
            + len(found.truncations)
            + sum(found.ignored.values())
            + sum(b.changes for b in found.blocks)
        )
        assert parts == 1, (text, found)
        outcomes["refused" if found.refused else "read"] = outcomes.get("refused" if found.refused else "read", 0) + 1
        # Python's own output of it reads the same. (Python cannot write a number that its doubles cannot hold.)
        if not found.refused and "Infinity" not in (again := json.dumps(json.loads(text), indent=1)):
            assert _read(reader, one, again.encode()) == found, text
    assert outcomes.keys() >= {"refused", "read"}
