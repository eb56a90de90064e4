"""Apache Kafka as a peer: one node, a JVM with 1 GiB of heap and the options of Kafka's start script.

The tests use the same jars; `make stock` fetches them if Maven is installed. The same broker serves a whole run of the
benchmarks, because a JVM is slow in its first seconds. Each row warms it up further.
"""

import atexit
import functools
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.measure import Scale, cpu_seconds
from benchmarks.native import Unavailable
from coordination.free_port import FreePort
from coordination.java import JavaNotFound, find_java
from tests.compat.raw_connection import RawConnection, frame

JAVA_FILES = Path(__file__).parent.parent / "tests" / "compat" / "java"
CLASSPATH = JAVA_FILES / "target" / "classpath"
JVM_OPTIONS = (
    "-Xmx1g",
    "-Xms1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
UNVERIFIED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
SHORT_LIVED = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *UNVERIFIED)
"""For a JVM that lives briefly on a small machine: it compiles fast, does not verify the bytecode of the jars, and runs
no threads that collect garbage."""
NAME = "Apache Kafka"
API_VERSIONS = 18
_KEPT: list[FreePort] = []  # keeps the ports of running brokers from being handed out again
START_SECONDS = 120


class Peer(NamedTuple):
    """A server to measure, or the brokers of a cluster, whose addresses have commas between them."""

    address: str
    pid: int
    other_pids: tuple[int, ...] = ()
    """The processes of the other brokers of a cluster."""

    @property
    def pids(self) -> tuple[int, ...]:
        return self.pid, *self.other_pids

    def cpu_seconds(self) -> float:
        """Read the processor time that all its processes have used."""
        return sum(map(cpu_seconds, self.pids))


def kafka_command(*jvm_options: str) -> list[str]:
    """Return the java command with Apache Kafka's jars, to which the caller adds a main class. Raises Unavailable."""
    return java_command(CLASSPATH, "Apache Kafka", *jvm_options)


def java_command(classpath: Path, product: str, *jvm_options: str) -> list[str]:
    """Return the java command with the jars of a product, whose paths a file has. Raises Unavailable."""
    if not classpath.exists():
        raise Unavailable(f"{product}'s jars are not there: `make stock` brings them where Maven (mvn) is installed")
    jars = classpath.read_text().strip()
    missing = [jar for jar in jars.split(":") if not Path(jar).exists()]
    if missing:
        raise Unavailable(f"{missing[0]} is gone: remove {classpath}, and `make stock` brings it again")
    try:
        java = find_java().launcher
    except JavaNotFound as error:
        raise Unavailable(str(error)) from None
    return [str(java), *jvm_options, f"-Dlog4j2.configurationFile={JAVA_FILES / 'log4j2.xml'}", "-cp", jars]


def start_kafka(
    directory: Path, settings: Mapping[str, str] = MappingProxyType({}), jvm_options: Sequence[str] = JVM_OPTIONS
) -> tuple[float, subprocess.Popen[str]]:
    """Start a broker on fresh data in `directory`, without waiting for it. Raises Unavailable.

    Returns the time.perf_counter() of the start, after the data was formatted, and the process. The file
    `directory`/address has the broker's address. It keeps records of any age, because many of the tests' records have
    old timestamps. `settings` are added to those of the benchmarks, and replace them.
    They may name the ports `{broker}` and `{controller}`. The tests start brokers that are SHORT_LIVED.
    """
    tool, server = kafka_command(*SHORT_LIVED), kafka_command(*jvm_options)
    broker, controller = FreePort(), FreePort()
    _KEPT.extend((broker, controller))
    (directory / "address").write_text(broker.address)
    properties = directory / "server.properties"
    ports = {"broker": broker.number, "controller": controller.number}
    lines = [f"{name}={value}\n" for name, value in settings.items()]  # of two lines for a name the last counts
    properties.write_text((_PROPERTIES + "".join(lines)).format(**ports, data=directory / "data"))
    storage = [*tool, "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(properties)]
    subprocess.run(storage, check=True, capture_output=True, timeout=START_SECONDS)
    log = (directory / "log").open("w")
    broker_argv = [*server, "kafka.Kafka", str(properties)]
    return time.perf_counter(), subprocess.Popen(broker_argv, stdout=log, stderr=log, text=True)


def await_answer(address: str, process: subprocess.Popen[str]) -> None:
    """Wait until the broker answers ApiVersions. Raises Unavailable when the process ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with RawConnection(address) as connection:
                connection.socket.sendall(frame(API_VERSIONS, 0, 1, b"", flexible=False))
                connection.read_frame()
                return
        except (OSError, EOFError, AssertionError):
            time.sleep(0.005)
    raise Unavailable("Apache Kafka did not start")


def kafka(scale: Scale) -> dict[str, Peer]:
    """Return {NAME: the broker}, which the first call starts; {} where Kafka is not measured or not installed."""
    if not scale.kafka or why_not() is not None:
        return {}
    return {NAME: _running()}


@functools.cache
def why_not() -> str | None:
    """Return the reason why Apache Kafka cannot be measured, or None."""
    try:
        _running()
    except Unavailable as error:
        return str(error)
    return None


@functools.cache
def _running() -> Peer:
    return run_kafka()


def run_kafka(settings: Mapping[str, str] = MappingProxyType({})) -> Peer:
    """Run a broker to the end of this process. `settings` are those of `start_kafka`. Raises Unavailable."""
    directory = Path(mkdtemp(prefix="flakelog-bench-kafka-"))
    _, process = start_kafka(directory, settings)

    def stop() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    address = (directory / "address").read_text()
    await_answer(address, process)
    return Peer(address, process.pid)


_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.retention.ms=-1
log.segment.delete.delay.ms=0
log.cleaner.backoff.ms=1000
"""
