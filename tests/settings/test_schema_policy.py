"""Allowed policies for schema changes, and those that are refused because rows would silently become wrong."""

from __future__ import annotations

import pytest

from headrace.cli import build_parser
from headrace.cli.flags import settings_from_flags
from headrace.errors import DefiniteError
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.settings.settings_file import UserSettings


def from_flags(*pairs: str) -> SchemaPolicy:
    """The policies that `--schema-changes KIND=POLICY` sets."""
    flags = [word for pair in pairs for word in ("--schema-changes", pair)]
    chosen = UserSettings()
    for one in settings_from_flags(build_parser().parse_args(["replicate", "mysql://h/db", "chdb:x", *flags])):
        chosen = one.over(chosen)
    return chosen.schema_changes


def test_everything_is_applied_unless_configured_otherwise() -> None:
    assert {SchemaPolicy().of(kind) for kind in ChangeKind} == {Policy.APPLY}
    chosen = from_flags("drop_table=keep", "add_column=ignore", "drop_table=halt")
    assert (chosen.of(ChangeKind.DROP_TABLE), chosen.of(ChangeKind.ADD_COLUMN)) == (Policy.HALT, Policy.IGNORE)
    assert chosen.of(ChangeKind.CREATE_TABLE) is Policy.APPLY


def test_all_is_about_the_kinds_that_know_the_policy_and_single_words_come_after_it() -> None:
    halting = from_flags("truncate_table=apply", "all=halt")
    assert [kind for kind in ChangeKind if halting.of(kind) is not Policy.HALT] == [ChangeKind.TRUNCATE_TABLE]
    kept = from_flags("all=keep")
    assert [kind for kind in ChangeKind if kept.of(kind) is Policy.KEEP] == [ChangeKind.DROP_TABLE, ChangeKind.TRUNCATE_TABLE]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("rename_column=ignore", "values under the new name would have no column"),
        ("rename_table=ignore", "changes under the new name would have no table"),
        ("change_key=ignore", "would replace each other"),
        ("add_column=keep", "cannot be set to keep"),
        ("create_table=resync", "cannot be set to resync"),
        ("drop_tables=halt", "there is no kind of schema change"),
        ("drop_table=maybe", "is no policy for drop_table"),
        ("drop_table", "is no policy for drop_table"),
    ],
)
def test_what_would_make_rows_wrong_cannot_be_chosen(pair: str, message: str) -> None:
    with pytest.raises(DefiniteError, match=message):
        from_flags(pair)
