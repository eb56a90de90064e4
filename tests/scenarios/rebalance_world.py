"""The commands of rebalance_*.txt: consumers of group g, their sessions with an ensemble in memory, and its topics.

`run` lets the consumers work in turn until none has anything due; with names, only those. `step` lets one consumer do
one batch of operations. The state shows each partition's owner, and its offset with the version of the offset's node.
"""

from dataclasses import replace
from uuid import UUID

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.events import (
    Claimed,
    Closed,
    Committed,
    LookAgain,
    Lost,
    MadeAgain,
    RebalanceFailed,
    Released,
    Stopped,
    Trouble,
)
from broker.client.connector.group_view import topic_view
from broker.client.connector.rebalance import RegistryConsumer
from broker.client.connector.topic_filter import TopicFilter, TopicStreams
from broker.client.registry.nodes import offset_path, owner_path
from broker.cluster.documents import TOPICS, Assignment, Topic, TopicPartition, topic_path
from broker.now import Now
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import CoordinationError, Create, Delete, Get, Set
from tests.scenarios.scenario import join_parts

CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=6_000,
    rebalance_retries_max=3,
    rebalance_backoff_ms=2_000,
    auto_commit_interval_ms=None,
)
TURNS_MAX = 1_000


class RebalanceWorld:
    def __init__(self):
        self.output = []
        self.now = Now(0, 0)
        self.ensemble = Ensemble()
        self.admin = MemoryCoordinator(self.ensemble)
        self.admin.execute(Create("/consumers"))
        self.consumers = {}
        self.held = {}
        self.kept_metadata = []
        self.topics = 0

    # topics

    def do_topic(self, name, first):
        """Create a topic, or replace its partitions: `first=1,2` has the first replica of each."""
        rows = {number: Assignment((int(replica),)) for number, replica in enumerate(first.split(","))}
        if topic_path(name) in self.ensemble.nodes:
            node = self.admin.execute(Get(topic_path(name)))
            grown = Topic(Topic.decode("", node.data).topic_id, rows)
            self.admin.execute(Set(topic_path(name), grown.encode(), node.version))
        else:
            self.topics += 1
            self.admin.execute(Create(topic_path(name), Topic(UUID(int=self.topics), rows).encode()))

    def do_delete(self, name):
        self.admin.execute(Delete(topic_path(name)))

    # consumers

    def do_start(self, name, *flags, white=None, black=None, **counts):
        """Start a consumer: `t=2` is two streams of t; `white=web-.*` and `black=web-.*` are filters.

        With the flag `metadata` it sees topics only by `see`, which passes those of now, or the ones `keep` has kept.
        """
        streams = TopicStreams({topic: int(count) for topic, count in counts.items()}) if counts else None
        if streams is None:
            streams = TopicStreams({}, TopicFilter(white or black, is_black_list=black is not None))
        core = RegistryConsumer("g", name, streams, CONFIG, sees_topics="metadata" in flags)
        self.consumers[name] = core, MemoryCoordinator(self.ensemble)

    def do_keep(self):
        """Keep the Metadata of now, as a broker that lags behind does."""
        self.kept_metadata = self._metadata()

    def do_see(self, name, *flags):
        """Pass Metadata to a consumer: that of now, or what a broker that lags behind has `kept`."""
        self.consumers[name][0].topics_seen(self.kept_metadata if "kept" in flags else self._metadata(), self.now)

    def _metadata(self):
        views = [topic_view(name, self.ensemble.nodes[topic_path(name)]) for name in self.ensemble.names(TOPICS)]
        return [replace(view, czxid=None) for view in views]

    def do_run(self, *names):
        for _ in range(TURNS_MAX):
            if not any([self._step(name) for name in names or sorted(self.consumers)]):
                return
        raise AssertionError(f"the consumers are not done after {TURNS_MAX} turns")

    def do_step(self, name):
        assert self._step(name), f"{name} has nothing to do"

    def _step(self, name):
        core, coordinator = self.consumers[name]
        for event in coordinator.take_events():
            core.happened(event, self.now)
        core.tick(self.now)
        operations = core.take(self.now)
        for operation in operations:
            try:
                outcome = coordinator.execute(operation)
            except CoordinationError as error:
                outcome = error
            core.answered(operation, outcome, self.now)
        return self._say_events(name) or bool(operations)

    def do_hold(self, name):
        """Let a consumer hand out its next operations, which `send` carries out later."""
        self.held[name] = self.consumers[name][0].take(self.now)
        assert self.held[name], f"{name} has nothing to do"

    def do_send(self, name):
        """Carry out the operations that were held, in the session that the consumer has now."""
        core, coordinator = self.consumers[name]
        for operation in self.held.pop(name):
            try:
                outcome = coordinator.execute(operation)
            except CoordinationError as error:
                outcome = error
            core.answered(operation, outcome, self.now)
        self._say_events(name)

    def do_remove_owner(self, partition):
        """Delete the node of a partition's owner, as an administrator may."""
        self.admin.execute(Delete(owner_path("g", named(partition))))

    def _say_events(self, name):
        events = self.consumers[name][0].take_events()
        self.output += [f"{name} {spoken(event)}" for event in events]
        return bool(events)

    def do_done(self, name, **offsets):
        """The program is done with all before these offsets."""
        for partition, offset in offsets.items():
            self.consumers[name][0].processed(named(partition), int(offset))

    def do_begin(self, name, **offsets):
        """The shell has looked up where partitions without an offset begin."""
        for partition, offset in offsets.items():
            self.consumers[name][0].placed(named(partition), int(offset), self.now)

    def do_commit(self, name):
        self.consumers[name][0].commit(self.now)

    def do_close(self, name):
        self.consumers[name][0].close(self.now)

    def do_delivers(self, name, partition):
        may = self.consumers[name][0].may_deliver(named(partition), self.now.ms)
        self.output.append(f"{name} {'delivers' if may else 'does not deliver'} {partition}")

    # time and faults

    def do_at(self, ms):
        self.now = Now(int(ms), int(ms))

    def do_cut(self, name):
        self.consumers[name][1].cut()

    def do_heal(self, name):
        self.consumers[name][1].heal()

    def do_expire(self, name):
        """The ensemble ends the session; a consumer that is cut off learns of it when it connects again."""
        self.consumers[name][1].expire()

    def do_kill(self, name):
        """End the process and its session."""
        self.consumers.pop(name)[1].close()

    def do_lose(self, name, kind):
        """Lose the next `request` or `answer`."""
        setattr(self.consumers[name][1], f"lose_{kind}s", 1)

    # the resulting state

    def state(self):
        lines = []
        for path in sorted(path for path in self.ensemble.nodes if path.startswith("/consumers/g/offsets/")):
            if path.count("/") == 5:
                *_, topic, number = path.split("/")
                lines.append(self._partition(TopicPartition(topic, int(number))))
        return join_parts(*lines) or "nobody has claimed anything"

    def _partition(self, partition):
        owner = self.ensemble.nodes.get(owner_path("g", partition))
        offset = self.ensemble.nodes[offset_path("g", partition)]
        name = "free" if owner is None else owner.data.decode()
        return f"{partition} {name} at {offset.data.decode()} (v{offset.version})"


def named(partition):
    """Return the partition that a scenario calls t-0."""
    topic, _, number = partition.rpartition("-")
    return TopicPartition(topic, int(number))


def spoken(event):
    match event:
        case Claimed(partition, stream, offset):
            begins = "without an offset" if offset is None else f"at {offset}"
            return f"claims {partition} for {stream}, {begins}"
        case Stopped(partition):
            return f"stops {partition}"
        case Released(partition):
            return f"releases {partition}"
        case Lost(partition, why):
            return f"loses {partition}: {why}"
        case Committed(_, failed):
            return f"commits, but for {', '.join(map(str, failed))}" if failed else "commits"
        case MadeAgain(topic):
            return f"sees that {topic} was made again"
        case LookAgain(topic):
            return f"wants newer Metadata of {topic}"
        case Trouble(text):
            return f"meets trouble: {text}"
        case RebalanceFailed(error):
            return f"gives up: {error}"
        case Closed():
            return "has left"
    raise AssertionError(event)
