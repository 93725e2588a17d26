"""Spark's settings on a cluster, the archive for executors, and their reports; tested without a cluster."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cli.flags import parse_spark_settings
from headrace.errors import DefiniteError, TransientError
from headrace.extras import EXTRAS
from headrace.model.table_selection import Selection
from headrace.pipes.factory import check_reach
from headrace.pipes.spec import PipeSpec
from headrace.retry import WaitState, use_wait_state
from headrace.runtime.reports import Report, SplitDone, checked_reports, serialize_errors
from headrace.settings.pipe_settings import PipeSettings
from headrace.spark.runtime import worker_logs
from headrace.spark.runtime.cluster import (
    HeadraceSparkSettings,
    ShipMode,
    await_executors,
    choose_executor_python,
    cluster_settings,
    driver_host,
    effective_master,
    explain_executor_error,
    find_local_address,
    is_local,
    is_remote_master,
    java_bind_address,
)
from headrace.spark.runtime.micro_batch import RemoteTask
from headrace.spark.session.dependency_archive import SHIPPED_KERNELS, _required_distributions, build_archives
from testkit.machine.wait_condition import wait_until


def test_task_placement() -> None:
    assert [is_local(master) for master in ("local", "local[2]", "local[*]", "local[2,4]")] == [True] * 4
    assert [is_local(master) for master in ("spark://h:7077", "yarn", "k8s://https://h", "local-cluster[2,1,512]")] == [False] * 4
    assert effective_master("local[2]", {"spark.master": "spark://h:7077"}) == "spark://h:7077"
    assert effective_master("yarn", {"spark.master": "spark://h:7077"}) == "yarn"


def test_the_driver_is_where_the_master_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # A local session of another test has these settings, too.
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert find_local_address("spark://127.0.0.1:7077,127.0.0.2:7077") == "127.0.0.1"
    assert find_local_address("k8s://https://127.0.0.1:6443") == "127.0.0.1"
    assert find_local_address("yarn") == ""
    assert [is_remote_master(master) for master in ("spark://127.0.0.1:7077", "yarn")] == [False, True]
    with pytest.raises(DefiniteError, match="host cannot be found"):
        find_local_address("spark://no-such-host.invalid:7077")
    given = {"spark.driver.host": "10.1.2.3"}
    assert cluster_settings("spark://127.0.0.1:7077", given)["spark.driver.host"] == "10.1.2.3"
    assert cluster_settings("yarn", {}).get("spark.driver.host") is None
    # Java exits if it cannot resolve the machine's own name.
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.1")
    assert java_bind_address("spark://127.0.0.1:7077") == ""
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert java_bind_address("spark://127.0.0.1:7077") == driver_host("spark://127.0.0.1:7077", {}) == "127.0.0.1"
    with pytest.raises(DefiniteError, match=r"the name of this machine, no-such-host.invalid, has no address"):
        driver_host("yarn", {})
    # The remedy.
    with monkeypatch.context() as remedied:
        remedied.setenv("SPARK_LOCAL_IP", "127.0.0.3")
        assert driver_host("yarn", {}) == "127.0.0.3"
    # A disconnected executor ends (40 s) before its tasks run elsewhere (120 s), so that no task runs twice at once.
    defaults = cluster_settings("spark://127.0.0.1:7077", {})
    assert int(defaults["spark.executor.heartbeat.maxFailures"]) * 10 < 120
    assert (defaults["spark.speculation"], defaults["spark.task.maxFailures"]) == ("false", "4")


@pytest.mark.parametrize(
    ("source", "sink", "near"),
    [
        ("mysql://u:p@db/shop", "chdb:sink", "the sink"),
        ("mysql://u:p@db/shop", "clickhouse://localhost:8123/", "the sink"),
        ("mysql://127.0.0.1:3306/shop", "clickhouse://ch:8123", "the source"),
        ("mysql://u:p@db/shop", "clickhouse://ch:8123", ""),
    ],
)
def test_an_address_of_this_machine_is_none_for_a_cluster(source: str, sink: str, near: str, tmp_path: Path) -> None:
    def asked(master: str) -> PipeSpec:
        return PipeSpec(source, sink, PipeSettings(Selection(("shop.*",)), tmp_path, master=master))

    check_reach(asked("local[*]"))
    check_reach(asked("spark://127.0.0.1:7077"))
    if near:
        with pytest.raises(DefiniteError, match="on this one only") as caught:
            check_reach(asked("yarn"))
        assert near in caught.value.place
    else:
        check_reach(asked("yarn"))


def test_our_own_settings_are_checked() -> None:
    assert HeadraceSparkSettings.parse({"spark.executor.memory": "2g"}) == HeadraceSparkSettings(ShipMode.PACKAGE, False, 300.0)
    given = {"spark.headrace.ship": "env", "spark.headrace.fetch": "always", "spark.headrace.executors.within": "20s"}
    assert HeadraceSparkSettings.parse(given) == HeadraceSparkSettings(ShipMode.ENV, True, 20.0)
    for name, value in (("shp", "env"), ("ship", "all"), ("fetch", "never"), ("executors.within", "soon")):
        with pytest.raises(DefiniteError, match=f"spark.headrace.{name}"):
            HeadraceSparkSettings.parse({f"spark.headrace.{name}": value})


def test_settings_by_flag() -> None:
    assert parse_spark_settings(["spark.a=1", "spark.b=x=y", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}
    for wrong in ("executor.memory=2g", "spark.executor.memory"):
        with pytest.raises(DefiniteError, match="no setting of Spark's"):
            parse_spark_settings([wrong])
    with pytest.raises(DefiniteError) as caught:
        parse_spark_settings(["password=hidden"])
    assert "hidden" not in str(caught.value)


def test_the_executors_python_is_on_this_machine_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert choose_executor_python("yarn", {}, tmp_path) == sys.executable
    with pytest.raises(DefiniteError, match="is not on this machine") as caught:
        choose_executor_python("yarn", {"spark.pyspark.python": "/opt/nowhere/python"}, tmp_path)
    assert "bare name" in caught.value.hint
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert choose_executor_python("yarn", {"spark.pyspark.python": "python-of-theirs"}, tmp_path) == "python-of-theirs"
    found = subprocess.run(["python-of-theirs", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == sys.prefix


def test_what_is_sent_is_named_after_its_content(tmp_path: Path) -> None:
    assert build_archives(ShipMode.NONE, tmp_path).archives == ()
    first, second = build_archives(ShipMode.PACKAGE, tmp_path / "a"), build_archives(ShipMode.PACKAGE, tmp_path / "b")
    assert first.folders == second.folders
    [path] = (tmp_path / "a").iterdir()
    assert first.archives == (f"{path}#{first.python_path}",)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "there")
    assert "headrace/runtime/tasks.py" in names
    assert any(f"/{SHIPPED_KERNELS}/" in name and name.endswith(".nbc") for name in names), "compiled kernels"
    # Another interpreter runs the bytecode without the sources.
    code = "import headrace.errors as e; print(e.__file__, e.__cached__)"
    ran = subprocess.run(
        [sys.executable, "-S", "-B", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path / "there", env={}
    )
    assert all(word.startswith(str(tmp_path / "there")) for word in ran.stdout.split())


def test_required_distributions_of_tasks() -> None:
    base = _required_distributions("headrace")
    assert {"numba", "numpy", "pyarrow", "pandas", "clickhouse-connect", "pymysql"} <= base
    extras = _required_distributions("headrace", frozenset(extra.name for extra in EXTRAS))
    assert {"authlib", "confluent-kafka", "duckdb", "scylla-driver"} <= extras - base
    assert not {"chdb", "pyspark", "pytest", "ruff"} & extras


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            '(TID 3) (10.0.0.7 executor 1): java.io.IOException: Cannot run program "/opt/python": error=2',
            "no /opt/python",
            "spark.pyspark.python",
        ),
        (
            "(TID 3) (10.0.0.7 executor 1): [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
            "another version",
            "Python 3.",
        ),
        ("(TID 3) (10.0.0.7 executor 1): ModuleNotFoundError: No module named 'numba'", "no module numba", "ship=env"),
    ],
)
def test_errors_of_an_executor_are_reported(text: str, message: str, hint: str) -> None:
    fault = explain_executor_error(text, "spark://h:7077")
    assert fault is not None
    assert message in fault.message
    assert fault.place == "executor on 10.0.0.7"
    assert hint in fault.hint


class Job:
    """Ends with the given error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __call__(self, splits: Iterable[str]) -> Iterator[Report]:
        del splits
        with serialize_errors():
            logging.getLogger("headrace").warning("a task says something")
            if self.error is not None:
                raise self.error
        yield SplitDone("well")


def test_a_terminating_pipe_does_not_wait_for_executors() -> None:
    tracker = SimpleNamespace(getExecutorInfos=lambda: ["the driver's own"])
    java = SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker))
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java, master="spark://h:7077"))
    with use_wait_state(WaitState(ending=True)), pytest.raises(TransientError, match="asked to end"):
        await_executors(session, 300.0)  # type: ignore[arg-type]


def reports_of(*jobs: RemoteTask) -> list[Report]:
    return checked_reports(report for job in jobs for report in job([]))


def test_errors_come_back_as_reports_and_log_lines_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(worker_logs, "log_marked_line", heard.append)
    line = worker_logs.receive_log_lines("0.0.0.0", "127.0.0.1")
    well, passing, lasting = Job(), Job(TransientError("away")), Job(DefiniteError("wrong", place="here", hint="that"))
    assert reports_of(RemoteTask(well, line)) == [SplitDone("well")]
    with pytest.raises(TransientError, match="away"):
        reports_of(RemoteTask(well, line), RemoteTask(passing, line))
    with pytest.raises(DefiniteError, match="wrong") as caught:
        reports_of(RemoteTask(passing, line), RemoteTask(lasting, line), RemoteTask(well, line))
    assert (caught.value.place, caught.value.hint) == ("here", "that")
    wait_until(lambda: len(heard) >= 6, 10)
    assert heard == ["headrace-log WARNING / a task says something\n"] * 6
    # A line with a wrong key is ignored.
    reports_of(RemoteTask(well, worker_logs.WorkerLogAddress(line.host, line.port, "guessed")))
    time.sleep(0.2)
    assert len(heard) == 6
    # An unreachable driver does not fail the task.
    assert len(reports_of(RemoteTask(well, worker_logs.WorkerLogAddress("127.0.0.1", 1, "")))) == 1
    for handler in logging.getLogger("headrace").handlers:
        handler.close()
