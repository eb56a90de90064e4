"""What can go wrong between a client of ours and a broker."""

from broker.wire.errors import ErrorCode

RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class ClientError(Exception):
    """Anything a client meets; the message can be shown to a person as it is."""


class Unreachable(ClientError):
    """No broker answers at an address; `reason` says how that was seen."""

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
    def retriable(self) -> bool:
        """Asking again, after the leaders were asked for anew, may succeed."""
        return self.code in RETRIABLE


class BadAnswer(ClientError):
    """What came back is not Kafka's protocol, or ends too early."""


class Unsupported(ClientError):
    """The broker has no version of an API that this client, or what was asked of it, needs."""
