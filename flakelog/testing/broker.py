"""`Broker`: a test's handle of a broker that runs in another process."""

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flakelog.testing.arguments import Topics, check_broker, parsed_settings, parsed_topics
from flakelog.testing.node import Node
from flakelog.testing.process import BrokerError
from flakelog.testing.security import PLAINTEXT, BrokerSecurity

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.records import Record

START_SECONDS = 60.0  # on a busy machine; a broker that exits is noticed at once
LOOK_SECONDS = 0.01  # between two reads of the log

# Settings on top of --dev: free ports, and one partition for topics that a cluster spreads over fifty.
SETTINGS = {
    "listeners": f"{PLAINTEXT}://127.0.0.1:0",
    "flakelog.http.listener": "127.0.0.1:0",
    "flakelog.ids.listener": "",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
PORTS = {name: SETTINGS[name] for name in ("listeners", "flakelog.http.listener")}
OWN_OF_NODE = ("broker.id", "node.id", "listeners", "advertised.listeners", "flakelog.http.listener")


class Broker:
    """A broker in a separate process, which ends when it is closed or when this program ends.

    With `nodes`, it is a cluster of so many brokers, each in a process of its own: 1 to `nodes` are their ids, which
    `kill`, `restart`, `stall` and `resume` take. Without an id these do it to all of them. Faults on demand are for
    each node that runs.

    `settings` are a server's, by name (`flakelog settings` lists them). `directory` keeps the data; without one, the
    data is in a temporary directory, which is removed at the end. `start_seconds` limits the time of a start. `start`
    raises DidNotStart, with the broker's log, if something is wrong.

    `security` is the protocol of its listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A throw-away authority signs
    its certificate, and a user can log in by PLAIN and SCRAM. `client_properties` are what a client needs for that.
    """

    def __init__(
        self,
        topics: Topics | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        start_seconds: float = START_SECONDS,
        nodes: int = 1,
        security: str = PLAINTEXT,
    ) -> None:
        check_broker(nodes, start_seconds)
        own_settings = parsed_settings("settings", settings)
        own = sorted({*OWN_OF_NODE} & own_settings.keys()) if nodes > 1 else []
        if own:
            raise ValueError(f"{', '.join(own)}: with several nodes, each has its own; leave it out")
        if security != PLAINTEXT and "listeners" in own_settings:
            raise ValueError(f"listeners: with security={security} the broker has one of its own; leave it out")
        self._security = BrokerSecurity(security)
        self._topics = parsed_topics(topics)
        self._ports = PORTS | {"listeners": f"{security}://127.0.0.1:0"}
        self._settings = SETTINGS | self._ports | own_settings
        self._directory = directory
        self._start_seconds = start_seconds
        self._home: Path | None = None
        self._number_of_nodes = nodes
        self._nodes: tuple[Node, ...] = ()
        self._client: Client | None = None

    def __enter__(self) -> "Broker":
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> "Broker":
        """Start the broker, and return when it serves. `with` calls this. Raises DidNotStart."""
        if not self._nodes:
            self._home = Path(tempfile.mkdtemp(prefix="flakelog-test-"))
            self._security.prepare(self._home)
            self._nodes = tuple(self._new_node(self._home, number + 1) for number in range(self._number_of_nodes))
        is_first = not self._nodes[0].addresses
        try:
            for node in [node for node in self._nodes if not node.process.running] or self._nodes:
                self._start(node, is_first)
            if is_first and self._is_cluster:
                self._create_topics()
        except BrokerError:
            if is_first:  # there is nothing useful to keep
                self.close()
            raise
        return self

    def _new_node(self, home: Path, number: int) -> Node:
        data = home / "data" if self._directory is None else Path(self._directory)
        cluster = data / "cluster" if self._is_cluster else None
        ports = {name: address for name, address in self._ports.items() if self._settings[name] == address}
        own = data if number == 1 else data / "nodes" / str(number)
        return Node(number, own, home / "log", ports, cluster, self._security.protocol)

    @property
    def _is_cluster(self) -> bool:
        return self._number_of_nodes > 1

    def _start(self, node: Node, is_first: bool) -> None:
        assert self._home is not None, "`start` has made it"
        arguments = self._security.arguments(self._home) if is_first else []
        for name, (partitions, config) in self._topics.items() if is_first and not self._is_cluster else ():
            values = ",".join(f"{setting}={value}" for setting, value in config.items())
            arguments += ["--topic", f"{name}:{'' if partitions is None else partitions}:{values}"]
        node.start(self._security.settings(self._home) | self._settings, arguments, self._start_seconds)
        node.process.order(do="remove", directory=str(self._home))

    def _create_topics(self) -> None:
        """Create the topics that are not there: all nodes run, so that each gets partitions."""
        client = self._connected()
        present = {topic.name for topic in client.topics()}
        for name, (partitions, config) in self._topics.items():
            if name not in present:
                client.create_topic(name, -1 if partitions is None else partitions, config)

    def close(self) -> None:
        """Stop the broker and remove its temporary files; do nothing if it is closed."""
        self._drop_client()
        for node in self._nodes:
            if self._directory is None:
                node.process.kill()
            else:
                node.process.stop()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
        for node in self._nodes:
            node.close()
        self._home, self._nodes = None, ()

    def kill(self, node: int | None = None) -> None:
        """Send SIGKILL, as in a crash. `restart` starts the broker again with the same port and data."""
        self._drop_client()
        for chosen in self._of(node):
            chosen.process.kill()

    def restart(self, node: int | None = None) -> "Broker":
        """Stop the broker cleanly if it runs, and start it with the same port and data. Faults are cleared."""
        self._drop_client()
        nodes = self._of(node)
        for stopping in nodes:
            stopping.process.stop()
        for starting in nodes:
            self._start(starting, is_first=False)
        return self

    def stall(self, node: int | None = None) -> None:
        """Freeze the broker: connections stay open and nothing is answered until `resume`."""
        for chosen in self._of(node):
            chosen.process.stall()

    def resume(self, node: int | None = None) -> None:
        """Continue after `stall`."""
        for chosen in self._of(node):
            chosen.process.resume()

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True if the broker runs, or any node of a cluster."""
        return any(node.process.running for node in self._nodes)

    @property
    def pid(self) -> int:
        """The process id, in a cluster that of the first node."""
        return self._first.process.pid

    @property
    def bootstrap_servers(self) -> str:
        """The address as `host:port`, as Kafka's clients take it; in a cluster those of all nodes, with commas."""
        return ",".join(self._address("broker", node) for node in self._nodes) or self.address

    @property
    def client_properties(self) -> dict[str, str]:
        """What a client needs to log in, under the names of Kafka's clients; {} without `security`.

        Our own clients take them as `security=`.
        """
        return self._security.client_properties()

    @property
    def librdkafka_properties(self) -> dict[str, Any]:
        """The same for the clients of confluent-kafka, as settings of librdkafka."""
        from broker.client.security.client_security import ClientSecurity
        from broker.client.security.librdkafka_settings import librdkafka_security

        return librdkafka_security(ClientSecurity.of(self.client_properties))

    @property
    def address(self) -> str:
        """The address as `host:port`, in a cluster that of the first node."""
        return self._address("broker", self._first)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def http_address(self) -> str:
        """The address of metrics and health, as `host:port`."""
        return self._address("http", self._first)

    def log(self, since: int = 0) -> str:
        """Return the broker's log of all its runs, or the part since a `mark`."""
        return self._first.process.log.read_bytes()[since:].decode(errors="replace")

    def mark(self) -> int:
        """Return the end of the log, as a position for `log` and `wait_for_log`."""
        return self._first.process.log.stat().st_size

    def wait_for_log(self, text: str, seconds: float = 10.0, since: int = 0) -> str:
        """Return the first line of the log with this text; raise TimeoutError, with the log, if none comes in time."""
        end = time.monotonic() + seconds
        while True:
            log = self.log(since)
            for line in log.splitlines():
                if text in line:
                    return line
            if time.monotonic() > end:
                raise TimeoutError(f"no {text!r} in the broker's log within {seconds} s:\n{log}")
            time.sleep(LOOK_SECONDS)

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, object] | None = None,
        *,
        replication_factor: int = -1,
    ) -> str:
        """Create a topic and return its name; raise broker.client.errors.BrokerError.

        For -1 the broker takes its `num.partitions` or `default.replication.factor`. The request is like any client's,
        so pending faults apply to it too.
        """
        properties = parsed_settings("config", config)
        self._connected().create_topic(name, partitions, properties, replication_factor=replication_factor)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        self._connected().delete_topic(name)

    def records(self, topic: str, partition: int | None = None) -> "list[Record]":
        """Return all present records of a topic, or of one partition.

        They are in order of partition and offset, and include those of transactions that were not committed. Each has
        offset, id, timestamp_ms, key, value and headers.
        """
        client = self._connected()
        every = range(client.topic(topic).partitions) if partition is None else (partition,)
        return [record for number in every for record in _read_all(client, topic, number)]

    def _connected(self) -> "Client":
        if self._client is None:
            from broker.client.blocking import Client

            self._client = Client(self.bootstrap_servers, security=self.client_properties)
        return self._client

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    # --- failures on demand --------------------------------------------------------------------------------------

    def fail_next(self, api: str, error: str | int, times: int = 1) -> None:
        """Answer the next requests of an API with an error, and do not execute them.

        `api` is a name such as "Produce", "Fetch" or "FindCoordinator"; `error` is a name or a number of Kafka's
        protocol. The fault is queued after earlier ones. Raises ValueError if the API cannot fail with this error.
        """
        self._order(do="fail", api=api, error=error, times=times)

    def close_next(self, api: str, times: int = 1, when: str = "before") -> None:
        """Close the connections of the next requests of an API without an answer.

        `when` is "before" or "after" the request is carried out; a client cannot know which it was.
        """
        self._order(do="close", api=api, when=when, times=times)

    def delay(self, api: str, ms: int, times: int | None = None) -> None:
        """Carry out requests of an API, but delay their answers by `ms`: the next `times`, or all until `ms` is 0."""
        self._order(do="delay", api=api, ms=ms, times=times)

    def clear_faults(self) -> None:
        """Clear all pending faults."""
        self._order(do="clear")

    def faults_left(self) -> dict[str, dict[str, int]]:
        """Return the pending faults, such as {"Produce": {"queue": 2, "delay_ms": 0}}; {} if none are pending.

        In a cluster, `queue` is the sum of all nodes that run, and `delay_ms` the longest.
        """
        pending: dict[str, dict[str, int]] = {}
        for of_node in self._order(do="left"):
            for api, faults in of_node.items():
                known = pending.setdefault(api, {"queue": 0, "delay_ms": 0})
                known["queue"] += faults["queue"]
                known["delay_ms"] = max(known["delay_ms"], faults["delay_ms"])
        return pending

    def heal(self) -> None:
        """Resume the broker, restart it if it does not run, and clear all faults. Its records stay."""
        self.resume()  # a node that starts waits for the controller, which may be stalled
        for node in self._of(None):
            if not node.process.running:
                self.restart(node.number)
        self.clear_faults()

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _first(self) -> Node:
        return self._of(None)[0]

    def _of(self, number: int | None) -> tuple[Node, ...]:
        """Return a node, or all without a number. Raise BrokerError before the start, ValueError for no node's number.
        """
        if not self._nodes:
            raise BrokerError("it is not started; use it in a `with`, or start() it")
        if number is None:
            return self._nodes
        if not 1 <= number <= len(self._nodes):
            raise ValueError(f"no node {number}: the nodes are 1 to {len(self._nodes)}")
        return (self._nodes[number - 1],)

    def _order(self, **order: Any) -> list[Any]:
        """Give an order to each node that runs; return the answers. Raise BrokerError if none runs."""
        running = [node for node in self._of(None) if node.process.running] or [self._first]
        return [node.process.order(**order) for node in running]

    def _address(self, name: str, node: Node) -> str:
        if name not in node.addresses:
            raise BrokerError(f"there is no {name} address: it is not started, or that part is off")
        return node.addresses[name]


def _read_all(client: "Client", topic: str, partition: int) -> "list[Record]":
    from broker.client.core import EARLIEST, LATEST

    offset, end = (client.find_offset(topic, partition, side) for side in (EARLIEST, LATEST))
    records_read: list[Record] = []
    while offset < end:
        records, following = client.fetch(topic, partition, offset)
        records_read += records
        if following <= offset:
            break
        offset = following
    return records_read
