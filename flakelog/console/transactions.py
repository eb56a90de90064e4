"""Transactions: the transactional ids, and the transactions that are open in partitions."""

from collections.abc import Sequence
from typing import NamedTuple

from broker.security.authorization.acl import Operation, ResourceType
from broker.services.context import BrokerServices
from flakelog.console.access import Access
from flakelog.console.topics import Pages, pages_of

OPEN_ROWS_MAX = 100


class TransactionRow(NamedTuple):
    """A transactional id. `open_ms` is for how long its transaction has been open, None if it has none.

    `is_late` says that it is open for longer than its timeout.
    """

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    open_ms: int | None
    partitions: Sequence[str]
    is_late: bool


class OpenRow(NamedTuple):
    """A transaction that is open in a partition: consumers with read_committed stop at `offset`."""

    topic: str
    partition: int
    producer_id: int
    offset: int
    held_back: int


class Transactions(NamedTuple):
    """A page of transactional ids, the longest open transactions first, and transactions by partition."""

    rows: Sequence[TransactionRow]
    pages: Pages
    is_open: Sequence[OpenRow]
    open_count: int


def transactions(services: BrokerServices, access: Access, now_ms: int, page: int = 0) -> Transactions:
    """Return the transactional ids of the coordinator, which is not made for that, as far as they may be seen."""
    every = [] if not services.coordinators.has_transactions else list(services.coordinators.transactions)
    by_need = [
        transaction
        for transaction in every
        if access.sees(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
    ]
    by_need.sort(
        key=lambda transaction: (not transaction.partitions, transaction.started_ms, transaction.transactional_id)
    )
    pages = pages_of(len(by_need), page)
    rows = []
    for transaction in by_need[pages.start : pages.end]:
        unmarked = sorted(services.coordinators.transactions.unmarked(transaction))
        is_open = bool(unmarked) and transaction.started_ms >= 0
        rows.append(
            TransactionRow(
                transaction.transactional_id,
                transaction.state.title,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.timeout_ms,
                max(now_ms - transaction.started_ms, 0) if is_open else None,
                [f"{topic}-{partition}" for topic, partition in unmarked if access.sees_topic(topic)],
                is_open and transaction.is_late(now_ms),
            )
        )
    open_rows = [
        OpenRow(log.topic, log.partition, producer, offset, log.high_watermark - log.last_stable_offset)
        for log in services.logs.all()
        if access.sees(Operation.READ, ResourceType.TOPIC, log.topic)  # as DescribeProducers
        for producer, offset in log.producers.open_transactions().items()
    ]
    open_rows.sort(key=lambda stalled: (-stalled.held_back, stalled.topic, stalled.partition))
    return Transactions(rows, pages, open_rows[:OPEN_ROWS_MAX], len(open_rows))
