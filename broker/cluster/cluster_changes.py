"""The controller's work for each change of the cluster: brokers that start and die, topics, partitions, deletions.

Each method is one event, carried out to the end of its operations. A watch is set by the read that it belongs to, so a
change after the read causes another event. The order of the steps is Kafka's: brokers expect it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.cluster.channel import Channels
from broker.cluster.controller_context import ControllerContext, PartitionState, Replica, ReplicaState
from broker.cluster.documents import (
    BROKER_IDS,
    DELETE_TOPICS,
    FEATURE,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    NO_FEATURES,
    TOPICS,
    DamagedDocument,
    Registration,
    Topic,
    TopicPartition,
    broker_path,
    decode_isr_change,
    decode_log_dir_event,
    deletion_path,
    topic_path,
)
from broker.cluster.leader_election import elect_for_shutdown, elect_offline, elect_preferred
from broker.cluster.notifications import delete_notifications, drop_notifications, read_notifications
from broker.cluster.orders import Orders
from broker.cluster.partition_machine import PartitionMachine
from broker.cluster.partition_writes import read_states
from broker.cluster.preferred_leaders import imbalanced_partitions
from broker.cluster.procedure import Procedure, failed_index, read, read_children, write
from broker.cluster.replica_machine import ReplicaMachine
from broker.cluster.topic_deletion import TopicDeletion
from coordination.port import ConnectionLost, CoordinatorUnavailable, Create, Delete, Get, Multi, Node


class LiveBroker(NamedTuple):
    registration: Registration
    broker_epoch: int


class ClusterChanges:
    """The changes of one controller's term. `partitions`, `replicas` and `deletion` share its context and orders."""

    def __init__(self, context: ControllerContext, channels: Channels, controller_id: int, listener: str) -> None:
        self.context = context
        self.channels = channels
        self.orders = Orders(context, controller_id, listener)
        self.partitions = PartitionMachine(context, self.orders, channels)
        self.replicas = ReplicaMachine(context, self.orders, channels)
        self.deletion = TopicDeletion(context, self.orders, channels, self.partitions, self.replicas)

    def recover(self) -> Procedure[None]:
        """Begin a term: read everything, tell the brokers, start the machines, go on with deletions.

        The first UpdateMetadata to each broker has all partitions. Kafka's has none, and the machines' orders follow;
        a broker that registers just before would tell clients meanwhile that topics do not exist.
        """
        context = self.context
        while isinstance((yield from write(Create(FEATURE, NO_FEATURES))), ConnectionLost):
            pass
        yield from drop_notifications(context, LOG_DIR_EVENTS)
        yield from drop_notifications(context, ISR_CHANGES)
        brokers = yield from self._read_brokers()
        topics = yield from self._read_topics(set())
        deletions = yield from read_children(DELETE_TOPICS, watch=True)
        for broker_id, broker in sorted(brokers.items()):
            context.add_broker(broker_id, *broker)
            self.channels.open(broker_id, broker.broker_epoch)
        for name, topic in topics.items():
            context.add_topic(name, topic)
        context.leadership.update((yield from read_states(context, context.partitions())))
        to_delete = context.assignments.keys() & set(deletions)
        context.topics_to_delete.update(to_delete)
        replicas = context.replicas_of(p for topic in to_delete for p in context.partitions_of(topic))
        context.wait_with_deletions(replica for replica in replicas if not context.is_live(replica.broker_id))
        self.orders.add_full_metadata(context.broker_epochs)
        self._send()
        self.partitions.derive_states()
        yield from self.partitions.exclude_untrusted(context.partitions())
        yield from self.replicas.startup()
        yield from self.partitions.startup()
        yield from self.deletion.resume()
        yield from self.deletions_changed()

    # Brokers

    def brokers_changed(self) -> Procedure[None]:
        """Compare the registered brokers with the known ones. A broker with another epoch died and started again."""
        context = self.context
        brokers = yield from self._read_brokers()
        epochs = dict(context.broker_epochs)
        new = sorted(brokers.keys() - epochs.keys())
        dead = sorted(epochs.keys() - brokers.keys())
        bounced = sorted(b for b in brokers.keys() & epochs.keys() if brokers[b].broker_epoch != epochs[b])
        if new:
            yield from self._brokers_started(new, brokers)
        if bounced:
            yield from self._brokers_failed(bounced)
            yield from self._brokers_started(bounced, brokers)
        if dead:
            yield from self._brokers_failed(dead)

    def _brokers_started(self, broker_ids: list[int], brokers: dict[int, LiveBroker]) -> Procedure[None]:
        context = self.context
        for broker_id in broker_ids:
            context.add_broker(broker_id, *brokers[broker_id])
            self.channels.open(broker_id, brokers[broker_id].broker_epoch)
        self.orders.add_update_metadata(context.broker_epochs.keys() - set(broker_ids))
        self._send()
        self.orders.add_full_metadata(broker_ids)
        self._send()
        replicas = context.replicas_on(broker_ids)
        yield from self.partitions.exclude_untrusted(dict.fromkeys(replica.partition for replica in replicas))
        yield from self.replicas.change(replicas, ReplicaState.ONLINE)
        yield from self.partitions.bring_online()
        yield from self.deletion.retry(replica.partition.topic for replica in replicas)

    def _brokers_failed(self, broker_ids: list[int]) -> Procedure[None]:
        context = self.context
        context.remove_brokers(broker_ids)
        for broker_id in broker_ids:
            self.channels.close(broker_id)
        context.shutting_down.difference_update(broker_ids)
        replicas = context.replicas_on(broker_ids)
        deleting = [replica for replica in replicas if replica.partition.topic in context.topics_to_delete]
        others = [replica for replica in replicas if replica.partition.topic not in context.topics_to_delete]
        yield from self._take_offline(others)
        yield from self.deletion.replicas_failed(deleting)
        if not others:
            self.orders.add_update_metadata(context.broker_epochs)  # the machines sent none; fewer brokers are live
            self._send()

    def _take_offline(self, replicas: list[Replica]) -> Procedure[None]:
        """Elect leaders in place of replicas that are gone, then take these out of the ISRs."""
        self.partitions.change(self.context.partitions_with_offline_leader(), PartitionState.OFFLINE)
        yield from self.partitions.bring_online()
        yield from self.replicas.change(replicas, ReplicaState.OFFLINE)

    # Disks

    def order_again(self, replicas: Sequence[Replica]) -> Procedure[None]:
        """Repeat the orders that the disk of a live broker did not take. Kafka's brokers take the directory offline
        until their next start, and their controller then repeats all orders."""
        yield from self._order(replicas)
        yield from self.deletion.retry(replica.partition.topic for replica in replicas)

    def _order(self, replicas: Sequence[Replica]) -> Procedure[None]:
        """Send LeaderAndIsr for replicas that are online, and for those whose disk failed, whose state stays.

        A topic that is being deleted gets none, because its logs may be gone already, and the order would make them
        anew.
        """
        context = self.context
        kept = [replica for replica in replicas if replica.partition.topic not in context.topics_to_delete]
        online = [r for r in kept if context.replica_states.get(r) is ReplicaState.ONLINE]
        for partition, broker_id in sorted(context.failed_disks.intersection(kept)):
            self.orders.add_leader_and_isr([broker_id], partition, context.leadership[partition])
        yield from self.replicas.change(online, ReplicaState.ONLINE)

    def log_dirs_changed(self) -> Procedure[None]:
        """Ask the brokers that notify of a failed disk which replicas they lost, by LeaderAndIsr for all of theirs.

        KAFKA_STORAGE_ERROR in the answer makes a replica offline.
        """
        context = self.context
        paths, broker_ids = yield from read_notifications(context, LOG_DIR_EVENTS, decode_log_dir_event)
        live = sorted(set(broker_ids) & context.broker_epochs.keys())
        yield from self._order(context.replicas_on(live))
        yield from delete_notifications(context, paths)

    def disks_answered(
        self,
        failed: Sequence[Replica],
        taken: Sequence[Replica],
        kept: Sequence[Replica] = (),
        others: Sequence[Replica] = (),
    ) -> Procedure[None]:
        """Take a broker's answer to LeaderAndIsr: replicas that a disk did not take are offline, others are back.

        Of the failed, `kept` have lost no records, and in place of `others` the broker has records of another topic.
        The only copy of a partition stays as it is, because no other can lead, and its order is repeated. One of
        `others` does not lead: as long as those records are there, the broker serves it to no client.
        """
        context = self.context
        context.other_topics.difference_update(failed, taken)
        context.other_topics.update(replica for replica in others if replica.partition in context.leadership)
        worse = [replica for replica in failed if replica in context.kept and replica not in kept]
        context.kept.difference_update(failed)
        context.kept.update(kept)
        back = [replica for replica in taken if replica in context.failed_disks]
        context.failed_disks.difference_update(worse)
        lost = [replica for replica in failed if self._is_lost(replica)]
        if back:
            context.failed_disks.difference_update(back)
            context.replica_states.update((replica, ReplicaState.ONLINE) for replica in back)
            self.tell(replica.partition for replica in back)
            yield from self._order(back)  # decisions since the order that was taken went to the others alone
            yield from self.partitions.bring_online()
        if lost:
            context.failed_disks.update(lost)
            yield from self._take_offline(lost)

    def _is_lost(self, replica: Replica) -> bool:
        """Return True if another replica can take over from one whose disk failed just now, or if it cannot lead."""
        context, partition = self.context, replica.partition
        is_decided = partition in context.leadership and partition.topic not in context.topics_to_delete
        may_end = len(context.replicas(partition)) > 1 or replica in context.other_topics
        return is_decided and may_end and replica not in context.failed_disks

    # Leaders

    def isrs_changed(self) -> Procedure[None]:
        """Take the ISRs that leaders before Kafka 2.7 wrote to `state` themselves, and tell all brokers."""
        context = self.context
        paths, changes = yield from read_notifications(context, ISR_CHANGES, decode_isr_change)
        partitions = [p for change in changes for p in dict.fromkeys(change) if p in context.leadership]
        states = yield from read_states(context, partitions)
        context.leadership.update(states)
        if states:
            self.tell(states)
        yield from delete_notifications(context, paths)

    def leaders_allowed(self) -> Procedure[None]:
        """Elect leaders for the partitions without one, because a topic may allow unclean leaders now."""
        yield from self.partitions.bring_online()

    def rebalance(self) -> Procedure[None]:
        """Elect the preferred leaders of brokers that lead too few of their partitions."""
        rebalance = self.context.policy.rebalance
        if rebalance is not None:
            partitions = imbalanced_partitions(self.context, rebalance.percentage)
            yield from self.partitions.elect(partitions, elect_preferred)

    def controlled_shutdown(self, broker_id: int) -> Procedure[tuple[TopicPartition, ...]]:
        """Move the leaders of a broker that stops. Return the partitions that it still leads."""
        context = self.context
        context.shutting_down.add(broker_id)
        partitions = [
            partition
            for partition in context.partitions_on(broker_id)
            if len(context.replicas(partition)) > 1
            and partition in context.leadership
            and partition.topic not in context.topics_to_delete
        ]
        led = [partition for partition in partitions if context.leadership[partition].leader == broker_id]
        followed = [partition for partition in partitions if context.leadership[partition].leader != broker_id]
        yield from self.partitions.elect(led, elect_for_shutdown)
        for partition in followed:
            self.orders.add_stop_replica(broker_id, partition, delete=False)
        self._send()
        yield from self.replicas.change([Replica(p, broker_id) for p in followed], ReplicaState.OFFLINE)
        return tuple(context.partitions_led_by(broker_id))

    # Topics

    def topics_changed(self) -> Procedure[None]:
        """Take topics that others created, such as a broker that needs __consumer_offsets."""
        context = self.context
        topics = yield from self._read_topics(set(context.assignments))
        partitions = [p for name, topic in topics.items() for p in sorted(context.add_topic(name, topic))]
        yield from self.create_partitions(partitions)
        if topics:
            yield from self.deletions_changed()  # it left the deletions of topics that were unknown

    def topic_changed(self, name: str) -> Procedure[None]:
        """Take partitions that were added to a topic. A topic that is being deleted does not grow."""
        context = self.context
        if context.damaged.pop(topic_path(name), None) is not None:
            yield from self.topics_changed()  # its node may have been mended
        if name not in context.assignments:
            return
        topics = yield from self._read_named_topics([name])
        if name in topics and name not in context.topics_to_delete:
            yield from self.create_partitions(sorted(context.add_topic(name, topics[name])))

    def create_partitions(self, partitions: list[TopicPartition]) -> Procedure[None]:
        """Bring new partitions online: states, then orders."""
        if not partitions:
            return
        replicas = self.context.replicas_of(partitions)
        self.partitions.change(partitions, PartitionState.NEW)
        yield from self.replicas.change(replicas, ReplicaState.NEW)
        yield from self.partitions.elect(partitions, elect_offline)
        yield from self.replicas.change(replicas, ReplicaState.ONLINE)

    def deletions_changed(self) -> Procedure[None]:
        """Begin the deletions that are asked for below /admin/delete_topics; drop those of topics that do not exist."""
        topics = set((yield from read_children(DELETE_TOPICS, watch=True)))
        for name in sorted(topics - self.context.assignments.keys()):
            yield from self._drop_deletion(name)
        new = topics & self.context.assignments.keys() - self.context.topics_to_delete
        if new:
            yield from self.deletion.start(new)

    def deletion_answered(self, deleted: list[Replica], failed: list[Replica]) -> Procedure[None]:
        """Take a broker's answer to StopReplica with `delete`."""
        yield from self.deletion.replicas_failed(failed)
        if deleted:
            yield from self.deletion.replicas_deleted(deleted)

    def _drop_deletion(self, name: str) -> Procedure[None]:
        """Remove the deletion of an unknown topic, unless the topic was created a moment ago."""
        (topic,) = yield from read([Get(topic_path(name))])
        if isinstance(topic, Node):
            return  # `topics_changed` follows, and looks at the deletions again
        while True:
            outcome = yield from write(Multi((self.context.fence(), Delete(deletion_path(name)))))
            failed_index(outcome)
            if not isinstance(outcome, ConnectionLost):
                return

    # Reads

    def _read_brokers(self) -> Procedure[dict[int, LiveBroker]]:
        names = yield from read_children(BROKER_IDS, watch=True)
        ids = [int(name) for name in names if name.isdigit()]
        nodes = yield from read([Get(broker_path(broker_id)) for broker_id in ids])
        self.context.forget_damages_of_brokers()
        brokers: dict[int, LiveBroker] = {}
        for broker_id, node in zip(ids, nodes, strict=True):
            if isinstance(node, Node):
                try:
                    registration = Registration.decode(broker_path(broker_id), node.data)
                except DamagedDocument as error:
                    self.context.damaged[broker_path(broker_id)] = str(error)
                else:
                    brokers[broker_id] = LiveBroker(registration, node.czxid)
        return brokers

    def _read_topics(self, known_names: set[str]) -> Procedure[dict[str, Topic]]:
        names = yield from read_children(TOPICS, watch=True)
        return (yield from self._read_named_topics([name for name in names if name not in known_names]))

    def _read_named_topics(self, names: list[str]) -> Procedure[dict[str, Topic]]:
        nodes = yield from read([Get(topic_path(name), watch=True) for name in names])
        topics: dict[str, Topic] = {}
        for name, node in zip(names, nodes, strict=True):
            if isinstance(node, Node):
                try:
                    topics[name] = Topic.decode(topic_path(name), node.data)
                except DamagedDocument as error:
                    self.context.damaged[topic_path(name)] = str(error)
            elif isinstance(node, CoordinatorUnavailable):
                self.context.damaged[topic_path(name)] = str(node)
        return topics

    # Orders

    def tell(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell all brokers the present states of partitions, by UpdateMetadata."""
        self.orders.add_update_metadata(self.context.broker_epochs, partitions)
        self._send()

    def _send(self) -> None:
        for broker_id, order in self.orders.take():
            self.channels.send(broker_id, order)
