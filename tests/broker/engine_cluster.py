"""A cluster of brokers without sockets, on one clock: real engines and members over one coordinator in memory.

    cluster = EngineCluster(3)
    cluster.client(1).ask(METADATA, 12, {"topics": None})
    cluster.at(ms)                  moves the clock, from deadline to deadline

Everything that can happen without time does so at once: operations of the coordinator, and requests between brokers,
which go as bytes over connections. `kill`, `restart`, `stop` and `expire` are the lives of a broker, and `cut` takes
away connections between two.
"""

from collections import deque
from itertools import count
from uuid import UUID

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.cluster.documents import Endpoint, Registration
from broker.log.storage.memory_storage import MemoryStorage
from broker.membership.calls import FetchCall, exchange_of_call, link_of, response_to_call
from broker.membership.cluster_identity import Membership
from broker.membership.member import Member
from broker.metadata.image import RegisteredBroker
from broker.now import Now
from broker.security.password_encoder import PlainPasswords
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import CoordinationError
from tests.broker.engine_client import CREATE_TOPICS, FIND_COORDINATOR, WALL_MS, EngineBroker

CLIENTS, BROKERS = "CLIENTS", "BROKERS"
"""The listeners of each broker."""
SESSION_MS = 6_000
ONE_COPY = {
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
}
"""Of the topics of coordinators, in clusters whose partitions have one copy."""


class ClusterNode:
    """A broker of the cluster, from its start to its death."""

    def __init__(self, cluster, broker_id, storage, boot_id="boot 1"):
        self.cluster = cluster
        self.boot_id = boot_id
        self.id = broker_id
        self.storage = storage
        self.coordinator = MemoryCoordinator(cluster.ensemble)
        self.reported = []
        endpoints = {CLIENTS: ("localhost", 9_000 + broker_id), BROKERS: ("localhost", 9_100 + broker_id)}
        registration = Registration(tuple(Endpoint(name, "PLAINTEXT", *at) for name, at in endpoints.items()), 0)
        membership = Membership(
            broker_id, registration, BROKERS, cluster.cluster_id, False, SESSION_MS, self.boot_id,
            has_authorizer="authorizer_class_name" in cluster.settings, passwords=cluster.passwords,
        )  # fmt: skip
        self.member = Member(membership, lambda line: self.reported.append(line), self._new_uuid)
        self.own = RegisteredBroker(broker_id, endpoints)
        self.broker = None
        self.links = {}
        self.is_alive = True

    def _new_uuid(self):
        return self.cluster.new_uuid()

    def open(self):
        """Open the logs, once the settings were read, and register."""
        self.broker = EngineBroker(
            self.storage, self.cluster.now_ms, membership={"member": self.member}, own=self.own, **self.cluster.settings
        )
        self.broker.reported[:0] = self.reported
        self.reported = self.broker.reported
        self.broker.after_pump = self.cluster.settle
        self.member.serve(self.cluster.now)

    def move(self):
        """Move everything that can move without time. Return True if something has moved."""
        moved = False
        now = self.cluster.now
        for event in self.coordinator.take_events():
            self.member.notified(event, now)
            moved = True
        for operation in self.member.take_operations():
            try:
                outcome = self.coordinator.execute(operation)
            except CoordinationError as error:
                outcome = error
            self.member.completed(operation, outcome, now)
            moved = True
        if self.broker is None:
            check_idle(self.member, now)
            if self.member.is_ready:
                self.open()
                moved = True
            return moved
        self.broker.pump()
        moved |= self._send_calls()
        for link in list(self.links.values()):
            for call, response in link.answers():
                self.member.called(call, response, now)
                moved = True
        return moved

    def _send_calls(self):
        calls = self.member.take_calls(self.cluster.now)
        for addressed in calls:
            self._link(addressed.call).send(addressed.call)
        if not calls:
            check_idle(self.member, self.cluster.now)
        return bool(calls)

    def fetch(self):
        """Send the requests that are due now, and return the fetches among them with their answers."""
        self.member.tick(self.cluster.now)
        self._send_calls()
        answers = [answer for link in self.links.values() for answer in link.answers()]
        return [answer for answer in answers if isinstance(answer[0], FetchCall)]

    @property
    def has_answers(self):
        """True if other brokers have answered since this one has moved."""
        return any(link.has_answers for link in self.links.values())

    def _link(self, call):
        key = call.broker_id, link_of(call)
        link = self.links.get(key)
        if link is None or link.is_closed:
            link = self.links[key] = Link(self, call.broker_id)
        return link

    def deadline_ms(self):
        deadlines = [self.member.next_deadline_ms()]
        if self.broker is not None:
            deadlines.append(self.broker.engine.next_deadline(self.cluster.now))
        return min(deadline for deadline in deadlines if deadline is not None)

    def tick(self):
        now = self.cluster.now
        self.member.tick(now)
        if self.broker is not None:
            self.broker.now_ms = now.ms
            self.broker.engine.tick(now)
            self.broker.pump()


def check_idle(member, now):
    """Ask all parts of a member for work, and assert that none has work without a mark (broker.waiting.pending).

    A part whose deadline has come is asked at the next tick.
    """
    pending = member.pending
    deadline_ms = member.next_deadline_ms()
    if deadline_ms is not None and deadline_ms <= now.ms:
        return
    if not pending.operations:
        pending.operations = True
        assert member.take_operations() == [], "a part has operations without a mark"
    if not (pending.calls or pending.fetches):
        pending.calls = pending.fetches = True
        assert member.take_calls(now) == [], "a part has calls without a mark"


class Link:
    """A connection from one broker to another. A dead peer, or a cut, ends it: its calls get no response."""

    def __init__(self, node, broker_id):
        self.node = node
        self.peer = node.cluster.nodes.get(broker_id)
        self.frames = ClientConnection(str(node.id))
        self.calls = deque()
        self.client = None
        if self.is_open:
            self.client = self.peer.broker.connect(str(node.id), listener=BROKERS)
        self.is_closed = False

    @property
    def is_open(self):
        peer, cluster = self.peer, self.node.cluster
        if peer is None or not peer.is_alive or peer.broker is None:
            return False
        return (self.node.id, peer.id) not in cluster.cut_pairs and cluster.nodes[peer.id] is peer

    @property
    def has_answers(self):
        return bool(self.calls and self.client is not None and self.client.received)

    def send(self, call):
        self.calls.append(call)
        if self.is_open and self.client is not None:
            _, data = self.frames.request(exchange_of_call(Address("localhost", 1), call))
            self.client.feed(data)

    def answers(self):
        """Return (call, response) of the calls that are answered now."""
        if not self.calls:
            return []
        if self.client is None or not self.is_open or self.client.closed:
            self.is_closed = True
            calls, self.calls = list(self.calls), deque()
            return [(call, None) for call in calls]
        data, self.client.received[:] = bytearray(self.client.received), b""
        answered = []
        for answer in self.frames.receive(memoryview(data), is_reused=False) if data else ():
            call = self.calls.popleft()
            answered.append((call, response_to_call(call, answer.body)))
        return answered


class EngineCluster:
    """Brokers 1 to `nodes`. `settings` are those of EngineBroker, and `passwords` encode those in settings."""

    def __init__(self, nodes=3, passwords=PlainPasswords(), **settings):
        self.passwords = passwords
        self.ensemble = Ensemble()
        self.cluster_id = "cluster"
        self.settings = settings
        self.now_ms = 1_000
        self.cut_pairs = set()
        self._uuids = count(1 << 64)
        self._boots = count(2)
        self._is_settling = False
        self.nodes = {broker_id: ClusterNode(self, broker_id, MemoryStorage()) for broker_id in range(1, nodes + 1)}
        self.settle()

    def new_uuid(self):
        return UUID(int=next(self._uuids))

    @property
    def now(self):
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def settle(self):
        """Let everything happen that needs no time."""
        if self._is_settling:
            return
        self._is_settling = moved = True
        try:
            while moved:
                moved = any([node.move() for node in self._alive()] + [node.has_answers for node in self._alive()])
        finally:
            self._is_settling = False

    def fetch(self, broker_id):
        """Have a broker send what is due, while nothing else moves. Return its fetches with their answers."""
        self._is_settling = True
        try:
            return self.nodes[broker_id].fetch()
        finally:
            self._is_settling = False

    def at(self, now_ms):
        """Advance the clock to `now_ms`, ticking at each deadline on the way."""
        self.settle()
        while (due_ms := min(node.deadline_ms() for node in self._alive())) <= now_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for node in self._alive():
                node.tick()
            self.settle()
        self.now_ms = now_ms
        for node in self._alive():
            if node.broker is not None:
                node.broker.now_ms = now_ms
        self.settle()

    def later(self, ms):
        self.at(self.now_ms + ms)

    def _alive(self):
        return [node for node in self.nodes.values() if node.is_alive]

    def client(self, broker_id):
        """Return a new client of a broker. Other brokers may take part in its requests."""
        return self.nodes[broker_id].broker.connect(listener=CLIENTS)

    def create(self, topic, partitions=1, assignments=(), **properties):
        """Create a topic as a client of the controller does; return its error."""
        configs = [{"name": name.replace("_", "."), "value": str(value)} for name, value in properties.items()]
        given = [{"partition_index": n, "broker_ids": [broker_id]} for n, broker_id in enumerate(assignments)]
        numbers = {"num_partitions": -1 if given else partitions, "replication_factor": -1 if given else 1}
        fields = {"name": topic, "assignments": given, "configs": configs} | numbers
        request = {"topics": [fields], "timeout": 30_000, "validate_only": False}
        answer = self.client(self.controller.id).ask(CREATE_TOPICS, 7, request)
        return answer.topics[0].error_code

    @property
    def controller(self):
        """Return the node that is the controller."""
        (node,) = [node for node in self._alive() if node.member.controller.is_active]
        return node

    # --- leaders -------------------------------------------------------------------------------------------------

    def leader_of(self, topic, partition=0):
        """Return the broker that leads a partition, as its controller decided."""
        return self.nodes[self.controller.member.image.topic(topic).partitions[partition].leader].broker

    def coordinator_of(self, transactional_id):
        return self._coordinator(1, transactional_id)

    def group_coordinator_of(self, group_id):
        return self._coordinator(0, group_id)

    def _coordinator(self, key_type, key):
        request = {"key_type": key_type, "coordinator_keys": [key]}
        (answer,) = self.client(self.controller.id).ask(FIND_COORDINATOR, 4, request).coordinators
        assert answer.error_code == 0, answer.error_message
        return self.nodes[answer.node_id].broker

    # --- lives ---------------------------------------------------------------------------------------------------

    def kill(self, broker_id):
        """Kill a broker (kill -9). Its session lives until `expire`."""
        self.nodes[broker_id].is_alive = False
        self.settle()

    def expire(self, broker_id):
        """End the session of a broker; one that lives begins another."""
        self.nodes[broker_id].coordinator.expire()
        self.settle()

    def cut_power(self, broker_id):
        """Cut the power of a broker's machine: its disk keeps synced bytes only."""
        self.kill(broker_id)
        node = self.nodes[broker_id]
        node.storage = node.storage.power_cut(lambda n: 0)
        node.boot_id = f"boot {next(self._boots)}"

    def stop(self, broker_id):
        """Stop a broker cleanly: its logs are closed, and its session ends."""
        self.nodes[broker_id].broker.services.close()
        self.kill(broker_id)
        self.expire(broker_id)

    def restart(self, broker_id, storage=None):
        """Start a broker on the directory of the one before, which is dead, or on another."""
        before = self.nodes[broker_id]
        assert not before.is_alive
        self.nodes[broker_id] = ClusterNode(self, broker_id, storage or before.storage, before.boot_id)
        self.settle()
