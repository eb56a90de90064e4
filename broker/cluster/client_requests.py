"""The controller's part of the requests of clients and brokers: validate, write, answer.

A topic is created, grown and deleted by writes that check the controller epoch, so a controller that was replaced
changes nothing. Kafka writes these nodes without the check; the nodes and their order are the same.
"""

from broker.cluster.alter_partition import alter_partition
from broker.cluster.assignment import Brokers, assign_added, assign_replicas, in_order
from broker.cluster.cluster_changes import ClusterChanges
from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import (
    Assignment,
    Topic,
    TopicPartition,
    config_path,
    deletion_path,
    encode_config,
    topic_path,
)
from broker.cluster.leader_election import elect_preferred, elect_unclean
from broker.cluster.procedure import Outcome, Procedure, failed_index, read_node, write
from broker.cluster.producer_id_blocks import allocate_block
from broker.cluster.requests import (
    AllocateProducerIds,
    AlterPartition,
    Answer,
    ControlledShutdown,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Request,
)
from broker.wire.errors import ApiError, ErrorCode
from coordination.port import (
    ANY_VERSION,
    Check,
    CoordinationError,
    Create,
    Multi,
    NodeExists,
    Set,
    check_operation,
)


def answer(changes: ClusterChanges, request: Request) -> Procedure[Answer]:
    """Carry out one request. Errors are answers."""
    try:
        match request:
            case CreateTopic():
                return (yield from _create_topic(changes, request))
            case CreatePartitions():
                return (yield from _create_partitions(changes, request))
            case DeleteTopic():
                return (yield from _delete_topic(changes, request))
            case ElectLeaders():
                return (yield from _elect_leaders(changes, request))
            case ControlledShutdown():
                _check_broker_epoch(changes.context, request.broker_id, request.broker_epoch)
                remaining = yield from changes.controlled_shutdown(request.broker_id)
                return Answer(remaining=remaining)
            case AlterPartition():
                return (yield from alter_partition(changes, request))
            case AllocateProducerIds():
                _check_broker_epoch(changes.context, request.broker_id, request.broker_epoch)
                return Answer(producer_ids=(yield from allocate_block(changes.context, request.broker_id)))
    except ApiError as error:
        return Answer(error.code, error.message)


def _check_broker_epoch(context: ControllerContext, broker_id: int, broker_epoch: int) -> None:
    """Refuse a request of a life that this controller has not processed, or of one that is over (rule E3)."""
    epoch = context.broker_epochs.get(broker_id)
    if epoch is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered")
    if epoch != broker_epoch:
        reason = f"Broker {broker_id} has epoch {epoch}, the request is of epoch {broker_epoch}"
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, reason)


def _brokers(context: ControllerContext) -> Brokers:
    return in_order({broker_id: broker.rack for broker_id, broker in context.brokers.items()})


def _write(*parts: Check | Create | Set) -> Procedure[Outcome]:
    """Carry out a Multi. Raise ApiError for one that no coordinator can keep, such as the name ".node"."""
    multi = Multi(parts)
    try:
        check_operation(multi)
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"The coordinator cannot keep the topic: {error}") from error
    return (yield from write(multi))


def _create_topic(changes: ClusterChanges, request: CreateTopic) -> Procedure[Answer]:
    context, name = changes.context, request.name
    context.check_not_deleted(name)
    if name in context.assignments:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if request.assignments is None:
        assignments = assign_replicas(
            _brokers(context), request.partitions, request.replication_factor, request.spread
        )
    else:
        assignments = dict(request.assignments)
        _check_assignments(context, assignments, first=0)
    topic = Topic(request.topic_id, {index: Assignment(replicas) for index, replicas in assignments.items()})
    settings = encode_config(request.settings)
    config: Create | Set = Create(config_path(name), settings)
    while True:
        outcome = yield from _write(context.fence(), config, Create(topic_path(name), topic.encode()))
        index = failed_index(outcome)
        if not isinstance(outcome, CoordinationError):
            break
        if index == 1:  # the settings of a topic that was deleted, or half created, are replaced
            is_there = isinstance(outcome, NodeExists)
            config = Set(config_path(name), settings, ANY_VERSION) if is_there else Create(config_path(name), settings)
            continue
        node = yield from read_node(topic_path(name))
        if node is not None and node.data == topic.encode():
            break
        if node is not None:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    yield from changes.topics_changed()
    return Answer(assignments=assignments)


def _create_partitions(changes: ClusterChanges, request: CreatePartitions) -> Procedure[Answer]:
    context, name = changes.context, request.name
    if name not in context.assignments:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if name in context.topics_to_delete:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The topic '{name}' is being deleted.")
    while True:
        node = yield from read_node(topic_path(name))
        if node is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        topic = Topic.decode(topic_path(name), node.data)
        added = _new_assignments(context, topic, request)
        grown = Topic(
            topic.topic_id, {**topic.assignments, **{i: Assignment(replicas) for i, replicas in added.items()}}
        )
        outcome = yield from _write(context.fence(), Set(topic_path(name), grown.encode(), node.version))
        failed_index(outcome)
        if isinstance(outcome, CoordinationError):
            node = yield from read_node(topic_path(name))
            if node is None or node.data != grown.encode():
                continue
        yield from changes.topic_changed(name)
        return Answer(assignments=added)


def _new_assignments(
    context: ControllerContext, topic: Topic, request: CreatePartitions
) -> dict[int, tuple[int, ...]]:
    existing = len(topic.assignments)
    count = request.count - existing
    if count <= 0:
        reason = f"Topic currently has {existing} partitions, which is higher than the requested {request.count}."
        if count == 0:
            reason = f"Topic already has {existing} partition(s)."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, reason)
    if request.assignments is not None:
        if len(request.assignments) != count:
            reason = (
                f"Increasing the number of partitions by {count} but {len(request.assignments)} assignments provided."
            )
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        added = dict(enumerate(request.assignments, existing))
        _check_assignments(context, added, first=existing)
        return added
    return assign_added(_brokers(context), count, topic.assignments[0].replicas, existing)


def _check_assignments(context: ControllerContext, assignments: dict[int, tuple[int, ...]], first: int) -> None:
    """Refuse replicas on brokers that are not live, twice on one broker, or of different numbers."""
    if sorted(assignments) != list(range(first, first + len(assignments))):
        reason = f"The partitions are not numbered from {first} on without a gap."
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    for index, replicas in assignments.items():
        unknown = [replica for replica in replicas if replica not in context.brokers]
        if unknown:
            reason = f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}."
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        if not replicas or len(set(replicas)) < len(replicas):
            reason = f"Duplicate or no brokers in the replica assignment of partition {index}: {replicas}."
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    if len({len(replicas) for replicas in assignments.values()}) > 1:
        reason = "All partitions should have the same number of replicas."
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _delete_topic(changes: ClusterChanges, request: DeleteTopic) -> Procedure[Answer]:
    context, name = changes.context, request.name
    if name not in context.assignments:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    while True:
        outcome = yield from write(Multi((context.fence(), Create(deletion_path(name)))))
        failed_index(outcome)
        if not isinstance(outcome, CoordinationError) or isinstance(outcome, NodeExists):
            break
    yield from changes.deletions_changed()
    return Answer()


def _elect_leaders(changes: ClusterChanges, request: ElectLeaders) -> Procedure[Answer]:
    context = changes.context
    is_preferred = request.election_type == "preferred"
    elections: dict[TopicPartition, tuple[ErrorCode, str | None]] = {}
    electable: list[TopicPartition] = []
    for partition in context.partitions() if request.partitions is None else request.partitions:
        replicas, leadership = context.replicas(partition), context.leadership.get(partition)
        if not replicas:
            elections[partition] = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        elif partition.topic in context.topics_to_delete:
            elections[partition] = (ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
        elif leadership is not None and (
            leadership.leader == replicas[0] if is_preferred else context.is_live(leadership.leader)
        ):
            elections[partition] = (ErrorCode.ELECTION_NOT_NEEDED, None)
        else:
            electable.append(partition)
    elected = yield from changes.partitions.elect(electable, elect_preferred if is_preferred else elect_unclean)
    for partition in electable:
        elections[partition] = (ErrorCode.NONE, None) if partition in elected else _not_available(is_preferred)
    return Answer(elections=elections)


def _not_available(is_preferred: bool) -> tuple[ErrorCode, str]:
    if is_preferred:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
