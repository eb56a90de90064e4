"""One message between fetch and settlement, its emissions, and the counts of what became of messages."""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple

from partition_manager.ports import FetchedRecord

# Of an entry and its record besides their contents: some 150 B of bookkeeping, the rest the record's own objects.
_OVERHEAD_BYTES = 250


class State(IntEnum):
    """Where a message stands; settled ones are forgotten."""

    WAITING = 0  # read, not yet emitted
    IN_FLIGHT = 1  # emitted, neither acked nor failed
    RETRYING = 2  # failed, its next attempt is scheduled
    BURYING = 3  # given up, its dead letter is not yet safe


class Message(NamedTuple):
    """One emission of a record; `attempt` is 1 the first time."""

    record: FetchedRecord
    ticket: int
    attempt: int


class Entry:
    """A message not yet settled. `left` counts the tuples of its latest emission that are not acked."""

    __slots__ = ("record", "offset", "size", "state", "ticket", "attempts", "left", "error", "reason")

    def __init__(self, record: FetchedRecord) -> None:
        self.record = record
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
    """What became of messages, by number; two can be added.

    fetched = acked + filtered + dead_lettered + truncated + what is pending still. `failed` counts failures, so one
    message may count often; `dead_lettered` includes `expired` and `undecodable`; `already_done` were read again but
    had been settled before a restart; `lost` were removed by retention before they were read; `stale` are acks and
    fails that came too late to count.
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
    already_done: int = 0
    lost: int = 0
    truncated: int = 0
    stale: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)))
