"""The states of replicas (Kafka's ReplicaStateMachine), and what each transition does.

| to | from | does |
|---|---|---|
| New | NonExistent | LeaderAndIsr(isNew) if the partition has a leader |
| Online | New | nothing: the partition machine's order made it |
| Online | Online, Offline, DeletionIneligible | LeaderAndIsr |
| Offline | New, Online, Offline, DeletionIneligible | StopReplica; out of a leader's ISR; LeaderAndIsr to the others |
| DeletionStarted | Offline | StopReplica(delete) |
| DeletionSuccessful | DeletionStarted | nothing |
| DeletionIneligible | DeletionStarted, Offline | nothing |
| NonExistent | DeletionSuccessful | forgotten |

While no replica leads, the ISR stays as it is, with leader -1. Nothing is committed meanwhile, so each of its members
has all records, unless it loses them in a power cut. Which of them is back with all of them is known only when it is
back. Kafka's controller keeps one member of the ISR, whichever it was.
"""

from collections.abc import Iterable
from dataclasses import replace

from broker.cluster.channel import Channels
from broker.cluster.controller_context import ControllerContext, Replica, ReplicaState
from broker.cluster.documents import NO_LEADER, NO_LIFE, LeaderAndIsr, TopicPartition
from broker.cluster.isr_members import elr_after
from broker.cluster.orders import Orders
from broker.cluster.partition_writes import update_states
from broker.cluster.procedure import Procedure

_ALIVE = {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
PREVIOUS_STATES = {
    ReplicaState.NEW: {ReplicaState.NON_EXISTENT},
    ReplicaState.ONLINE: _ALIVE,
    ReplicaState.OFFLINE: _ALIVE,
    ReplicaState.DELETION_STARTED: {ReplicaState.OFFLINE},
    ReplicaState.DELETION_SUCCESSFUL: {ReplicaState.DELETION_STARTED},
    ReplicaState.DELETION_INELIGIBLE: {ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED},
    ReplicaState.NON_EXISTENT: {ReplicaState.DELETION_SUCCESSFUL},
}


class ReplicaMachine:
    """The replica states of a controller. ZooKeeper is written first, then the orders leave (rule S4)."""

    def __init__(self, context: ControllerContext, orders: Orders, channels: Channels) -> None:
        self._context = context
        self._orders = orders
        self._channels = channels

    def startup(self) -> Procedure[None]:
        """Derive the states from the live brokers; order the live replicas, and take dead ones out of their ISRs."""
        context = self._context
        replicas = context.replicas_of(context.partitions())
        online = [replica for replica in replicas if context.is_live(replica.broker_id)]
        offline = [replica for replica in replicas if not context.is_live(replica.broker_id)]
        context.replica_states.update((replica, ReplicaState.ONLINE) for replica in online)
        context.replica_states.update((replica, ReplicaState.DELETION_INELIGIBLE) for replica in offline)
        yield from self.change(online, ReplicaState.ONLINE)
        yield from self.change(offline, ReplicaState.OFFLINE)

    def change(self, replicas: Iterable[Replica], target: ReplicaState) -> Procedure[None]:
        """Move replicas to a state and send the orders that follow."""
        by_broker: dict[int, list[Replica]] = {}
        states = self._context.replica_states
        for replica in replicas:
            if states.get(replica, ReplicaState.NON_EXISTENT) in PREVIOUS_STATES[target]:
                by_broker.setdefault(replica.broker_id, []).append(replica)
        for broker_id, valid in sorted(by_broker.items()):
            if target is ReplicaState.OFFLINE:
                yield from self._take_offline(broker_id, valid)
            else:
                self._change(valid, target)
        for broker_id, order in self._orders.take():
            self._channels.send(broker_id, order)

    def _change(self, replicas: list[Replica], target: ReplicaState) -> None:
        context = self._context
        for replica in replicas:
            partition, broker_id = replica
            leadership = context.leadership.get(partition)
            before = context.replica_states.get(replica, ReplicaState.NON_EXISTENT)
            if target is ReplicaState.NEW and leadership is not None:
                if leadership.leader == broker_id:
                    continue  # it leads already, so it is not new
                self._orders.add_leader_and_isr([broker_id], partition, leadership, is_new=True)
            elif target is ReplicaState.ONLINE and before is not ReplicaState.NEW and leadership is not None:
                self._orders.add_leader_and_isr([broker_id], partition, leadership)
            elif target is ReplicaState.DELETION_STARTED:
                self._orders.add_stop_replica(broker_id, partition, delete=True)
            elif target is ReplicaState.NON_EXISTENT:
                assignments = context.assignments[partition.topic]
                assignments[partition.partition] = assignments[partition.partition].without(broker_id)
                del context.replica_states[replica]
                continue
            context.replica_states[replica] = target

    def _take_offline(self, broker_id: int, replicas: list[Replica]) -> Procedure[None]:
        context = self._context
        for partition, _ in replicas:
            self._orders.add_stop_replica(broker_id, partition, delete=False)
        decided = [partition for partition, _ in replicas if partition in context.leadership]
        yield from self._remove_from_isr(broker_id, decided)
        for partition in decided:
            if partition.topic not in context.topics_to_delete:
                others = [replica for replica in context.replicas(partition) if replica != broker_id]
                self._orders.add_leader_and_isr(others, partition, context.leadership[partition])
        undecided = [partition for partition, _ in replicas if partition not in context.leadership]
        if undecided:
            self._orders.add_update_metadata(context.broker_epochs, undecided)
        for replica in replicas:
            context.replica_states[replica] = ReplicaState.OFFLINE

    def _remove_from_isr(self, broker_id: int, partitions: list[TopicPartition]) -> Procedure[None]:
        """Take a replica out of the ISRs that have it, and end its leadership. One whose disk failed leaves ELRs too.
        """
        context = self._context
        remaining = partitions
        while remaining:
            members = [p for p in remaining if broker_id in _members_for(context, p, broker_id)]
            decisions = {p: _without(context, p, broker_id) for p in members}
            proposals = {p: decision for p, decision in decisions.items() if decision is not None}
            result = yield from update_states(context, proposals)
            context.leadership.update(result.written)
            remaining = [partition for partition, state in result.other.items() if state is not None]
            context.leadership.update((p, state) for p, state in result.other.items() if state is not None)


def _members_for(context: ControllerContext, partition: TopicPartition, broker_id: int) -> tuple[int, ...]:
    """Return the members among which a replica that is taken offline may not stay as it is."""
    leadership = context.leadership[partition]
    return leadership.members if context.may_lack_records(partition, broker_id) else leadership.isr


def _without(context: ControllerContext, partition: TopicPartition, broker_id: int) -> LeaderAndIsr | None:
    """Return the decision by which a member leaves the ISR, or the leadership if no other leads; None for no decision.

    A topic that is deleted goes Kafka's way, in which one member stays. A disk that failed is not trusted.
    """
    current = context.leadership[partition]
    leader = NO_LEADER if current.leader == broker_id else current.leader
    isr, lives = current.isr, current.lives
    is_deleted = partition.topic in context.topics_to_delete
    if leader != NO_LEADER or is_deleted:
        isr = tuple(member for member in isr if member != broker_id) or isr
    if context.may_lack_records(partition, broker_id):
        lives = {**lives, broker_id: min(lives.get(broker_id, NO_LIFE), NO_LIFE)}
    if (leader, isr, lives) == (current.leader, current.isr, current.lives) and not is_deleted:
        return None
    decision = current.succeeded_by(leader, isr, elr_after(context, partition, current, leader, isr))
    return replace(decision, lives=lives)
