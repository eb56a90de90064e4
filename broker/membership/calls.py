"""The calls that an engine hands to its shell: requests to other brokers, each with the connection that it takes.

Orders of the controller, requests and fetches have a connection each, so that none waits behind another kind: a leader
holds the fetch of a follower until it has records, and answers the requests of a connection in their order.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from broker.client.core import Address, Exchange, fetch_exchange
from broker.client.message_exchange import exchange_of, response_to
from broker.cluster.channel import Call
from broker.membership.peer_calls import PeerCall
from broker.now import Now
from broker.wire import fetch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchRequest, FetchResponse

FETCH_VERSION = 17
"""The Fetch of a follower of Kafka 3.9. Later versions add nothing for a cluster with ZooKeeper."""


@dataclass(frozen=True, eq=False)
class FetchCall:
    """A follower's Fetch to the leader of its partitions. Its response is passed to `called` with the same object.

    With `is_anew` it begins a new connection, because what came over the last one failed a check.
    """

    broker_id: int
    request: FetchRequest
    is_anew: bool = False


class Fetchers(Protocol):
    """The followers of this broker's partitions, which fetch from their leaders."""

    def take_calls(self, now: Now) -> list[FetchCall]:
        """Return the fetches to send now."""
        ...

    def called(self, call: FetchCall, response: FetchResponse | None, now: Now) -> None:
        """Take the response of a fetch, None if the leader was not reached or did not answer."""
        ...

    def registered(self) -> None:
        """Note that the controller was told of this life of the broker."""
        ...

    def leave(self) -> None:
        """Follow no further leader, because this broker stops."""
        ...

    def tick(self, now: Now) -> None: ...

    def next_deadline_ms(self) -> int | None: ...


AnyCall: TypeAlias = Call | PeerCall | FetchCall


class AddressedCall(NamedTuple):
    """A call, at the address of its broker on the listener of brokers."""

    host: str
    port: int
    call: AnyCall


class Link(Enum):
    """The connections to a broker."""

    ORDERS = "orders"
    REQUESTS = "requests"
    FETCHES = "fetches"


def link_of(call: AnyCall) -> Link:
    """Return the connection that a call takes."""
    match call:
        case Call():
            return Link.ORDERS
        case FetchCall():
            return Link.FETCHES
    return Link.REQUESTS


def exchange_of_call(address: Address, call: AnyCall) -> Exchange:
    """Return a call as the request for a node."""
    if isinstance(call, FetchCall):
        return fetch_exchange(address, FETCH_VERSION, call.request)
    return exchange_of(address, call.request)


def response_to_call(call: AnyCall, body: memoryview) -> Any | FetchResponse:
    """Return the response to a call, given the body of its answer. Raise WireError."""
    if isinstance(call, FetchCall):
        return fetch.decode_response(FETCH_VERSION, body, 0)
    return response_to(call.request, body)


def name_of_call(call: AnyCall) -> str:
    """Return the name of a call's API."""
    return "Fetch" if isinstance(call, FetchCall) else type(call.request).__name__.removesuffix("Request")


def is_denied(response: Any) -> bool:
    """Return True if a broker has answered that this one lacks the right to a call.

    A broker that denies a fetch, or markers, denies them for all partitions, so that the first one tells.
    """
    if isinstance(response, FetchResponse):
        partitions = response.partitions
        return bool(partitions) and partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for marker in getattr(response, "markers", ()):
        return any(
            partition.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            for topic in marker.topics[:1]
            for partition in topic.partitions[:1]
        )
    return bool(getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
