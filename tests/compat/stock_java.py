"""Apache Kafka's Java clients and tools behind a small interface: one Java process for many tests.

    need_java()
    with StockJava() as java:
        java.ask("produce", address=server.address, topic="t", values=["a", "b"])    # ClientError when it throws
        done = java.tool("org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", server.address)

`java/Stock.java` lists the calls. `make stock` downloads the jars if Maven is installed.
"""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.apache import CLASSPATH, JAVA_FILES, SHORT_LIVED, kafka_command
from benchmarks.native import Unavailable
from coordination.java import find_java
from tests.compat.stock_process import StockProcess
from tests.patience import SECONDS

SOURCE = JAVA_FILES / "Stock.java"


def need_java():
    """Skip the whole test module with the reason if Java's clients are missing. Call this at the top of the module."""
    if reason := missing():
        pytest.skip(reason, allow_module_level=True)


def missing():
    """Return why Java's clients cannot be tested here, or None if they can."""
    try:
        kafka_command()
    except Unavailable as error:
        return str(error)
    java = find_java()
    if "jdk.compiler" not in java.modules:
        return f"{java.launcher} cannot compile: a JDK (17 or later) can"
    return None


def compiled():
    """Return the directory of Stock.java's classes. The first call after a change of the file compiles it.

    To compile it takes five times as long as to start it, and many test files start it.
    """
    digest = hashlib.sha256(SOURCE.read_bytes() + CLASSPATH.read_bytes()).hexdigest()[:12]
    classes = CLASSPATH.with_name(f"stock-{digest}")
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=classes.parent) as scratch:
            new = Path(scratch, "classes")
            _, *options = kafka_command()
            compiler = [find_java().launcher.with_name("javac"), "-d", new, *options[options.index("-cp") :], SOURCE]
            subprocess.run(compiler, check=True, timeout=SECONDS)
            try:
                os.rename(new, classes)
            except OSError:
                assert classes.exists()  # another test process was faster
    return classes


class Finished(NamedTuple):
    exit: int
    stdout: str
    stderr: str


class StockJava(StockProcess):
    def __init__(self, *jvm_options):
        *options, jars = kafka_command(*SHORT_LIVED, *jvm_options)
        self._launch = [*options, f"{jars}:{compiled()}"]
        super().__init__([*self._launch, "Stock"])

    def tool(self, main, *arguments, stdin=""):
        """Run a command-line tool by its main class in the shared process."""
        done = self.ask("tool", **{"class": main}, args=[str(argument) for argument in arguments], stdin=stdin)
        return Finished(**done)

    def process(self, main, *arguments):
        """Run a command-line tool in a separate process, for a tool that works in Java's own shutdown hooks."""
        argv = [*self._launch, main, *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)
