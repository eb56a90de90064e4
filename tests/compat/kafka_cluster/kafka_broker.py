"""A broker of Apache Kafka 3.9.1 with ZooKeeper, in a separate process.

    need_kafka()
    with KafkaBroker(tmp_path, 1, f"{zookeeper.hosts}/chroot") as broker:
        Producer({"bootstrap.servers": broker.address})
        tool("org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", broker.address)

`make stock` downloads the jars if Maven is installed.
"""

import subprocess
from pathlib import Path

import pytest

from benchmarks.apache import SHORT_LIVED
from coordination.free_port import FreePort
from coordination.java import JavaNotFound, find_java
from tests.compat.stock_java import Finished
from tests.patience import PROGRAM_SECONDS, SECONDS, until

HERE = Path(__file__).parent
CLASSPATH = HERE / "target" / "classpath"
STARTED = "started (kafka.server.KafkaServer)"
SETTINGS = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.max.retries": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
    "num.io.threads": "3",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "zookeeper.session.timeout.ms": "6000",
}


def need_kafka():
    """Skip the whole test module with the reason if Kafka 3.9.1 cannot run. Call this at the top of the module."""
    if reason := missing():
        pytest.skip(reason, allow_module_level=True)


def missing():
    """Return why Kafka 3.9.1 cannot run here, or None if it can."""
    if not CLASSPATH.exists():
        return "Kafka 3.9.1's jars are not there: `make stock` brings them where Maven (mvn) is installed"
    missing_jars = [jar for jar in CLASSPATH.read_text().strip().split(":") if not Path(jar).exists()]
    if missing_jars:
        return f"{missing_jars[0]} is gone: remove {CLASSPATH}, and `make stock` brings it again"
    try:
        find_java()
    except JavaNotFound as error:
        return str(error)
    return None


def tool(main, *arguments):
    """Run a command-line tool of Kafka 3.9.1 by its main class."""
    argv = [*_java("log4j-tools.properties"), main, *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)


def _java(log4j):
    """Return the java command with Kafka's jars, to which the caller adds a main class."""
    options = [*SHORT_LIVED, f"-Dlog4j.configuration=file:{HERE / log4j}"]
    return [str(find_java().launcher), *options, "-cp", CLASSPATH.read_text().strip()]


class KafkaBroker:
    """A broker with one listener, which keeps its port and its directory over restarts. A context manager."""

    def __init__(self, directory, broker_id, zookeeper, settings=None):
        self.id = broker_id
        self._directory = Path(directory)
        self._port = FreePort()
        self.address = self._port.address
        own = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self._directory / "data"),
            "zookeeper.connect": zookeeper,
        }
        self._settings = SETTINGS | own | (settings or {})
        self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        self._port.close()

    def start(self):
        """Start the broker and wait until it says so. A broker that was killed starts once its session is over."""
        before = self.log.count(STARTED)
        self._launch()
        until(lambda: self.log.count(STARTED) > before or not self.running, f"broker {self.id}")
        assert self.running, self.log
        return self

    def _launch(self):
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        with (self._directory / "log").open("ab") as log:
            argv = [*_java("log4j.properties"), "kafka.Kafka", str(properties)]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def directory_of(self, partition):
        """Return the directory of a partition, such as "kept-0"."""
        return self._directory / "data" / partition

    @property
    def running(self):
        return self._process is not None and self._process.poll() is None

    @property
    def log(self):
        path = self._directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def send_signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        """Send SIGKILL. Do nothing if the process has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(SECONDS)
