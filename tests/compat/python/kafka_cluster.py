"""An Apache Kafka of three brokers in three JVMs; the first is also the controller.

    with KafkaCluster(directory) as cluster:
        ... cluster.servers ...
        cluster.kill(3)
        cluster.start(3)

Without Kafka's jars or Java the constructor raises Unavailable.
"""

import subprocess

from benchmarks.apache import START_SECONDS, await_answer, kafka_command
from coordination.free_port import FreePort

NODES = (1, 2, 3)
JVM_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
PROPERTIES = """\
process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners}
advertised.listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
default.replication.factor=3
offsets.topic.replication.factor=3
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.num.partitions=3
transaction.state.log.min.isr=1
"""


class KafkaCluster:
    """`settings` are added to PROPERTIES, and replace them."""

    def __init__(self, directory, jvm_options=JVM_OPTIONS, settings=None):
        self._java = kafka_command(*jvm_options)
        self._settings = settings or {}
        self._directory = directory
        self._ports = {node: FreePort() for node in (0, *NODES)}
        self._processes = {}
        self.addresses = {node: self._ports[node].address for node in NODES}
        self.servers = ",".join(self.addresses.values())

    def __enter__(self):
        try:
            formats = [self._java_process(node, "format", *self._format(node)) for node in NODES]
            assert [process.wait(START_SECONDS) for process in formats] == [0] * len(NODES)
            for node in NODES:
                self.launch(node)
            for node, process in self._processes.items():
                await_answer(self.addresses[node], process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in list(self._processes):
            self.kill(node)
        for port in self._ports.values():
            port.close()

    def start(self, node):
        """Start a node that was killed, on its data, and wait for its first answer."""
        self.launch(node)
        await_answer(self.addresses[node], self._processes[node])

    def launch(self, node):
        """Start a node that was killed, without waiting for its answer."""
        self._processes[node] = self._java_process(node, "log", "kafka.Kafka", self._properties(node))

    def pid(self, node):
        return self._processes[node].pid

    def kill(self, node):
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def stop(self, node):
        """Send SIGTERM, and wait for the end of the process."""
        process = self._processes.pop(node)
        process.terminate()
        process.wait()

    def _format(self, node):
        """Return the arguments that format a node's data, and write its properties."""
        controller, address = self._ports[0], self.addresses[node]
        listeners = f"PLAINTEXT://{address}"
        if node == 1:
            listeners += f",CONTROLLER://127.0.0.1:{controller.number}"
        self._properties(node).write_text(
            PROPERTIES.format(
                roles="broker,controller" if node == 1 else "broker",
                node=node,
                controller=controller.number,
                listeners=listeners,
                address=address,
                data=self._directory / f"data-{node}",
            )
            + "".join(f"{name}={value}\n" for name, value in self._settings.items())
        )
        return "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", self._properties(node)

    def _properties(self, node):
        return self._directory / f"{node}.properties"

    def _java_process(self, node, name, *arguments):
        log = (self._directory / f"{name}-{node}").open("w")
        return subprocess.Popen([*self._java, *map(str, arguments)], stdout=log, stderr=log)
