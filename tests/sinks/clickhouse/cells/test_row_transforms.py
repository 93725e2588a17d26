"""Transforms of merged rows: renamed, masked and excluded columns; cells do not change."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from headrace.cql.blocks import LogBlock
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind
from headrace.sinks.clickhouse.cells.merged_rows.row_transforms import mask_sql
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.transforms.mask_and_hash import masked
from headrace.transforms.options import Transforms, read_mask
from testkit.generators.cql_blocks import log_block, write

NOW = int(time.time())
T = NOW * 1_000_000
PEOPLE = """CREATE TABLE people (id int, nr int, region text static, name text, email text, age int, tags set<text>,
 PRIMARY KEY (id, nr))"""


def table_of(script: str) -> CqlTable:
    return next(iter(CqlCatalog("ks").apply_all(script).tables.values()))


def sink_with(target: ClickHouseTarget, merges: bool | None = None, **options: Any) -> CellSink:
    return CellSink(ClickHouseSink(target), merges, Transforms((("ks.people", tuple(options.items())),) if options else ()))


def read(sink: CellSink, query: str) -> list[Any]:
    return list(connect(sink.sink.target).client.query(query).result_rows)


def shown(sink: CellSink, table: CqlTable) -> tuple[tuple[str, ...], list[Any]]:
    """Names and rows of the view."""
    found = connect(sink.sink.target).client.query(f"SELECT * FROM {sink.locations(table).view} ORDER BY ALL")
    return tuple(found.column_names), list(found.result_rows)


def people(table: CqlTable) -> LogBlock:
    rows = [
        {"op": 2, "at": T, "id": 1, "nr": 1, "name": "Anna", "email": "anna@example.com", "age": 30, "tags": ["a"]},
        {"op": 1, "at": T, "id": 1, "region": "north"},
        {"op": 1, "at": T, "id": 2, "nr": 1, "age": 40},
        {"op": 1, "at": T, "id": 3, "region": "south"},
    ]
    return log_block(table, rows)


def test_rows_are_renamed_masked_and_left_out(target: ClickHouseTarget) -> None:
    """A row that exists only because of an excluded column stays; a later change merges by the same transforms."""
    table = table_of(PEOPLE)
    sink = sink_with(
        target,
        rename=(("id", "person"), ("email", "mail"), ("name", "email")),
        drop=("age", "t*"),
        mask=(("email", "email"), ("name", "null"), ("region", "first 1")),
    )
    sink.prepare([table])
    write(sink, people(table))
    assert shown(sink, table) == (
        ("person", "nr", "region", "mail", "email"),
        [(1, 1, "n****", "a***@example.com", None), (2, 1, None, None, None), (3, None, "s****", None, None)],
    )
    write(sink_with(target), log_block(table, [{"op": 1, "at": T + 1, "id": 2, "nr": 1, "email": "bob"}, {"op": 4, "at": T + 1, "id": 3}]))
    assert shown(sink, table)[1] == [(1, 1, "n****", "a***@example.com", None), (2, 1, None, "***", None)]
    stored = {name for (name,) in read(sink, "SELECT name FROM system.columns WHERE table = 'people__rows'")}
    assert not stored & {"value:age", "value:tags"}
    assert [row[0] for row in read(sink, f"SELECT email FROM {sink.locations(table).live} ORDER BY id, nr")] == ["anna@example.com", "bob"]


def test_other_transforms_fill_the_rows_again(target: ClickHouseTarget) -> None:
    table = table_of(PEOPLE)
    sink_with(target).prepare([table])
    write(sink_with(target), people(table))
    before = shown(sink_with(target), table)
    for options, names, first in (
        ({"mask": (("email", "last 4"),)}, ("email", "age"), ("************.com", 30)),
        ({"drop": ("age",)}, ("email", "name"), ("anna@example.com", "Anna")),
        ({"rename": (("age", "years"),)}, ("email", "years"), ("anna@example.com", 30)),
        ({}, ("email", "age"), ("anna@example.com", 30)),
    ):
        sink = sink_with(target, **options)
        sink.prepare([table])
        sink.prepare([table])
        chosen = ", ".join(names)
        assert read(sink, f"SELECT {chosen} FROM {sink.locations(table).view} ORDER BY id, nr LIMIT 1") == [first]
        write(sink, people(table))
        assert read(sink, f"SELECT {chosen} FROM {sink.locations(table).view} ORDER BY id, nr LIMIT 1") == [first]
    assert shown(sink, table) == before


def test_the_view_is_transformed_while_rows_are_filled(target: ClickHouseTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with exchanged names."""
    table = table_of(PEOPLE)
    sink_with(target).prepare([table])
    write(sink_with(target), people(table))
    sink = sink_with(target, rename=(("name", "email"), ("email", "name")), mask=(("email", "email"),), drop=("tags",))

    def crash(*_: object) -> None:
        raise RuntimeError("the process was killed")

    with monkeypatch.context() as patched:
        patched.setattr("headrace.sinks.clickhouse.cells.tables.run_steps", crash)
        with pytest.raises(RuntimeError):
            sink.prepare([table])
    interim = shown(sink, table)
    assert [row[:2] for row in read(sink, f"SELECT name, email FROM {sink.locations(table).view} WHERE id = 1")] == [
        ("a***@example.com", "Anna")
    ]
    sink.prepare([table])
    assert sorted(shown(sink, table)[0]) == sorted(interim[0])
    names = ", ".join(interim[0])
    assert read(sink, f"SELECT {names} FROM {sink.locations(table).view} ORDER BY id, nr") == sorted(interim[1], key=lambda row: row[0])


def test_altered_tables(target: ClickHouseTarget) -> None:
    """A new column that a glob leaves out, and one whose name a renamed column has."""
    table = table_of(PEOPLE)
    sink = sink_with(target, rename=(("name", "called"),), drop=("secret*", "age"))
    sink.prepare([table])
    write(sink, people(table))
    wider = table_of(PEOPLE.replace("age int", "age int, secret_code text, size int"))
    sink.alter(table, wider)
    write(sink, log_block(wider, [{"op": 1, "at": T + 1, "id": 2, "nr": 1, "size": 3, "secret_code": "x"}]))
    assert shown(sink, wider)[0] == ("id", "nr", "region", "email", "called", "size", "tags")
    assert [row[5] for row in shown(sink, wider)[1]] == [None, 3, None]
    taken = table_of(PEOPLE.replace("age int", "age int, called text"))
    with pytest.raises(DefiniteError, match="columns called and name would both be called called"):
        sink.alter(wider, taken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": (("id", "null"),)}, "column id of ks.people is part of the key"),
        ({"drop": ("n*",)}, "column nr of ks.people is part of the key"),
        ({"mask": (("age", "first 2"),)}, "column age of ks.people is int, which first cannot mask"),
        ({"mask": (("tags", "null"),)}, "column tags of ks.people is set<text>, which null cannot mask"),
        ({"mask": (("emial", "null"),)}, "mask names emial, and ks.people has no such column"),
        ({"drop": ("emial",)}, "drop names emial, and ks.people has no such column"),
        ({"rename": (("name", "email"),)}, "columns email and name would both be called email"),
    ],
)
def test_transforms_that_do_not_fit_are_refused_before_anything_is_made(
    target: ClickHouseTarget, options: dict[str, Any], message: str
) -> None:
    table = table_of(PEOPLE)
    sink = sink_with(target, **options)
    with pytest.raises(DefiniteError, match=message):
        sink.prepare([table])
    assert not read(sink, f"SELECT name FROM system.tables WHERE database = '{sink.locations(table).database}' AND name LIKE 'people%'")


def test_a_table_without_merged_rows_is_refused_and_the_remedy_works(target: ClickHouseTarget) -> None:
    table = table_of(PEOPLE)
    sink_with(target, merges=False).prepare([table])
    write(sink_with(target), people(table))
    with pytest.raises(DefiniteError, match="transforms apply to merged rows") as refused:
        sink_with(target, drop=("age",)).prepare([table])
    assert "scylla.merge=write" in refused.value.hint
    sink = sink_with(target, merges=True, drop=("age",))
    sink.prepare([table])
    assert "age" not in shown(sink, table)[0]


def test_masks_in_clickhouse_equal_those_in_python(target: ClickHouseTarget) -> None:
    """Of other sources, which Python masks."""
    texts = ["", "a", "@", "a@", "@b", "a@b", "ä@ö@ü.de", "anna@example.com", "日本語テキスト", "x\ny@z", "no address", None]
    masks = ["null", "empty", "text it's", "first 0", "first 2", "last 0", "last 3", "last 4", "email"]
    client = connect(target).client
    values = ", ".join("NULL" if text is None else quote_text(text) for text in texts)
    for name in masks:
        mask = read_mask(name, "")
        expression = mask_sql(mask, "x", "Nullable(String)")
        found = client.query(f"SELECT {expression} FROM (SELECT arrayJoin([{values}]) AS x)").result_rows
        assert [row[0] for row in found] == masked(Column("x", Kind.STRING), mask, pa.array(texts)).to_pylist(), name
