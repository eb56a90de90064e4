"""All that the controller knows of the cluster (Kafka's ControllerContext): brokers, topics, leaders, deletions.

It is read from the coordinator when a broker becomes the controller, and follows the controller's own writes from then
on. No method does more than look up or change these sets.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from broker.cluster.documents import (
    BROKER_IDS,
    CONTROLLER_EPOCH,
    EPOCH_DURING_DELETE,
    TOPICS,
    Assignment,
    LeaderAndIsr,
    Registration,
    Topic,
    TopicPartition,
)
from broker.cluster.policy import Policy
from broker.wire.errors import ApiError, ErrorCode
from coordination.listing import listed
from coordination.port import Check

NO_EPOCH = -1
NO_REPLICAS = Assignment(())


class Replica(NamedTuple):
    partition: TopicPartition
    broker_id: int


class PartitionState(Enum):
    NEW = "New"
    ONLINE = "Online"
    OFFLINE = "Offline"
    NON_EXISTENT = "NonExistent"


class ReplicaState(Enum):
    NEW = "New"
    ONLINE = "Online"
    OFFLINE = "Offline"
    DELETION_STARTED = "DeletionStarted"
    DELETION_SUCCESSFUL = "DeletionSuccessful"
    DELETION_INELIGIBLE = "DeletionIneligible"
    NON_EXISTENT = "NonExistent"


NAMED_MAX = 3
"""The partitions that a line for people names."""
TOPICS_NAMED_MAX = 10
"""The topics that a line about deletions names."""


def _waiting_deletions(topics: Sequence[str], broker_ids: Sequence[int]) -> str:
    """Return a line about topics whose deletion waits for the same brokers."""
    many, several = len(topics) > 1, len(broker_ids) > 1
    waiting = f"the deletion{'s' if many else ''} of topic{'s' if many else ''} {listed(topics, TOPICS_NAMED_MAX)}"
    brokers = f"broker{'s' if several else ''} {', '.join(map(str, broker_ids))}"
    has = f"{'have' if several else 'has'} {'copies that are' if many or several else 'a copy that is'}"
    return f"{waiting} wait{'' if many else 's'} for {brokers}, which {has} not deleted yet"


class ControllerContext:
    """The controller's epoch and the state of the cluster.

    `epoch_version` is the version of /controller_epoch at this controller's election; each write of a `state` checks
    it. `damaged` has the nodes that could not be read, with the reason; their topics or brokers count as absent.
    `failed_disks` has the replicas of live brokers that a disk did not take; of these, `kept` have lost no records, and
    in place of `other_topics`, which are kept too, the broker has records of another topic of this name.
    `leaderless` says why a partition has no leader although a member of its ISR or ELR is there (rule W3).
    `deletion_ineligible` has the topics whose deletion waits, with the brokers whose copies are not deleted yet.
    `unclean_elections` counts the leaders of this term that may lack acknowledged records.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.epoch = 0
        self.epoch_version = 0
        self.brokers: dict[int, Registration] = {}
        self.broker_epochs: dict[int, int] = {}
        self.shutting_down: set[int] = set()
        self.topic_ids: dict[str, UUID] = {}
        self._names: dict[UUID, str] = {}
        self.assignments: dict[str, dict[int, Assignment]] = {}
        self.leadership: dict[TopicPartition, LeaderAndIsr] = {}
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[Replica, ReplicaState] = {}
        self.topics_to_delete: set[str] = set()
        self.deletion_started: set[str] = set()
        self.deletion_ineligible: dict[str, set[int]] = {}
        self.damaged: dict[str, str] = {}
        self.failed_disks: set[Replica] = set()
        self.kept: set[Replica] = set()
        self.other_topics: set[Replica] = set()
        self.leaderless: dict[TopicPartition, str] = {}
        self.unclean_elections = 0

    def fence(self) -> Check:
        """Return the operation that fails a Multi of a controller that was replaced."""
        return Check(CONTROLLER_EPOCH, self.epoch_version)

    # Brokers

    def add_broker(self, broker_id: int, registration: Registration, broker_epoch: int) -> None:
        self.brokers[broker_id] = registration
        self.broker_epochs[broker_id] = broker_epoch

    def remove_brokers(self, broker_ids: Iterable[int]) -> None:
        for broker_id in broker_ids:
            self.brokers.pop(broker_id, None)
            self.broker_epochs.pop(broker_id, None)
        self.failed_disks = {replica for replica in self.failed_disks if replica.broker_id in self.broker_epochs}
        self.kept &= self.failed_disks
        self.other_topics &= self.failed_disks

    def is_live(self, broker_id: int) -> bool:
        return broker_id in self.broker_epochs and broker_id not in self.shutting_down

    def has_failed_disk(self, partition: TopicPartition, broker_id: int) -> bool:
        return Replica(partition, broker_id) in self.failed_disks

    def has_other_topic(self, partition: TopicPartition, broker_id: int) -> bool:
        """Return True if a broker has records of another topic in place of a partition."""
        return Replica(partition, broker_id) in self.other_topics

    def may_lack_records(self, partition: TopicPartition, broker_id: int) -> bool:
        """Return True if a disk that failed may have lost records of a partition."""
        return self.has_failed_disk(partition, broker_id) and Replica(partition, broker_id) not in self.kept

    def is_online(self, partition: TopicPartition, broker_id: int) -> bool:
        """Return True if a broker is live and its disk has the partition."""
        return self.is_live(broker_id) and not self.has_failed_disk(partition, broker_id)

    def live_replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas(partition) if self.is_online(partition, replica))

    # Topics

    def add_topic(self, name: str, topic: Topic) -> set[TopicPartition]:
        """Take a topic's document; return the partitions that were unknown."""
        if topic.topic_id is not None:
            self.topic_ids[name] = topic.topic_id
            self._names[topic.topic_id] = name
        assignments = self.assignments.setdefault(name, {})
        added = topic.assignments.keys() - assignments.keys()
        for index in sorted(added):
            assignments[index] = topic.assignments[index]
        return {TopicPartition(name, index) for index in added}

    @property
    def damages(self) -> list[str]:
        """Return the damaged nodes with the reasons, for people."""
        return [reason if path in reason else f"{path}: {reason}" for path, reason in self.damaged.items()]

    @property
    def problems(self) -> list[str]:
        """Return the partitions without a leader that wait for a trusted member, and those that a disk did not take,
        by name, for people."""
        waiting: dict[str, list[TopicPartition]] = {}
        for partition, reason in sorted(self.leaderless.items()):
            waiting.setdefault(reason, []).append(partition)
        refused: dict[int, list[TopicPartition]] = {}
        for partition, broker_id in sorted(self.failed_disks):
            if not self.has_other_topic(partition, broker_id):  # that broker says so itself
                refused.setdefault(broker_id, []).append(partition)
        lines = []
        for reason, partitions in waiting.items():
            lines.append(f"{listed(partitions, NAMED_MAX)} {'have' if partitions[1:] else 'has'} no leader: {reason}")
        for broker_id, partitions in refused.items():
            lines.append(f"the disk of broker {broker_id} failed for {listed(partitions, NAMED_MAX)}")
        return lines

    def forget_damages_of_brokers(self) -> None:
        """Forget which registrations are damaged, because they are read again."""
        for path in [path for path in self.damaged if path.startswith(f"{BROKER_IDS}/")]:
            del self.damaged[path]

    @property
    def knows_all_topics(self) -> bool:
        """True if no topic, and no state of a partition, is damaged."""
        return not any(path.startswith(f"{TOPICS}/") for path in self.damaged)

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def topic(self, name: str) -> Topic:
        """Return the document of a topic, as the controller knows it."""
        return Topic(self.topic_ids.get(name), self.assignments[name])

    def remove_topic(self, name: str) -> None:
        self.topics_to_delete.discard(name)
        self.deletion_started.discard(name)
        self.deletion_ineligible.pop(name, None)
        topic_id = self.topic_ids.pop(name, None)
        if topic_id is not None:
            self._names.pop(topic_id, None)
        for index, assignment in self.assignments.pop(name, {}).items():
            partition = TopicPartition(name, index)
            self.leadership.pop(partition, None)
            self.partition_states.pop(partition, None)
            self.leaderless.pop(partition, None)
            for broker_id in assignment.replicas:
                self.replica_states.pop(Replica(partition, broker_id), None)
                self.failed_disks.discard(Replica(partition, broker_id))
                self.kept.discard(Replica(partition, broker_id))
                self.other_topics.discard(Replica(partition, broker_id))

    def assignment(self, partition: TopicPartition) -> Assignment:
        return self.assignments.get(partition.topic, {}).get(partition.partition, NO_REPLICAS)

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        return self.assignment(partition).replicas

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for topic, rows in self.assignments.items() for index in rows]

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for index in self.assignments.get(topic, {})]

    def partitions_on(self, broker_id: int) -> list[TopicPartition]:
        return [p for p in self.partitions() if broker_id in self.replicas(p)]

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[Replica]:
        return [Replica(p, broker_id) for p in partitions for broker_id in self.replicas(p)]

    def replicas_on(self, broker_ids: Iterable[int]) -> list[Replica]:
        return [Replica(p, broker_id) for broker_id in broker_ids for p in self.partitions_on(broker_id)]

    # Leaders

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch that StopReplica names; a deletion passes a broker's check of the epoch."""
        if partition.topic in self.topics_to_delete:
            return EPOCH_DURING_DELETE
        leadership = self.leadership.get(partition)
        return NO_EPOCH if leadership is None else leadership.leader_epoch

    def partitions_with_leadership(self) -> list[TopicPartition]:
        """Return the partitions that were decided once, with or without a leader now."""
        return [p for p in self.leadership if p.topic not in self.topics_to_delete]

    def partitions_with_offline_leader(self) -> list[TopicPartition]:
        return [p for p in self.partitions_with_leadership() if not self.is_online(p, self.leadership[p].leader)]

    def partitions_led_by(self, broker_id: int) -> list[TopicPartition]:
        """Return the replicated partitions that a broker leads; those of one copy stay with it until it stops."""
        return [
            partition
            for partition in self.partitions_with_leadership()
            if self.leadership[partition].leader == broker_id and len(self.replicas(partition)) > 1
        ]

    # Deletions

    @property
    def waiting_deletions(self) -> list[str]:
        """Return the topics whose deletion waits, by name with the brokers that it waits for, for people."""
        waiting: dict[tuple[int, ...], list[str]] = {}
        for topic, broker_ids in sorted(self.deletion_ineligible.items()):
            waiting.setdefault(tuple(sorted(broker_ids)), []).append(topic)
        return [_waiting_deletions(topics, broker_ids) for broker_ids, topics in waiting.items()]

    @property
    def brokers_awaited_by_deletions(self) -> list[int]:
        return sorted(set().union(*self.deletion_ineligible.values()))

    def wait_with_deletions(self, replicas: Iterable[Replica]) -> None:
        """Take replicas that cannot be deleted before their broker is back, or its disk works again."""
        for replica in replicas:
            self.deletion_ineligible.setdefault(replica.partition.topic, set()).add(replica.broker_id)

    def check_not_deleted(self, topic: str) -> None:
        """Raise ApiError TOPIC_ALREADY_EXISTS if the deletion of a topic has not ended, as Kafka's AdminZkClient."""
        if topic in self.topics_to_delete:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic}' is marked for deletion.")

    def replicas_in_state(self, topic: str, state: ReplicaState) -> list[Replica]:
        replicas = self.replicas_of(self.partitions_of(topic))
        return [replica for replica in replicas if self.replica_states.get(replica) is state]

    def all_replicas_in_state(self, topic: str, state: ReplicaState) -> bool:
        replicas = self.replicas_of(self.partitions_of(topic))
        return all(self.replica_states.get(replica) is state for replica in replicas)
