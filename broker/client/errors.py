"""The errors of a client."""

from uuid import UUID

from broker.wire.errors import ErrorCode
from coordination.errors import FlakelogError

LEADER_IN_DOUBT = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors of a partition after which its leader is looked up again: Kafka's InvalidMetadataException, and some more."""

RETRIABLE = LEADER_IN_DOUBT | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
}
"""Errors that a retry may not meet: those of Kafka's RetriableException, and BROKER_NOT_AVAILABLE.

CORRUPT_MESSAGE is not one of them: Kafka's producer retries it, but a log that cannot be read stays so.
"""

MEMBER_FENCED = {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""Answers that say that a membership of a group has ended (KIP-447)."""


class ClientError(FlakelogError):
    """The base class of the errors of Client, Producer, Consumer and Admin."""


class Unreachable(ClientError):
    """No broker answers at an address; `reason` is the observed failure."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no broker answers at {address} ({reason}); start one with: flakelog server")
        self.address = address
        self.reason = reason


class NoBrokerKnown(Unreachable):
    """There is no address of a broker to ask; `reason` says why."""

    def __init__(self, reason: str) -> None:
        ClientError.__init__(self, reason)
        self.address = "no address"
        self.reason = reason


class NoAnswer(Unreachable):
    """A broker took a request and has not answered it in time; `seconds` is the time that was waited.

    With `is_broker` the broker has answered others on this connection, so it lives, and may still do what was asked.
    """

    def __init__(self, address: str, seconds: float, *, is_broker: bool = False) -> None:
        super().__init__(address, f"no answer within {seconds:g} s")
        self.seconds = seconds
        self.is_broker = is_broker
        if is_broker:
            self.args = (
                f"the broker at {address} has not answered within {seconds:g} s, and may still do what was asked: look "
                "before you repeat it. flakelog cluster describe says what it waits for",
            )


class NotAuthenticated(ClientError):
    """A broker and this client could not prove to each other who they are; a retry meets the same.

    The message says what would be right: a wrong password, a certificate of another name, a plain port.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
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


def no_leader(topic: str, partition: int) -> BrokerError:
    """Return the error of a partition that has no leader now: none of its replicas can serve it, so it is offline."""
    what = f"{topic}-{partition}"
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, what, "the partition is offline: no broker leads it now")


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


class TryAgain(ClientError):
    """The operation cannot go on for now: repeat it after `pause_ms`."""

    def __init__(self, reason: str, pause_ms: int) -> None:
        super().__init__(reason)
        self.pause_ms = pause_ms


class MustAbort(ClientError):
    """The transaction cannot commit. `error` is the broker's answer; its `what` names the partition or the group."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def member_fenced(self) -> bool:
        """Return True if the offsets name a membership of the group that has ended (KIP-447)."""
        return self.error.code in MEMBER_FENCED


class ProducerFenced(ClientError):
    """Another producer has taken the transactional id, or the coordinator has aborted a transaction that took too long.

    The last transaction was aborted, unless `commit` was called for it: then only the stored offsets tell.
    """


class ProduceError(ClientError):
    """A failure to deliver one or several messages; the text gives the reason."""


class QueueFull(ProduceError):
    """The producer's queue stayed full for `enqueue_timeout_ms`: messages arrive faster than the brokers accept them.
    """


class GroupRefused(ClientError):
    """A consumer group does not take this member; the text says what would be right."""


class CommitFailed(ClientError):
    """Offsets were not committed, because other members of the group own the partitions now, or the group is away."""


class InvalidTopics(FlakelogError, ValueError):
    """A consumer was given no topics, or topics and partitions that do not go together."""
