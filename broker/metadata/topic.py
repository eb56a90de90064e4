"""A topic and its partitions, as the controller decided them, and the rules for a topic's name."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from broker.wire.errors import ApiError, ErrorCode

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"  # Kafka's topic for the data that is in a file here
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

NO_LEADER = -1
NAME_CHARACTERS_MAX = 249
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{NAME_CHARACTERS_MAX}}}")


class PartitionState(NamedTuple):
    """What the controller decided about a partition. Kafka 3.9 keeps it in `state` and in the topic's assignment."""

    leader: int
    """The id of the broker that leads it, or NO_LEADER."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """The brokers that shall have a copy; the first is the preferred leader."""
    isr: tuple[int, ...]
    """The replicas in sync."""
    partition_epoch: int = 0
    """Rises with each decision about the partition."""
    elr: tuple[int, ...] = ()
    """The replicas that may be elected although they left the ISR (KIP-966)."""
    adding: tuple[int, ...] = ()
    """The replicas that a reassignment adds (KIP-455)."""
    removing: tuple[int, ...] = ()
    """The replicas that a reassignment removes."""
    offline: tuple[int, ...] = ()
    """The replicas whose broker or disk the controller has found gone."""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    partitions: tuple[PartitionState, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    """The topic's own settings, as given."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def directories(self) -> list[str]:
        """Return the names of its partitions, which are those of their directories."""
        return [f"{self.name}-{partition}" for partition in range(len(self.partitions))]

    def is_led_by(self, broker_id: int, partition: int) -> bool:
        return self.partitions[partition].leader == broker_id

    def copies_on(self, broker_id: int) -> list[int]:
        """Return the partitions of which a broker has a copy."""
        return [number for number, state in enumerate(self.partitions) if broker_id in state.replicas]

    def with_properties(self, properties: Mapping[str, str]) -> "Topic":
        return replace(self, properties=properties)

    def in_epochs(self, epochs: Iterable[int]) -> "Topic":
        """Return the topic with these leader epochs, one for each partition."""
        led = tuple(
            partition._replace(leader_epoch=epoch) for partition, epoch in zip(self.partitions, epochs, strict=True)
        )
        return replace(self, partitions=led)

    def to_json(self) -> dict[str, object]:
        """Return the topic as the document of a server alone has it: one copy, which is in sync."""
        partitions = [[p.leader, p.leader_epoch, list(p.replicas)] for p in self.partitions]
        return {"id": str(self.id), "partitions": partitions, "properties": dict(self.properties)}

    @staticmethod
    def from_json(name: str, value: Mapping[str, Any]) -> "Topic":
        partitions = tuple(PartitionState(p[0], p[1], tuple(p[2]), tuple(p[2])) for p in value["partitions"])
        return Topic(name, UUID(value["id"]), partitions, value["properties"])


class NewTopic(NamedTuple):
    """A topic to create. `assignments` are the replicas of its partitions, if they are given."""

    name: str
    partitions: int
    properties: Mapping[str, str]
    assignments: Sequence[tuple[int, ...]] | None = None
    replication_factor: int = 1


def new_partitions(assignments: Iterable[tuple[int, ...]]) -> tuple[PartitionState, ...]:
    """Return new partitions with these replicas, each led by the first of them."""
    # Most topics have one partition, for which a list is faster than a generator.
    return tuple([PartitionState(replicas[0], 0, replicas, replicas) for replicas in assignments])


def check_name(name: str) -> None:
    """Raise ApiError INVALID_TOPIC_EXCEPTION unless Kafka would accept the topic's name."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {_flaw_of_name(name)}")


def _flaw_of_name(name: str) -> str:
    """Return why a topic's name is refused, in Kafka's words."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_CHARACTERS_MAX}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


def metric_name(name: str) -> str:
    """Return the form of a topic's name in Kafka's metrics, where two topics must differ."""
    return name.replace(".", "_")


def topic_keys(names: Iterable[str]) -> frozenset[Hashable]:
    """Return the keys of requests that change topics (broker.metadata.changes). Names that collide have the same key.
    """
    return frozenset(("topic", metric_name(name)) for name in names)
