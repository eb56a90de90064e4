"""Administration of transactions: operations over a `ClientCore`, as those of broker.client.admin (KIP-664)."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from broker.client.address import Address
from broker.client.api_versions import DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS, WRITE_TXN_MARKERS
from broker.client.core import ClientCore, Steps, batched
from broker.client.errors import BadAnswer, BrokerError
from broker.client.group_protocol import Partition
from broker.client.group_requests import TRANSACTION, find_coordinator

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_TRANSACTION = -1  # the start offset of a producer without an open transaction
PARTITIONS_AT_ONCE = 500  # of a request; its answer lists all producers of each partition, often thousands in all
ANY_COORDINATOR_EPOCH = 0  # of a marker by an administrator: 0 fences no coordinator


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int
    """The node that coordinates it."""


class Transaction(NamedTuple):
    """A transactional id. The start is Unix ms; without an open transaction there are no partitions."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[Partition, ...]


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers. `first_offset` begins its open transaction, None without one."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    first_offset: int | None


def list_transactions(
    core: ClientCore, states: tuple[str, ...] = (), longer_than_ms: int = -1
) -> Steps[list[ListedTransaction]]:
    """Return the transactional ids of all nodes: in one of these states, and open for longer than a time."""
    found = []
    for node, address in (yield from core.nodes()).items():
        fields = {"state_filters": states, "producer_id_filters": (), "duration_filter": longer_than_ms}
        answer = yield from core.ask(address, LIST_TRANSACTIONS, fields)
        if answer.error_code:
            raise BrokerError(int(answer.error_code), f"transactions of node {node}")
        found += [
            ListedTransaction(each.transactional_id, int(each.producer_id), each.transaction_state, node)
            for each in answer.transaction_states
        ]
    return sorted(found)


def describe_transaction(core: ClientCore, transactional_id: str) -> Steps[Transaction]:
    """Return the state of a transactional id, and the partitions of its open transaction. Raise BrokerError."""
    address = yield from find_coordinator(core, transactional_id, TRANSACTION)
    answer = yield from core.ask(address, DESCRIBE_TRANSACTIONS, {"transactional_ids": (transactional_id,)})
    found = answer.transaction_states[0]
    if found.error_code:
        raise BrokerError(int(found.error_code), f"transactional id {transactional_id}")
    started_ms = (found.transaction_start_time - EPOCH) // timedelta(milliseconds=1)
    return Transaction(
        transactional_id,
        found.transaction_state,
        int(found.producer_id),
        int(found.producer_epoch),
        found.transaction_timeout // timedelta(milliseconds=1),
        started_ms if started_ms > 0 else None,
        tuple((str(topic.topic), int(each)) for topic in found.topics for each in topic.partitions),
    )


def describe_producers(core: ClientCore, topic: str, partition: int) -> Steps[list[ActiveProducer]]:
    """Return the producers that a partition remembers. Raise BrokerError."""
    found = yield from describe_producers_of(core, [(topic, partition)])
    return found[topic, partition]


def describe_producers_of(
    core: ClientCore, partitions: Iterable[Partition]
) -> Steps[dict[Partition, list[ActiveProducer]]]:
    """Return the producers that each partition remembers. Raise BrokerError for the first that has an error.

    One request asks a leader for up to PARTITIONS_AT_ONCE partitions.
    """
    asked: dict[Address, list[Partition]] = {}
    for topic, partition in dict.fromkeys(partitions):
        address = yield from core.leader(topic, partition)
        asked.setdefault(address, []).append((topic, partition))
    found: dict[Partition, list[ActiveProducer]] = {}
    for address, led in asked.items():
        for some in batched(led, PARTITIONS_AT_ONCE):
            found |= yield from _describe_producers(core, address, some)
    return found


def _describe_producers(
    core: ClientCore, address: Address, partitions: Iterable[Partition]
) -> Steps[dict[Partition, list[ActiveProducer]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    named = [{"name": topic, "partition_indexes": tuple(indexes)} for topic, indexes in topics.items()]
    answer = yield from core.ask(address, DESCRIBE_PRODUCERS, {"topics": named})
    found: dict[Partition, list[ActiveProducer]] = {}
    for each in answer.topics:
        for one in each.partitions:
            core.check(each.name, int(one.partition_index), int(one.error_code), one.error_message)
            found[str(each.name), int(one.partition_index)] = [_active(producer) for producer in one.active_producers]
    missing = [f"{topic}-{partition}" for topic, partition in partitions if (topic, partition) not in found]
    if missing:
        raise BadAnswer(f"the broker at {address} gave no producers of {', '.join(missing)}, which it was asked for")
    return found


def _active(each: Any) -> ActiveProducer:
    return ActiveProducer(
        int(each.producer_id),
        int(each.producer_epoch),
        int(each.last_sequence),
        int(each.last_timestamp),
        int(each.coordinator_epoch),
        None if each.current_txn_start_offset == NO_TRANSACTION else int(each.current_txn_start_offset),
    )


def abort_transaction(core: ClientCore, topic: str, partition: int, producer: ActiveProducer) -> Steps[None]:
    """Abort a producer's open transaction in one partition, without its coordinator. Raise BrokerError.

    This is for a transaction that hangs: its coordinator no longer knows of it.
    """
    address = yield from core.leader(topic, partition)
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": (partition,)}],
        "coordinator_epoch": max(producer.coordinator_epoch, ANY_COORDINATOR_EPOCH),
    }
    answer = yield from core.ask(address, WRITE_TXN_MARKERS, {"markers": [marker]})
    core.check(topic, partition, int(answer.markers[0].topics[0].partitions[0].error_code))
