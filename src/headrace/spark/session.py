"""The Spark session: quiet, small, and quick in its micro-batches."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import DefiniteError
from headrace.spark.archive import java_options
from headrace.spark.daemon import PRELOAD_VARIABLE
from headrace.spark.forking import python_script
from headrace.spark.logs import forwarded_errors

_WORKER_MODULES = ("pandas", "pyspark.worker", "pyspark.sql.pandas.serializers", "headrace.spark.tasks")

_LOG4J = """rootLogger.level = {level}
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = spark %p %c{{1}}: %m%n%ex
"""


def start_session(
    master: str,
    state_dir: Path,
    *,
    spark_log: bool,
    preload: Sequence[str] = (),
    memory: str = "768m",
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with its scratch files under `state_dir`; its workers start with `preload` imported, its log is silent unless asked for.

    `more` are further settings of Spark's, such as `connector.kafka_settings`.
    """
    scratch = state_dir / "spark"
    scratch.mkdir(parents=True, exist_ok=True)
    settings = scratch / "log4j2.properties"
    settings.write_text(_LOG4J.format(level="warn" if spark_log else "off"))
    os.environ["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ[PRELOAD_VARIABLE] = ",".join([*_WORKER_MODULES, *preload]) if preload else ""
    # Libraries that would start threads when they are imported: the workers' daemon imports them, and must be able to fork.
    os.environ.update(OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false")
    # Workers and the source's process import our package from where we did.
    package_root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    os.environ["PYSPARK_PYTHON"] = _python(master, scratch)
    builder = SparkSession.builder.appName("headrace").master(master)
    for name, value in {**_configuration(scratch, settings, memory), **(more or {})}.items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    runs_already = SparkContext._gateway is not None
    try:
        with forwarded_errors(show_all=spark_log), _own_interrupts():
            session = builder.getOrCreate()
    except RuntimeError as error:
        remedy = "install a Java 17 runtime (Debian: apt-get install openjdk-17-jre-headless)"
        if more and "spark.jars.packages" in more:
            wanted = more["spark.jars.packages"]
            remedy = f"see with --spark-log why {wanted} cannot be had; or give a folder of jars: --kafka-jars DIR. Without Java, {remedy}"
        raise DefiniteError(f"Spark cannot start: {error}", hint=remedy) from error
    session.sparkContext.setLogLevel("WARN" if spark_log else "OFF")
    if runs_already and more and "spark.jars" in more:
        _add_jars(session, more["spark.jars"].split(","))
    return session


def _python(master: str, scratch: Path) -> str:
    """What Spark starts as Python: ours, with pyspark imported from where it is installed.

    Spark puts a zip file first in the path, whose modules are compiled at every start: a second of CPU for the source's process, which has
    ten seconds to start, however busy the machine is.
    """
    if not master.startswith("local"):
        return sys.executable
    script = scratch / "python"
    script.write_text(python_script(scratch, os.environ["PYTHONPATH"]))
    script.chmod(0o700)
    # A file system may forbid it.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def warm_workers(session: SparkSession) -> None:
    """Start the workers' daemon in the background, while the driver still prepares: importing our packages takes it a second."""

    def run() -> None:
        # A pipe that ends at once stops the session under this job; nobody waits for it.
        with suppress(PySparkException, Py4JError):
            session.range(1).mapInArrow(_pass_through, "id long").collect()

    threading.Thread(target=run, name="headrace-warm-up", daemon=True).start()


def _pass_through(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def _add_jars(session: SparkSession, jars: Sequence[str]) -> None:
    """Jars for a Java process that was started without them, by an earlier session: only the start reads `spark.jars`."""
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
    """The process id of the session's Java part."""
    java = session.sparkContext._jvm
    assert java is not None
    return int(java.java.lang.ProcessHandle.current().pid())


def _configuration(scratch: Path, log4j: Path, memory: str) -> dict[str, str]:
    java = f"-Dlog4j2.configurationFile={log4j} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss1m {java_options()}"
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": java.strip(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "headrace.spark.daemon",
        # Measured: 46 ms of waiting per batch over TCP, 5 over Unix sockets.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
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


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps Ctrl-C with whoever had it: Spark would take it to cancel every job and break off the batch under way."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
