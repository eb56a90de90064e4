"""Addresses of brokers, as Kafka's bootstrap.servers has them."""

from collections.abc import Iterable
from typing import NamedTuple

from broker.address import host_port


class Address(NamedTuple):
    """A broker's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def parse_addresses(servers: str, default_port: int | None = None) -> list[Address]:
    """Parse "host:port,host:port", the format of Kafka's bootstrap.servers, with IPv6 addresses in brackets.

    Without a `default_port` each address needs a port. Raise ValueError naming an invalid address.
    """
    addresses = []
    for server in filter(None, (part.strip() for part in servers.split(","))):
        if "://" in server or "@" in server:  # not quoted, because it may have a password
            raise ValueError("an address has no scheme, no user and no password; give host:port")
        host, colon, port = server.rpartition(":")
        if default_port is not None and (not colon or server.endswith("]")):
            host, port = server, str(default_port)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{server!r} is no address; give host:port, several with commas between")
        addresses.append(Address(host.strip("[]"), int(port)))
    if not addresses:
        raise ValueError("no address given; give host:port")
    return addresses


def addresses_of(servers: str | Iterable[Address]) -> list[Address]:
    """Return the addresses in a text, or the given addresses as a list. Raise ValueError for a list of texts."""
    if isinstance(servers, str):
        return parse_addresses(servers)
    listed = list(servers)
    for server in listed:
        if not isinstance(server, tuple):
            raise ValueError(f"servers={servers!r}: give text, such as 'host:9092,host:9093'")
    return listed
