"""Servers that are one cluster by a real ZooKeeper, and what stock clients do with them."""

import os
from contextlib import ExitStack, closing, contextmanager, suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordination.embedded_zookeeper import EmbeddedZooKeeper
from coordination.free_port import FreePort
from tests.compat.server_process import KEEP_ALL, ServerProcess
from tests.compat.tcp_proxy import TcpProxy
from tests.patience import SECONDS, until

PARTITIONS = range(6)
SESSION_MS = 4_000
ASK_SECONDS = 0.05
"""The time between two questions to brokers that have other work meanwhile."""
METADATA_SECONDS = 20
"""How long one question for the metadata waits for the broker that was asked."""
ONE_COPY = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""Of the topics of coordinators, in clusters of fewer brokers than three, and where partitions have one copy."""
SETTINGS = {
    "flakelog.http.listener": "",
    "flakelog.ids.listener": "",
    "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    **ONE_COPY,
}
THREE_BROKERS = "FLAKELOG_TEST_THREE_BROKERS"
"""The environment variable that puts three brokers in the place of one."""
ALL_PORTS = {
    "flakelog.http.listener": "127.0.0.1:0",
    "flakelog.ids.listener": "127.0.0.1:0",
    "zookeeper.session.timeout.ms": "30000",  # a busy machine ends no session
}


class Servers:
    """Brokers 1 to 3 of one chroot.

    `settings` are added to SETTINGS, and replace them. `own_settings` are for some brokers, by their numbers. `disks`
    are the SmallDisks of brokers by their numbers; without one, or with None, a broker has its data in `directory`.
    `prefixes` are commands to run brokers under, and `arguments` are more options of all. `proxied` brokers are reached
    by other brokers, and reach ZooKeeper, through the proxies `from_brokers` and `to_zookeeper`.

    A broker keeps its ports: librdkafka does not find a coordinator again that returns at another port.
    """

    def __init__(
        self,
        directory,
        zookeeper,
        stack,
        disks=None,
        settings=None,
        proxied=(),
        prefixes=None,
        own_settings=None,
        arguments=(),
    ):
        self.zookeeper = zookeeper
        self.servers = {}
        self._disks = {number: disk for number, disk in (disks or {}).items() if disk is not None}
        self.from_brokers, self.to_zookeeper = {}, {}
        for number in (1, 2, 3):
            ports = [stack.enter_context(closing(FreePort())).number for _ in range(2)]
            listeners = "PLAINTEXT://127.0.0.1:{},BROKERS://127.0.0.1:{}".format(*ports)
            own = {"broker.id": str(number), "zookeeper.connect": zookeeper, "listeners": listeners}
            own |= (own_settings or {}).get(number, {})
            if number in proxied:
                own |= self._through_proxies(number, stack, zookeeper, *ports)
            prefix = (prefixes or {}).get(number, ())
            if number in self._disks:
                (directory / str(number)).symlink_to(self._disks[number].directory)
                prefix = (*self._disks[number].prefix, *prefix)
            both = {"prefix": prefix, "arguments": arguments}
            server = _Launched(directory / str(number), SETTINGS | (settings or {}) | own, **both)
            self.servers[number] = stack.enter_context(server)
        for server in self.servers.values():
            server.launch()
        for server in self.servers.values():
            server.await_ready()
        until(lambda: len(self.brokers) == 3, "all brokers in the metadata", ASK_SECONDS)

    def _through_proxies(self, number, stack, zookeeper, clients_port, brokers_port):
        """Return the settings of a broker whose ways to and from the others can be cut."""
        hosts, slash, chroot = zookeeper.partition("/")
        self.from_brokers[number] = stack.enter_context(TcpProxy(brokers_port))
        self.to_zookeeper[number] = stack.enter_context(TcpProxy(int(hosts.rpartition(":")[2])))
        listeners = f"PLAINTEXT://127.0.0.1:{clients_port},BROKERS://127.0.0.1:{self.from_brokers[number].port}"
        ensemble = f"127.0.0.1:{self.to_zookeeper[number].port}{slash}{chroot}"
        return {"advertised.listeners": listeners, "zookeeper.connect": ensemble}

    def __getitem__(self, number):
        return self.servers[number]

    def directory(self, number, partition):
        """Return the directory that a broker has for a partition, such as "kept-1"."""
        disk = self._disks.get(number)
        return self[number].directory_of(partition) if disk is None else disk.root / partition

    @property
    def bootstrap(self):
        return ",".join(server.address for server in self.servers.values() if server.running)

    @property
    def admin(self):
        return AdminClient({"bootstrap.servers": self.bootstrap})

    @property
    def controller(self):
        """Return the number of the controller, as the living brokers say."""
        return self._metadata().controller_id

    @property
    def brokers(self):
        return self._metadata().brokers

    @property
    def topics(self):
        return self._metadata().topics

    def _metadata(self, topic=None):
        """Ask until a broker answers. librdkafka chooses one for each question, and waits for it even if it dies."""

        def ask():
            with suppress(KafkaException):
                return self.admin.list_topics(topic, timeout=METADATA_SECONDS)

        return until(ask, "the metadata")

    def create(self, topic, partitions=len(PARTITIONS)):
        """Create a topic, and wait for its leaders."""
        self.ask_for(topic, partitions)
        self.await_leaders(topic)

    def ask_for(self, topic, partitions, timeout_s=SECONDS):
        """Create a topic; raise KafkaException if it is not decided in time."""
        times = {"operation_timeout": timeout_s / 2, "request_timeout": timeout_s}
        self._administer(lambda admin: admin.create_topics([self.new_topic(topic, partitions)], **times)[topic])

    def delete(self, topics):
        """Delete topics, and wait until clients see them no more."""
        for topic in topics:
            self._administer(lambda admin, topic=topic: admin.delete_topics([topic])[topic])
        until(lambda: self.topics.keys().isdisjoint(topics), f"the end of {topics}", ASK_SECONDS)

    def _administer(self, begin):
        """Let `begin(admin)` begin an act, and wait for its end. librdkafka does not look for a new controller."""

        def is_done():
            admin = self.admin  # its future fails if it is collected
            try:
                begin(admin).result(SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_CONTROLLER:
                    raise
                return self.controller is None  # librdkafka learns of a new controller from metadata alone
            return True

        until(is_done, "the controller", ASK_SECONDS)

    def new_topic(self, topic, partitions):
        return NewTopic(topic, partitions, 1)

    def leaders(self, topic):
        """Return the leader of each partition."""
        partitions = self._metadata(topic).topics[topic].partitions
        return {number: partition.leader for number, partition in partitions.items()}

    def await_leaders(self, topic):
        until(lambda: -1 not in self.leaders(topic).values(), "a leader of each partition", ASK_SECONDS)

    def produce(self, topic, text, partitions=PARTITIONS):
        """Produce a record to each partition, and wait for all."""
        producer, errors = Producer({"bootstrap.servers": self.bootstrap}), []
        for partition in partitions:
            delivered = {"partition": partition, "on_delivery": lambda error, _: errors.append(error)}
            producer.produce(topic, f"{text}-{partition}", **delivered)
        assert producer.flush(SECONDS) == 0 and not any(errors), errors

    def transact(self, topic, text, *, commit):
        """Produce a record to each partition in one transaction, and end it."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": f"for-{topic}"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for partition in PARTITIONS:
            producer.produce(topic, f"{text}-{partition}", partition=partition)
        producer.flush(SECONDS)
        end = producer.commit_transaction if commit else producer.abort_transaction
        end(SECONDS)

    def consume(self, topic, number, group="readers", commit=True):
        """Return `number` values, read by a member of a group."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        values = []

        def read():
            values.extend(record.value().decode() for record in consumer.consume(number, 0.5) if not record.error())
            return len(values) >= number

        until(read, f"{number} records of {topic}")
        if commit:
            consumer.commit(asynchronous=False)
        consumer.close()
        return sorted(values)


class Alone(Servers):
    """A client of one server."""

    def __init__(self, server):
        self.servers = {1: server}


class _Launched(ServerProcess):
    """A server that is started beside others."""

    def __enter__(self):
        return self

    def await_ready(self):
        self._await(lambda: self._addresses or not self.running, "no ready: line")
        assert self._addresses, self.log


def values(text):
    return [f"{text}-{partition}" for partition in PARTITIONS]


# --- three brokers in the place of one -------------------------------------------------------------------------------


@contextmanager
def one_or_three(directory, settings=None):
    """Run a server for tests that do not kill it; where THREE_BROKERS says so, run three that are one cluster."""
    if not os.environ.get(THREE_BROKERS):
        with ServerProcess(directory / "data", settings) as server:
            yield server
        return
    with EmbeddedZooKeeper(directory / "zookeeper") as zookeeper, ExitStack() as stack:
        settings = KEEP_ALL | ALL_PORTS | (settings or {})
        yield OneOfThree(Servers(directory, zookeeper.hosts, stack, settings=settings))


class OneOfThree:
    """Three brokers in the place of one: programs begin at the addresses of all, and a test that looks at a process
    looks at the first."""

    def __init__(self, servers):
        self._servers = servers

    @property
    def address(self):
        return self._servers.bootstrap

    def directory_of(self, partition):
        """Return the directory of a partition on the broker that has it."""
        directories = [server.data_dir / partition for server in self._servers.servers.values()]
        return next(directory for directory in directories if directory.exists())

    def __getattr__(self, name):
        return getattr(self._servers[1], name)
