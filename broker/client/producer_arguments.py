"""Checks of what a user gives to a Producer, and the settings of librdkafka that follow."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.client.address import parse_addresses
from broker.client.checked_arguments import INT32_MAX, INT64_MAX, check_function, check_number
from broker.client.security.client_security import ClientSecurity
from broker.client.security.settings import PLAINTEXT

if TYPE_CHECKING:
    from broker.client.registry.bootstrap import RegistryBootstrap
    from broker.client.registry.relay_tls import RelayTls
    from idgen.snowflake import Snowflake

ALL, LEADER, NOBODY = ACKS = "all", "1", "0"  # who acknowledges a message: all in-sync replicas, the leader, no broker
LIMITS = {
    "queue_time_ms": (0, 900_000),
    "batch_size": (1, 1_000_000),
    "queue_size": (1, INT32_MAX),
    "enqueue_timeout_ms": (0, INT32_MAX),
    "timeout_ms": (1, INT32_MAX),
    "transaction_timeout_ms": (1_000, INT32_MAX),
    "max_request_size": (1_000, 1_000_000_000),
}
"""The least and the most of a Producer's numbers: librdkafka's limits, without the 0 that is no limit there."""
COMPRESSIONS = "none", "gzip", "snappy", "lz4", "zstd"


class Brokers(NamedTuple):
    """Where librdkafka finds the brokers, and the name of that place in messages."""

    bootstrap: str
    name: str
    registry: "RegistryBootstrap | None" = None
    certificate_pem: str = ""
    """A certificate that librdkafka has to trust beside the authorities of the brokers."""


def check_brokers(servers: object, registry: object) -> None:
    """Raise ValueError unless one of both is given, and `servers` are addresses as librdkafka takes them: a port is
    optional.
    """
    if (servers is None) == (registry is None):
        raise ValueError("give the brokers as servers='host:9092', or their ZooKeeper as registry='host:2181/chroot'")
    if registry is None:
        _check_servers(servers)


def brokers_of(
    servers: str | None, registry: str | None, owned: ExitStack, security: ClientSecurity | None = None
) -> Brokers:
    """Return where the brokers are found. `owned` closes the session with a registry."""
    check_brokers(servers, registry)
    if servers is not None:
        return Brokers(servers, servers)
    assert registry is not None
    from broker.client.registry.bootstrap import RegistryBootstrap  # imports kazoo

    relay = _relay_tls(registry, security)
    protocol = PLAINTEXT if security is None else security.settings.protocol
    bootstrap = RegistryBootstrap(registry, protocol, relay)
    owned.callback(bootstrap.close)
    name = f"the brokers in ZooKeeper at {registry}"
    return Brokers(str(bootstrap.address), name, bootstrap, "" if relay is None else relay.certificate_pem)


def _relay_tls(registry: str, security: ClientSecurity | None) -> "RelayTls | None":
    """Return the TLS of the port that leads to the brokers if their names are checked. Raise ValueError."""
    if security is None or not (security.is_tls and security.settings.checks_name):
        return None
    tls = security.settings.tls
    if tls.ssl_truststore_location is None and tls.ssl_truststore_certificates is None:
        wanted = "give the authorities of the brokers by ssl.truststore.location"
        raise ValueError(f"registry={registry!r} with {security.settings.protocol}: {wanted}")
    from broker.client.registry.relay_tls import RelayTls  # cryptography loads slowly

    return RelayTls(security)


def _check_servers(servers: object) -> None:
    if not isinstance(servers, str):
        raise ValueError(f"servers={servers!r}: give text, such as 'host:9092,host:9093'")
    parse_addresses(servers, default_port=9092)


def check_numbers(**numbers: object) -> dict[str, int]:
    """Return numbers of a Producer by their names. Raise ValueError for one that is not within its LIMITS."""
    return {name: check_number(name, number, *LIMITS[name]) for name, number in numbers.items()}


def check_functions(**functions: object) -> None:
    """Raise TypeError for a function of a Producer that cannot be called."""
    for name, function in functions.items():
        check_function(name, function)


def check_place(topic: object, partition: object, timestamp_ms: object) -> None:
    """Raise TypeError or ValueError for what a message cannot have. librdkafka would send some of it elsewhere."""
    if not isinstance(topic, str):
        raise TypeError(f"topic={topic!r}: give a topic's name as text")
    if not topic or "\0" in topic:
        raise ValueError(f"topic={topic!r}: give a topic's name")
    if partition is not None:
        check_number("partition", partition, 0, INT32_MAX)
    if timestamp_ms is not None:
        check_number("timestamp_ms", timestamp_ms, 1, INT64_MAX)


def librdkafka_settings(
    servers: str, acks: object, compression: str, transactional_id: str | None, numbers: Mapping[str, int]
) -> dict[str, Any]:
    """Return the settings that decide what happens to a message. Raise ValueError for one that cannot work.

    `numbers` are those of `check_numbers`.
    """
    timeout_ms, transaction_timeout_ms = numbers["timeout_ms"], numbers["transaction_timeout_ms"]
    if acks not in ACKS:
        raise ValueError(f"acks={acks!r}: give 'all', '1' or '0'")
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression={compression!r}: give one of {', '.join(COMPRESSIONS)}")
    if transactional_id is not None and not (isinstance(transactional_id, str) and transactional_id):
        raise ValueError(f"transactional_id={transactional_id!r}: give text, or leave it out")
    if timeout_ms <= numbers["queue_time_ms"]:
        raise ValueError(f"timeout_ms={timeout_ms} must be above queue_time_ms={numbers['queue_time_ms']}")
    if transactional_id is not None and acks != ALL:
        raise ValueError(f"acks={acks!r} with a transactional_id: transactions need acks='all'")
    settings = {
        "bootstrap.servers": servers,
        "client.id": "flakelog",
        "acks": acks,
        "enable.idempotence": acks == ALL,
        "message.timeout.ms": timeout_ms,
        "message.max.bytes": numbers["max_request_size"],
        "linger.ms": numbers["queue_time_ms"],
        "batch.num.messages": numbers["batch_size"],
        "queue.buffering.max.messages": numbers["queue_size"],
        "compression.type": compression,
        "log_level": 0,  # errors are raised or passed to a callback instead
    }
    if transactional_id is not None:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms}
        settings["message.timeout.ms"] = min(timeout_ms, transaction_timeout_ms)  # librdkafka demands it
    return settings


def stamper(
    ids: str | None, snowflake: "Snowflake | None", workers: dict[str, Any], owned: ExitStack
) -> "Snowflake | None":
    """Return the Snowflake that stamps; None without one. `owned` closes one that is made here.

    `workers` has the arguments of a Snowflake that name a registry of worker numbers; None is not given.
    """
    if ids is None:
        if snowflake is not None or any(value is not None for value in workers.values()):
            raise ValueError('a place for worker numbers is used with ids="header" only')
        return None
    if ids != "header":
        raise ValueError(f"ids={ids!r}: give 'header', or leave it out; a Flakelog broker makes the ids itself")
    if snowflake is not None:
        return snowflake
    from idgen.snowflake import Snowflake

    made = Snowflake(**workers)
    owned.callback(made.close)
    return made
