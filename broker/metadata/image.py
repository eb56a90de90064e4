"""The image: what the controller decided, as this broker knows it.

Handlers read it. Only a change that the controller has decided and stored alters it (`apply`). A change returns its
delta, and the delta has consequences for this broker's logs, offsets, quotas and metrics
(broker.services.image_consequences). So they are the same whoever decided the change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from broker.metadata.change import Change, Credential, Entity
from broker.metadata.topic import Topic, check_name, metric_name
from broker.security.authorization.acl import AclBinding
from broker.wire.errors import ApiError, ErrorCode

NO_CONTROLLER = -1
IMAGE_CAME = "the first image of the cluster came"
"""The purgatory key of requests that wait until the broker knows its cluster."""


class Node(NamedTuple):
    """A broker, with the address at which clients of one listener reach it."""

    id: int
    host: str
    port: int
    rack: str | None = None


NO_NODE = Node(-1, "", -1)


@dataclass(frozen=True)
class RegisteredBroker:
    """A live broker, with its address (host, port) for the clients of each listener."""

    id: int
    endpoints: Mapping[str, tuple[str, int]]
    rack: str | None = None

    @property
    def node(self) -> Node:
        """Return the broker with the address of its first listener."""
        return Node(self.id, *next(iter(self.endpoints.values())), self.rack)

    def at(self, listener: str) -> Node | None:
        """Return the broker with its address for the clients of a listener, None if it has no such listener."""
        endpoint = self.endpoints.get(listener)
        return None if endpoint is None else Node(self.id, *endpoint, self.rack)


@dataclass
class ImageDelta:
    """The difference that changes made to the image."""

    made: list[Topic] = field(default_factory=list)
    altered: list[tuple[Topic, Topic]] = field(default_factory=list)
    """Topics before and after a change."""
    deleted: list[Topic] = field(default_factory=list)
    alters_brokers: bool = False
    """True if settings of brokers have changed."""
    alters_quotas: bool = False
    alters_acls: bool = False

    def copies_lost_by(self, broker_id: int) -> dict[str, list[int]]:
        """Return the partitions, by topic, of which a broker had a copy and has none now."""
        lost = {topic.name: topic.copies_on(broker_id) for topic in self.deleted}
        for before, after in self.altered:
            if before.partitions is not after.partitions:
                remaining = set(after.copies_on(broker_id))
                lost[after.name] = [copy for copy in before.copies_on(broker_id) if copy not in remaining]
        return {name: partitions for name, partitions in lost.items() if partitions}


class Image:
    """Brokers, topics by name and by id, settings, quotas, credentials and access rules."""

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self.controller_id = NO_CONTROLLER
        self.brokers: Mapping[int, RegisteredBroker] = {}
        """The live brokers by id, in the order of their ids."""
        self.live_ids: frozenset[int] = frozenset()
        self.generation = 0
        """Differs after each change of topics or rules, so that earlier look-ups are known to be stale."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of `generation`."""
        self.broker_properties: Mapping[str, Mapping[str, str]] = {}
        """Broker settings altered at run time, as text: by broker id, or "" for all brokers."""
        self.quotas: Mapping[Entity, Mapping[str, float]] = {}
        self.credentials: Mapping[tuple[str, int], Credential] = {}
        """By user and mechanism (1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512)."""
        self.acls: frozenset[AclBinding] = frozenset()
        self.listener_of: dict[str, str] = {}
        """For a listener that only one broker has: the listener by whose addresses its clients reach the others."""
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_metric: dict[str, dict[str, None]] = {}
        """Topic names by their form in Kafka's metrics, where two topics must not have the same name."""

    # --- brokers -------------------------------------------------------------------------------------------------

    def register(self, brokers: Iterable[RegisteredBroker]) -> None:
        """Replace the live brokers."""
        self.brokers = {broker.id: broker for broker in sorted(brokers, key=lambda broker: broker.id)}
        self.live_ids = frozenset(self.brokers)

    def nodes(self, listener: str) -> list[Node]:
        """Return the live brokers, as clients of a listener reach them. A broker without that listener is left out."""
        listener = self.listener_of.get(listener, listener)
        return [node for broker in self.brokers.values() if (node := broker.at(listener)) is not None]

    def node(self, broker_id: int, listener: str) -> Node | None:
        """Return a live broker, as clients of a listener reach it."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.at(self.listener_of.get(listener, listener))

    # --- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        return list(self._topics.values())

    def topic(self, name: str | UUID) -> Topic | None:
        return self._topics.get(name) if isinstance(name, str) else self._by_id.get(name)

    def check_new(self, name: str) -> None:
        """Raise ApiError TOPIC_ALREADY_EXISTS or INVALID_TOPIC_EXCEPTION unless a topic of this name can be made."""
        check_name(name)
        if name in self._topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        twins = self._by_metric.get(metric_name(name))
        if twins:
            collision = f"Topic '{name}' collides with existing topic: {next(iter(twins))}"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, collision)

    # --- changes -------------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> ImageDelta:
        """Apply changes that the controller has stored. Return what differs now."""
        delta = ImageDelta()
        for change in changes:
            if change.broker_properties is not None:
                self.broker_properties = change.broker_properties
                delta.alters_brokers = True
            if change.quotas is not None:
                self.quotas = change.quotas
                delta.alters_quotas = True
            if change.credentials is not None:
                self.credentials = change.credentials
            if change.acls is not None:
                self.acls = change.acls
                delta.alters_acls = True
            if change.topics:
                self._apply_topics(change.topics, delta)
        return delta

    def expire(self) -> None:
        """Make all earlier look-ups stale."""
        self.generation += 1
        self.on_change()

    def _apply_topics(self, topics: Mapping[str, Topic | None], delta: ImageDelta) -> None:
        self.expire()
        for name, topic in topics.items():
            before = self._topics.get(name)
            if before is not None and (topic is None or topic.id != before.id):
                self._drop(before)
                delta.deleted.append(before)
                before = None
            if topic is None:
                continue
            self._put(topic)
            if before is None:
                delta.made.append(topic)
            else:
                delta.altered.append((before, topic))

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._by_metric.setdefault(metric_name(topic.name), {})[topic.name] = None

    def _drop(self, topic: Topic) -> None:
        del self._topics[topic.name]
        self._by_id.pop(topic.id, None)
        twins = self._by_metric.get(metric_name(topic.name), {})
        twins.pop(topic.name, None)
        if not twins:
            self._by_metric.pop(metric_name(topic.name), None)
