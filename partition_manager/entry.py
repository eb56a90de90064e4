"""A message from fetch to settlement, its emissions, and the counts of message outcomes."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from broker.client.records import PoisonBatch
from partition_manager.ports import FetchedRecord

# Estimated memory of a message and its record without their contents: about 150 B of bookkeeping, the rest for the
# record's own objects.
_OVERHEAD_BYTES = 250


class MessageState(IntEnum):
    """State of a message in one of its attempts."""

    WAITING = 0  # fetched, not yet emitted
    IN_FLIGHT = 1  # emitted, neither acked nor failed
    RETRYING = 2  # failed, with its next attempt scheduled
    BURYING = 3  # given up, with its dead letter not yet confirmed
    SETTLED = 4  # about to be forgotten


_WAITING = MessageState.WAITING


class Oldest(NamedTuple):
    """The timestamp of the oldest unsettled message, and the mean size of some, key and value, in bytes."""

    timestamp_ms: int
    mean_bytes: float


class Message:
    """An unsettled message in one of its attempts.

    Callers read `record`, `ticket`, `attempt` (from 1) and `poison`. These stay the same after the emission, because
    each retry is an object of its own. If `poison` is set, the message stands for that batch: its value is the whole
    batch, and it can only be rejected.

    The manager keeps the rest. `end` is the offset after the message and after the empty offsets behind it. `unacked`
    counts its tuples that are not acked. `failures` counts all failures, `attempt` only those that count. `reason` is
    set while it is BURYING.
    """

    __slots__ = (
        "record",
        "ticket",
        "attempt",
        "poison",
        "offset",
        "end",
        "size",
        "state",
        "unacked",
        "failures",
        "reason",
    )

    reason: str

    def __init__(self, record: FetchedRecord, offset: int, poison: PoisonBatch | None = None) -> None:
        self.record = record
        self.ticket = 0
        self.attempt = self.unacked = 1
        self.poison = poison
        self.offset = offset
        self.end = offset + 1
        self.state = _WAITING
        self.failures = 0
        key, value, headers = record.key, record.value, record.headers
        size = _OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            size += sum(len(name) + len(value or b"") for name, value in headers)
        self.size = size

    def retry(self, *, counts: bool) -> "Message":
        """Return the next attempt of this message, RETRYING; this attempt has failed, and `counts` or does not."""
        again = Message(self.record, self.offset, self.poison)
        again.ticket = self.ticket  # until the emission, which gives it a new one
        again.attempt = self.attempt + counts
        again.end = self.end
        again.state = MessageState.RETRYING
        again.failures = self.failures + 1
        return again


@dataclass
class Counts:
    """Counts of message outcomes; two instances can be added.

    fetched = acked + filtered + dead_lettered + refused + dropped + truncated + pending. `emitted` counts attempts,
    also of messages that then cannot be decoded, and `failed` counts failures, so both may count one message several
    times. `refused` counts messages whose dead letter no topic will ever take.
    `poison_batches` counts fetched batches whose records cannot be decoded; each is one message in the other counts.
    `dead_lettered` includes `expired`, `undecodable` and poison batches. `already_done` counts messages fetched again
    although they were settled before a restart. `lost` counts messages that retention removed before they were fetched.
    `stale` counts acks and fails that came too late to have an effect. `dropped` counts messages that failed under a
    guarantee that repeats none. `recreated` counts how often a partition's topic was deleted and created
    again, `truncations` how often its log lost messages that had been read.
    """

    fetched: int = 0
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    retried: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    refused: int = 0
    expired: int = 0
    undecodable: int = 0
    poison_batches: int = 0
    already_done: int = 0
    lost: int = 0
    truncated: int = 0
    stale: int = 0
    dropped: int = 0
    recreated: int = 0
    truncations: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return sum_of((self, other))


_VALUES = attrgetter(*(field.name for field in fields(Counts)))


def sum_of(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts, much faster than one by one."""
    return Counts(*map(sum, zip(*map(_VALUES, counts), strict=True)))
