"""A world of consumers that agree through ZooKeeper: a group, its ensemble, and topics that change.

Consumers come, go, pause and lose sessions; connections break; topics grow, are deleted and made again, and get other
leaders. In the end the world is quiet, and each partition has the owner that the assignment gives it, each message was
delivered, and only uncommitted ones twice.

    .venv/bin/python -m tests.simulation.rebalance_world 123       the history of a seed
"""

from collections import Counter
from random import Random
from uuid import UUID

from broker.client.connector.assignment import assign
from broker.client.connector.topic_filter import TopicFilter, TopicStreams
from broker.cluster.documents import Assignment, Topic, TopicPartition, broker_path, topic_path
from broker.now import Now
from coordination.port import Create, Delete, Set
from tests.simulation.rebalance_client import SESSION_MS, Client
from tests.simulation.rebalance_ensemble import GroupEnsemble
from tests.simulation.seeds import main

NAMES = "t", "u", "web-1"
CLIENTS_MAX = 4
PARTITIONS_MAX = 6
QUIET_MS_MAX = 60_000
QUIET_STEP_MS = 50
SETTLED_MS = 2 * SESSION_MS
"""How long the group must stay settled in the end: the session of a client that was paused may still end."""
STEPS = 260


class RebalanceWorld:
    def __init__(self, seed, trace=None):
        self.random = random = Random(seed)
        self.trace = trace
        self.counts = Counter()
        self.lines = []
        self.now_ms = 0
        self.is_rough = True
        self.ensemble = GroupEnsemble()
        self.admin = self.ensemble.begin_session()
        self.ensemble.names_of_sessions[self.admin] = "admin"
        self.has_ids = bool(random.randrange(4))
        self.sees_topics = self.has_ids and not random.randrange(4)
        self.logs = {}
        """The end of each partition's log, by topic identity."""
        self.leaders = {}
        self.past_topics = []
        """Earlier topics, which the Metadata of a slow broker still shows."""
        self.clients = []
        self.number = 0
        self._write(Create("/consumers"))
        self._write(Create(broker_path(1)))
        for name in NAMES[: random.choice((1, 2, 3))]:
            self.make_topic(name)
        for _ in range(random.choice((1, 2, 3))):
            self.add_client()

    def note(self, line):
        self.lines.append(f"{self.now_ms}: {line}")
        if self.trace:
            self.trace(self.lines[-1])

    # --- a life

    def history(self):
        for _ in range(STEPS):
            self.step()
        self.quieten()

    def step(self):
        random = self.random
        if not random.randrange(12):
            self.act(random.choice(self.ACTS))
        self.advance(random.choice((3, 8, 15, 40, 120)))

    def advance(self, ms):
        self.now_ms += ms
        if self.sees_topics:
            self.past_topics.append((self.now_ms, self.ensemble.topics()))
        for client in self.clients:
            self._expire(client)
            client.work()
            client.serve()
            client.deliver()

    def _expire(self, client):
        """End a session that was silent; its client connects again some time later."""
        if client.is_alive_at_server and self.now_ms > client.touched_ms + SESSION_MS + self.random.randrange(500):
            client.expire()
        elif not client.is_alive_at_server and not client.is_dead and self.now_ms >= client.paused_until_ms:
            if client.is_cut and not self.random.randrange(5):
                client.heal()

    def act(self, act):
        self.counts[act.__name__] += 1
        act(self)

    def quieten(self):
        """Let all connections heal and all requests be answered, and wait until the group is settled."""
        self.is_rough = False
        for client in self.clients:
            client.paused_until_ms = self.now_ms
            client.heal()
        if not any(not client.is_dead for client in self.clients):
            self.add_client()
        self.note("quiet")
        end_ms, settled_ms = self.now_ms + QUIET_MS_MAX, 0
        while settled_ms < SETTLED_MS:
            problem = self._unsettled()
            assert not problem or self.now_ms < end_ms, f"the group is not settled: {problem}"
            settled_ms = 0 if problem else settled_ms + QUIET_STEP_MS
            self.advance(QUIET_STEP_MS)

    def _unsettled(self):
        """Return the first promise that does not hold yet, or an empty text."""
        streams = {client.name: client.streams for client in self.clients if not client.is_dead}
        wanted = assign(self.ensemble.topics().values(), streams)
        for partition, stream in wanted.items():
            if self.ensemble.owner(partition)[0] != stream.consumer:
                return f"{partition} is owned by {self.ensemble.owner(partition)[0]}, not {stream}"
            identity = self.ensemble.identity(partition.topic)
            done = self.ensemble.done.get((identity, partition), set())
            if len(done) + 1 < self.logs[identity].get(partition, 0):  # the last one may wait for the program to return
                return f"{partition}: {len(done)} of {self.logs[identity].get(partition, 0)} messages are done with"
        return ""

    # --- what happens

    def add_client(self):
        if sum(not client.is_dead for client in self.clients) >= CLIENTS_MAX:
            return
        self.number += 1
        name = f"host:{self.random.randrange(100):02}-{self.number}"
        self.clients = [client for client in self.clients if not client.is_dead or client.is_alive_at_server]
        sees_topics = self.sees_topics and bool(self.random.randrange(3))  # a group may mix both ways
        self.clients.append(Client(self, name, self.some_streams(), sees_topics))

    def some_streams(self):
        kind = self.random.randrange(4)
        if kind == 0:
            return TopicStreams({}, TopicFilter(self.random.choice((".*", "web-.*|t"))), self.random.choice((1, 2)))
        if kind == 1:
            return TopicStreams({}, TopicFilter("web-.*", is_black_list=True), 1)
        return TopicStreams({name: self.random.choice((1, 1, 2)) for name in NAMES[: self.random.choice((1, 2, 3))]})

    def some_client(self):
        living = [client for client in self.clients if not client.is_dead]
        return self.random.choice(living) if living else None

    def close_client(self):
        if client := self.some_client():
            client.core.close(Now(self.now_ms, self.now_ms))

    def kill_client(self):
        if client := self.some_client():
            client.kill()

    def pause_client(self):
        if client := self.some_client():
            client.paused_until_ms = self.now_ms + self.random.choice((200, 1000, 3000))

    def cut_client(self):
        if client := self.some_client():
            client.cut()

    def heal_client(self):
        if client := self.some_client():
            client.heal()

    def expire_client(self):
        if (client := self.some_client()) and client.is_cut and client.is_alive_at_server:
            if self.now_ms > client.touched_ms + SESSION_MS:
                client.expire()

    def append(self):
        for name in NAMES:
            identity = self.ensemble.identity(name)
            for partition in self.logs.get(identity, {}):
                self.logs[identity][partition] += self.random.choice((0, 1, 3))

    def make_topic(self, name=None):
        name = name or self.random.choice(NAMES)
        if self.ensemble.identity(name) is not None:
            return
        topic_id = UUID(int=self.random.getrandbits(128)) if self.has_ids else None
        rows = {number: self._replicas() for number in range(self.random.randrange(1, PARTITIONS_MAX))}
        self._write(Create(topic_path(name), Topic(topic_id, rows).encode()))
        self.logs[self.ensemble.identity(name)] = {TopicPartition(name, number): 2 for number in rows}
        self.note(f"{name} is {self.ensemble.identity(name)} with {len(rows)} partitions")

    def delete_topic(self):
        name = self.random.choice(NAMES)
        if self.ensemble.identity(name) is not None:
            self._write(Delete(topic_path(name)))
            self.note(f"{name} is deleted")
            if self.random.randrange(2):
                self.make_topic(name)

    def grow_topic(self):
        name = self.random.choice(NAMES)
        node = self.ensemble.nodes.get(topic_path(name))
        if node is None:
            return
        topic = Topic.decode("", node.data)
        number = len(topic.assignments)
        if number < PARTITIONS_MAX:
            rows = {**topic.assignments, number: self._replicas()}
            self._write(Set(topic_path(name), Topic(topic.topic_id, rows).encode(), node.version))
            self.logs[self.ensemble.identity(name)][TopicPartition(name, number)] = 2
            self.note(f"{name} has {number + 1} partitions")

    def move_leader(self):
        name = self.random.choice(NAMES)
        self.leaders[TopicPartition(name, self.random.randrange(PARTITIONS_MAX))] = self.random.randrange(1, 4)

    def _replicas(self):
        return Assignment(tuple(self.random.sample((1, 2, 3), 2)))

    def _write(self, operation):
        self.ensemble.apply(self.admin, operation, lambda event: None)

    ACTS = (
        add_client, add_client, close_client, kill_client, pause_client, pause_client, cut_client, cut_client,
        heal_client, heal_client, expire_client, append, append, append, append, make_topic, delete_topic, grow_topic,
        move_leader, move_leader,
    )  # fmt: skip

    # --- the log

    def metadata(self):
        """Return the topics as a broker shows them, which may lag behind."""
        lag_ms = self.random.choice((0, 0, 300, 900))
        past = [topics for time_ms, topics in self.past_topics if time_ms <= self.now_ms - lag_ms]
        del self.past_topics[:-100]
        topics = past[-1] if past else self.ensemble.topics()
        return [view.__class__(view.name, view.first_replicas, view.topic_id) for view in topics.values()]

    def end(self, partition, identity):
        """Return the end of a partition's log; 0 if the topic was deleted."""
        if self.ensemble.identity(partition.topic) != identity:
            return 0
        return self.logs[identity].get(partition, 0)

    def delivered(self, client, partition, reading):
        """Check that a record is delivered by its partition's owner, and was not committed before."""
        self.counts["delivered"] += 1
        owner = self.ensemble.owner(partition)
        assert owner == (client.name, client.session_id), (
            f"{client.name} delivers {reading.offset} of {partition}, which {owner} owns"
        )
        offset = self.ensemble.offset(partition)
        assert offset is None or reading.offset >= offset or self._is_of_another(partition, reading), (
            f"{client.name} delivers {reading.offset} of {partition} again, committed to {offset}"
        )

    def _is_of_another(self, partition, reading):
        return self.ensemble.identity_of_offsets(partition.topic) != reading.identity


if __name__ == "__main__":
    main(RebalanceWorld)
