"""The only place that imports pyspark: the session, the streaming data source, the micro-batch loop, the typed frames of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("headrace")` and `spark.readStream.format("headrace")` known to a session (see docs/api.md)."""
    # The workers' daemon imports this package before it has chosen from where to import pyspark.
    from headrace.spark.frames.data_source import TableChanges

    spark.dataSource.register(TableChanges)
