"""The deletion of topics (Kafka's TopicDeletionManager).

A topic's partitions become NonExistent; brokers hear that it is being deleted, stop its replicas and then delete them;
when each replica was deleted, so are the topic's nodes. A topic with a replica on a dead broker waits for that broker.
A new controller finds the topics that wait below /admin/delete_topics, and continues.
"""

from collections.abc import Iterable

from broker.cluster.channel import Channels
from broker.cluster.controller_context import ControllerContext, PartitionState, Replica, ReplicaState
from broker.cluster.documents import (
    DamagedDocument,
    Topic,
    TopicPartition,
    config_path,
    deletion_path,
    partition_path,
    partitions_path,
    state_path,
    topic_path,
)
from broker.cluster.orders import Orders
from broker.cluster.partition_machine import PartitionMachine
from broker.cluster.procedure import Procedure, chunks, failed_index, read_children, read_node, write
from broker.cluster.replica_machine import ReplicaMachine
from coordination.port import ConnectionLost, CoordinationError, Delete, Multi, NoNode, NotEmpty

PARTITIONS_AT_ONCE = 100
TRIES = 10


class TopicDeletion:
    """The deletions of a controller."""

    def __init__(
        self,
        context: ControllerContext,
        orders: Orders,
        channels: Channels,
        partitions: PartitionMachine,
        replicas: ReplicaMachine,
    ) -> None:
        self._context = context
        self._orders = orders
        self._channels = channels
        self._partitions = partitions
        self._replicas = replicas

    def start(self, topics: Iterable[str]) -> Procedure[None]:
        """Begin to delete topics, which exist."""
        begun = set(topics)
        self._context.topics_to_delete |= begun
        yield from self._resume(begun)

    def retry(self, topics: Iterable[str]) -> Procedure[None]:
        """Go on with topics that waited for a broker that is back."""
        waiting = self._context.topics_to_delete.intersection(topics)
        if waiting:
            for topic in waiting:
                self._context.deletion_ineligible.pop(topic, None)
            yield from self._resume(waiting)

    def replicas_deleted(self, replicas: Iterable[Replica]) -> Procedure[None]:
        deleted = self._being_deleted(replicas)
        yield from self._replicas.change(deleted, ReplicaState.DELETION_SUCCESSFUL)
        yield from self._resume(_topics_of(deleted))

    def replicas_failed(self, replicas: Iterable[Replica]) -> Procedure[None]:
        """Stop the deletion of topics with a replica that could not be deleted, until `retry`."""
        failed = self._being_deleted(replicas)
        if failed:
            yield from self._replicas.change(failed, ReplicaState.DELETION_INELIGIBLE)
            self._context.wait_with_deletions(failed)
            yield from self._resume(_topics_of(failed))

    def resume(self) -> Procedure[None]:
        """Take each topic's deletion as far as it can go now."""
        yield from self._resume(self._context.topics_to_delete)

    def _resume(self, topics: Iterable[str]) -> Procedure[None]:
        """Take the deletion of these topics as far as it can go now. No other has changed: if each change looked at all
        of them, the deletion of thousands of topics would take minutes."""
        context = self._context
        to_retry: list[str] = []
        to_start: list[str] = []
        for topic in sorted(topics):
            if context.all_replicas_in_state(topic, ReplicaState.DELETION_SUCCESSFUL):
                yield from self._complete(topic)
                continue
            if not context.replicas_in_state(topic, ReplicaState.DELETION_STARTED):
                if context.replicas_in_state(topic, ReplicaState.DELETION_INELIGIBLE):
                    to_retry.append(topic)
                if topic not in context.deletion_ineligible:
                    to_start.append(topic)
        for topic in to_retry:
            ineligible = context.replicas_in_state(topic, ReplicaState.DELETION_INELIGIBLE)
            yield from self._replicas.change(ineligible, ReplicaState.OFFLINE)
        if to_start:
            yield from self._start(to_start)

    def _being_deleted(self, replicas: Iterable[Replica]) -> list[Replica]:
        return [replica for replica in replicas if replica.partition.topic in self._context.topics_to_delete]

    def _start(self, topics: list[str]) -> Procedure[None]:
        context = self._context
        partitions = [partition for topic in topics for partition in context.partitions_of(topic)]
        unseen = [partition for partition in partitions if partition.topic not in context.deletion_started]
        self._partitions.change(unseen, PartitionState.OFFLINE)
        self._partitions.change(unseen, PartitionState.NON_EXISTENT)
        context.deletion_started.update(topics)
        self._orders.add_update_metadata(context.broker_epochs, partitions)
        for broker_id, order in self._orders.take():
            self._channels.send(broker_id, order)
        yield from self._delete_replicas(partitions)

    def _delete_replicas(self, partitions: list[TopicPartition]) -> Procedure[None]:
        context = self._context
        replicas = context.replicas_of(partitions)
        dead = [replica for replica in replicas if not context.is_live(replica.broker_id)]
        to_delete = [
            replica
            for replica in replicas
            if context.is_live(replica.broker_id)
            and context.replica_states.get(replica) is not ReplicaState.DELETION_SUCCESSFUL
        ]
        yield from self._replicas.change(dead, ReplicaState.DELETION_INELIGIBLE)
        yield from self._replicas.change(to_delete, ReplicaState.OFFLINE)
        yield from self._replicas.change(to_delete, ReplicaState.DELETION_STARTED)
        context.wait_with_deletions(dead)

    def _complete(self, topic: str) -> Procedure[None]:
        if (yield from delete_topic_nodes(self._context, topic)):
            self._context.remove_topic(topic)


def _topics_of(replicas: Iterable[Replica]) -> set[str]:
    return {replica.partition.topic for replica in replicas}


def delete_topic_nodes(context: ControllerContext, topic: str) -> Procedure[bool]:
    """Delete a topic's nodes in Kafka's order: its states, its partitions, the topic, its settings, its deletion.

    The partitions are read, because a controller that died may have created more than the topic's document names. The
    last Multi is repeated only while the topic still has its id: a broker may have created the topic anew meanwhile.
    Return False if nodes that are no partitions are in the way.
    """
    for _ in range(TRIES):
        names = yield from read_children(partitions_path(topic))
        indexes = sorted(int(name) for name in names if name.isdigit())
        partitions = [TopicPartition(topic, index) for index in indexes]
        groups = list(chunks(partitions, PARTITIONS_AT_ONCE)) or [[]]
        for group in groups[:-1]:
            yield from _delete(context, topic, _partition_deletes(group))
        last = [
            *_partition_deletes(groups[-1]),
            Delete(partitions_path(topic)),
            Delete(topic_path(topic)),
            Delete(config_path(topic)),
            Delete(deletion_path(topic)),
        ]
        if (yield from _delete(context, topic, last)):
            return True
    context.damaged[topic_path(topic)] = "it cannot be deleted, because nodes of another kind are below it"
    return False


def _partition_deletes(partitions: list[TopicPartition]) -> list[Delete]:
    states = [Delete(state_path(partition)) for partition in partitions]
    return states + [Delete(partition_path(partition)) for partition in partitions]


def _delete(context: ControllerContext, topic: str, deletes: list[Delete]) -> Procedure[bool]:
    """Delete nodes in one Multi; skip those that do not exist. Return False if a node has children by now."""
    while deletes:
        outcome = yield from write(Multi((context.fence(), *deletes)))
        if not isinstance(outcome, CoordinationError):
            return True
        index = failed_index(outcome)
        if isinstance(outcome, NotEmpty):
            return False
        if isinstance(outcome, NoNode) and index is not None:
            del deletes[index - 1]
        if isinstance(outcome, ConnectionLost | NoNode) and not (yield from _has_its_id(context, topic)):
            return True
    return True


def _has_its_id(context: ControllerContext, topic: str) -> Procedure[bool]:
    path = topic_path(topic)
    node = yield from read_node(path)
    if node is None:
        return False
    try:
        return Topic.decode(path, node.data).topic_id == context.topic_ids.get(topic)
    except DamagedDocument:
        return True
