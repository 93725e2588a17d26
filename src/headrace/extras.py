"""The optional parts of the installation: which packages each extra of `pip install 'headrace[…]'` adds.

Invariant: code imports the packages of an extra only when it needs them, and a missing package is an error that names the extra and its
`pip` command. Pipes check the extras of their source, sink and transforms before they open anything (`require_extra`). The command line
explains every other import of a missing package (`explain_missing_packages`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError


@dataclass(frozen=True, slots=True)
class Extra:
    name: str
    purpose: str
    """What it is needed for, for error messages."""
    packages: tuple[str, ...]
    """The names under which its packages are imported."""


EMBEDDED: Final = Extra("embedded", "an embedded ClickHouse", ("chdb", "clickhouse_cityhash"))
KAFKA: Final = Extra("kafka", "Kafka", ("confluent_kafka", "httpx2", "authlib"))
SCYLLA: Final = Extra("scylla", "ScyllaDB, Cassandra and CQL", ("cassandra",))
TRANSFORMS: Final = Extra("transforms", "SQL expressions of transforms", ("duckdb",))
EXTRAS: Final = (EMBEDDED, KAFKA, SCYLLA, TRANSFORMS)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def require_extra(extra: Extra) -> None:
    """Raise `DefiniteError` if a package of the extra is not installed."""
    for package in extra.packages:
        if not is_installed(package):
            raise _missing(extra, package)


@contextmanager
def explain_missing_packages() -> Iterator[None]:
    """Turn the import error of an extra's package into the `DefiniteError` of `require_extra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        for extra in EXTRAS:
            # A package that is installed and lacks one of its own modules is damaged, not missing.
            if package in extra.packages and not is_installed(package):
                raise _missing(extra, package) from error
        raise


def _missing(extra: Extra, package: str) -> DefiniteError:
    return DefiniteError(
        f"the package {package} is not installed, which is needed for {extra.purpose}",
        place=f"extra {extra.name}",
        hint=f"pip install 'headrace[{extra.name}]'",
    )
