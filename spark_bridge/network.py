"""The network as a port, and one request and its answer on it.

`Network.connect(address)` gives a `Connection` that sends a frame and receives a frame (both without their length);
`Network.pause(ms)` waits. spark_bridge.range_reader has the sockets.
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
    """`host:port,host:port` (bootstrap.servers), IPv6 in brackets. ValueError names what is not an address."""
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
    """One connection to a broker. Both verbs block, and raise OSError where it is broken or too slow."""

    def send(self, frame: bytes) -> None: ...

    def receive(self) -> memoryview:
        """The next frame, in order."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    def connect(self, address: Address) -> Connection:
        """Raises OSError, its message naming the address."""
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
        """The answer to the earliest request not yet answered: its frame, and where the body begins."""
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
    """A question to a cluster that was not answered as hoped; the message can be shown to a person as it is."""


class TryAgain(ClusterError):
    """What a client meets in passing: a moved leader, an answer that is not there yet."""


class Refused(ClusterError):
    """The broker's answer is an error that asking again does not change."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: the broker answered {name_of(code)}")
        self.code = code


IN_PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a new topic, or a broker that has not heard of it yet
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Errors at which a Kafka client looks the leader up and asks again."""


def check(code: int, what: str) -> None:
    """TryAgain for an error in passing, Refused for another; `what` was asked."""
    if code in IN_PASSING:
        raise TryAgain(f"{what}: the broker answered {name_of(code)}")
    if code != ErrorCode.NONE:
        raise Refused(what, code)


def name_of(code: int) -> str:
    """`OFFSET_OUT_OF_RANGE (1)`."""
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error {code}"
