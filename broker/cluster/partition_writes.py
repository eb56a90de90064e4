"""Writes of partition states: in a Multi with a check of the controller epoch, at most a hundred partitions in each.

The Multis of an event are under way at the same time, up to ten: a disk then syncs them together.

An answer that got lost is read again before the Multi is repeated (rule E1): a state with this controller's bytes, at
the version after the one that it named, is its own. A Multi is carried out whole or not at all, and a Set names the
version that it replaces, so a late Multi cannot undo a newer decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import (
    DamagedDocument,
    LeaderAndIsr,
    TopicPartition,
    partition_path,
    partitions_path,
    state_path,
)
from broker.cluster.isr_members import joined, with_lives
from broker.cluster.procedure import (
    Outcome,
    Procedure,
    chunks,
    failed_index,
    read,
    results_of,
    write,
    write_all,
)
from coordination.port import (
    CoordinationError,
    CoordinatorUnavailable,
    Create,
    Get,
    Multi,
    Node,
    NodeExists,
    NoNode,
    Set,
)

PARTITIONS_AT_ONCE = 100
MULTIS_AT_ONCE = 10

Leaderships = Mapping[TopicPartition, LeaderAndIsr]


@dataclass
class Written:
    """The outcome of proposals: `written` as proposed; `other` has a state of another writer, None if no node."""

    written: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    other: dict[TopicPartition, LeaderAndIsr | None] = field(default_factory=dict)


def read_states(
    context: ControllerContext, partitions: list[TopicPartition]
) -> Procedure[dict[TopicPartition, LeaderAndIsr]]:
    """Read the states of partitions. A partition without a state is left out, and one with a damaged state is noted."""
    outcomes = yield from read([Get(state_path(partition)) for partition in partitions])
    states: dict[TopicPartition, LeaderAndIsr] = {}
    for partition, outcome in zip(partitions, outcomes, strict=True):
        state = _decode(context, partition, outcome)
        if state is not None:
            states[partition] = state
    return states


def update_states(context: ControllerContext, proposals: Leaderships) -> Procedure[Written]:
    """Replace the states of partitions; each proposal names the version that it replaces as its partition epoch."""
    result = Written()
    decided = ((p, replace(proposal, controller_epoch=context.epoch)) for p, proposal in proposals.items())
    states = ((p, with_lives(context, p, decision)) for p, decision in decided)
    parts = (dict(chunk) for chunk in chunks(states, PARTITIONS_AT_ONCE))
    for pending in chunks(parts, MULTIS_AT_ONCE):
        while pending:
            outcomes = yield from write_all([_update_of(context, part) for part in pending])
            for part, outcome in zip(pending, outcomes, strict=True):
                yield from _settle(context, part, outcome, result)
            pending = [part for part in pending if part]
    return result


def _update_of(context: ControllerContext, pending: Leaderships) -> Multi:
    sets = [Set(state_path(p), proposal.encode(), proposal.partition_epoch) for p, proposal in pending.items()]
    return Multi((context.fence(), *sets))


def _settle(
    context: ControllerContext, pending: dict[TopicPartition, LeaderAndIsr], outcome: Outcome, result: Written
) -> Procedure[None]:
    """Move the partitions that a Multi has settled from `pending` to the result."""
    if not isinstance(outcome, CoordinationError):
        versions = results_of(outcome)[1:]
        for (partition, proposal), version in zip(pending.items(), versions, strict=True):
            assert isinstance(version, int)
            result.written[partition] = replace(proposal, partition_epoch=version)
        pending.clear()
        return
    index = failed_index(outcome)
    doubtful = list(pending) if index is None else [list(pending)[index - 1]]
    outcomes = yield from read([Get(state_path(partition)) for partition in doubtful])
    for partition, reading in zip(doubtful, outcomes, strict=True):
        proposal = pending[partition]
        if _is_own(proposal, proposal.partition_epoch + 1, reading):
            result.written[partition] = replace(proposal, partition_epoch=proposal.partition_epoch + 1)
        elif not isinstance(reading, Node) or reading.version != proposal.partition_epoch:
            result.other[partition] = _decode(context, partition, reading)
        else:
            continue  # the version that the proposal names: it was not applied, and is tried again
        del pending[partition]


def create_states(context: ControllerContext, proposals: Leaderships) -> Procedure[Written]:
    """Create the states of new partitions, and the nodes above them, in Kafka's order."""
    result = Written()
    existing = {partitions_path(p.topic) for p in context.leadership}
    for chunk in chunks(proposals.items(), PARTITIONS_AT_ONCE):
        pending = {p: with_lives(context, p, joined(context, decision, decision.isr)) for p, decision in chunk}
        while pending:
            yield from _create(context, pending, existing, result)
        existing.update(partitions_path(partition.topic) for partition, _ in chunk)
    return result


def _create(
    context: ControllerContext,
    pending: dict[TopicPartition, LeaderAndIsr],
    existing: set[str],
    result: Written,
) -> Procedure[None]:
    parents = [partitions_path(partition.topic) for partition in pending]
    parents += [partition_path(partition) for partition in pending]
    states = {state_path(partition): partition for partition in pending}
    creates = [Create(path) for path in dict.fromkeys(parents) if path not in existing]
    creates += [Create(path, pending[partition].encode()) for path, partition in states.items()]
    outcome = yield from write(Multi((context.fence(), *creates)))
    if not isinstance(outcome, CoordinationError):
        result.written.update(pending)
        pending.clear()
        return
    index = failed_index(outcome)
    if index is not None:
        path = creates[index - 1].path
        if isinstance(outcome, NodeExists) and path not in states:
            existing.add(path)
            return
        if isinstance(outcome, NoNode):  # the topic was deleted
            for partition in [p for p in pending if path.startswith(partitions_path(p.topic))]:
                result.other[partition] = None
                del pending[partition]
            return
    doubtful = list(pending) if index is None else [states[creates[index - 1].path]]
    outcomes = yield from read([Get(state_path(partition)) for partition in doubtful])
    for partition, reading in zip(doubtful, outcomes, strict=True):
        if _is_own(pending[partition], 0, reading):
            result.written[partition] = pending.pop(partition)
        elif isinstance(reading, Node):
            result.other[partition] = _decode(context, partition, reading)
            del pending[partition]


def _is_own(proposal: LeaderAndIsr, version: int, reading: Outcome) -> bool:
    return isinstance(reading, Node) and reading.version == version and reading.data == proposal.encode()


def _decode(context: ControllerContext, partition: TopicPartition, outcome: Outcome) -> LeaderAndIsr | None:
    path = state_path(partition)
    if isinstance(outcome, CoordinatorUnavailable):
        context.damaged[path] = str(outcome)
    if not isinstance(outcome, Node):
        return None
    try:
        state = LeaderAndIsr.decode(path, outcome)
    except DamagedDocument as error:
        context.damaged[path] = str(error)
        return None
    context.damaged.pop(path, None)
    return state
