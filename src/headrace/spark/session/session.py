"""Starts Spark sessions: without log output, with little memory, and with short micro-batches."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import DefiniteError, HeadraceError
from headrace.retry import WAITING, bind_context, current_wait
from headrace.shortage import SPARK_FILES, check_file_limit
from headrace.shutdown import abandonable
from headrace.spark.runtime import java_process
from headrace.spark.runtime.cluster import (
    HeadraceSparkSettings,
    await_executors,
    check_executors,
    choose_executor_python,
    cluster_settings,
    count_task_slots,
    effective_master,
    is_local,
    java_bind_address,
    submitted_settings,
    watch_executors,
)
from headrace.spark.runtime.fork_server import FORKABLE, python_script
from headrace.spark.runtime.java_process import GONE_ERRORS, SparkLost
from headrace.spark.runtime.worker_daemon import PRELOAD_VARIABLE, SPARK_VARIABLE
from headrace.spark.runtime.worker_logs import ProcessOutput
from headrace.spark.session.dependency_archive import build_archives
from headrace.stage_report import enter_stage, report_stages

log = logging.getLogger("headrace")

_WORKER_MODULES = ("pandas", "pyspark.worker", "pyspark.sql.pandas.serializers", "headrace.runtime.tasks")

_STARTS = 3
_SLOW_S, _START_S = 30.0, 600.0
"""When to warn about a slow start, and when to give it up."""
_SECRET = re.compile(r"secret|password|passphrase|token|access[.]?key|credential", re.IGNORECASE)

_LOG4J = """rootLogger.level = {level}
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = spark %p %c{{1}}: %m%n%ex
"""


@report_stages("starting Spark")
def start_session(
    master: str,
    state_dir: Path,
    *,
    spark_log: bool,
    preload: Sequence[str] = (),
    memory: str = "768m",
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session with its scratch files under `state_dir`; its workers import `preload` when they start.

    `more` are further settings of Spark's, such as `connector.kafka_settings`. On a cluster, the function returns when executors have
    started and can run Headrace's tasks.
    """
    check_file_limit("Spark", SPARK_FILES)
    scratch = state_dir / "spark"
    scratch.mkdir(parents=True, exist_ok=True)
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level="warn" if spark_log else "off"))
    requested = {**submitted_settings(), **(more or {})}
    own = HeadraceSparkSettings.parse(requested)
    chosen = effective_master(master, requested)
    settings = {**_configuration(scratch, log4j, memory), **_build_settings(chosen, scratch, own, preload, requested)}
    is_new, runs_already = SparkContext._active_spark_context is None, SparkContext._gateway is not None
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    session = _start_with_retries(chosen, settings, spark_log=spark_log)
    session.sparkContext.setLogLevel("WARN" if spark_log else "OFF")
    if runs_already and "spark.jars" in requested:
        _add_jars(session, requested["spark.jars"].split(","))
    if is_new and not is_local(chosen):
        enter_stage(f"waiting for Spark's executors on {chosen}")
        _await_usable_executors(session, own)
    return session


def _start_with_retries(master: str, settings: Mapping[str, str], *, spark_log: bool) -> SparkSession:
    """Start the session; start the Java process again if it was killed while it started."""
    runs_already = SparkContext._gateway is not None
    for attempt in range(1, _STARTS + 1):
        ear = ProcessOutput(show_all=spark_log)
        try:
            with abandonable(), ThreadPoolExecutor(1, "headrace-spark") as starter:
                # In another thread, because Spark replaces the handler of SIGINT when it is started in the main one.
                return _await_start(starter.submit(bind_context(_started), master, settings, ear))
        except (RuntimeError, *GONE_ERRORS) as error:
            # The text of an error comes from Java, so read it before Java exits.
            reason = java_process.describe_start_error(error)
            if not runs_already:
                java_process.reset_gateway()
            output = () if runs_already else ear.last_lines()
            failure = java_process.explain_start_failure(reason, output, settings.get("spark.jars.packages", ""))
            if not isinstance(failure, SparkLost) or runs_already or attempt == _STARTS or current_wait().ending:
                raise failure from error
            log.warning("%s; starting it again", failure.message)
    raise AssertionError("unreachable")


def _await_start(starting: Future[SparkSession]) -> SparkSession:
    """Wait for the start, with a warning when it takes long. Kill a start that takes too long."""
    begun = time.monotonic()
    while True:
        try:
            return starting.result(_SLOW_S)
        except TimeoutError:
            if starting.done():
                raise
            waited_s = time.monotonic() - begun
            log.warning("%sSpark's Java process has been starting for %.0f s; the machine is very busy", WAITING, waited_s)
            if waited_s > _START_S or current_wait().ending:
                java_process.kill()


def _build_settings(
    master: str, scratch: Path, own: HeadraceSparkSettings, preload: Sequence[str], requested: Mapping[str, str]
) -> dict[str, str]:
    """Set the environment of this process; return the settings that depend on where tasks run. The user's settings take precedence."""
    workers = {PRELOAD_VARIABLE: ",".join([*_WORKER_MODULES, *preload]) if preload else "", **FORKABLE}
    # Local workers and the source's process import the same Headrace as this process.
    _prepend_path(str(Path(__file__).resolve().parents[3]))
    os.environ.update(workers)
    if is_local(master):
        os.environ["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = _python(scratch)
        return {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": str(scratch), **requested}
    # Executors may have another Python. It also starts the source's process here, which needs the packages of this process.
    _prepend_path(*(path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")))
    os.environ["PYSPARK_PYTHON"] = choose_executor_python(master, requested, scratch)
    if "SPARK_LOCAL_IP" not in os.environ and (address := java_bind_address(master)):
        os.environ["SPARK_LOCAL_IP"] = address
    # For this machine only: executors have their own directories.
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)
    shipment = build_archives(own.ship, scratch / "shipped")
    sent = {**workers, SPARK_VARIABLE: pyspark.__version__, "PYTHONPATH": shipment.python_path}
    found = {f"spark.executorEnv.{name}": value for name, value in sent.items() if value}
    archives = ",".join(filter(None, [*shipment.archives, requested.get("spark.archives", "")]))
    return {**cluster_settings(master, requested), **found, **requested, **({"spark.archives": archives} if archives else {})}


def _prepend_path(*folders: str) -> None:
    """Put folders first in the import path of Spark's Python processes on this machine."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*folders, *before])))


def _started(master: str, settings: Mapping[str, str], ear: ProcessOutput) -> SparkSession:
    """Start the session. The Java process gets its settings on the command line, except secret ones."""
    options = {"spark.app.name": "headrace", **settings, "spark.master": master}
    first = SparkConf(loadDefaults=False)
    for name, value in options.items():
        if not _SECRET.search(name):
            first.set(name, value)
    try:
        if SparkContext._gateway is None:
            java_process.launch(first, ear.writing)
    finally:
        ear.close_write_end()
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _await_usable_executors(session: SparkSession, own: HeadraceSparkSettings) -> None:
    """Wait for the executors of a cluster, and check that they can run Headrace's tasks."""
    try:
        await_executors(session, own.executors_within_s)
        found = check_executors(session)
    except HeadraceError:
        session.stop()
        raise
    watch_executors(session, own.executors_within_s)
    hosts = ", ".join(sorted({one.host for one in found}))
    log.info("Spark runs %d tasks at once on %d executors: %s", count_task_slots(session), len(found), hosts)


def _python(scratch: Path) -> str:
    """Return the Python that Spark starts on this machine: this interpreter, with the installed pyspark.

    Spark puts a zip file first in the path, whose modules are compiled at every start. That costs the source's process a second of CPU, and
    it has only ten seconds to start on a busy machine.
    """
    script = scratch / "python"
    script.write_text(python_script(scratch, os.environ["PYTHONPATH"]))
    script.chmod(0o700)
    # The file system may be mounted without execute permission.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def warm_workers(session: SparkSession) -> None:
    """Start the workers' daemon in the background while the driver prepares the pipe: its imports take a second."""

    def run() -> None:
        # A pipe that ends at once stops the session during this job. (pyspark then uses a context that is None.)
        with suppress(PySparkException, *GONE_ERRORS, AttributeError):
            session.sparkContext.parallelize([0], 1).mapPartitions(lambda numbers: numbers).collect()

    threading.Thread(target=run, name="headrace-warm-up", daemon=True).start()


def _add_jars(session: SparkSession, jars: Sequence[str]) -> None:
    """Add jars to a Java process that an earlier session has started without them: only the start reads `spark.jars`."""
    java = session.sparkContext._jvm
    assert java is not None
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    while loader is not None and not loader.getClass().getName().endswith(".MutableURLClassLoader"):
        loader = loader.getParent()
    if loader is None:
        raise DefiniteError("this process started Spark without the jars that are needed now", hint="start a process of its own")
    for jar in jars:
        loader.addURL(java.java.io.File(jar).toURI().toURL())


def java_pid(session: SparkSession) -> int:
    java = session.sparkContext._jvm
    assert java is not None
    return int(java.java.lang.ProcessHandle.current().pid())


def _configuration(scratch: Path, log4j: Path, memory: str) -> dict[str, str]:
    # Exit when the heap is full: Java would otherwise continue and fail at random places.
    limits = "-XX:+ExitOnOutOfMemoryError -XX:+DisplayVMOutputToStderr -Xss1m"
    java = f"-Dlog4j2.configurationFile={log4j} {limits} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 {java_process.java_options()}"
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": java.strip(),
        "spark.sql.warehouse.dir": f"file://{(scratch / 'warehouse').resolve()}",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "headrace.spark.runtime.worker_daemon",
        # Measured: 46 ms of waiting per batch over TCP, 5 over Unix sockets.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Spark lists the files of all batches that it retains after every batch. A restart needs the last two.
        "spark.sql.streaming.minBatchesToRetain": "10",
        # The text of the plan that it makes for every batch.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.locality.wait": "0",
        "spark.task.maxFailures": "1",
        "spark.ui.showConsoleProgress": "false",
        "spark.cleaner.periodicGC.interval": "5min",
        # Renaming in the local file system without a checksum file and without forking `chmod` twice per batch.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
