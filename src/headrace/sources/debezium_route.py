"""Databases that Headrace does not read itself, but that Debezium reads into topics, which are a source of Headrace."""

from __future__ import annotations

from typing import Final

from headrace.errors import DefiniteError

_NAMES: Final = {
    "postgres": "PostgreSQL",
    "postgresql": "PostgreSQL",
    "sqlserver": "SQL Server",
    "mssql": "SQL Server",
    "oracle": "Oracle",
}
"""By the scheme of their addresses."""


def check_is_read(url: str) -> None:
    """Raise `DefiniteError` for the address of such a database."""
    scheme, found, _ = url.removeprefix("jdbc:").partition(":")
    name = _NAMES.get(scheme.lower().partition("+")[0]) if found else None
    if name is not None:
        raise DefiniteError(
            f"{name} is not read from its own log",
            hint=f"have Debezium's connector for {name} write topics to Kafka, and give kafka://host:port as the source "
            "(docs/kafka/debezium-source.md#other-databases)",
        )
