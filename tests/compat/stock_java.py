"""Apache Kafka's Java clients and tools behind a small interface: one Java process for many tests.

    need_java()
    with StockJava() as java:
        java.ask("produce", address=server.address, topic="t", values=["a", "b"])    # ClientError when it throws
        done = java.tool("org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", server.address)

`java/Stock.java` lists the calls. `make stock` downloads the jars if Maven is installed.
"""

import subprocess
from typing import NamedTuple

import pytest

from benchmarks.apache import JAVA_FILES, SHORT_LIVED, kafka_command
from benchmarks.native import Unavailable
from coordination.java import find_java
from tests.compat.stock_process import StockProcess
from tests.patience import SECONDS


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
        return f"{java.launcher} cannot run a source file: a JDK (17 or later) can"
    return None


class Finished(NamedTuple):
    exit: int
    stdout: str
    stderr: str


class StockJava(StockProcess):
    def __init__(self, *jvm_options):
        self._launch = kafka_command(*SHORT_LIVED, *jvm_options)
        super().__init__([*self._launch, JAVA_FILES / "Stock.java"])

    def tool(self, main, *arguments, stdin=""):
        """Run a command-line tool by its main class in the shared process."""
        done = self.ask("tool", **{"class": main}, args=[str(each) for each in arguments], stdin=stdin)
        return Finished(**done)

    def process(self, main, *arguments):
        """Run a command-line tool in a separate process, for a tool that works in Java's own shutdown hooks."""
        argv = [*self._launch, main, *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)
