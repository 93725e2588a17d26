"""An error of ours is the same after its way through Spark's text."""

from __future__ import annotations

import traceback

import pytest

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.spark.frames.data_source import TableStreamReader
from headrace.spark.runtime.error_transport import CarriedError, carried, decode, encode, shown
from headrace.spark.runtime.split_source import PlannedReader

ERRORS = [
    DefiniteError("table `é` was dropped]", place="binlog.000001:4", hint='say "[yes]"\nand run again'),
    TransientError("the sink is away"),
    DefiniteError("", place="", hint=""),
    DefiniteError("poison", place="binlog.000001:4, table t", event="binlog.000001:4"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_survives_as_text(error: HeadraceError) -> None:
    text = f"Job aborted: File x.py, line 1\nCarriedError: {encode(error)}\n\tat org.apache.spark.Foo(Foo.scala:1)\n"
    found = decode(text)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found is not None
    assert found.event == error.event


def test_the_first_error_counts() -> None:
    found = decode(f"{encode(ERRORS[1])} caused by {encode(ERRORS[0])}")
    assert str(found) == str(ERRORS[1])


def test_other_text_holds_no_error() -> None:
    assert decode("java.lang.NullPointerException headrace-error[") is None


def test_only_our_errors_are_carried() -> None:
    with pytest.raises(CarriedError) as caught, carried():
        raise ERRORS[0]
    assert str(decode(str(caught.value))) == str(ERRORS[0])
    with pytest.raises(ZeroDivisionError), carried():
        _ = 1 // 0


def test_a_script_sees_the_message_and_no_encoded_form() -> None:
    """What Spark prints of an error of `format("headrace")` is the traceback of a Python process: it ends with the plain message."""
    error = DefiniteError("no such table", place="binlog.1:4", hint="create it")
    with pytest.raises(DefiniteError) as caught, shown():
        raise error
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.endswith("DefiniteError: no such table (at binlog.1:4)\n  remedy: create it\n")
    assert "headrace-error" not in printed
    assert printed.count("no such table") == 1
    # The pipes' own reader still carries what the driver decodes; a script's reader does not.
    assert PlannedReader._errors is carried
    assert TableStreamReader._errors is shown
