"""The places at which the console reaches the broker of its process, and the other brokers of its cluster."""

from collections.abc import Callable
from typing import NamedTuple

from broker.client.address import Address
from broker.client.security.client_security import ClientSecurity
from coordination.socket_folder import SocketFolder


class OtherBrokers(NamedTuple):
    """How the console connects to other brokers: as the broker of its process does, at the listener of brokers.

    `own` is the address of that broker there. With `sockets` an address is the name of a socket in that folder.
    `security` returns that of a connection made now. Each connection acts for `principal`, User:ANONYMOUS if none is
    set: without an authorizer here, another broker may have one.
    """

    own: Address
    sockets: SocketFolder | None
    security: Callable[[], ClientSecurity | None]
    principal: str


class OwnPlace(NamedTuple):
    """An address, or the name of a socket in a folder, whose port is 0.

    Without `others`, other brokers are reached in the same way, at the addresses that they advertise.
    """

    host: str
    port: int
    sockets: SocketFolder | None = None
    others: OtherBrokers | None = None
