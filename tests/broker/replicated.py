"""A broker that leads partitions of several copies, and followers that the test plays: clients that fetch as replicas.

    leader = ReplicatedLeader()
    leader.copied("flights", min_insync_replicas=2)
    follower = leader.follower(2)
    follower.fetch("flights", 0)
"""

from dataclasses import replace
from uuid import UUID

from broker.log.new_logs import NewLog
from broker.metadata.change import Change
from broker.metadata.image import RegisteredBroker
from broker.metadata.staged import Staged
from broker.metadata.topic import PartitionState, Topic
from broker.services.replicas import replica_manager
from broker.wire.fetch import INITIAL_EPOCH, NO_SESSION_ID, FetchPartition, FetchRequest
from tests.broker.engine_client import FETCH
from tests.broker.peers import BETWEEN, PeerCluster

REPLICAS = (1, 2, 3)
LIFE = 7
"""The broker epoch of each follower."""


class ReplicatedLeader(PeerCluster):
    """Broker 1, which leads the partitions that `copied` makes. Brokers 2 and 3 follow."""

    def __init__(self, **settings):
        super().__init__(1, **settings)
        self.broker = self.brokers[1]
        self.services = self.broker.services
        self.services.replication = replica_manager(self.services, self.services.peer_calls, lambda: 1)

    def copied(self, name, partitions=1, isr=REPLICAS, replicas=REPLICAS, **properties):
        """Create a topic, and lead its partitions in epoch 0."""
        configs = {key.replace("_", "."): str(value) for key, value in properties.items()}
        states = (PartitionState(1, 0, replicas, isr),) * partitions
        topic = self._topics[name] = Topic(name, UUID(int=100 + len(self._topics)), states, configs)
        new = NewLog(self.services.config_of(topic), topic.id, has_copies=True)
        logs = {(name, partition): new for partition in range(partitions)}
        self.broker.change(Staged(Change({name: topic}), logs))
        while self.services.logs.to_make:
            self.later(100)

    def grow(self, topic, replicas=REPLICAS, isr=REPLICAS):
        """Let the first partition of an existing topic have several copies, from its next epoch on."""
        self.next_epoch(topic, replicas=replicas, isr=isr)

    def log(self, topic, partition=0):
        return self.services.logs.get(topic, partition)

    def partition(self, topic, partition=0):
        return self.services.partition_of(self.log(topic, partition))

    def state(self, topic, partition=0, **fields):
        """Let the controller decide another state of a partition."""
        states = list(self._topics[topic].partitions)
        states[partition] = states[partition]._replace(**fields)
        self._decide(replace(self._topics[topic], partitions=tuple(states)))
        self.broker.pump()

    def next_epoch(self, topic, partition=0, **fields):
        """Begin the next leader epoch of a partition."""
        epoch = self._topics[topic].partitions[partition].leader_epoch + 1
        self.state(topic, partition, leader_epoch=epoch, **fields)

    def granted(self, topic, isr, elr=()):
        """Let the controller grant another ISR."""
        partition, now = self.partition(topic), self.broker.now
        state = partition.state
        if partition.granted(state.leader_epoch, state.partition_epoch + 1, isr, elr, now):
            self.services.touch(partition.log, now)
        self.broker.pump()

    def _register(self):
        live = [RegisteredBroker(number, {"": ("localhost", 9091 + number)}) for number in REPLICAS]
        for broker in self.brokers.values():
            broker.services.metadata.register(live)

    def client(self):
        return self.broker.connect()

    def follower(self, broker_id, listener=BETWEEN):
        return Follower(self, broker_id, listener)

    def all_fetch(self, topic, offset, partition=0):
        """Let both followers fetch from an offset, so that they have everything before it."""
        for broker_id in REPLICAS[1:]:
            self.follower(broker_id).fetch(topic, offset, partition)


class Follower:
    """A connection of a broker that fetches as a replica."""

    def __init__(self, leader, broker_id, listener):
        self.id = broker_id
        self.life = LIFE
        self.client = leader.broker.connect(f"broker-{broker_id}", listener=listener)
        self._image = leader.services.metadata

    def request(self, topic, offset, partition=0, epoch=-1, last_epoch=-1, start=0, **fields):
        topic_id = self._image.topic(topic).id
        fetch_partition = FetchPartition(topic_id, partition, offset, 1 << 20, epoch, last_epoch, start)
        fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 10 << 20, "wants_ids": True} | fields
        return FetchRequest(partitions=[fetch_partition], replica_id=self.id, replica_epoch=self.life, **fields)

    def fetch(self, *args, **fields):
        """Fetch a partition; return its part of the answer."""
        return self.client.ask(FETCH, 17, self.request(*args, **fields)).partitions[0]

    def send(self, *args, wait_ms=500, **fields):
        """Send a Fetch that waits for records."""
        return self.client.send(FETCH, 17, self.request(*args, max_wait_ms=wait_ms, **fields))


class FollowerInSession:
    """A follower that fetches partitions of a topic in a session (KIP-227). Requests name changed partitions only."""

    def __init__(self, leader, broker_id, topic, partitions):
        self.follower = leader.follower(broker_id)
        self._full = self.follower.request(topic, 0)
        self.id, self.epoch = NO_SESSION_ID, INITIAL_EPOCH
        self.fetch(dict.fromkeys(range(partitions), 0))

    def request(self, offsets=(), forgets=(), epoch=-1, last_epoch=-1, **fields):
        """Return a request that names these partitions with their offsets, and forgets others."""
        fields = {"session_id": self.id, "session_epoch": self.epoch} | fields
        (partition,) = self._full.partitions
        partition = partition._replace(current_leader_epoch=epoch, last_fetched_epoch=last_epoch)
        named = [partition._replace(partition=index, fetch_offset=offset) for index, offset in dict(offsets).items()]
        forgotten = tuple((partition.topic, index) for index in forgets)
        fields["replica_epoch"] = self.follower.life
        return self._full._replace(partitions=named, forgotten=forgotten, **fields)

    def fetch(self, offsets=(), **fields):
        """Fetch; return the answers by partition."""
        return self._taken(self.follower.client.ask(FETCH, 17, self.request(offsets, **fields)))

    def send(self, offsets=(), wait_ms=500, **fields):
        """Send a Fetch that waits for records."""
        self.follower.client.send(FETCH, 17, self.request(offsets, max_wait_ms=wait_ms, **fields))

    def answer(self):
        """Return the rows of the answer by partition. Return None while the request waits."""
        replies = self.follower.client.replies()
        return self._taken(replies[0][1]) if replies else None

    def _taken(self, answer):
        assert not answer.error_code, answer
        self.id, self.epoch = answer.session_id, self.epoch + 1
        return {row.partition: row for row in answer.partitions}
