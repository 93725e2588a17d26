"""Changes as lines: exact values, one change per line, and no control characters for a terminal."""

from __future__ import annotations

import base64
import errno
import json
import math
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sinks.schema_changes import LedgerEntry
from headrace.sinks.stdout.batches import LineOptions
from headrace.sinks.stdout.encoder import LineEncoder
from headrace.sinks.stdout.output import Output
from headrace.sinks.stdout.sink import parse_stdout
from headrace.sinks.stdout.spool import Receiver, Sender
from testkit.generators.kind_values import COLUMNS, VALUES, block_of_rows

HOSTILE = 'a\x1b[31mred\x1b[0m\x9b2J\x7f\u202eright\u2028next\r\nline\x00"\\'
EVENT = 4_000


def block(columns: list[Column], rows: list[list[Any]], ops: list[Op], *, name: str = "orders", key: tuple[str, ...] = ()) -> ChangeBlock:
    schema = TableSchema(TableName("shop", name), tuple(columns), key)
    count = len(rows)
    versions = [pack_version(1, 3, EVENT + 1 + place) for place in range(count)]
    moments = [1_700_000_000_123_456] * count
    return block_of_rows(schema, rows, ops, versions=versions, commit_us=moments, transactions=["0-1-77"] * count)


def lines(block: ChangeBlock, choices: LineOptions | None = None) -> list[str]:
    made = [line for part in LineEncoder(choices or LineOptions()).encode(block) for line in part.text.to_pylist()]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in made)
    return made


def expected(kind: Kind, value: Any) -> Any:
    """Return the documented form of a value, computed in plain Python."""
    match kind:
        case Kind.DECIMAL:
            return f"{value:.30f}"
        case Kind.BYTES | Kind.GEOMETRY:
            return base64.b64encode(value).decode()
        case Kind.DATE:
            return str(np.datetime64(value, "D"))
        case Kind.DATETIME:
            return str(np.datetime64(value, "us")).replace("T", " ")
        case Kind.TIMESTAMP:
            return f"{np.datetime64(value, 'us')}Z"
        case Kind.TIME:
            seconds, micros = divmod(abs(value), 1_000_000)
            return f"{'-' if value < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
        case Kind.UUID:
            return re.sub(r"(.{8})(.{4})(.{4})(.{4})(.{12})", r"\1-\2-\3-\4-\5", value.hex())
        case Kind.INET4:
            return ".".join(map(str, value))
        case Kind.INET6:
            return ":".join(value.hex()[at : at + 4] for at in range(0, 32, 4))
    return value


def test_every_kind_of_value_is_exact() -> None:
    for column in COLUMNS:
        values = [*VALUES[column.kind], None]
        found = [json.loads(line) for line in lines(block([column], [[value] for value in values], [Op.INSERT] * len(values)))]
        shown = [one["after"][column.name] for one in found]
        wanted = [None if value is None else expected(column.kind, value) for value in values]
        if column.kind is Kind.FLOAT32:
            assert [None if one is None else float(np.float32(one)) for one in shown] == wanted
        elif column.kind is Kind.VECTOR:
            assert [None if one is None else [float(np.float32(part)) for part in one] for one in shown] == wanted
        else:
            assert shown == wanted, column.kind
        if column.kind in (Kind.FLOAT64, Kind.FLOAT32):
            assert math.copysign(1, shown[2]) == -1.0


def test_big_numbers_in_quotes_by_choice() -> None:
    columns = [Column("big", Kind.UINT64), Column("small", Kind.INT32)]
    made = lines(block(columns, [[2**64 - 1, 7]], [Op.INSERT]), LineOptions(big_as_text=True))
    assert json.loads(made[0])["after"] == {"big": "18446744073709551615", "small": 7}


def test_log_line_contents() -> None:
    columns = [Column("id", Kind.INT32, False), Column("status", Kind.STRING)]
    rows = [[1, "new"], [1, "new"], [2, "paid"], [2, "paid"], [3, None]]
    ops = [Op.INSERT, Op.BEFORE, Op.UPDATE, Op.DELETE, Op.INSERT]
    made = [json.loads(line) for line in lines(block(columns, rows, ops, key=("id",)))]
    assert [one["op"] for one in made] == ["insert", "update", "delete", "insert"]
    assert [one["key"] for one in made] == [{"id": 1}, {"id": 2}, {"id": 2}, {"id": 3}]
    assert [(one["before"], one["after"]) for one in made] == [
        (None, {"id": 1, "status": "new"}),
        ({"id": 1, "status": "new"}, {"id": 2, "status": "paid"}),
        ({"id": 2, "status": "paid"}, None),
        (None, {"id": 3, "status": None}),
    ]
    assert list(made[0]) == [
        "op", "database", "table", "key", "before", "after", "position", "transaction", "committed", "version",
    ]  # fmt: skip
    page = (Path(__file__).parents[3] / "docs" / "producers.md").read_text()
    assert list(json.loads(page.partition("```json\n")[2].partition("\n```")[0])) == list(made[0])
    assert (made[0]["database"], made[0]["table"], made[0]["position"]) == ("shop", "orders", f"binlog.000003:{EVENT}")
    assert (made[0]["transaction"], made[0]["committed"]) == ("0-1-77", "2023-11-14T22:13:20.123456Z")
    assert [one["version"] - pack_version(1, 3, EVENT) for one in made] == [1, 3, 4, 5]


def test_a_snapshot_row_and_a_table_without_a_key() -> None:
    made = [json.loads(line) for line in lines(block([Column("a", Kind.INT8)], [[1], [1]], [Op.SNAPSHOT] * 2))]
    assert [(one["op"], one["key"], one["before"], one["after"]) for one in made] == [("snapshot", None, None, {"a": 1})] * 2


@pytest.mark.parametrize("choices", [LineOptions(), LineOptions(human=True), LineOptions(human=True, colour=True)])
def test_nothing_hostile_reaches_a_terminal(choices: LineOptions) -> None:
    columns = [Column(HOSTILE, Kind.STRING), Column("e", Kind.ENUM, members=(HOSTILE,))]
    ops = [Op.INSERT, Op.BEFORE, Op.UPDATE, Op.DELETE]
    rows = [[HOSTILE * 100, HOSTILE], [HOSTILE, None], [HOSTILE + "!", HOSTILE], [None, HOSTILE]]
    made = lines(block(columns, rows, ops, name=HOSTILE), choices)
    entry = LedgerEntry("p", 1, "binlog.1:4", f"shop.{HOSTILE}", "add_column", f"ALTER TABLE {HOSTILE}", "", "applied")
    made.append(LineEncoder(choices).statement(entry).decode())
    assert len(made) == 4
    for line in made:
        bare = re.sub("\x1b\\[[0-9]*m", "", line) if choices.colour else line
        assert bare.removesuffix("\n").isprintable(), ascii(bare)
    if not choices.human:
        event = json.loads(made[0])
        assert event["after"] == {HOSTILE: HOSTILE * 100, "e": HOSTILE}
        assert event["table"] == HOSTILE
        assert json.loads(made[3])["statement"] == f"ALTER TABLE {HOSTILE}"


@pytest.mark.parametrize("mark", ["\x7f", "\x80", "\x85", "\x9b", "\u061c", "\u200b", "\u2028", "\u202e", "\u2066", "\ufeff"])
def test_every_mark_is_escaped_when_it_stands_alone(mark: str) -> None:
    [line] = lines(block([Column("a", Kind.STRING)], [[f"before{mark}after"]], [Op.INSERT]))
    assert line.removesuffix("\n").isprintable(), ascii(line)
    assert json.loads(line)["after"]["a"] == f"before{mark}after"


def test_lines_for_people() -> None:
    columns = [Column("id", Kind.INT32, False), Column("status", Kind.STRING), Column("body", Kind.BYTES)]
    rows = [[1, "new", b"x"], [1, "new", b"x"], [1, "paid", b"x"], [1, "paid", None], [2, "é" * 500, b"y"]]
    made = lines(block(columns, rows, [Op.INSERT, Op.BEFORE, Op.UPDATE, Op.DELETE, Op.INSERT], key=("id",)), LineOptions(human=True))
    when, at = "2023-11-14 22:13:20.123456", f"@binlog.000003:{EVENT}"
    assert made[:3] == [
        f'{when} + INSERT shop.orders id=1 status="new" body="eA==" {at}\n',
        f'{when} ~ UPDATE shop.orders id=1 status: "new" → "paid" {at}\n',
        f'{when} - DELETE shop.orders id=1 status="paid" body=null {at}\n',
    ]
    assert f'status="{"é" * 160}"… (1000 bytes)' in made[3]
    coloured = lines(block(columns, rows[:1], [Op.INSERT]), LineOptions(human=True, colour=True))[0]
    assert "\x1b[32m+ INSERT\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9]*m", "", coloured) == made[0]


def test_changes_behind_the_cut_are_shown_as_changes() -> None:
    rows = [[1, "x" * 500 + "a"], [1, "x" * 500 + "b"], [1, None], [1, "x"]]
    columns = [Column("id", Kind.INT32, False), Column("t", Kind.STRING)]
    made = lines(block(columns, rows, [Op.BEFORE, Op.UPDATE] * 2, key=("id",)), LineOptions(human=True))
    assert " t: " in made[0]
    assert ' t: null → "x"' in made[1]


def test_settings_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert parse_stdout("stdout:", terminal=False) == LineOptions()
    assert parse_stdout("stdout:", terminal=True).human
    assert parse_stdout("stdout:?format=text&color=always", terminal=False) == LineOptions(human=True, colour=True)
    assert parse_stdout("stdout:?format=json&colour=always&big=text", terminal=True) == LineOptions(big_as_text=True)
    with pytest.raises(DefiniteError, match="format=xml"):
        parse_stdout("stdout:?format=xml", terminal=False)


class Kept(Output):
    """Records the output."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.full = False

    def _write(self, lines: memoryview) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.pieces.append(bytes(lines))


def test_lines_of_a_batch_are_printed_in_the_order_of_the_log_and_once(tmp_path: Path) -> None:
    output = Kept()
    receiver = Receiver(output, tmp_path)
    try:
        columns = [Column("id", Kind.INT32, False), Column("t", Kind.STRING)]
        whole = block(columns, [[n, "x" * (n % 7)] for n in range(5_000)], [Op.INSERT] * 5_000)
        tables = [ChangeBlock(whole.schema, whole.images.take(pa.array(np.arange(start, 5_000, 3))), *(
            column.take(pa.array(np.arange(start, 5_000, 3))) for column in (whole.op, whole.version, whole.commit_ts, whole.transaction)
        )) for start in range(3)]  # fmt: skip

        def task(block: ChangeBlock) -> None:
            sender = Sender(receiver.address, receiver.token)
            for made in LineEncoder().encode(block):
                sender.send(made, waits=True)
            sender.close()

        # The first table's task ran twice, as on a cluster that lost a machine.
        threads = [threading.Thread(target=task, args=(one,)) for one in (*tables, tables[0])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert output.pieces == []
        receiver.print_batch()
        printed = [json.loads(line)["after"]["id"] for line in b"".join(output.pieces).splitlines()]
        assert printed == list(range(5_000))
        receiver.print_batch()
        assert len(b"".join(output.pieces).splitlines()) == 5_000

        # Rows of a snapshot do not wait.
        sender = Sender(receiver.address, receiver.token)
        for made in LineEncoder().encode(block(columns, [[1, "s"]], [Op.SNAPSHOT])):
            sender.send(made, waits=False)
        assert json.loads(output.pieces[-1])["op"] == "snapshot"
        # A client without the token is ignored.
        stranger = Sender(receiver.address, "00" * 32)
        [made] = LineEncoder().encode(whole)
        with pytest.raises(TransientError):
            stranger.send(made, waits=False)
        assert json.loads(output.pieces[-1])["op"] == "snapshot"
        # A full output is not a closed one.
        output.full = True
        with pytest.raises(DefiniteError, match="cannot be written"):
            sender.send(made, waits=False)
        output.left = True
        with pytest.raises(DefiniteError, match="has closed it"):
            sender.send(made, waits=True)
        sender.close()
    finally:
        receiver.close()


def test_decimals_of_any_size() -> None:
    column = Column("d", Kind.DECIMAL, precision=65, scale=30)
    value = Decimal("-12345678901234567890123456789012345.000000000000000000000000000001")
    assert json.loads(lines(block([column], [[value]], [Op.INSERT]))[0])["after"]["d"] == str(value)
