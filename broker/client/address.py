"""Addresses of brokers, as Kafka's bootstrap.servers has them."""

from typing import NamedTuple

from broker.net.address import host_port


class Address(NamedTuple):
    """A broker's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def parse_addresses(servers: str) -> list[Address]:
    """Parse "host:port,host:port", the format of Kafka's bootstrap.servers. Raise ValueError if it is invalid."""
    found = []
    for each in filter(None, (part.strip() for part in servers.split(","))):
        host, colon, port = each.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{each!r} is no address; give host:port, several with commas between")
        found.append(Address(host.strip("[]"), int(port)))
    if not found:
        raise ValueError("no address given; give host:port")
    return found
