"""What kind of source or sink an address is of, by its first letters: nothing is opened, and nothing heavy imported."""

from __future__ import annotations

from typing import Final

from headrace.kafka.address import SCHEME as KAFKA

CLICKHOUSE: Final = ("clickhouse://", "clickhouses://")
STDOUT: Final = "stdout:"


def is_kafka(address: str) -> bool:
    """Whether an address is that of a Kafka cluster."""
    return address.startswith(KAFKA)


def is_stdout(address: str) -> bool:
    """Whether an address is that of the standard output."""
    return address == STDOUT or address.startswith(f"{STDOUT}?")
