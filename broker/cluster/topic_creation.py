"""The topics that any broker creates when a client needs them: automatic topics and the topics of coordinators.

Any broker writes their nodes, and the controller hears of them by its watch on /brokers/topics. Kafka writes
/config/topics/t, then /brokers/topics/t, and a crash between the two leaves settings without a topic, which the next
creation replaces. Here one Multi writes both in the same order, so there is no such crash; settings that a Kafka broker
left behind, or those of a topic that was deleted, are replaced. The Multi fails whole if the topic exists, so the
settings of a topic that exists are never replaced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from broker.cluster.documents import Assignment, Topic, config_path, encode_config, topic_path
from broker.cluster.procedure import Procedure, read_node, write
from coordination.port import (
    ANY_VERSION,
    ConnectionLost,
    CoordinationError,
    Create,
    Multi,
    Node,
    NodeExists,
    NoNode,
    Set,
    check_operation,
)


@dataclass(frozen=True)
class Created:
    """This broker has created the topic."""

    topic: Topic


@dataclass(frozen=True)
class AlreadyThere:
    """Another broker, or an earlier request, had created the topic."""

    topic: Topic


def create_topic_as_broker(
    name: str,
    assignments: Mapping[int, tuple[int, ...]],
    settings: Mapping[str, str],
    new_id: Callable[[], UUID],
) -> Procedure[Created | AlreadyThere]:
    """Create a topic, unless it exists.

    Each attempt has an id of its own, because the id of a deleted topic must not come back: an attempt whose answer was
    lost may have created the topic, and a client may have deleted it since.

    Raise ValueError if the coordinator cannot keep the name, and DamagedDocument if the topic's node is damaged.
    """
    rows = {index: Assignment(replicas) for index, replicas in assignments.items()}
    data = encode_config(settings)
    config: Create | Set = Create(config_path(name), data)
    own_ids: set[UUID | None] = set()
    while True:
        topic = Topic(new_id(), rows)
        multi = Multi((config, Create(topic_path(name), topic.encode())))
        check_operation(multi)
        own_ids.add(topic.topic_id)
        outcome = yield from write(multi)
        if not isinstance(outcome, CoordinationError):
            return Created(topic)
        if outcome.index == 0 and isinstance(outcome, NodeExists | NoNode):
            if (existing := (yield from read_node(topic_path(name)))) is not None:
                return _existing(name, existing, own_ids)
            has_settings = isinstance(outcome, NodeExists)
            if not has_settings and isinstance(config, Create):
                raise outcome  # /config/topics is missing: this broker has not registered
            config = Set(config_path(name), data, ANY_VERSION) if has_settings else Create(config_path(name), data)
        elif isinstance(outcome, NodeExists | ConnectionLost):
            existing = yield from read_node(topic_path(name))
            if existing is not None:
                return _existing(name, existing, own_ids)
        else:
            raise outcome


def _existing(name: str, node: Node, own_ids: set[UUID | None]) -> Created | AlreadyThere:
    topic = Topic.decode(topic_path(name), node.data)
    return Created(topic) if topic.topic_id in own_ids else AlreadyThere(topic)
