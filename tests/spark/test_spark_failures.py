"""Spark's errors when one of its processes has ended are transient."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from headrace.errors import DefiniteError, TransientError
from headrace.runtime.reports import encode_error
from headrace.spark.runtime.java_process import SparkLost
from headrace.spark.runtime.micro_batch import is_java_process_gone, translate_spark_error


def unreadable_type() -> PySparkRuntimeError:
    """As pyspark raises it when the Java process ends while a frame is built."""
    try:
        try:
            raise Py4JNetworkError("Answer from Java side is empty")
        except Py4JNetworkError as error:
            raise PySparkRuntimeError(errorClass="CANNOT_PARSE_DATATYPE", messageParameters={"msg": str(error)})  # noqa: B904
    except PySparkRuntimeError as found:
        return found


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        unreadable_type(),
        RuntimeError("Python worker exited unexpectedly (crashed)"),
    ],
)
def test_an_ended_process_is_a_transient_error(error: Exception) -> None:
    assert isinstance(translate_spark_error(error), SparkLost)


def test_spark_errors_without_a_lost_java_are_definite() -> None:
    alone = PySparkRuntimeError(errorClass="CANNOT_PARSE_DATATYPE", messageParameters={"msg": "no such type"})
    assert not is_java_process_gone(alone)
    assert isinstance(translate_spark_error(alone), DefiniteError)
    ours = TransientError("the sink is away")
    found = translate_spark_error(RuntimeError(f"java.io.EOFException {encode_error(ours)}"))
    assert (type(found), found.message) == (TransientError, "the sink is away")
