"""The policy for each kind of schema change.

Invariant: every allowed combination leads to correct rows or to a halt. A policy that would silently corrupt rows (such as to ignore a
renamed column or a changed key) is rejected with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from headrace.errors import DefiniteError


class ChangeKind(StrEnum):
    """The kinds of schema changes, by their setting names."""

    CREATE_TABLE = "create_table"
    DROP_TABLE = "drop_table"
    TRUNCATE_TABLE = "truncate_table"
    RENAME_TABLE = "rename_table"
    ADD_COLUMN = "add_column"
    DROP_COLUMN = "drop_column"
    RENAME_COLUMN = "rename_column"
    MODIFY_COLUMN = "modify_column"
    CHANGE_KEY = "change_key"


class Policy(StrEnum):
    """How a schema change is handled."""

    APPLY = "apply"
    """The target table is altered; if the new values must come from the source, the table is read again."""
    IGNORE = "ignore"
    """The target table is not changed, and later events are applied without the change."""
    HALT = "halt"
    """The pipe stops before the change with an error."""
    KEEP = "keep"
    """The target table is renamed before it would lose rows."""
    RESYNC = "resync"
    """The table is read again from the source."""


_ALWAYS: Final = frozenset({Policy.APPLY, Policy.HALT})
_ALLOWED: Final = {
    ChangeKind.CREATE_TABLE: _ALWAYS | {Policy.IGNORE},
    ChangeKind.DROP_TABLE: _ALWAYS | {Policy.IGNORE, Policy.KEEP},
    ChangeKind.TRUNCATE_TABLE: _ALWAYS | {Policy.IGNORE, Policy.KEEP},
    ChangeKind.RENAME_TABLE: _ALWAYS | {Policy.RESYNC},
    ChangeKind.ADD_COLUMN: _ALWAYS | {Policy.IGNORE, Policy.RESYNC},
    ChangeKind.DROP_COLUMN: _ALWAYS | {Policy.IGNORE, Policy.RESYNC},
    ChangeKind.RENAME_COLUMN: _ALWAYS | {Policy.RESYNC},
    ChangeKind.MODIFY_COLUMN: _ALWAYS | {Policy.IGNORE, Policy.RESYNC},
    ChangeKind.CHANGE_KEY: _ALWAYS | {Policy.RESYNC},
}
_WHY_NOT: Final = {
    (ChangeKind.RENAME_TABLE, Policy.IGNORE): "changes under the new name would have no table to go to",
    (ChangeKind.RENAME_COLUMN, Policy.IGNORE): "values under the new name would have no column to go to",
    (ChangeKind.CHANGE_KEY, Policy.IGNORE): "rows that the new key tells apart would replace each other",
}
_Word = TypeVar("_Word", ChangeKind, Policy)
ALL_KINDS: Final = "all"
"""Stands for all kinds that allow the policy."""


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """The policy of each kind of change; the default is `apply`."""

    chosen: tuple[tuple[ChangeKind, Policy], ...] = ()

    def __post_init__(self) -> None:
        for kind, policy in self.chosen:
            if policy not in _ALLOWED[kind]:
                why = _WHY_NOT.get((kind, policy))
                allowed = ", ".join(allowed_policies(kind))
                raise DefiniteError(
                    f"{kind} cannot be set to {policy}" + (f": {why}" if why else ""),
                    place="schema_changes",
                    hint=f"{kind} may be one of {allowed}",
                )

    def of(self, kind: ChangeKind) -> Policy:
        return dict(self.chosen).get(kind, Policy.APPLY)

    @staticmethod
    def allows(kind: ChangeKind, policy: Policy) -> bool:
        return policy in _ALLOWED[kind]

    @classmethod
    def from_dict(cls, words: Mapping[str, str]) -> SchemaPolicy:
        """Parse policies by kind; `all` sets every kind that allows the policy, and single kinds override it."""
        policies = {name: _word(Policy, word, f"policy for {name}", "policies") for name, word in words.items()}
        everywhere = policies.pop(ALL_KINDS, None)
        chosen = {kind: everywhere for kind in ChangeKind if everywhere is not None and everywhere in _ALLOWED[kind]}
        chosen |= {_word(ChangeKind, name, "kind of schema change", "kinds"): policy for name, policy in policies.items()}
        return cls(tuple(chosen.items()))


def allowed_policies(kind: ChangeKind) -> tuple[Policy, ...]:
    return tuple(policy for policy in Policy if policy in _ALLOWED[kind])


def _word(kind: type[_Word], text: str, what: str, several: str) -> _Word:
    try:
        return kind(text)
    except ValueError:
        more = f", or {ALL_KINDS}" if kind is ChangeKind else ""
        raise DefiniteError(f"{text!r} is no {what}", place="schema_changes", hint=f"{several}: {', '.join(kind)}{more}") from None
