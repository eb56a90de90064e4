"""Transactions: list and describe them; find and abort those that hang (KIP-664)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from broker.client.api_versions import DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS, WRITE_TXN_MARKERS
from broker.client.blocking import Client
from broker.client.core import Address, Partition, batched
from broker.client.errors import BadAnswer, BrokerError
from broker.client.group_requests import TRANSACTION, find_coordinator
from broker.wire.errors import ErrorCode
from flakelog.operations.errors import NotPossible
from flakelog.operations.partitions import ask_each
from flakelog.visible_text import count_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONGOING = "Ongoing"
NO_TRANSACTION = -1  # the start offset of a producer without an open transaction
PARTITIONS_AT_ONCE = 500  # of a request; its answer lists all producers of each partition, often thousands in all
ANY_DURATION = -1
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


@dataclass(frozen=True)
class HangingTransaction:
    """An open transaction of a partition that no coordinator will end. Committed reads stop at its start offset."""

    topic: str
    partition: int
    start_offset: int
    producer: ActiveProducer


def list_transactions(client: Client, states: Sequence[str] = ()) -> list[ListedTransaction]:
    """Return the transactional ids of all nodes that are in one of these states, or all, sorted.

    Raise ValueError for a state that a node does not know.
    """
    transactions = []
    for node, address in client.run(client.core.nodes()).items():
        fields = {"state_filters": states, "producer_id_filters": (), "duration_filter": ANY_DURATION}
        answer = client.run(client.core.ask(address, LIST_TRANSACTIONS, fields))
        if answer.error_code:
            raise BrokerError(int(answer.error_code), f"transactions of node {node}")
        if answer.unknown_state_filters:
            unknown = ", ".join(answer.unknown_state_filters)
            raise ValueError(f"{unknown}: no state of a transaction that node {node} knows; Ongoing is one")
        transactions += [
            ListedTransaction(state.transactional_id, int(state.producer_id), state.transaction_state, node)
            for state in answer.transaction_states
        ]
    return sorted(transactions)


def describe_transaction(client: Client, transactional_id: str) -> Transaction:
    """Return the state of a transactional id, and the partitions of its open transaction. Raise NotPossible."""
    address = client.run(find_coordinator(client.core, transactional_id, TRANSACTION))
    fields = {"transactional_ids": (transactional_id,)}
    answer = client.run(client.core.ask(address, DESCRIBE_TRANSACTIONS, fields))
    state = answer.transaction_states[0]
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        listing = "`flakelog transactions list` shows those that there are"
        raise NotPossible(f"there is no transactional id {transactional_id}; {listing}")
    if state.error_code:
        raise BrokerError(int(state.error_code), f"transactional id {transactional_id}")
    started_ms = (state.transaction_start_time - EPOCH) // timedelta(milliseconds=1)
    return Transaction(
        transactional_id,
        state.transaction_state,
        int(state.producer_id),
        int(state.producer_epoch),
        state.transaction_timeout // timedelta(milliseconds=1),
        started_ms if started_ms > 0 else None,
        tuple((str(topic.topic), int(number)) for topic in state.topics for number in topic.partitions),
    )


def find_hanging(
    client: Client, partitions: Iterable[Partition], before_ms: int
) -> tuple[list[HangingTransaction], dict[Partition, BrokerError]]:
    """Return the open transactions that no coordinator will end, and the errors of partitions that do not answer.

    Leave out those whose producer has written after `before_ms`, Unix ms: its coordinator may only be about to learn of
    the transaction.
    """
    ongoing = {transaction.producer_id for transaction in list_transactions(client, (ONGOING,))}
    producers, errors = ask_each(partitions, lambda some: describe_producers_of(client, some))
    hanging = [
        HangingTransaction(topic, partition, producer.first_offset, producer)
        for (topic, partition), active in producers.items()
        for producer in active
        if producer.first_offset is not None
        and producer.producer_id not in ongoing
        and producer.last_timestamp_ms <= before_ms
    ]
    return hanging, errors


def producer_of(client: Client, topic: str, partition: int, start_offset: int) -> ActiveProducer:
    """Return the producer whose open transaction begins at an offset. Raise NotPossible if none does."""
    producers = describe_producers(client, topic, partition)
    begun = {producer.first_offset: producer for producer in producers if producer.first_offset is not None}
    if start_offset not in begun:
        offsets = f"; they begin at {', '.join(map(str, begun))}" if begun else ""
        number = count_of(len(begun), "open transaction")
        raise NotPossible(f"{topic}-{partition} has {number}, none from offset {start_offset}{offsets}")
    return begun[start_offset]


def abort_transaction(client: Client, topic: str, partition: int, producer: ActiveProducer) -> None:
    """Abort a producer's open transaction in one partition, without its coordinator.

    This is for a transaction that hangs: its coordinator no longer knows of it.
    """
    address = client.run(client.core.leader(topic, partition))
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": (partition,)}],
        "coordinator_epoch": max(producer.coordinator_epoch, ANY_COORDINATOR_EPOCH),
    }
    answer = client.run(client.core.ask(address, WRITE_TXN_MARKERS, {"markers": [marker]}))
    client.core.check(topic, partition, int(answer.markers[0].topics[0].partitions[0].error_code))


# --- producers -------------------------------------------------------------------------------------------------------


def describe_producers(client: Client, topic: str, partition: int) -> list[ActiveProducer]:
    """Return the producers that a partition remembers."""
    return describe_producers_of(client, [(topic, partition)])[topic, partition]


def describe_producers_of(client: Client, partitions: Iterable[Partition]) -> dict[Partition, list[ActiveProducer]]:
    """Return the producers that each partition remembers. Raise BrokerError for the first that has an error.

    One request asks a leader for up to PARTITIONS_AT_ONCE partitions.
    """
    led_by: dict[Address, list[Partition]] = {}
    for topic, partition in dict.fromkeys(partitions):
        leader = client.run(client.core.leader(topic, partition))
        led_by.setdefault(leader, []).append((topic, partition))
    producers: dict[Partition, list[ActiveProducer]] = {}
    for leader, led in led_by.items():
        for portion in batched(led, PARTITIONS_AT_ONCE):
            producers |= _describe_producers(client, leader, portion)
    return producers


def _describe_producers(
    client: Client, leader: Address, partitions: Iterable[Partition]
) -> dict[Partition, list[ActiveProducer]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    named = [{"name": topic, "partition_indexes": tuple(indexes)} for topic, indexes in topics.items()]
    answer = client.run(client.core.ask(leader, DESCRIBE_PRODUCERS, {"topics": named}))
    producers: dict[Partition, list[ActiveProducer]] = {}
    for described in answer.topics:
        for part in described.partitions:
            index = int(part.partition_index)
            client.core.check(described.name, index, int(part.error_code), part.error_message)
            producers[str(described.name), index] = [_active(producer) for producer in part.active_producers]
    missing = [f"{topic}-{partition}" for topic, partition in partitions if (topic, partition) not in producers]
    if missing:
        raise BadAnswer(f"the broker at {leader} gave no producers of {', '.join(missing)}, which it was asked for")
    return producers


def _active(producer: Any) -> ActiveProducer:
    return ActiveProducer(
        int(producer.producer_id),
        int(producer.producer_epoch),
        int(producer.last_sequence),
        int(producer.last_timestamp),
        int(producer.coordinator_epoch),
        None if producer.current_txn_start_offset == NO_TRANSACTION else int(producer.current_txn_start_offset),
    )
