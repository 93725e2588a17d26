"""A shared Java process that ends during its start; tested without Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext

from headrace.errors import DefiniteError, TransientError
from headrace.retry import WaitState, use_wait_state
from headrace.spark import spark_runtime
from headrace.spark.spark_runtime import SharedSessionProvider


class _Forks:
    is_alive = True

    def __init__(self, *_: object) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class _Starts:
    """Replaces `start_session`: runs the given steps."""

    def __init__(self, *acts: Any) -> None:
        self.acts, self.gateways = list(acts), list[Any]()

    def __call__(self, *_: object, **__: object) -> Any:
        self.gateways.append(SparkContext._gateway)
        SparkContext._gateway = SimpleNamespace(shutdown=lambda: None, proc=None)
        act = self.acts.pop(0)
        if isinstance(act, Exception):
            raise act
        return act


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedSessionProvider:
    monkeypatch.setattr(spark_runtime, "ForkServer", _Forks)
    monkeypatch.setattr(spark_runtime, "warm_workers", lambda _: None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    return SharedSessionProvider("local[1]", tmp_path)


def _session() -> Any:
    context = SimpleNamespace(_accumulatorServer=SimpleNamespace(), _jsc=None)
    return SimpleNamespace(sparkContext=context, newSession=lambda: "a session", stop=lambda: None)


def test_a_java_process_that_goes_while_it_starts_is_not_taken_for_the_next(
    shared: SharedSessionProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = _Starts(Py4JNetworkError("it was killed"), _session())
    monkeypatch.setattr(spark_runtime, "start_session", starts)
    with pytest.raises(TransientError, match="has ended"):
        shared.session(())
    assert shared.session(()) == "a session"
    assert starts.gateways == [None, None]


class _Refused(Py4JJavaError):
    """Raise the errors of Java."""

    def __init__(self, said: str) -> None:
        Exception.__init__(self, said)
        self._said = said

    def __str__(self) -> str:
        return self._said


def test_settings_that_spark_refuses_are_named_and_not_tried_again(shared: SharedSessionProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = _Starts(_Refused("spark.driver.memory must be a size, not lots"), _session())
    monkeypatch.setattr(spark_runtime, "start_session", starts)
    with pytest.raises(DefiniteError, match="must be a size, not lots"):
        shared.session(())
    shared.session(())
    assert starts.gateways == [None, None]


def test_what_started_once_and_does_not_now_is_tried_again(shared: SharedSessionProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = _Starts(DefiniteError("no Java"), _session(), DefiniteError("out of memory"), _session())
    monkeypatch.setattr(spark_runtime, "start_session", starts)
    with pytest.raises(DefiniteError, match="no Java"):
        shared.session(())
    shared.session(())
    with pytest.raises(TransientError, match="out of memory"):
        shared.session(())
    assert shared.session(()) == "a session"


def test_a_terminating_pipe_does_not_wait_for_another_start(shared: SharedSessionProvider) -> None:
    shared._lock.acquire()
    with use_wait_state(WaitState(ending=True)), pytest.raises(TransientError, match="asked to end"):
        shared.session(())
    shared._lock.release()


def test_the_error_of_a_failed_java_start_is_reported(tmp_path: Path) -> None:
    """In another process: this one may have a Java already."""
    code = f"""
import subprocess
import sys
from pathlib import Path
from headrace.spark.session.session import start_session
start_session("local[1]", Path({str(tmp_path)!r}), spark_log=False, memory="7z")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DefiniteError: Spark cannot start" in ran.stderr
    assert "Java says: Invalid maximum heap size: -Xmx7z" in ran.stderr
