"""The requests of brokers and clients to the controller, as values, and its answers.

The controller takes a request with `submit` and answers it later; a broker that is not the controller answers
NOT_CONTROLLER. Answers come when the coordinator has the change; brokers learn of it by the orders that follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

from broker.cluster.assignment import Spread
from broker.cluster.documents import RECOVERED, LeaderAndIsr, ProducerIdBlock, TopicPartition
from broker.wire.errors import ErrorCode

ElectionType = Literal["preferred", "unclean"]


@dataclass(frozen=True, eq=False)
class CreateTopic:
    """Create a topic, with the replicas that are given, or else spread over the live brokers.

    The caller has validated the name and the settings, and draws the id and the spread at random.
    """

    name: str
    topic_id: UUID
    settings: Mapping[str, str]
    partitions: int = 1
    replication_factor: int = 1
    spread: Spread = Spread(0, 0)
    assignments: Mapping[int, tuple[int, ...]] | None = None


@dataclass(frozen=True, eq=False)
class CreatePartitions:
    """Raise a topic's number of partitions to `count`; `assignments` has the replicas of the new ones, in order."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, eq=False)
class DeleteTopic:
    """Delete a topic. The answer comes when the deletion is recorded: it ends without its client."""

    name: str


@dataclass(frozen=True, eq=False)
class ElectLeaders:
    """Elect the preferred replicas, or with "unclean" any live replica; of all partitions if `partitions` is None."""

    election_type: ElectionType
    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, eq=False)
class ControlledShutdown:
    """A broker is about to stop: move what it leads (KIP-49). The answer names what it still leads.

    A partition of one copy is not moved and not named, as in Kafka: it stays with the broker until its session ends,
    and has no leader until the broker is back.
    """

    broker_id: int
    broker_epoch: int


class IsrMember(NamedTuple):
    """A member that a leader wants in the ISR, and the epoch in which that broker fetches; -1 if it is not known."""

    broker_id: int
    broker_epoch: int = -1


class IsrProposal(NamedTuple):
    """The ISR that a leader wants. `min_isr` is its reading of min.insync.replicas; None from a leader of Kafka's."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    recovery_state: int = RECOVERED
    min_isr: int | None = None


@dataclass(frozen=True, eq=False)
class AlterPartition:
    """A leader wants other ISRs (KIP-497)."""

    broker_id: int
    broker_epoch: int
    proposals: tuple[IsrProposal, ...]


@dataclass(frozen=True, eq=False)
class AllocateProducerIds:
    """A broker wants a block of producer ids (KIP-730)."""

    broker_id: int
    broker_epoch: int


Request: TypeAlias = (
    CreateTopic
    | CreatePartitions
    | DeleteTopic
    | ElectLeaders
    | ControlledShutdown
    | AlterPartition
    | AllocateProducerIds
)


@dataclass(frozen=True)
class Answer:
    """The answer to a request. `elections` has the outcome for each partition, with its reason.

    `assignments` are the replicas of the partitions that were created. `isrs` has, by topic id and partition, the
    granted state or the error.
    """

    error_code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    elections: Mapping[TopicPartition, tuple[ErrorCode, str | None]] = field(default_factory=dict)
    isrs: Mapping[tuple[UUID, int], LeaderAndIsr | ErrorCode] = field(default_factory=dict)
    remaining: tuple[TopicPartition, ...] = ()
    producer_ids: ProducerIdBlock | None = None


NOT_CONTROLLER = Answer(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")
