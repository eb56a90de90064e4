"""AlterPartition (KIP-497, KIP-903): the controller grants a leader another ISR, or says why it does not.

| the proposal | answer |
|---|---|
| of a broker that is not registered, or of another life | STALE_BROKER_EPOCH, for the request |
| of a topic id that is not known; of a partition | UNKNOWN_TOPIC_ID; UNKNOWN_TOPIC_OR_PARTITION |
| in a later leader or partition epoch than the controller's | NOT_CONTROLLER: this one was replaced |
| in an earlier leader epoch | FENCED_LEADER_EPOCH |
| of a broker that does not lead | INVALID_REQUEST |
| that changes nothing | the present state, whatever partition epoch it names: its answer may have got lost |
| in an earlier partition epoch | INVALID_UPDATE_VERSION |
| without the leader, with a stranger or with a member twice | INVALID_REQUEST |
| that begins a recovery, or lets others join before it ends (KIP-704) | INVALID_REQUEST |
| with a member that is not live, shuts down or has another broker epoch | INELIGIBLE_REPLICA |
| else | the next state, once it is written |

OPERATION_NOT_ATTEMPTED is Kafka's answer in versions before 2, in place of INELIGIBLE_REPLICA, and is never given here.
The partition epoch rises and the leader epoch stays (rule E4), so no LeaderAndIsr follows: UpdateMetadata tells all.

A leader of ours names its min.insync.replicas and is granted an ELR (rule R3). It may ask for the ISR that it has, when
its min.insync.replicas was lowered, to have the ELR emptied.
"""

from dataclasses import replace
from typing import Any

from broker.cluster.cluster_changes import ClusterChanges
from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import RECOVERED, RECOVERING, LeaderAndIsr, TopicPartition
from broker.cluster.isr_members import elr_after, joined
from broker.cluster.partition_writes import update_states
from broker.cluster.procedure import Procedure
from broker.cluster.requests import AlterPartition, Answer, IsrMember, IsrProposal
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import NO_MIN_ISR

ANY_EPOCH = -1
"""The broker epoch of a member that a leader of Kafka's names."""


def alter_partition(changes: ClusterChanges, request: AlterPartition) -> Procedure[Answer]:
    """Grant the ISRs of one request; they are written together."""
    context = changes.context
    epoch = context.broker_epochs.get(request.broker_id)
    if epoch != request.broker_epoch:
        reason = f"Broker {request.broker_id} has epoch {epoch}, the request is of epoch {request.broker_epoch}"
        return Answer(ErrorCode.STALE_BROKER_EPOCH, reason)
    isrs: dict[tuple[Any, int], LeaderAndIsr | ErrorCode] = {}
    keys: dict[TopicPartition, tuple[Any, int]] = {}
    decisions: dict[TopicPartition, LeaderAndIsr] = {}
    for proposal in request.proposals:
        key = proposal.topic_id, proposal.partition
        topic = context.topic_name(proposal.topic_id)
        if topic is None:
            isrs[key] = ErrorCode.UNKNOWN_TOPIC_ID
            continue
        partition = TopicPartition(topic, proposal.partition)
        decision = _decide(context, request.broker_id, partition, proposal)
        if isinstance(decision, ErrorCode) or decision is context.leadership[partition]:
            isrs[key] = decision
        else:
            decisions[partition], keys[partition] = decision, key
    result = yield from update_states(context, decisions)
    context.leadership.update(result.written)
    context.leadership.update((p, state) for p, state in result.other.items() if state is not None)
    for partition, key in keys.items():
        isrs[key] = result.written.get(partition, ErrorCode.INVALID_UPDATE_VERSION)
    if result.written:
        changes.tell(result.written)
    return Answer(isrs=isrs)


def _decide(
    context: ControllerContext, broker_id: int, partition: TopicPartition, proposal: IsrProposal
) -> LeaderAndIsr | ErrorCode:
    """Return the state to write; the present one if the proposal changes nothing."""
    current = context.leadership.get(partition)
    if current is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.leader_epoch > current.leader_epoch or proposal.partition_epoch > current.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < current.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != current.leader:
        return ErrorCode.INVALID_REQUEST
    isr = tuple(member.broker_id for member in proposal.isr)
    elr: tuple[int, ...] = ()
    if proposal.min_isr is not None:
        elr = elr_after(context, partition, current, broker_id, isr, proposal.min_isr)
    is_same = set(isr) == set(current.isr) and elr == current.elr
    if is_same and proposal.recovery_state == current.recovery_state:
        return current
    if proposal.partition_epoch < current.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if broker_id not in isr or len(set(isr)) < len(isr) or not set(isr) <= set(context.replicas(partition)):
        return ErrorCode.INVALID_REQUEST
    if proposal.recovery_state == RECOVERING and (current.recovery_state == RECOVERED or len(isr) > 1):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(context, partition, member) for member in proposal.isr):
        return ErrorCode.INELIGIBLE_REPLICA
    decision = replace(current, isr=isr, elr=elr, recovery_state=proposal.recovery_state)
    return joined(context, decision, [member for member in isr if member not in current.isr])


def _is_eligible(context: ControllerContext, partition: TopicPartition, member: IsrMember) -> bool:
    epochs = (ANY_EPOCH, context.broker_epochs.get(member.broker_id))
    return context.is_online(partition, member.broker_id) and member.broker_epoch in epochs


def read_request(message: Any) -> AlterPartition:
    """Return the request of a message in version 2 or 3, as it was sent."""
    return AlterPartition(
        int(message.broker_id),
        int(message.broker_epoch),
        tuple(_read_proposal(topic.topic_id, data) for topic in message.topics for data in topic.partitions),
    )


def _read_proposal(topic_id: Any, data: Any) -> IsrProposal:
    if hasattr(data, "new_isr"):  # version 2
        isr = tuple(IsrMember(int(broker_id)) for broker_id in data.new_isr)
        min_isr = NO_MIN_ISR
    else:
        isr = tuple(IsrMember(int(member.broker_id), int(member.broker_epoch)) for member in data.new_isr_with_epochs)
        min_isr = int(data.min_isr)
    return IsrProposal(
        topic_id,
        int(data.partition_index),
        int(data.leader_epoch),
        int(data.partition_epoch),
        isr,
        int(data.leader_recovery_state),
        None if min_isr == NO_MIN_ISR else min_isr,
    )


def response_fields(answer: Answer) -> dict[str, Any]:
    """Return the fields of the response."""
    topics: dict[Any, list[dict[str, Any]]] = {}
    for (topic_id, partition), state in answer.isrs.items():
        row: dict[str, Any] = {"partition_index": partition}
        if isinstance(state, LeaderAndIsr):
            row |= {
                "leader_id": state.leader,
                "leader_epoch": state.leader_epoch,
                "isr": state.isr,
                "leader_recovery_state": state.recovery_state,
                "partition_epoch": state.partition_epoch,
                "elr": state.elr,
            }
        else:
            row["error_code"] = state
        topics.setdefault(topic_id, []).append(row)
    rows = [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()]
    return {"error_code": answer.error_code, "topics": rows}
