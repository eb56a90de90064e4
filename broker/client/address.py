"""Addresses of brokers, as Kafka's bootstrap.servers has them."""

from collections.abc import Iterable
from typing import NamedTuple

from broker.net.address import host_port


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
    found = []
    for each in filter(None, (part.strip() for part in servers.split(","))):
        if "://" in each or "@" in each:  # not quoted, because it may have a password
            raise ValueError("an address has no scheme, no user and no password; give host:port")
        host, colon, port = each.rpartition(":")
        if default_port is not None and (not colon or each.endswith("]")):
            host, port = each, str(default_port)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{each!r} is no address; give host:port, several with commas between")
        found.append(Address(host.strip("[]"), int(port)))
    if not found:
        raise ValueError("no address given; give host:port")
    return found


def addresses_of(servers: str | Iterable[Address]) -> list[Address]:
    """Return the addresses in a text, or the given addresses as a list. Raise ValueError for a list of texts."""
    if isinstance(servers, str):
        return parse_addresses(servers)
    found = list(servers)
    for each in found:
        if not isinstance(each, tuple):
            raise ValueError(f"servers={servers!r}: give text, such as 'host:9092,host:9093'")
    return found
