"""The errors of a client."""

from uuid import UUID

from broker.wire.errors import ErrorCode

RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class ClientError(Exception):
    """The base class of a client's errors; the message can be shown to a user."""


class Unreachable(ClientError):
    """No broker answers at an address; `reason` is the observed failure."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no broker answers at {address} ({reason}); start one with: flakelog server")
        self.address = address
        self.reason = reason


class BrokerError(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
        super().__init__(f"{what}: {self.code.name}" + (f" ({message})" if message else ""))
        self.what = what

    @property
    def with_remedy(self) -> str:
        """Return the message, and how to create the topic if that is what is missing."""
        topic = self.what.removeprefix("topic ")
        is_missing = self.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic != self.what
        return f"{self}; create it with: flakelog topic create {topic}" if is_missing else str(self)

    @property
    def retriable(self) -> bool:
        """True if a retry, with the leaders looked up again, may succeed."""
        return self.code in RETRIABLE


class BadAnswer(ClientError):
    """An answer that is not Kafka's protocol, or is cut off."""


class Unsupported(ClientError):
    """The broker lacks an API version that this client, or the requested operation, needs."""


class TopicRecreated(ClientError):
    """The topic was deleted and made again: it has the id `topic_id` now (KIP-516)."""

    def __init__(self, topic: str, topic_id: UUID | None) -> None:
        super().__init__(f"topic {topic} was deleted and made again; its id is {topic_id} now")
        self.topic_id = topic_id


class MissingId(ClientError):
    """A Flakelog broker sent a record without its Snowflake id, because an id index is damaged."""

    def __init__(self, partition: str, offset: int) -> None:
        super().__init__(f"the broker's answer for {partition} has no id for offset {offset}; its id index is damaged")
        self.offset = offset
