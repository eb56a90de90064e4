"""Checks of what a user gives to a Producer."""

from broker.client.address import parse_addresses

PARTITION_MAX, TIMESTAMP_MS_MAX = (1 << 31) - 1, (1 << 63) - 1  # of the protocol


def check_servers(servers: object) -> None:
    """Raise ValueError unless these are addresses as librdkafka takes them: a port is optional."""
    if not isinstance(servers, str):
        raise ValueError(f"servers={servers!r}: give text, such as 'host:9092,host:9093'")
    parse_addresses(servers, default_port=9092)


def check_place(topic: object, partition: object, timestamp_ms: object) -> None:
    """Raise TypeError or ValueError for what a message cannot have. librdkafka would send some of it elsewhere."""
    if not isinstance(topic, str):
        raise TypeError(f"topic={topic!r}: give a topic's name as text")
    if partition is not None and (not isinstance(partition, int) or not 0 <= partition <= PARTITION_MAX):
        raise ValueError(f"partition={partition!r}: give a number of at least 0, or leave it out")
    if timestamp_ms is not None and (not isinstance(timestamp_ms, int) or not 1 <= timestamp_ms <= TIMESTAMP_MS_MAX):
        raise ValueError(f"timestamp_ms={timestamp_ms!r}: give Unix ms of at least 1, or leave it out for now")
