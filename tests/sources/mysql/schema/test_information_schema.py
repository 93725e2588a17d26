"""The member names of ENUM and SET columns, from the server's spelling of their types."""

from __future__ import annotations

import pytest

from headrace.sources.mysql.schema.information_schema import parse_members


@pytest.mark.parametrize(
    ("column_type", "members"),
    [
        ("enum('a')", ("a",)),
        ("enum('a','b','')", ("a", "b", "")),
        ("set('a','b c')", ("a", "b c")),
        ("enum('it''s','''','''''')", ("it's", "'", "''")),
        ("enum('a,b','(',')','enum(')", ("a,b", "(", ")", "enum(")),
        (r"enum('back\\slash','\\','\\\\')", ("back\\slash", "\\", "\\\\")),
        (r"enum('line\nbreak','nul\0','cr\r')", ("line\nbreak", "nul\0", "cr\r")),
        (r"enum('q\'uote','a\\','b')", ("q'uote", "a\\", "b")),
        ("enum('tab\there','new\nline')", ("tab\there", "new\nline")),
        ('enum("not names")', ()),
        ("enum('漢字','é')", ("漢字", "é")),
        ("enum(' lead','a\"b','%s')", (" lead", 'a"b', "%s")),
    ],
)
def test_members(column_type: str, members: tuple[str, ...]) -> None:
    assert parse_members(column_type) == members
