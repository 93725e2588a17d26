"""The session of a QUERY event: every variable is parsed, or the event is refused."""

from __future__ import annotations

import pytest

from headrace.errors import DefiniteError
from headrace.sources.mysql.events.event_types import Session, parse_query

FLAGS = b"\0" + bytes(4)
SQL_MODE = b"\1" + (2).to_bytes(8, "little")
LATIN1 = b"\4" + b"\x08\0" * 3
NEW_ZONE = b"\5\3UTC"
COLLATIONS = bytes((131, 2, 45, 0, 46, 0, 33, 0, 83, 0))
NO_COLLATIONS = bytes((131, 0))
ROLLED_BACK = b"\x82\x08" + bytes(8)
EXPLICIT_TIMESTAMPS = b"\x10\1"


def parse(status: bytes, statement: bytes = b"SELECT 1") -> Session:
    body = bytes(8) + b"\1" + bytes(2) + len(status).to_bytes(2, "little") + status + b"d\0" + statement
    return parse_query(body, "binlog.000001:4").session


@pytest.mark.parametrize("mapping", [COLLATIONS, NO_COLLATIONS])
def test_variables_after_mariadbs_mapping_of_character_sets(mapping: bytes) -> None:
    found = parse(FLAGS + SQL_MODE + mapping + LATIN1 + NEW_ZONE + ROLLED_BACK)
    assert found == parse(FLAGS + SQL_MODE + LATIN1 + NEW_ZONE + ROLLED_BACK)
    assert (found.client_charset, found.time_zone, found.is_void_alter) == ("latin1", "UTC", True)


@pytest.mark.parametrize("number", [14, 15, 132, 255])
def test_an_unknown_variable_that_others_may_follow(number: int) -> None:
    with pytest.raises(DefiniteError, match=f"variable {number}") as refused:
        parse(FLAGS + bytes((number, 0)) + LATIN1)
    assert refused.value.place == "binlog.000001:4"
    assert "report" in refused.value.hint


def test_a_variable_of_a_later_mysql() -> None:
    """MySQL writes its variables in ascending order: those before an unknown one are all that are known."""
    known = FLAGS + SQL_MODE + LATIN1 + EXPLICIT_TIMESTAMPS
    assert parse(known + bytes((21, 7, 7))) == parse(known)


@pytest.mark.parametrize("cut", [LATIN1[:-1], COLLATIONS[:-1], b"\5", b"\x0b\1x"])
def test_a_variable_that_is_cut_short(cut: bytes) -> None:
    with pytest.raises(DefiniteError, match="cut short"):
        parse(FLAGS + cut)
