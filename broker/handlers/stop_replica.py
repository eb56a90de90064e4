"""StopReplica, v4 to v4.

Behaviour: the controller ends copies of partitions on this broker, and has the logs of some deleted. Served on the
listener of brokers only. An order of an earlier controller, or for an earlier life of this broker, is refused as a
whole. A partition is refused with FENCED_LEADER_EPOCH if the order names an earlier leader epoch; the order to delete a
topic names none (KIP-570). A partition without a copy here needs nothing. The answer waits until the file of this
broker lists the deleted logs: none comes back at the next start.
"""

from typing import Any, TypeAlias

from broker.membership.hosted_partitions import HostedPlan, plan_stop_replica
from broker.metadata.change import Change
from broker.metadata.changes import Planned
from broker.metadata.staged import Staged
from broker.metadata.topic import topic_keys
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.image_consequences import host
from broker.services.membership import member_of
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

Answer: TypeAlias = dict[str, Any]


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    keys = topic_keys(str(topic.topic_name) for topic in call.request.topic_states)
    return call.services.hosting.submit(keys, lambda at: _begin(call, at), now)


def _begin(call: RequestContext, now: Now) -> Answer | Planned:
    services = call.services
    refusal = member_of(services).refusal_of_order(call.request, now)  # another life may have begun meanwhile
    if refusal:
        return {"error_code": refusal, "partition_errors": ()}
    plan = plan_stop_replica(services.hosted, services.node.id, call.request.topic_states)
    if not plan.deletes:
        host(services, plan.topics, now)
        return _answer(call, plan)

    def answer(error: ApiError | None, at: Now) -> Answer:
        return _answer(call, plan, ErrorCode.NONE if error is None else error.code)

    return Planned(Staged(Change(plan.topics)), answer)


def _answer(call: RequestContext, plan: HostedPlan, error: ErrorCode = ErrorCode.NONE) -> Answer:
    return {
        "error_code": ErrorCode.NONE,
        "partition_errors": [
            {
                "topic_name": topic.topic_name,
                "partition_index": state.partition_index,
                "error_code": plan.refused.get((str(topic.topic_name), state.partition_index), error),
            }
            for topic in call.request.topic_states
            for state in topic.partition_states
        ],
    }
