"""Plans the changes of hosted partitions that a controller orders.

LeaderAndIsr names the leader of partitions that this broker has a copy of; StopReplica ends copies. Both are planned
against the hosted image, as topics to change; nothing is changed here.

A partition takes an order only in a later leader epoch than it has (Kafka 3.9 refuses an order in the same epoch,
whatever its partition epoch). A copy that was stopped may follow again in its epoch. The epochs are those of this
process: one that begins knows its directory and no leader, because the controller repeats the last decision to each
life of a broker.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from uuid import UUID

from broker.metadata.image import Image
from broker.metadata.topic import NO_LEADER, PartitionState, Topic
from broker.wire.errors import ApiError, ErrorCode

NO_EPOCH = -1
STORED_EVERY = 256
"""The file has an epoch of a partition at most this far behind, so that recovery can tell a damaged epoch in a batch
(broker.log.recovery) from one that began since the file was written."""
UNHOSTED = PartitionState(NO_LEADER, NO_EPOCH, (), ())
"""A partition of a hosted topic that has no copy here."""

SettingsOf: TypeAlias = Callable[[str], Mapping[str, str]]
CheckDirectory: TypeAlias = Callable[[str], None]
"""Raises ApiError if a new log of this name would begin with the records of an earlier one."""


@dataclass
class HostedPlan:
    """The changes of the hosted image that an order asks for."""

    topics: dict[str, Topic | None] = field(default_factory=dict)
    """Changed topics by name; None for a topic whose last hosted partition is deleted."""
    new: list[tuple[str, int]] = field(default_factory=list)
    """Partitions that get a log."""
    refused: dict[tuple[str, int], ErrorCode] = field(default_factory=dict)
    """The errors of partitions that take no part in the order."""
    kept: set[tuple[str, int]] = field(default_factory=set)
    """Refused partitions whose logs have lost nothing."""
    deletes: bool = False
    """True if logs are deleted."""
    stores: bool = False
    """True if the file must have the leader epochs, because it is far behind or was written by an earlier process, or
    other replicas: a start gives a log its stored high watermark if it is one of several copies."""
    problems: list[str] = field(default_factory=list)
    """Lines for the operator."""


def without_leaders(topics: Iterable[Topic]) -> dict[str, Topic | None]:
    """Return the topics of a directory as a process begins with them: it knows its copies, and no leader."""
    return {
        topic.name: replace(topic, partitions=tuple(_led_by_nobody(state) for state in topic.partitions))
        for topic in topics
    }


def _led_by_nobody(state: PartitionState) -> PartitionState:
    return state._replace(leader=NO_LEADER, leader_epoch=NO_EPOCH, partition_epoch=NO_EPOCH)


def plan_leader_and_isr(
    hosted: Image,
    broker_id: int,
    topic_states: Iterable[Any],
    settings_of: SettingsOf,
    check_directory: CheckDirectory,
    unwritten: Collection[tuple[str, int]] = (),
    is_offline: Callable[[str, int], bool] = lambda topic, partition: False,
    waits_for_space: Callable[[str, int], bool] = lambda topic, partition: False,
    *,
    replicates: bool = True,
) -> HostedPlan:
    """Plan LeaderAndIsr. `settings_of` returns the settings of a topic by its name.

    `unwritten` are partitions whose new leader epochs could not be written to the disk. They are not led. With
    `is_offline`, a partition of several copies whose log is offline is refused, so that another broker leads it. With
    `waits_for_space`, such a log has lost nothing: it is online again when the disk has space. A broker that does not
    replicate refuses all partitions of several copies: it would answer acks=all alone.
    """
    plan = HostedPlan()
    shared: list[str] = []
    for ordered in topic_states:
        name = str(ordered.topic_name)
        states = {state.partition_index: _state(state) for state in ordered.partition_states}
        topic = hosted.topic(name)
        if topic is not None and topic.id != ordered.topic_id:
            plan.refused.update(((name, partition), ErrorCode.INCONSISTENT_TOPIC_ID) for partition in states)
            continue
        if topic is None:
            topic = Topic(name, ordered.topic_id or UUID(int=0), (), dict(settings_of(name)))
        partitions = list(topic.partitions)
        for number, state in sorted(states.items()):
            partitions += [UNHOSTED] * (number + 1 - len(partitions))
            held = partitions[number]
            has_copies = len(state.replicas) > 1
            if has_copies and replicates and waits_for_space(name, number):
                _refuse_whole(plan, name, number)
            elif has_copies and replicates and is_offline(name, number):
                plan.refused[name, number] = ErrorCode.KAFKA_STORAGE_ERROR
            elif broker_id not in state.replicas or not _is_later(state, held, broker_id):
                plan.refused[name, number] = ErrorCode.STALE_CONTROLLER_EPOCH
            elif has_copies and not replicates:
                _refuse_whole(plan, name, number)
                shared.append(f"{name}-{number}")
            elif (name, number) in unwritten:
                _refuse_whole(plan, name, number)
            elif broker_id in held.replicas or _is_new(plan, name, number, check_directory):
                partitions[number] = state
                is_far_behind = held.leader_epoch // STORED_EVERY != state.leader_epoch // STORED_EVERY
                plan.stores = plan.stores or is_far_behind or held.replicas != state.replicas
        ordered_topic = replace(topic, partitions=tuple(partitions))
        if ordered_topic.partitions != topic.partitions and ordered_topic.copies_on(broker_id):
            plan.topics[name] = ordered_topic
    if shared:
        plan.problems.append(
            f"{len(shared)} partitions have copies on other brokers, first {shared[0]}. This broker neither leads nor "
            "follows them, because flakelog.replication.enable is false; set it to true"
        )
    return plan


def _refuse_whole(plan: HostedPlan, name: str, number: int) -> None:
    """Refuse a partition that this broker cannot lead or follow now, whose log has lost nothing."""
    plan.refused[name, number] = ErrorCode.KAFKA_STORAGE_ERROR
    plan.kept.add((name, number))


def _is_later(state: PartitionState, held: PartitionState, broker_id: int) -> bool:
    """Return True if an order is to be taken: it has a later leader epoch, or has a copy that was stopped follow again.

    The controller stops a copy whose disk has failed. When the disk is back it repeats its last decision.
    """
    follows_again = held.leader == NO_LEADER and state.leader not in (NO_LEADER, broker_id)
    return state.leader_epoch > held.leader_epoch or (state.leader_epoch == held.leader_epoch and follows_again)


def _is_new(plan: HostedPlan, name: str, number: int, check_directory: CheckDirectory) -> bool:
    """Note that a partition gets a log. Return False if a log of its name would begin with other records."""
    try:
        check_directory(f"{name}-{number}")
    except ApiError as error:
        plan.refused[name, number] = error.code
        plan.problems.append(f"{name}-{number} is not hosted: {error}")
        return False
    plan.new.append((name, number))
    return True


def _state(ordered: Any) -> PartitionState:
    return PartitionState(
        int(ordered.leader),
        int(ordered.leader_epoch),
        tuple(map(int, ordered.replicas)),
        tuple(map(int, ordered.isr)),
        int(ordered.partition_epoch),
        elr=tuple(map(int, ordered.elr)),
        adding=tuple(map(int, ordered.adding_replicas)),
        removing=tuple(map(int, ordered.removing_replicas)),
    )


def plan_stop_replica(hosted: Image, broker_id: int, topic_states: Iterable[Any]) -> HostedPlan:
    """Plan StopReplica. A copy that is stopped has no leader until the next LeaderAndIsr; one that is deleted is gone.

    The epoch of a topic that is being deleted passes the check of the leader epoch (KIP-570).
    """
    plan = HostedPlan()
    for ordered in topic_states:
        name = str(ordered.topic_name)
        topic = hosted.topic(name)
        if topic is None:
            continue  # there is no copy to stop
        partitions = list(topic.partitions)
        for order in ordered.partition_states:
            number = order.partition_index
            if number >= len(partitions) or broker_id not in partitions[number].replicas:
                continue
            held = partitions[number]
            if NO_EPOCH < order.leader_epoch < held.leader_epoch:
                plan.refused[name, number] = ErrorCode.FENCED_LEADER_EPOCH
            elif order.delete_partition:
                partitions[number], plan.deletes = UNHOSTED, True
            else:
                partitions[number] = held._replace(leader=NO_LEADER)
        stopped = replace(topic, partitions=tuple(partitions))
        if stopped.partitions != topic.partitions:
            plan.topics[name] = stopped if stopped.copies_on(broker_id) else None
    return plan
