"""CreateTopics, v2 to v7.

Behaviour: makes or refuses each topic separately, with a message; if the disk fails all are refused. A topic that is
named more than once is refused, and answered once, after the others. With -1 partitions it gets `num.partitions`. A
replication factor above the number of nodes is refused, as by Kafka. An unknown setting, or a setting without a value,
is refused with its name. The topics of the broker's internal records can be made before the broker needs them, with
settings that override the broker's. With `validate_only` nothing is made, and the answer is the same.
Version notes: v5 answers with partitions, replicas and settings (KIP-525); from v6 topics over the client's quota are
refused (KIP-599); v7 answers with the topic id (KIP-516).
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from broker.metadata.changes import Planned
from broker.metadata.staged import Staged
from broker.metadata.topic import CLUSTER_METADATA_TOPIC, NewTopic, Topic, topic_keys
from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, check, sees
from broker.services.config_resources import sources_of
from broker.services.context import BrokerServices, RequestContext
from broker.services.controller_requests import refusal_of_request
from broker.services.kafka_messages import DUPLICATE_TOPIC, in_kafkas_words
from broker.services.lower_replication import copies_max, lowered_factor, lowered_properties
from broker.services.topic_changes import plan_creation
from broker.settings.config import TopicConfig
from broker.settings.config_entries import topic_entries
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.cold import milliseconds
from broker.wire.errors import ApiError, ErrorCode
from idgen.settings import InvalidSetting

STRICT_VERSION = 6  # from this version a client over its quota is refused (KIP-599)
Answer: TypeAlias = dict[str, Any]


class _Planned(NamedTuple):
    """A topic that can be made, and the settings it would have."""

    new: NewTopic
    config: TopicConfig


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    if call.request.validate_only:
        return _answers(call, [(plan, None) for plan in _plans(call, now)])
    keys = topic_keys(topic.name for topic in call.request.topics)
    timeout_ms = max(milliseconds(call.request.timeout), 0)
    return call.services.changes.submit(keys, lambda at: _begin(call, at), now, timeout_ms)


def _plans(call: RequestContext, now: Now) -> list["_Planned | Answer"]:
    """Return for each topic what would be made of it, or the answer that refuses it."""
    named = Counter(topic.name for topic in call.request.topics)
    plans: list[_Planned | Answer] = []
    partitions_left = call.services.config.new_partitions_max
    refusal = refusal_of_request(call)
    for topic in call.request.topics:
        if named[topic.name] > 1:
            continue
        if refusal is not None:
            plans.append(_refused(topic.name, refusal.code, refusal.message))
            continue
        try:
            _check_rights(call, topic.name)
            planned = _plan(call, topic, partitions_left)
            call.count_mutation(planned.new.partitions, STRICT_VERSION, now)
            partitions_left -= planned.new.partitions
            plans.append(planned)
        except InvalidSetting as error:
            plans.append(_refused(topic.name, ErrorCode.INVALID_CONFIG, in_kafkas_words(error)))
        except ApiError as error:
            plans.append(_refused(topic.name, error.code, error.message))
    plans += [_refused(name, ErrorCode.INVALID_REQUEST, DUPLICATE_TOPIC) for name, times in named.items() if times > 1]
    return plans


def _check_rights(call: RequestContext, name: str) -> None:
    """Raise ApiError unless the client may make topics, or this one."""
    if not sees(call.rights, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        check(call.rights, Operation.CREATE, ResourceType.TOPIC, name)


def _begin(call: RequestContext, now: Now) -> Answer | Planned:
    """Plan all topics that can be made, together."""
    plans = _plans(call, now)
    planned = [plan for plan in plans if isinstance(plan, _Planned)]
    topics, staged = plan_creation(call.services, [creation.new for creation in planned])
    staged.on_end = lambda: call.note_topics("created", staged.change.topics, staged)

    def answer(error: ApiError | None, at: Now) -> Answer:
        outcomes = iter(_outcome(topic, error, staged) for topic in topics)
        return _answers(call, [(plan, next(outcomes) if isinstance(plan, _Planned) else None) for plan in plans])

    return Planned(staged, answer) if staged.change.topics else answer(None, now)


def _outcome(topic: Topic | ApiError, error: ApiError | None, staged: Staged) -> Topic | ApiError:
    """Return what became of a planned topic: `error` is that of all topics."""
    if isinstance(topic, ApiError):
        return topic
    return error if error is not None else staged.errors.get(topic.name, topic)


def _refused(name: str, code: ErrorCode, message: str | None) -> Answer:
    return {"name": name, "error_code": code, "error_message": message, "configs": ()}


def _plan(call: RequestContext, topic: Any, partitions_max: int) -> _Planned:
    services = call.services
    _check_name(call, topic.name)
    partitions, factor = _size(call, topic)
    if partitions < 1:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if partitions > partitions_max:
        raise ApiError(ErrorCode.POLICY_VIOLATION, too_many(services))
    properties = lowered_properties(services, topic.name, _properties(call, topic))
    config = services.config.topic_defaults.with_properties(properties)
    config.check_together()
    return _Planned(NewTopic(topic.name, partitions, properties, _assignments(topic), factor), config)


def too_many(services: BrokerServices) -> str:
    """Return the message for a request that would make too many partitions."""
    most = services.config.new_partitions_max
    reason = "Excessively large number of partitions per request."
    return f"{reason} One makes {most} at most (flakelog.new.partitions.max)."


def _answers(call: RequestContext, made: Iterable[tuple["_Planned | Answer", Topic | ApiError | None]]) -> Answer:
    def answer(result: tuple["_Planned | Answer", Topic | ApiError | None]) -> Answer:
        planned, topic = result
        return _answer(call, planned, topic) if isinstance(planned, _Planned) else planned

    return {"throttle_time": 0, "topics": LazyArray(list(made), answer)}


def _answer(call: RequestContext, planned: _Planned, made: Topic | ApiError | None) -> Answer:
    new = planned.new
    if isinstance(made, ApiError):
        return _refused(new.name, made.code, made.message)
    begin = {
        "name": new.name,
        "topic_id": None if made is None else made.id,
        "error_code": ErrorCode.NONE,
        "error_message": None,
    }
    if not sees(call.rights, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, new.name):
        return begin | {"topic_config_error_code": AUTHORIZATION_FAILED[ResourceType.TOPIC].code, "configs": ()}
    return begin | {
        "num_partitions": new.partitions,
        "replication_factor": new.replication_factor,
        "configs": _configs(call, planned.config, new.properties),
    }


def _check_name(call: RequestContext, name: str) -> None:
    if name == CLUSTER_METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if call.services.member is not None:
        context = call.services.member.controller.context
        if name in context.deletion_ineligible:  # any other deletion mostly ends before the controller makes the topic
            context.check_not_deleted(name)
    call.services.metadata.check_new(name)


def _properties(call: RequestContext, topic: Any) -> dict[str, str]:
    """Return the topic's settings. Raise InvalidSetting for an unknown name, ApiError for a null value."""
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    properties = {config.name: config.value for config in topic.configs}
    TopicConfig.check_names(properties)
    internal = call.services.coordinators.topic(topic.name)
    return properties if internal is None else {**internal.properties, **properties}


def _configs(call: RequestContext, config: TopicConfig, properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the settings in effect for a topic, in the form of the answer."""
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "read_only": entry.read_only,
            "config_source": entry.source,
            "is_sensitive": entry.sensitive,
        }
        for entry in topic_entries(config, properties, sources_of(call.services))
    ]


def _size(call: RequestContext, topic: Any) -> tuple[int, int]:
    """Return a topic's number of partitions, and its replication factor. Raise ApiError if they are impossible."""
    services = call.services
    nodes = len(services.metadata.brokers)
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            name = "replicationFactor" if topic.num_partitions == -1 else "numPartitions"
            reason = f"A manual partition assignment was specified, but {name} was not set to -1."
            raise ApiError(ErrorCode.INVALID_REQUEST, reason)
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based sequence")
        for assignment in topic.assignments:
            check_replicas(call, assignment.broker_ids, len(topic.assignments[0].broker_ids))
        factor = len(topic.assignments[0].broker_ids)
        _check_factor(services, factor)
        return len(indexes), factor
    factor = int(topic.replication_factor)
    if factor == -1:
        factor = services.default_replication_factor
    factor = lowered_factor(services, topic.name, factor)
    if not 1 <= factor <= nodes:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, _wrong_factor(factor, nodes))
    _check_factor(services, factor)
    return services.config.num_partitions if topic.num_partitions == -1 else int(topic.num_partitions), factor


def _check_factor(services: BrokerServices, replication_factor: int) -> None:
    """Raise ApiError INVALID_REPLICATION_FACTOR for more copies than a partition can have."""
    if replication_factor > copies_max(services):
        reason = f"Replication factor: {replication_factor}. A partition has one copy, because "
        reason += "flakelog.replication.enable is false; flakelog.lower.replication=true lowers the factor of each new "
        reason += "topic to 1."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)


def _assignments(topic: Any) -> list[tuple[int, ...]] | None:
    """Return the replicas that a request gives to the topic's partitions, in their order."""
    rows = sorted(topic.assignments, key=lambda assignment: assignment.partition_index)
    return [tuple(map(int, row.broker_ids)) for row in rows] if rows else None


def check_replicas(call: RequestContext, broker_ids: Sequence[int], replicas: int) -> None:
    """Raise ApiError INVALID_REPLICA_ASSIGNMENT unless these are known nodes, each once, and `replicas` of them."""
    wrong = _wrong_replicas(broker_ids, call.services.metadata.brokers)
    if wrong is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {wrong}")
    if len(broker_ids) != replicas:
        partition = (
            f"a partition with {len(broker_ids)} replica(s), but this is not consistent with previous partitions"
        )
        reason = f"The manual partition assignment includes {partition}, which have {replicas} replica(s)."
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _wrong_replicas(broker_ids: Sequence[int], registered: Container[int]) -> str | None:
    """Return why these replicas are refused, in Kafka's words, or None."""
    if not broker_ids:
        return "an empty replica list."
    for broker_id in broker_ids:
        if broker_id not in registered:
            return f"broker {broker_id}, but no such broker is registered."
        if list(broker_ids).count(broker_id) > 1:
            return f"the broker {broker_id} more than once."
    return None


def _wrong_factor(factor: int, nodes: int) -> str:
    """Return the message for an impossible replication factor; Kafka 3 with ZooKeeper had the second sentence."""
    if factor < 1:
        return "Replication factor must be larger than 0, or -1 to use the default value."
    reason = f"The target replication factor of {factor} cannot be reached because only {nodes} broker(s) are"
    older = f"Replication factor: {factor} larger than available brokers: {nodes}."
    return f"Unable to replicate the partition {factor} time(s): {reason} registered. {older}"
