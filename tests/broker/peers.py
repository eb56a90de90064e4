"""Several EngineBrokers that ask each other over connections, with encoded requests and responses.

    cluster = PeerCluster()
    cluster.create("flights", leaders=(1, 2, 3))
    producer = ClusterProducer(cluster)

`PeerCluster` applies each change of topics and brokers to all brokers, as their controller would. It delivers requests
between brokers at once, unless the test holds or loses them.
"""

import io
from collections import Counter
from dataclasses import replace
from uuid import UUID

from kio.serial import entity_writer

from broker.group.offset_records import partition_of
from broker.log.new_logs import NewLog
from broker.membership.peer_calls import PeerCalls
from broker.metadata.change import Change
from broker.metadata.image import RegisteredBroker
from broker.metadata.staged import Staged
from broker.metadata.topic import GROUP_OFFSETS_TOPIC, NO_LEADER, TRANSACTIONS_TOPIC, PartitionState, Topic
from broker.waiting.pending import Pending
from broker.wire import cold
from broker.wire.frame import request_header
from broker.wire.primitives import skip_tags
from tests.broker.engine_client import EngineBroker
from tests.broker.transactional import TransactionalProducer

BETWEEN = "BETWEEN"
"""The listener of requests between brokers."""
STEP_MS = 100
MEMBERSHIP = {"inter_broker_listener": BETWEEN}


class PeerBroker(EngineBroker):
    """A broker of a PeerCluster."""

    def __init__(self, cluster, node_id, storage=None, now_ms=1_000, **settings):
        self.cluster = None
        membership = MEMBERSHIP | {"peer_calls": PeerCalls(Pending())}
        own = RegisteredBroker(node_id, {"": ("localhost", 9091 + node_id)})
        super().__init__(storage, now_ms, own=own, membership=membership, **settings)
        ids = self.services.producer_ids
        ids.add(range(node_id * 100_000 + now_ms, node_id * 100_000 + now_ms + 1_000))  # no other life has these
        self.cluster = cluster

    def pump(self):
        super().pump()
        if self.cluster is not None and not self._in_turn:
            self.cluster.deliver()


class PeerCluster:
    """Brokers 1 to `number`. The clock of all of them is moved with `at`.

    `held` has the requests that are not delivered while `holds` returns True for them; `release` delivers them.
    `lost_requests` and `lost_answers` count by API key how many of the next ones get lost.
    """

    def __init__(self, number=3, **settings):
        self.settings = {"offsets_topic_num_partitions": 3, "transaction_state_log_num_partitions": 3} | settings
        self.holds = self.holds_answer = lambda call: False
        self.held, self.held_answers = [], []
        self.lost_requests, self.lost_answers = Counter(), Counter()
        self.delivered = Counter()
        """How many requests were delivered, by API key."""
        self._topics = {}
        self._connections = {}
        self._under_way = {}
        self._ids = iter(range(1, 1_000_000))
        self._delivering = False
        self.brokers = {}
        for node_id in range(1, number + 1):
            self.brokers[node_id] = PeerBroker(self, node_id, **self.settings)
        self._register()
        leaders = tuple(self.brokers)
        self.create(GROUP_OFFSETS_TOPIC, leaders)
        self.create(TRANSACTIONS_TOPIC, leaders)

    # The decisions of the controller

    def _register(self):
        live = [RegisteredBroker(node_id, {"": ("localhost", 9091 + node_id)}) for node_id in self.brokers]
        for broker in self.brokers.values():
            broker.services.metadata.register(live)

    def create(self, name, leaders):
        """Create a topic with a partition for each of `leaders`."""
        states = tuple(PartitionState(leader, 0, (leader,), (leader,)) for leader in leaders)
        topic = self._topics[name] = Topic(name, UUID(int=len(self._topics) + 1), states)
        for node_id, broker in self.brokers.items():
            config = broker.services.config_of(topic)
            led = [number for number, leader in enumerate(leaders) if leader == node_id]
            logs = {(name, partition): NewLog(config, topic.id) for partition in led}
            broker.change(Staged(Change({name: topic}), logs))
        while any(broker.services.logs.to_make for broker in self.brokers.values()):
            self.later(STEP_MS)

    def delete(self, name):
        self._topics.pop(name)
        self._apply(Change({name: None}))

    def lead(self, name, partition, leader):
        """Let a partition have another leader, or none, in its next epoch."""
        topic = self._topics[name]
        states = list(topic.partitions)
        states[partition] = states[partition]._replace(leader=leader, leader_epoch=states[partition].leader_epoch + 1)
        self._decide(replace(topic, partitions=tuple(states)))

    def _decide(self, topic):
        self._topics[topic.name] = topic
        self._apply(Change({topic.name: topic}))

    def _apply(self, change):
        for broker in self.brokers.values():
            broker.change(Staged(change))

    def leader_of(self, topic, partition=0):
        return self.brokers[self._topics[topic].partitions[partition].leader]

    def coordinator_of(self, transactional_id):
        return self.leader_of(TRANSACTIONS_TOPIC, partition_of(transactional_id, 3))

    def group_coordinator_of(self, group_id):
        return self.leader_of(GROUP_OFFSETS_TOPIC, partition_of(group_id, 3))

    # Lives

    def kill(self, node_id):
        """End a broker. The others hear of it: its partitions have no leader."""
        dead = self.brokers.pop(node_id)
        for pair in [pair for pair in self._connections if node_id in pair]:
            del self._connections[pair]
        for key, (sender, call, _) in list(self._under_way.items()):
            if sender.node_id == node_id or call.broker_id == node_id:
                del self._under_way[key]
        self._register()
        for topic in list(self._topics.values()):
            for partition, state in enumerate(topic.partitions):
                if state.leader == node_id:
                    self.lead(topic.name, partition, NO_LEADER)
        for broker in self.brokers.values():
            broker.services.peer_calls.lost(node_id, broker.now)
            broker.pump()
        return dead

    def restart(self, dead):
        """Begin the next life of a broker on its files; it leads its partitions again."""
        self.brokers[dead.node_id] = PeerBroker(self, dead.node_id, dead.storage, self.now_ms, **self.settings)
        self._register()
        for topic in list(self._topics.values()):
            self._decide(topic)
            for partition, state in enumerate(topic.partitions):
                if state.replicas == (dead.node_id,):
                    self.lead(topic.name, partition, dead.node_id)

    # Time and requests

    @property
    def now_ms(self):
        return max(broker.now_ms for broker in self.brokers.values())

    def at(self, now_ms):
        """Advance the clock of all brokers, a step at a time."""
        while self.now_ms < now_ms:
            next_ms = min(now_ms, self.now_ms + STEP_MS)
            for broker in list(self.brokers.values()):
                broker.at(next_ms)
                broker.pump()

    def later(self, ms):
        self.at(self.now_ms + ms)

    def release(self):
        """Deliver the held requests and answers, and hold no more."""
        self.holds = self.holds_answer = lambda call: False
        held, self.held = self.held, []
        answers, self.held_answers = self.held_answers, []
        for sender, call in held:
            self._send(sender, call)
        for sender, call, response in answers:
            sender.engine.called(call, response, sender.now)
            sender.pump()
        self.deliver()

    def deliver(self):
        """Deliver all requests between the brokers, and all responses."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._deliver_some():
                pass
        finally:
            self._delivering = False

    def _deliver_some(self):
        taken = [(sender, call) for sender in self.brokers.values() for call in sender.services.peer_calls.take()]
        for sender, call in taken:
            if self.holds(call):
                self.held.append((sender, call))
            else:
                self._send(sender, call)
        return self._receive() or bool(taken)

    def _send(self, sender, call):
        request = call.request
        key, version = int(request.__api_key__), int(request.__version__)
        receiver = self.brokers.get(call.broker_id)
        if receiver is None or self.lost_requests[key] > 0:
            self.lost_requests[key] -= receiver is not None
            sender.engine.called(call, None, sender.now)
            sender.pump()
            return
        self.delivered[key] += 1
        client = self._connections.get((sender.node_id, receiver.node_id))
        if client is None:
            client = receiver.connect(f"broker-{sender.node_id}", listener=BETWEEN)
            self._connections[sender.node_id, receiver.node_id] = client
        correlation_id, body = next(self._ids), io.BytesIO()
        entity_writer(type(request))(body, request)
        header = request_header(key, version, correlation_id, f"broker-{sender.node_id}", request.__flexible__)
        frame = header + body.getvalue()
        self._under_way[correlation_id] = sender, call, client
        client.feed(len(frame).to_bytes(4, "big") + frame)

    def _receive(self):
        received = False
        for client in list(self._connections.values()):
            assert client.closed is None, client.closed
            while len(client.received) >= 4:
                size = int.from_bytes(client.received[:4], "big")
                frame = memoryview(bytes(client.received[4 : 4 + size]))
                del client.received[: 4 + size]
                received = True
                self._take(frame)
        return received

    def _take(self, frame):
        sender, call, _ = self._under_way.pop(int.from_bytes(frame[:4], "big"))
        request = call.request
        key, version = int(request.__api_key__), int(request.__version__)
        position = skip_tags(frame, 4) if request.__flexible__ else 4
        response = cold.decode(key, version, "response", frame, position, version).original
        if self.lost_answers[key] > 0:
            self.lost_answers[key] -= 1
            response = None
        if self.holds_answer(call):
            self.held_answers.append((sender, call, response))
            return
        sender.engine.called(call, response, sender.now)
        sender.pump()


class ClusterProducer(TransactionalProducer):
    """A transactional producer that sends each request to the broker which it is for."""

    def __init__(self, cluster, transactional_id="payments", **more):
        self.cluster = cluster
        self._clients = {}
        super().__init__(cluster.coordinator_of(transactional_id), transactional_id, **more)

    def _client_of(self, broker):
        """Return the producer's connection to a life of a broker."""
        if broker not in self._clients:
            self._clients[broker] = broker.connect()
        return self._clients[broker]

    def find_coordinator(self):
        self.client = self._client_of(self.cluster.coordinator_of(self.transactional_id))

    def send(self, topic, *values, partition=0, **more):
        own, self.client = self.client, self._client_of(self.cluster.leader_of(topic, partition))
        try:
            return super().send(topic, *values, partition=partition, **more)
        finally:
            self.client = own

    def commit_offset(self, group_id, topic, offset, **more):
        own, self.client = self.client, self._client_of(self.cluster.group_coordinator_of(group_id))
        try:
            return super().commit_offset(group_id, topic, offset, **more)
        finally:
            self.client = own
