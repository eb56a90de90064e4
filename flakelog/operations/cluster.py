"""The cluster: its brokers and their disks, and why a server acknowledges no messages."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from broker.client.api_versions import DESCRIBE_CLUSTER, DESCRIBE_LOG_DIRS, METADATA
from broker.client.blocking import Client
from broker.client.core import Address, Partition
from broker.client.errors import BrokerError, ClientError, Unreachable
from broker.client.security.client_security import ClientSecurity


class Broker(NamedTuple):
    id: int
    address: str
    rack: str | None


class Cluster(NamedTuple):
    """A cluster. `controller` is the id of the broker that is the controller, or -1 while the cluster has none."""

    id: str | None
    controller: int
    brokers: tuple[Broker, ...]


class LogDir(NamedTuple):
    """A data directory of a broker. The sizes of its disk are None from brokers before KIP-827."""

    broker: int
    path: str
    error: int
    total_bytes: int | None
    usable_bytes: int | None
    sizes: dict[Partition, int]
    """Bytes of each partition's log."""
    lags: dict[Partition, int]
    """How many committed messages of its leader each log lacks, without those that are not known."""


def describe_cluster(client: Client) -> Cluster:
    """Return the cluster as its metadata describe it. Any broker answers, since the controller may have just died."""
    answer = client.run(client.core.ask_any(METADATA, {"topics": (), "allow_auto_topic_creation": False}))
    brokers = [Broker(node.node_id, f"{node.host}:{node.port}", node.rack) for node in answer.brokers]
    return Cluster(answer.cluster_id, int(answer.controller_id), tuple(sorted(brokers)))


def problems_by_broker(client: Client) -> dict[int, tuple[str, ...]]:
    """Return the problems that brokers see in their cluster, as far as they answer and show them to this user.

    Brokers without a problem are left out, and so are those of Kafka.
    """
    problems = {}
    for node, address in client.run(client.core.nodes()).items():
        with suppress(ClientError):
            fields = {"include_cluster_authorized_operations": False}
            answer = client.run(client.core.ask(address, DESCRIBE_CLUSTER, fields))
            if answer.error_message and not answer.error_code:
                problems[node] = tuple(str(answer.error_message).splitlines())
    return problems


def log_dirs(client: Client) -> list[LogDir]:
    """Return the data directories of all brokers (DescribeLogDirs, KIP-113).

    Raise BrokerError if a broker refuses: it shows them to a user with `describe` on the cluster.
    """
    nodes = client.run(client.core.nodes())
    return [directory for node, address in nodes.items() for directory in _log_dirs_of(client, node, address)]


def _log_dirs_of(client: Client, node: int, address: Address) -> list[LogDir]:
    directories = []
    answer = client.run(client.core.ask(address, DESCRIBE_LOG_DIRS, {"topics": None}))
    if answer.error_code:
        raise BrokerError(int(answer.error_code), f"disks of broker {node}")
    for directory in answer.results:
        logs = {
            (str(topic.name), int(log.partition_index)): log for topic in directory.topics for log in topic.partitions
        }
        sizes = {partition: int(log.partition_size) for partition, log in logs.items()}
        lags = {partition: int(log.offset_lag) for partition, log in logs.items() if log.offset_lag >= 0}
        total, usable = _size(directory.total_bytes), _size(directory.usable_bytes)
        directories.append(LogDir(node, directory.log_dir, int(directory.error_code), total, usable, sizes, lags))
    return directories


def lags_by_broker(client: Client) -> dict[int, dict[Partition, int]]:
    """Return how many committed messages of its leader each copy lacks, by broker, as far as brokers answer."""
    lags: dict[int, dict[Partition, int]] = {}
    for node, address in client.run(client.core.nodes()).items():
        try:
            directories = _log_dirs_of(client, node, address)
        except ClientError:
            continue
        lags[node] = {partition: lag for directory in directories for partition, lag in directory.lags.items()}
    return lags


def partition_sizes(client: Client) -> dict[Partition, int]:
    """Return the bytes of each partition's log: those of its largest replica, as far as brokers show them."""
    sizes: dict[Partition, int] = {}
    for directory in _shown_log_dirs(client):
        for partition, size in directory.sizes.items():
            sizes[partition] = max(sizes.get(partition, 0), size)
    return sizes


def _shown_log_dirs(client: Client) -> Iterator[LogDir]:
    """Yield the data directories of the brokers that show them to this user."""
    for node, address in client.run(client.core.nodes()).items():
        with suppress(BrokerError):
            yield from _log_dirs_of(client, node, address)


def _size(number: int) -> int | None:
    return None if number < 0 else int(number)


# --- trouble ---------------------------------------------------------------------------------------------------------

ASK_MS = 800  # so that the reason comes within 5 s of the last acknowledgement


def why_not_acknowledged(servers: str, security: ClientSecurity | None = None) -> tuple[str, bool]:
    """Return why no acknowledgement comes, and whether no server answers."""
    try:
        with Client(servers, timeout_ms=ASK_MS, connect_timeout_ms=ASK_MS, security=security) as client:
            disk = full_disk(client)
    except Unreachable as error:
        return f"no broker answers at {error.address} ({error.reason})", True
    except ClientError as error:
        return str(error), False
    return disk or "the server answers, but acknowledges nothing; its log says why", False


def full_disk(client: Client) -> str:
    """Return which disk of a server is full, "" if none is, as far as brokers show them."""
    from broker.settings.config import BrokerConfig

    full = BrokerConfig().disk_full_bytes
    for disk in _shown_log_dirs(client):
        if disk.error or (disk.usable_bytes is not None and disk.usable_bytes < full):
            return f"the disk of the server is full: {disk.path}"
    return ""
