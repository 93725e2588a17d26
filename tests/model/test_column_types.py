"""One `ColumnType` per kind, and how many files a kind touches."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.model.column_types import COLUMN_TYPES, ValueForm
from headrace.model.schema import Column, Kind
from headrace.model.text_values import fixed_bytes_printer, text_functions

SOURCES = Path(headrace.__file__).parent
MOST_FILES = 6
CREATORS = frozenset(
    {
        "model/column_types.py",
        "model/text_values.py",  # the vectorised text of FIXED_BYTES
        "sources/mysql/type_names.py",
        "sources/mysql/ddl/column_definition.py",  # text or bytes, by the character set
        "sources/mysql/snapshot/key_columns.py",  # MariaDB orders UUIDs by their last group
        "sources/debezium/types/column_mapping.py",
        "sources/debezium/types/schema_widening.py",  # the integers as which an integer may arrive
        "pipes/debezium/type_lookup.py",  # BIGINT UNSIGNED, which events call int64
        "kafka/mypipe/wire_format.py",
        "sinks/clickhouse/schema_inference.py",
        "sinks/clickhouse/cascades/key_log.py",  # a separate column
        "transforms/column_types.py",
        "verify/scylla/verifier.py",  # canonical bytes of CQL values
    }
)
"""The modules that name a kind. All others handle values by their form."""


def _files_by_kind() -> dict[Kind, set[str]]:
    found: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        if "Kind." not in text:
            continue
        words = [token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)]
        for one, dot, name in zip(words, words[1:], words[2:], strict=False):
            if (one, dot) == ("Kind", ".") and name in Kind.__members__:
                found[Kind[name]].add(path.relative_to(SOURCES).as_posix())
    return found


def test_a_kind_is_named_in_few_files() -> None:
    files = _files_by_kind()
    assert set().union(*files.values()) == CREATORS
    assert {kind: sorted(named) for kind, named in files.items() if len(named) > MOST_FILES} == {}


def test_no_module_classifies_kinds_by_their_names() -> None:
    by_name = re.compile(r"\bkind\.(value|name)\.(startswith|endswith)\(")
    assert [str(path) for path in SOURCES.rglob("*.py") if by_name.search(path.read_text())] == []


def test_every_kind_has_a_type() -> None:
    assert set(COLUMN_TYPES) == set(Kind)
    assert {described.form for described in COLUMN_TYPES.values()} == set(ValueForm)


@pytest.mark.parametrize("kind", [kind for kind in Kind if COLUMN_TYPES[kind].form is ValueForm.INTEGER])
def test_ranges_of_integers_are_those_of_their_arrow_types(kind: Kind) -> None:
    described = COLUMN_TYPES[kind]
    assert described.arrow is not None
    assert pa.array(described.value_range, described.arrow).to_pylist() == list(described.value_range)
    for beyond in (described.value_range[0] - 1, described.value_range[1] + 1):
        with pytest.raises((pa.ArrowInvalid, OverflowError)):
            pa.array([beyond], described.arrow)


@pytest.mark.parametrize("kind", [kind for kind in Kind if COLUMN_TYPES[kind].form is ValueForm.FIXED_BYTES])
def test_fixed_bytes_are_printed_and_parsed(kind: Kind) -> None:
    column = Column("c", kind)
    width = column.arrow_type.byte_width
    for value in (bytes(width), bytes(range(1, width + 1)), b"\xff" * width):
        assert column.type.parse_value(column.type.print_value(value)) == value
        if column.type.display_value is not None:
            assert column.type.parse_value(column.type.display_value(value)) == value
        [printed] = fixed_bytes_printer(column)(pa.array([value], column.arrow_type)).to_pylist()
        assert column.type.parse_value(printed) == value
        assert not column.type.printed_alike or printed == column.type.print_value(value)
    assert (text_functions(column) is not None) is column.type.printed_alike
