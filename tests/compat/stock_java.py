"""Apache Kafka's Java clients and tools behind a small face: one Java process for many tests.

    need_java()
    with StockJava() as java:
        java.ask("produce", address=server.address, topic="t", values=["a", "b"])    # ClientError when it throws
        done = java.tool("org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", server.address)

What can be asked stands in `java/Stock.java`. `make stock` brings the jars, where Maven is there.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from coordination.java import JavaNotFound, find_java
from tests.compat.stock_process import StockProcess
from tests.patience import SECONDS

HERE = Path(__file__).parent / "java"
CLASSPATH = HERE / "target" / "classpath"
# A short life: compile fast, not well; no second thread for the collector on a small machine.
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def need_java():
    """At the top of a test module, which is skipped as a whole, with the reason, where there are none."""
    if reason := missing():
        pytest.skip(reason, allow_module_level=True)


def missing():
    """Why Java's clients cannot be tried here; None when they can."""
    if not CLASSPATH.exists():
        return "Kafka's jars are not there: `make stock` brings them where Maven (mvn) is installed"
    gone = [jar for jar in CLASSPATH.read_text().strip().split(":") if not Path(jar).exists()]
    if gone:
        return f"{gone[0]} is gone: remove {CLASSPATH}, and `make stock` brings it again"
    try:
        java = find_java()
    except JavaNotFound as error:
        return str(error)
    if "jdk.compiler" not in java.modules:
        return f"{java.launcher} cannot run a source file: a JDK (17 or later) can"
    return None


class Finished(NamedTuple):
    exit: int
    stdout: str
    stderr: str


class StockJava(StockProcess):
    def __init__(self):
        options = [*JVM_OPTIONS, f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}"]
        self._launch = [find_java().launcher, *options, "-cp", CLASSPATH.read_text().strip()]
        super().__init__([*self._launch, HERE / "Stock.java"])

    def tool(self, main, *arguments, stdin=""):
        """A command-line tool, by its class, in the one process."""
        done = self.ask("tool", **{"class": main}, args=[str(each) for each in arguments], stdin=stdin)
        return Finished(**done)

    def process(self, main, *arguments):
        """A command-line tool in a process of its own, for one that works in Java's own shutdown hooks."""
        argv = [*self._launch, main, *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)
