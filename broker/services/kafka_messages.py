"""Messages of errors in Kafka's words, where scripts search for them.

Clients print the message of an answer, and scripts look for Kafka's text in it. So a message begins with that text;
what else we know follows. The texts are those of Kafka 4.3, and tests/compat/clients/test_errors_as_kafka.py asks
a real node.
"""

from uuid import UUID

from broker.metadata.image import Image
from broker.settings.config import NO_TOPIC_SETTING
from broker.settings.kafka_settings import broker_setting, topic_setting
from broker.wire.errors import ApiError, ErrorCode
from idgen.settings import InvalidSetting

NOT_HOSTED = "This server does not host this topic-partition."
ID_NOT_HOSTED = "This server does not host this topic ID."
NO_AUTHORIZER = "No Authorizer is configured."
DUPLICATE_TOPIC = "Duplicate topic name."
_ONE_OF = "must be one of "


def in_kafkas_words(error: InvalidSetting) -> str:
    """Return the message for a value that a setting cannot have, or for a setting that topics do not have."""
    if error.wanted.startswith(NO_TOPIC_SETTING):
        return f"Unknown topic config name: {error.name}{error.wanted.removeprefix(NO_TOPIC_SETTING)}"
    if not error.wanted:
        return str(error)
    return invalid_value(error.name, error.value, error.wanted)


def invalid_value(name: str, value: object, wanted: str) -> str:
    """Return the message for an invalid value; `wanted` says what would be valid."""
    return f"Invalid value {value} for configuration {name}: {_reason(name, wanted)}"


def _reason(name: str, wanted: str) -> str:
    row = topic_setting(name) or broker_setting(name)
    kind = row.type.upper() if row is not None else "LONG"
    if wanted == "must be a whole number" or wanted.startswith("must be a number"):
        return f"Not a number of type {kind}"
    if wanted == "must be true or false":
        return "Expected value to be either true or false"
    if wanted.startswith(_ONE_OF):
        return f"String must be one of: {wanted.removeprefix(_ONE_OF)}"
    return f"Value {wanted}" if wanted.startswith("must ") else wanted


def not_hosted(topic: str) -> str:
    """Return the message for a topic that does not exist."""
    return f"{NOT_HOSTED} There is no topic {topic}."


def unknown_topic(name: str) -> str:
    """Return the message for a topic whose settings are altered and that does not exist."""
    return f"The topic '{name}' does not exist."


def not_led(metadata: Image, topic: str | UUID, partition: int) -> ApiError:
    """Return the error for a partition that this broker does not lead, by what the controller decided about it."""
    described = metadata.topic(topic)
    if described is None:
        if isinstance(topic, UUID):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"{ID_NOT_HOSTED} No topic has the id {topic}.")
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, not_hosted(topic))
    if not 0 <= partition < len(described.partitions):
        last = len(described.partitions) - 1
        reason = f"{NOT_HOSTED} Topic {described.name} has partitions 0 to {last}, not {partition}."
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
    return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"another node leads {described.name}-{partition}")
