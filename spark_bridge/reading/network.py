"""The client of a read as a port, addresses, and the errors of requests to a cluster.

`connect` returns the blocking client of broker.client, which keeps one connection to each broker and negotiates the
versions of its requests. Tests have a client without sockets.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from broker.client.address import Address as Address
from broker.client.address import parse_addresses
from broker.client.blocking import Client
from broker.client.core import ClientCore, Exchange, Steps
from coordination.errors import FlakelogError
from spark_bridge.reading.settings import ReadSettings

DEFAULT_PORT = 9092

T = TypeVar("T")


def addresses(servers: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port` (bootstrap.servers), IPv6 in brackets. Raise ValueError naming an invalid address."""
    return tuple(parse_addresses(servers, DEFAULT_PORT))


class ReadClient(Protocol):
    """The methods of broker.client.blocking.Client that a read calls; they are described there."""

    @property
    def core(self) -> ClientCore: ...

    def run(self, steps: Steps[T]) -> T: ...

    def send(self, exchange: Exchange) -> None: ...

    def receive(self, address: Address) -> memoryview: ...

    def give_up(self, address: Address) -> None: ...

    def pause(self, ms: int) -> None: ...

    def close(self) -> None: ...


def connect(servers: Sequence[Address], settings: ReadSettings) -> Client:
    """Return a client of the cluster behind `servers`. It connects when it is used."""
    return Client(
        servers,
        timeout_ms=settings.request_timeout_ms,
        client_id=settings.client_id,
        security=dict(settings.security),
    )


class ClusterError(FlakelogError):
    """A request to a cluster that failed; the message can be shown to a person unchanged."""


class BrokerRefused(ClusterError):
    """The broker answered with a permanent error, or has no version of the request that this client knows."""
