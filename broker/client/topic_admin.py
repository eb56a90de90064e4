"""Making, growing and deleting topics: requests to the controller over a `ClientCore`, for a shell to run.

They lie here, and not in flakelog/operations/ with the other requests of administrators, because `Client` has them too.
While a cluster has no controller they raise BrokerError with NOT_CONTROLLER, and have changed nothing.
"""

from collections.abc import Mapping

from broker.client.api_versions import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from broker.client.checked_arguments import check_settings
from broker.client.controller_request import ask_controller
from broker.client.core import ClientCore, Steps
from broker.client.errors import BrokerError

TIMEOUT_MS = 30_000
BROKER_DEFAULT = -1  # as many partitions as the broker's num.partitions, or copies as its default.replication.factor


def create_topic(
    core: ClientCore,
    name: str,
    partitions: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
    *,
    replication_factor: int = BROKER_DEFAULT,
    validate_only: bool = False,
) -> Steps[None]:
    """Create a topic, or only ask the broker whether it would. Raise BrokerError: TOPIC_ALREADY_EXISTS or another code.

    By default the broker chooses the replication factor and the number of partitions. A broker before Kafka 2.4 cannot
    do that (KIP-464): it refuses the request with INVALID_REPLICATION_FACTOR or INVALID_PARTITIONS.
    """
    check_settings(configs or {})
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": (),
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    fields = {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": validate_only}
    response = yield from ask_controller(core, CREATE_TOPICS, fields, lambda answer: (answer.topics[0].error_code,))
    answer = response.topics[0]
    if answer.error_code:
        raise BrokerError(int(answer.error_code), f"topic {name}", answer.error_message)


def add_partitions(core: ClientCore, topic: str, to: int, *, validate_only: bool = False) -> Steps[None]:
    """Increase a topic's number of partitions to `to`, or only ask the broker whether it would. Raise BrokerError."""
    grown = {"name": topic, "count": to, "assignments": None}
    fields = {"topics": [grown], "timeout": TIMEOUT_MS, "validate_only": validate_only}
    response = yield from ask_controller(
        core, CREATE_PARTITIONS, fields, lambda answer: (answer.results[0].error_code,)
    )
    result = response.results[0]
    if result.error_code:
        raise BrokerError(int(result.error_code), f"topic {topic}", result.error_message)


def delete_topic(core: ClientCore, name: str) -> Steps[None]:
    """Delete a topic and all its records. Raise BrokerError with UNKNOWN_TOPIC_OR_PARTITION or another code."""
    # v6 moved the name to another field, because it also allows topic ids (KIP-516).
    fields = {"topics": [{"name": name, "topic_id": None}], "topic_names": (name,), "timeout": TIMEOUT_MS}
    response = yield from ask_controller(core, DELETE_TOPICS, fields, lambda answer: (answer.responses[0].error_code,))
    core.forget_topic(name)
    answer = response.responses[0]
    if answer.error_code:
        raise BrokerError(int(answer.error_code), f"topic {name}", answer.error_message)
