"""Spark: sessions, the streaming data source, the micro-batch loop, and typed frames of tables. No other package imports pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `spark.read.format("headrace")` and `spark.readStream.format("headrace")` in a session (see docs/api.md)."""
    # The workers' daemon imports this package before it has chosen from where to import pyspark.
    from headrace.spark.frames.data_source import TableChanges

    spark.dataSource.register(TableChanges)
