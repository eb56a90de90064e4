"""The reads before a rebalance: the living consumers of the group, and the topics. A watch belongs to each read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.client.connector.assignment import TopicView
from broker.client.connector.registration import RegistrationLost
from broker.client.connector.topic_filter import TopicStreams
from broker.client.errors import InvalidTopics
from broker.client.registry.nodes import ConsumerRegistration, consumer_path, ids_path
from broker.cluster.documents import BROKER_IDS, TOPICS, DamagedDocument, Topic, encode_uuid, topic_path
from broker.cluster.procedure import Procedure, read, read_children
from coordination.port import CoordinationError, Get, Node, NoNode


@dataclass
class GroupView:
    """The consumers and topics as one read saw them. `problems` names the nodes that could not be understood."""

    consumers: dict[str, TopicStreams] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class GroupViewReader:
    """Reads the view of a consumer."""

    def __init__(self, group: str, consumer: str, streams: TopicStreams) -> None:
        self._group = group
        self._consumer = consumer
        self._streams = streams
        self._topics: dict[str, TopicView] = {}
        """The last good view of each topic, because one damaged node must not take its partitions away."""

    def watches(self, path: str) -> bool:
        """Return True if a change of the node may change the assignment."""
        is_topic = path == TOPICS or (path.startswith(f"{TOPICS}/") and path.count("/") == 3)
        return is_topic or path in (ids_path(self._group), BROKER_IDS)

    def view(self, seen: Mapping[str, TopicView] | None) -> Procedure[GroupView]:
        """Read the consumers, and the topics of this one unless `seen` has all topics of Metadata."""
        view = GroupView()
        yield from self._read_consumers(view)
        if seen is None:
            yield from self._read_topics(view)
        else:
            view.topics = {name: topic for name, topic in seen.items() if self._streams.streams_of(name)}
        return view

    def _read_consumers(self, view: GroupView) -> Procedure[None]:
        names = yield from read_children(ids_path(self._group), watch=True)
        if self._consumer not in names:
            raise RegistrationLost(f"{consumer_path(self._group, self._consumer)} is gone")
        paths = [consumer_path(self._group, name) for name in names]
        outcomes = yield from read([Get(path) for path in paths])
        for name, path, outcome in zip(names, paths, outcomes, strict=True):
            if isinstance(outcome, NoNode):  # it has gone since; the watch of its parent has fired
                continue
            if isinstance(outcome, CoordinationError):
                raise outcome
            assert isinstance(outcome, Node)
            try:
                view.consumers[name] = TopicStreams.registered(ConsumerRegistration.decode(path, outcome.data))
            except (DamagedDocument, InvalidTopics) as error:
                view.problems.append(f"{path} counts as a consumer without streams: {error}")

    def _read_topics(self, view: GroupView) -> Procedure[None]:
        yield from read_children(BROKER_IDS, watch=True)
        names = yield from read_children(TOPICS, watch=True)
        wanted = [name for name in names if self._streams.streams_of(name)]
        outcomes = yield from read([Get(topic_path(name), watch=True) for name in wanted])
        for name, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, NoNode):
                continue
            if isinstance(outcome, CoordinationError):
                raise outcome
            assert isinstance(outcome, Node)
            try:
                view.topics[name] = topic_view(name, outcome)
            except DamagedDocument as error:
                view.problems.append(f"the partitions of {name} stay as they were: {error}")
                if name in self._topics:
                    view.topics[name] = self._topics[name]
        self._topics = view.topics


def topic_view(name: str, node: Node) -> TopicView:
    """Return a topic as its node shows it. Raise DamagedDocument."""
    topic = Topic.decode(topic_path(name), node.data)
    first_replicas = {number: next(iter(row.replicas), -1) for number, row in topic.assignments.items()}
    topic_id = None if topic.topic_id is None else encode_uuid(topic.topic_id)
    return TopicView(name, first_replicas, topic_id, node.czxid or None)
