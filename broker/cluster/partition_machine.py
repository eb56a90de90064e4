"""The states of partitions (Kafka's PartitionStateMachine), and what each transition does.

| to | from | does |
|---|---|---|
| New | NonExistent | nothing |
| Online | New | the first live replica leads; writes the first state, then LeaderAndIsr, UpdateMetadata |
| Online | Online, Offline | elects; writes the next state, then LeaderAndIsr, UpdateMetadata |
| Offline | New, Online, Offline | nothing; the replica machine takes the leader away |
| NonExistent | Offline | nothing |

A transition from another state is refused, partition by partition. A partition that cannot get a leader stays as it is.
"""

from collections.abc import Iterable

from broker.cluster.channel import Channels
from broker.cluster.controller_context import ControllerContext, PartitionState
from broker.cluster.documents import NO_LEADER, LeaderAndIsr, TopicPartition
from broker.cluster.leader_election import (
    Elected,
    Strategy,
    elect_new,
    elect_offline,
    exclude_untrusted,
    why_leaderless,
)
from broker.cluster.orders import Orders
from broker.cluster.partition_writes import Leaderships, create_states, update_states
from broker.cluster.procedure import Procedure

PREVIOUS_STATES = {
    PartitionState.NEW: {PartitionState.NON_EXISTENT},
    PartitionState.ONLINE: {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE},
    PartitionState.OFFLINE: {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE},
    PartitionState.NON_EXISTENT: {PartitionState.OFFLINE},
}


class PartitionMachine:
    """The partition states of a controller. ZooKeeper is written first, then the orders leave (rule S4)."""

    def __init__(self, context: ControllerContext, orders: Orders, channels: Channels) -> None:
        self._context = context
        self._orders = orders
        self._channels = channels

    def startup(self) -> Procedure[None]:
        """Elect leaders for partitions without one."""
        self.derive_states()
        yield from self.bring_online()

    def derive_states(self) -> None:
        """Derive the states from the nodes, at the beginning of a term."""
        context = self._context
        for partition in context.partitions():
            leadership = context.leadership.get(partition)
            if leadership is None:
                context.partition_states[partition] = PartitionState.NEW
            elif context.is_live(leadership.leader):
                context.partition_states[partition] = PartitionState.ONLINE
            else:
                context.partition_states[partition] = PartitionState.OFFLINE

    def exclude_untrusted(self, partitions: Iterable[TopicPartition]) -> Procedure[None]:
        """Decide about the members of these partitions whose lives are not trusted (rule W3).

        This comes before their brokers get their first LeaderAndIsr, which ends the mark "not whole" on their disks.
        """
        context = self._context
        candidates = [p for p in partitions if p in context.leadership and p.topic not in context.topics_to_delete]
        yield from self.elect(candidates, exclude_untrusted)

    def bring_online(self) -> Procedure[None]:
        """Elect leaders for all partitions that have none, except those of topics that are being deleted."""
        states = (PartitionState.NEW, PartitionState.OFFLINE)
        waiting = [
            partition
            for partition, state in self._context.partition_states.items()
            if state in states and partition.topic not in self._context.topics_to_delete
        ]
        yield from self.elect(waiting, elect_offline)

    def change(self, partitions: Iterable[TopicPartition], target: PartitionState) -> None:
        """Move partitions to New, Offline or NonExistent."""
        for partition in self._valid(partitions, target):
            self._context.partition_states[partition] = target

    def elect(
        self, partitions: Iterable[TopicPartition], strategy: Strategy
    ) -> Procedure[dict[TopicPartition, LeaderAndIsr]]:
        """Move partitions to Online. Return the decisions; a partition that no replica can lead is left out."""
        context = self._context
        valid = self._valid(partitions, PartitionState.ONLINE)
        new = [p for p in valid if context.partition_states[p] is PartitionState.NEW]
        electable = [p for p in valid if context.partition_states[p] is not PartitionState.NEW]
        decisions: dict[TopicPartition, LeaderAndIsr] = {}
        electable += yield from self._initialize(new, decisions)
        yield from self._elect(electable, strategy, decisions)
        self._send()
        return decisions

    def _initialize(
        self, partitions: list[TopicPartition], decisions: dict[TopicPartition, LeaderAndIsr]
    ) -> Procedure[list[TopicPartition]]:
        """Write the first states. Return the partitions that another controller wrote one for."""
        context = self._context
        proposals = {partition: elect_new(context, partition) for partition in partitions}
        result = yield from create_states(context, {p: state for p, state in proposals.items() if state is not None})
        for partition, leadership in result.written.items():
            self._decided(partition, leadership)
            self._orders.add_leader_and_isr(leadership.isr, partition, leadership, is_new=True)
            decisions[partition] = leadership
        return self._adopt(result.other)

    def _elect(
        self, partitions: list[TopicPartition], strategy: Strategy, decisions: dict[TopicPartition, LeaderAndIsr]
    ) -> Procedure[None]:
        context = self._context
        remaining = [partition for partition in partitions if partition in context.leadership]
        while remaining:
            elections: dict[TopicPartition, Elected] = {}
            for partition in remaining:
                elected = strategy(context, partition, context.leadership[partition])
                if elected is not None:
                    elections[partition] = elected
                else:
                    self._note_leaderless(partition)
            proposals: Leaderships = {p: elected.leadership for p, elected in elections.items()}
            result = yield from update_states(context, proposals)
            for partition, leadership in result.written.items():
                self._decided(partition, leadership)
                self._orders.add_leader_and_isr(elections[partition].recipients, partition, leadership)
                self._report_loss(partition, leadership, elections[partition].loss)
                if leadership.leader != NO_LEADER:
                    decisions[partition] = leadership
            remaining = self._adopt(result.other)

    def _adopt(self, others: dict[TopicPartition, LeaderAndIsr | None]) -> list[TopicPartition]:
        """Take the states that another writer left. Return their partitions, which are to be elected anew."""
        adopted = {partition: state for partition, state in others.items() if state is not None}
        for partition, leadership in adopted.items():
            self._context.leadership[partition] = leadership
            self._context.partition_states[partition] = PartitionState.OFFLINE
        return list(adopted)

    def _decided(self, partition: TopicPartition, leadership: LeaderAndIsr) -> None:
        has_leader = leadership.leader != NO_LEADER
        self._context.leadership[partition] = leadership
        self._context.partition_states[partition] = PartitionState.ONLINE if has_leader else PartitionState.OFFLINE
        self._note_leaderless(partition)

    def _note_leaderless(self, partition: TopicPartition) -> None:
        context = self._context
        context.leaderless.pop(partition, None)
        if not context.is_online(partition, context.leadership[partition].leader):
            reason = why_leaderless(context, partition, context.leadership[partition])
            if reason is not None:
                context.leaderless[partition] = reason

    def _report_loss(self, partition: TopicPartition, leadership: LeaderAndIsr, loss: str | None) -> None:
        """Count and report an unclean leader."""
        if loss is not None:
            self._context.unclean_elections += 1
            self._context.policy.report(f"{partition}: broker {leadership.leader} leads, because {loss}")

    def _valid(self, partitions: Iterable[TopicPartition], target: PartitionState) -> list[TopicPartition]:
        states = self._context.partition_states
        return [p for p in partitions if states.get(p, PartitionState.NON_EXISTENT) in PREVIOUS_STATES[target]]

    def _send(self) -> None:
        for broker_id, order in self._orders.take():
            self._channels.send(broker_id, order)
