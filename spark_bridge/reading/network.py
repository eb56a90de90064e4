"""The network as a port, and requests and answers on one connection.

`Network.connect(address)` returns a `Connection` that sends and receives frames (both without their length);
`Network.pause(ms)` waits. The sockets are in spark_bridge.reading.range_reader.
"""

from typing import NamedTuple, Protocol

from broker.wire.errors import ErrorCode, WireError
from broker.wire.frame import request_header
from broker.wire.primitives import I32, skip_tags

CLIENT_ID = "flakelog-spark"
DEFAULT_PORT = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(servers: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port` (bootstrap.servers), IPv6 in brackets. Raise ValueError naming an invalid address."""
    found = []
    for each in filter(None, (one.strip() for one in servers.split(","))):
        host, colon, port = each.rpartition(":")
        if not colon or each.endswith("]"):
            host, port = each, str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{each!r} is not host:port")
        found.append(Address(host.strip("[]"), int(port)))
    if not found:
        raise ValueError("no server is named; host:port is wanted, several with commas between")
    return tuple(found)


class Connection(Protocol):
    """A connection to a broker.

    `send` and `receive` block, and raise OSError if the connection is broken or too slow.
    """

    def send(self, frame: bytes) -> None: ...

    def receive(self) -> memoryview:
        """Return the next frame, in order."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    def connect(self, address: Address) -> Connection:
        """Connect to a broker. Raise OSError with the address in its message."""
        ...

    def pause(self, ms: int) -> None: ...


class Conversation:
    """Requests and answers on one connection, in order. Flexible versions only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent = 0
        self._received = 0

    def send(self, api_key: int, version: int, body: bytes) -> None:
        self._sent += 1
        self._connection.send(request_header(api_key, version, self._sent, CLIENT_ID, flexible=True) + body)

    def receive(self) -> tuple[memoryview, int]:
        """Return the answer to the earliest unanswered request: its frame, and the position of the body."""
        frame = self._connection.receive()
        self._received += 1
        if len(frame) < 5 or I32.unpack_from(frame)[0] != self._received:
            raise WireError("the broker answered another request than was sent")
        return frame, skip_tags(frame, 4)

    def ask(self, api_key: int, version: int, body: bytes) -> tuple[memoryview, int]:
        self.send(api_key, version, body)
        return self.receive()

    def close(self) -> None:
        self._connection.close()


class ClusterError(Exception):
    """A request to a cluster that failed; the message can be shown to a person unchanged."""


class TryAgain(ClusterError):
    """A transient error: a moved leader, or an answer that is not available yet."""


class Refused(ClusterError):
    """The broker answered with an error that a retry does not change."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: the broker answered {name_of(code)}")
        self.code = code


IN_PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a new topic, or a broker that has not learned of it yet
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Errors after which a Kafka client looks up the leader and retries."""


def check(code: int, what: str) -> None:
    """Raise TryAgain for a transient error and Refused for any other. `what` names the request in the message."""
    if code in IN_PASSING:
        raise TryAgain(f"{what}: the broker answered {name_of(code)}")
    if code != ErrorCode.NONE:
        raise Refused(what, code)


def name_of(code: int) -> str:
    """Return the name of an error code: `OFFSET_OUT_OF_RANGE (1)`."""
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error {code}"
