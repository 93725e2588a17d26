"""Headrace's errors survive the transport through Spark's text."""

from __future__ import annotations

import traceback

import pytest

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.runtime.reports import SerializedError, decode_error, encode_error, hide_traceback, serialize_errors
from headrace.spark.frames.data_source import TableStreamReader
from headrace.spark.runtime.split_source import PlannedStreamReader

ERRORS = [
    DefiniteError("table `é` was dropped]", place="binlog.000001:4", hint='say "[yes]"\nand run again'),
    TransientError("the sink is away"),
    DefiniteError("", place="", hint=""),
    DefiniteError("poison", place="binlog.000001:4, table t", event="binlog.000001:4"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_survives_as_text(error: HeadraceError) -> None:
    text = f"Job aborted: File x.py, line 1\nCarriedError: {encode_error(error)}\n\tat org.apache.spark.Foo(Foo.scala:1)\n"
    found = decode_error(text)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found is not None
    assert found.event == error.event


def test_the_first_error_counts() -> None:
    found = decode_error(f"{encode_error(ERRORS[1])} caused by {encode_error(ERRORS[0])}")
    assert str(found) == str(ERRORS[1])


def test_other_text_holds_no_error() -> None:
    assert decode_error("java.lang.NullPointerException headrace-error[") is None


def test_only_our_errors_are_carried() -> None:
    with pytest.raises(SerializedError) as caught, serialize_errors():
        raise ERRORS[0]
    assert str(decode_error(str(caught.value))) == str(ERRORS[0])
    with pytest.raises(ZeroDivisionError), serialize_errors():
        _ = 1 // 0


def test_a_script_sees_the_message_and_no_encoded_form() -> None:
    """Spark prints an error of `format("headrace")` as a Python traceback: it ends with the plain message."""
    error = DefiniteError("no such table", place="binlog.1:4", hint="create it")
    with pytest.raises(DefiniteError) as caught, hide_traceback():
        raise error
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.endswith("DefiniteError: no such table (at binlog.1:4)\n  remedy: create it\n")
    assert "headrace-error" not in printed
    assert printed.count("no such table") == 1
    # The reader of pipes encodes errors for the driver; a script's reader does not.
    assert PlannedStreamReader._errors is serialize_errors
    assert TableStreamReader._errors is hide_traceback
