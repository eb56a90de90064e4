"""Checks of what a user gives to a Producer, and the settings of librdkafka that follow."""

from typing import TYPE_CHECKING, Any

from broker.client.address import parse_addresses

if TYPE_CHECKING:
    from idgen.snowflake import Snowflake

PARTITION_MAX, TIMESTAMP_MS_MAX = (1 << 31) - 1, (1 << 63) - 1  # of the protocol
ALL, LEADER, NOBODY = ACKS = "all", "1", "0"  # who acknowledges a message: all in-sync replicas, the leader, no broker


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


def librdkafka_settings(
    servers: str, acks: object, compression: str, transactional_id: str | None, times_ms: tuple[int, int]
) -> dict[str, Any]:
    """Return the settings that decide what happens to a message. Raise ValueError for acks that cannot work.

    `times_ms` are the time limits of a message and of a transaction.
    """
    timeout_ms, transaction_timeout_ms = times_ms
    if acks not in ACKS:
        raise ValueError(f"acks={acks!r}: give 'all', '1' or '0'")
    if transactional_id is not None and acks != ALL:
        raise ValueError(f"acks={acks!r} with a transactional_id: transactions need acks='all'")
    settings = {
        "bootstrap.servers": servers,
        "client.id": "flakelog",
        "acks": acks,
        "enable.idempotence": acks == ALL,
        "message.timeout.ms": timeout_ms,
        "compression.type": compression,
        "log_level": 0,  # errors are raised or passed to a callback instead
    }
    if transactional_id is not None:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms}
        settings["message.timeout.ms"] = min(timeout_ms, transaction_timeout_ms)  # librdkafka demands it
    return settings


def stamper(
    ids: str | None, snowflake: "Snowflake | None", registry: dict[str, Any]
) -> "tuple[Snowflake | None, Snowflake | None]":
    """Return the Snowflake that the producer has to close, and the one that stamps; None without one.

    `registry` has the arguments of a Snowflake that name a registry of worker numbers; None is not given.
    """
    if ids is None:
        if snowflake is not None or any(value is not None for value in registry.values()):
            raise ValueError('a place for worker numbers is used with ids="header" only')
        return None, None
    if ids != "header":
        raise ValueError(f"ids={ids!r}: give 'header', or leave it out; a Flakelog broker makes the ids itself")
    if snowflake is not None:
        return None, snowflake
    from idgen.snowflake import Snowflake

    made = Snowflake(**registry)
    return made, made
