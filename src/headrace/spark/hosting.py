"""Where a pipe gets its Spark session from: one of its own, or a share of one that several pipes of a process use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from headrace.spark.session import start_session, warm_workers


class SparkHost(Protocol):
    """Lends sessions."""

    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> AbstractContextManager[SparkSession]:
        """A session for the time of the block, as `start_session` makes it; what is registered or set in it is seen by nobody else."""


class OwnSpark:
    """A session for one pipe, which ends with it."""

    @contextmanager
    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> Iterator[SparkSession]:
        session = start_session(master, directory, spark_log=spark_log, preload=preload, more=more)
        try:
            warm_workers(session)
            yield session
        finally:
            session.stop()
