"""A message from fetch to settlement, its emissions, and the counts of message outcomes."""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple

from broker.client.records import PoisonBatch
from partition_manager.ports import FetchedRecord

# Estimated memory of an entry and its record without their contents: about 150 B of bookkeeping, the rest for the
# record's own objects.
_OVERHEAD_BYTES = 250


class State(IntEnum):
    """State of an unsettled message; settled messages are forgotten."""

    WAITING = 0  # fetched, not yet emitted
    IN_FLIGHT = 1  # emitted, neither acked nor failed
    RETRYING = 2  # failed, with its next attempt scheduled
    BURYING = 3  # given up, with its dead letter not yet confirmed


class Message(NamedTuple):
    """An emission of a record; `attempt` starts at 1.

    If `poison` is set, the message stands for that batch: its value is the whole batch, and it can only be rejected.
    """

    record: FetchedRecord
    ticket: int
    attempt: int
    poison: PoisonBatch | None = None


class Entry:
    """An unsettled message. `left` counts the tuples of its latest emission that are not acked."""

    __slots__ = ("record", "poison", "offset", "size", "state", "ticket", "attempts", "left", "error", "reason")

    def __init__(self, record: FetchedRecord, poison: PoisonBatch | None = None) -> None:
        self.record = record
        self.poison = poison
        self.offset = record.offset
        self.size = _size_bytes(record)
        self.state = State.WAITING
        self.ticket = 0
        self.attempts = 0
        self.left = 0
        self.error = ""
        self.reason = ""


def _size_bytes(record: FetchedRecord) -> int:
    size = _OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size


@dataclass
class Counts:
    """Counts of message outcomes; two instances can be added.

    fetched = acked + filtered + dead_lettered + truncated + pending. `failed` counts failures, so it may count one
    message several times. `poison_batches` counts fetched batches whose records cannot be decoded; each is one message
    in the other counts. `dead_lettered` includes `expired`, `undecodable` and poison batches. `already_done` counts
    messages fetched again although they were settled before a restart. `lost` counts messages that retention removed
    before they were fetched. `stale` counts acks and fails that came too late to have an effect.
    """

    fetched: int = 0
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    retried: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    expired: int = 0
    undecodable: int = 0
    poison_batches: int = 0
    already_done: int = 0
    lost: int = 0
    truncated: int = 0
    stale: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)))
