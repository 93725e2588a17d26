"""What a pipe does about foreign keys that change rows without logging it. Light to import, for the settings."""

from __future__ import annotations

from enum import StrEnum


class CascadeMode(StrEnum):
    """What happens to child rows that a foreign key changes, if the source does not log that."""

    APPLY = "apply"
    IGNORE = "ignore"
    HALT = "halt"
